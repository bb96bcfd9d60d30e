// Where mpirun has no network of its own (private_net.h), a library that is loaded into it keeps its sockets, and its
// ranks', on the loopback and to this user (preload/sockets.c). It is part of this program, and lies in no file.
#ifndef STARRING_SHARED_SUPERVISE_LOCAL_SOCKETS_H
#define STARRING_SHARED_SUPERVISE_LOCAL_SOCKETS_H

// For the program that this process becomes, and all that it starts. 0, or -1: it cannot be done here.
int local_sockets_preload(void);

#endif
