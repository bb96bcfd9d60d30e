// The limit of open descriptors (RLIMIT_NOFILE), raised before the first socket. libzmq aborts the process if no
// descriptor is left. Connections of strangers take descriptors too, for as long as a handshake may last.
#ifndef STARRING_SHARED_FABRIC_DESCRIPTORS_H
#define STARRING_SHARED_FABRIC_DESCRIPTORS_H

#include <stddef.h>

// descriptors_claim sets the soft limit to needed + spare (spare 0: to the hard limit). Returns 0, or -1 after logging
// that the limit is too low, and the number that is needed. A listener spares few: each stranger's connection may hold
// one frame in memory before the handshake ends.
#define DESCRIPTORS_SPARE 256
// The spare descriptors of a process that receives frames of heard_bytes.
int descriptors_spare(size_t heard_bytes);
int descriptors_claim(int needed, int spare);

#endif
