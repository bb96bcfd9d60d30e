// How many descriptors a process may hold (RLIMIT_NOFILE), looked at before its first socket: libzmq ends the process where it
// finds none left. Connections of strangers take descriptors too, for as long as a handshake may last.
#ifndef STARRING_SHARED_FABRIC_DESCRIPTORS_H
#define STARRING_SHARED_FABRIC_DESCRIPTORS_H

#include <stddef.h>

// The soft limit becomes so many and those to spare (0: whatever the hard one allows). A listener spares few: what a stranger
// sends before a handshake is over lies in memory, for each of his connections. 0, or -1 after logging that there are too
// few, and how many are needed.
#define DESCRIPTORS_SPARE 256
// The same, of a process that hears frames of so many bytes.
int descriptors_spare(size_t heard_bytes);
int descriptors_claim(int needed, int spare);

#endif
