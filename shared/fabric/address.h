// Addresses of this machine and of the rendezvous where ranks meet.
#ifndef STARRING_SHARED_FABRIC_ADDRESS_H
#define STARRING_SHARED_FABRIC_ADDRESS_H

#include <stdbool.h>

#define ADDRESS_MAX 64  // bytes of a numeric address, with the closing zero

// out receives the numeric address of a host. Returns 0; 1: the name service does not answer now; -1 after logging
// that no such name exists.
int address_resolve(const char *host, char out[ADDRESS_MAX]);
// out receives the address at which other machines reach this one. `interface` is a name, an address of this machine,
// or a list as NCCL's ("eth,ib", "=eth0", "^docker,lo"). NULL: the address from which packets to `to` leave. Returns
// 0, or -1 after logging.
int address_own(const char *interface, const char *to, char out[ADDRESS_MAX]);
bool address_is_number(const char *host);
bool address_is_loopback(const char *host);  // numbers and "localhost"; asks no name service

// "tcp://HOST:PORT". host: a name, a number without brackets, or an interface; "*" is read as 0.0.0.0. port 0: "*", any
// that is free.
struct endpoint {
    char host[256];
    int port;
};
// name: the flag or key that gives the text, for the message; NULL: nothing is logged. Returns 0 or -1.
int endpoint_read(const char *name, const char *text, struct endpoint *out);
// "tcp://10.0.0.1:29500", "tcp://[fe80::1]:29500", "tcp://10.0.0.1:*"
void endpoint_text(const char *host, int port, char *out, unsigned long size);

#endif
