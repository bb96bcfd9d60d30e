// How many descriptors a process may hold (RLIMIT_NOFILE), and whether it can start threads (RLIMIT_NPROC), looked at before
// its first socket: libzmq ends the process where it finds none left. Connections of strangers take descriptors too, for as
// long as a handshake may last.
#ifndef STARRING_PS_NET_DESCRIPTORS_H
#define STARRING_PS_NET_DESCRIPTORS_H

#include <stddef.h>

#include "shared/config/config.h"

// Of a job of so many shard threads a server: what a role holds with all members connected, generously.
int descriptors_of_scheduler(const struct config *c, int threads);
int descriptors_of_server(const struct config *c, int threads);
int descriptors_of_worker(const struct config *c, int shards);

// The soft limit becomes so many and those to spare (0: whatever the hard one allows). A listener spares few: what a stranger
// sends before a handshake is over lies in memory, for each of his connections. 0, or -1 after logging that there are too
// few, and how many are needed.
#define DESCRIPTORS_SPARE 256
// The same, of a process that hears frames of so many bytes.
int descriptors_spare(size_t heard_bytes);
int descriptors_claim(int needed, int spare);

#endif
