// The memory that a server shares with workers: its own segment and theirs. In its own segment it publishes weights
// that workers read in place. The workers' segments hold gradients and, for some workers, the weights that the server
// writes.
//
//     worker                                  shard
//     ATTACH seq 1, the worker's segment -->  opens it (once for all shards of the server)
//                                       <--   ATTACHED seq 1: the server's own segment, or HELD: why nothing is shared
//     ATTACH seq 2, "" (it cannot, after all) --> nothing is shared: frames travel      <-- ATTACHED seq 2
//
// Threads     server_sharing_answer: any shard's; all other functions: the server's main thread, while no shard runs.
#ifndef STARRING_PS_SERVER_SERVER_SHARING_H
#define STARRING_PS_SERVER_SERVER_SHARING_H

#include <pthread.h>

#include "ps/server/server_options.h"
#include "shared/core/segment.h"

struct server_sharing {
    bool shares;         // as configured
    struct segment own;  // base NULL: no weights are published
    int count;           // of workers
    struct worker_segment {
        char name[SEGMENT_NAME_MAX];  // "": not opened
        struct segment segment;
        uint32_t life;  // the process that owns it, if the worker's rank may pass to another process; else 0
        uint32_t *met;  // (threads) the last life (process of the rank) that each shard knows
        struct old_segment {
            struct segment segment;
            uint32_t life;
        } * old;  // of processes that have died, until no shard uses them
        int olds;
    } * workers;
    int threads;
    pthread_mutex_t lock;  // guards workers
};

// Creates the own segment if server `rank` publishes weights in one. Returns 0, or -1 after logging.
int server_sharing_create(struct server_sharing *s, const struct config *c, const struct shard_map *m,
                          int rank);
void server_sharing_destroy(struct server_sharing *s);  // zeroed or created
// Answers a worker's ATTACH to shard thread `thread`: *out receives what its shard may use from now on, *answer the
// ATTACHED.
void server_sharing_answer(struct server_sharing *s, int thread, const struct wire_header *h,
                           struct server_segment *out, struct wire_header *answer);

#endif
