// The memory that a server shares: the segment in which it publishes weights that workers read in place, and the
// workers' segments, which hold gradients and, for some, the weights that the server writes.
//
//     worker                                  shard
//     ATTACH seq 1, the worker's segment -->  opens it (once for all shards of the server)
//                                       <--   ATTACHED seq 1: the server's own segment, or HELD: why nothing is shared
//     ATTACH seq 2, "" (it cannot, after all) --> nothing is shared: frames travel      <-- ATTACHED seq 2
//
// Threads     server_sharing_answer: any shard's; the rest: the server's main thread, without shards.
#ifndef STARRING_PS_SERVER_SERVER_SHARING_H
#define STARRING_PS_SERVER_SERVER_SHARING_H

#include <pthread.h>

#include "ps/server/server_options.h"
#include "shared/core/segment.h"

struct server_sharing {
    bool shares;         // by its configuration
    struct segment own;  // base NULL: weights are published in none
    int count;           // of workers
    struct worker_segment {
        char name[SEGMENT_NAME_MAX];  // "": not opened
        struct segment segment;
        uint32_t life;  // whose it is, where the worker's rank may pass to another process; else 0
        uint32_t *met;  // (threads) the life that each shard has met
        struct old_segment {
            struct segment segment;
            uint32_t life;
        } * old;  // of processes that have died, until no shard knows them
        int olds;
    } * workers;
    int threads;
    pthread_mutex_t lock;  // guards workers
};

// Creates the own segment where server `rank` publishes in one. 0, or -1 after logging.
int server_sharing_create(struct server_sharing *s, const struct config *c, const struct shard_map *m,
                          int rank);
void server_sharing_destroy(struct server_sharing *s);  // zeroed or created
// A worker's ATTACH, to shard thread `thread`: *out is what its shard reaches from now on, *answer the ATTACHED.
void server_sharing_answer(struct server_sharing *s, int thread, const struct wire_header *h,
                           struct server_segment *out, struct wire_header *answer);

#endif
