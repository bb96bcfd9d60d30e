// A hub: where the ranks of one host meet, and their collectives (collective_hub.c). Ranks are threads of one process, or
// processes of one job that share a segment. Neither needs staging in host memory; native order is the same as ordered. A
// failure of one rank aborts the whole hub.
//
//     threads      load straight from each other's buffers; what is small, from copies
//     processes    load from copies in the segment, chunk by chunk, and large blocks straight from their owner's memory where
//                  the kernel lets them; each joins the hub with its rank
//
// Ownership   hub_destroy after every collective of the hub. Of processes each destroys its own handle; the segment belongs
//             to the caller, and its pages go with the last process that maps them, however it ends.
#ifndef STARRING_DECENTRAL_COLLECTIVE_HUB_H
#define STARRING_DECENTRAL_COLLECTIVE_HUB_H

#include "decentral/collective/collective.h"

struct hub;
struct rank_lives;
struct hub *hub_create(int size);  // for threads. NULL after logging
void hub_destroy(struct hub **h);
// Any thread. Ends the waits of every rank.
void hub_abort(struct hub *h, const char *why);

// Runs work(ctx, hub, rank) for each of `size` ranks on a thread of its own, until all have returned. A rank whose work
// fails aborts the hub. 0, or -1: why the first did is then this thread's last error.
// flag: what sets size, for the message where a thread cannot be started.
int hub_run(int size, const char *flag, int (*work)(void *ctx, struct hub *hub, int rank), void *ctx);

// Of processes: at most so many, and the bytes of shared memory, all zeros to begin with, that they meet in. Its first bytes
// are a struct last_word (decentral/collective/last_word.h).
#define HUB_PROCESSES_MAX 1024
size_t hub_bytes(int size);
// This process is the rank from now on. lives outlives the hub, and has its end there.
struct hub *hub_join(void *memory, int rank, int size, struct rank_lives *lives);

// world: struct hub. shm: of processes; staged: whose device memory is not the host's.
extern const struct collective_kind collective_threads_kind, collective_shm_kind, collective_shm_staged_kind;

#endif
