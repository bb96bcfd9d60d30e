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
// "tcp://10.0.0.1:29500", "tcp://[fe80::1]:29500"
void address_endpoint(const char *address, int port, char *out, unsigned long size);
bool address_is_number(const char *host);
bool address_is_loopback(const char *address);

#endif
