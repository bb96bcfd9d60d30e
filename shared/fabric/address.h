// Addresses of this machine and of the place where ranks meet.
#ifndef STARRING_SHARED_FABRIC_ADDRESS_H
#define STARRING_SHARED_FABRIC_ADDRESS_H

#include <stdbool.h>

#define ADDRESS_MAX 64  // of a numeric one, with its zero

// The numeric address of a host. 0; 1: the name service does not answer now; -1 after logging that there is no such name.
int address_resolve(const char *host, char out[ADDRESS_MAX]);
// The address of this machine at which others reach it: that of `interface` (a name or one of this machine's addresses, or a list
// as NCCL's: "eth,ib", "=eth0", "^docker,lo"), or with NULL the one from which packets to `to` leave. -1 after logging.
int address_own(const char *interface, const char *to, char out[ADDRESS_MAX]);
// "tcp://10.0.0.1:29500", "tcp://[fe80::1]:29500"
void address_endpoint(const char *address, int port, char *out, unsigned long size);
bool address_is_number(const char *host);
bool address_is_loopback(const char *address);

#endif
