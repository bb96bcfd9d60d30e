// A hub: the memory and the barriers that the ranks of one host share, for their collectives (collective_hub.c). Ranks
// are threads of one process, or processes of one job that share a memory segment. Neither needs staging in host
// memory; native order is the same as ordered. A failure of one rank aborts the whole hub.
//
//     threads      load directly from each other's buffers; small calls from copies
//     processes    load from copies in the segment, chunk by chunk; large blocks directly from their owner's memory if the
//                  kernel allows it; each process joins the hub with its rank
//
// Ownership   Call hub_destroy after every collective of the hub. Each process destroys its own handle. The caller
//             owns the segment; its pages are freed with the last process that maps them, however it ends.
#ifndef STARRING_DECENTRAL_COLLECTIVE_HUB_H
#define STARRING_DECENTRAL_COLLECTIVE_HUB_H

#include "decentral/collective/collective.h"

struct hub;
struct rank_liveness;
struct hub *hub_create(int size);  // For threads. Returns NULL after logging.
void hub_destroy(struct hub **h);
// Ends the waits of every rank. Any thread.
void hub_abort(struct hub *h, const char *why);

// Runs work(ctx, hub, rank) on one thread per rank, until all have returned. A rank whose work fails aborts the hub.
// Returns 0, or -1; this thread's last error is then the first failure. flag: the option that sets size, for the
// message if a thread cannot be started.
int hub_run(int size, const char *flag, int (*work)(void *ctx, struct hub *hub, int rank), void *ctx);

// Processes: at most so many. hub_bytes: bytes of their shared memory, which is initially zero. It begins with a
// struct end_reason (rank_liveness.h).
#define HUB_PROCESSES_MAX 1024
size_t hub_bytes(int size);
// Makes this process the rank of the hub. lives outlives the hub, and keeps its end in this memory.
struct hub *hub_join(void *memory, int rank, int size, struct rank_liveness *lives);

// The world of both is a struct hub. threads: for ranks that are threads; shm: for processes.
extern const struct collective_kind collective_threads_kind, collective_shm_kind;

#endif
