// Where ranks of a test meet, on this machine, at a port that the first of them finds.
#ifndef STARRING_TESTS_DECENTRAL_MEETS_H
#define STARRING_TESTS_DECENTRAL_MEETS_H

#include <stdatomic.h>
#include <unistd.h>

#include "decentral/collective/rank_liveness.h"
#include "shared/fabric/rendezvous.h"

// Blocks until all are there. port: shared by all, 0 at first. deadline_s: of the ranks' waits, at least.
static inline struct rendezvous *meets(int rank, int size, double deadline_s, _Atomic int *port) {
    struct rendezvous_options o = {.host = "127.0.0.1",
                                   .rank = rank,
                                   .size = size,
                                   .deadline_s = 60,
                                   .silent_s = 1000,
                                   .beat_s = rendezvous_heartbeat_s(deadline_s),
                                   .no_key = true,
                                   .no_wait = true};
    while (rank && !(o.port = atomic_load(port))) usleep(1000);
    struct rendezvous *meet = rendezvous_open(&o);
    if (meet && !rank) atomic_store(port, rendezvous_port(meet));
    if (meet && rendezvous_wait(meet, NULL)) rendezvous_close(&meet);
    return meet;
}

#endif
