// The memory that a worker shares with servers of its host: its own segment, in which its gradients lie, and, where
// weights are read in place (ps/net/medium.h), the servers' segments, of which a window shows the units as the model
// wants them, each in one piece:
//
//     server 0's segment   | head | key 0 | key 2 |            server 1's   | head | key 1 | key 3 |
//                                    |       '----------------------.              |       |
//     window, unit 0       | key 0 | key 1 |    unit 1    | key 2 | key 3 |  <-----'-------'
//
// A key of a server that shares nothing has pages of this worker's own there, and comes in frames.
//
// A worker on a GPU has the page-locked twins of all gradients and weights in its segment (staging.h): page-locked for
// the device as long as the arena is, which is released before the segment is unmapped.
//
// Order       create, attach (ps/worker/enter.h), settle; then the window is complete and stays as it is.
// Threads     One at a time; nothing changes after settle.
#ifndef STARRING_PS_WORKER_SHARING_H
#define STARRING_PS_WORKER_SHARING_H

#include "ps/worker/worker_memory.h"
#include "shared/core/segment.h"

struct sharing {
    const struct config *c;  // the run's; or tcp
    struct config tcp;  // the run's without shared memory, where it cannot be had on this worker's device
    const struct layout *l;
    const struct shard_map *map;
    struct segment own;
    bool in_place;
    char *window;  // NULL: weights are not read in place
    size_t window_bytes;
    struct segment *servers;  // (servers)
    bool *shared;             // (shards)
};

// Takes the worker's memory: what is shared in a segment, the rest from the arena. Where the configuration shares
// nothing, or the device takes no shared memory and it need not, all is the arena's, and the rest of this file has
// nothing to do. 0, or -1 after logging; the arena is released before sharing_destroy in either case.
int sharing_create(struct sharing *s, const struct config *c, const struct layout *l,
                   const struct shard_map *m, struct arena *a, struct worker_buffers *out);
void sharing_destroy(struct sharing *s);  // zeroed or created
// Shard `shard` reaches this worker's segment; name: of its server's own, "" for none. 0, or -1 with why.
int sharing_meet(struct sharing *s, int shard, const char *name, char why[SEGMENT_WHY_MAX]);
// Maps the window, once all servers have been met. 0, or -1 after logging.
int sharing_settle(struct sharing *s, struct arena *a);
// Initial weights of the keys that the servers do not share; the others are the servers' to write.
int sharing_load(const struct sharing *s, int u, const float *values, void *weights);
const char *sharing_medium(const struct sharing *s);  // "shm", "tcp", "shm and tcp"

#endif
