// Ranks that are threads of one process: what they share, and their collectives. These need no staging; native
// order is the same as ordered. A failure of one rank aborts the whole hub.
#ifndef STARRING_DECENTRAL_COLLECTIVE_THREADS_HUB_H
#define STARRING_DECENTRAL_COLLECTIVE_THREADS_HUB_H

#include "decentral/collective/collective.h"

struct threads_hub;
struct threads_hub *threads_hub_create(int size);  // NULL after logging
void threads_hub_destroy(struct threads_hub **h);  // after every collective of it
// Any thread. Ends the waits of every rank.
void threads_hub_abort(struct threads_hub *h, const char *why);
bool threads_hub_aborted(struct threads_hub *h, char *why, size_t why_bytes);  // why is written when true

// Runs work(ctx, hub, rank) for each of `size` ranks on a thread of its own, until all have returned. A rank whose work
// fails aborts the hub. 0, or -1: the failure whose consequences the others are is then this thread's last error.
// flag: what sets size, for the message where a thread cannot be started.
int threads_hub_run(int size, const char *flag, int (*work)(void *ctx, struct threads_hub *hub, int rank),
                    void *ctx);

extern const struct collective_kind collective_threads_kind;  // world: struct threads_hub

#endif
