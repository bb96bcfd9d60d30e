// The memory that a worker shares with servers on its host. Its own segment holds its gradients. Where weights are
// read in place (ps/net/medium.h), the worker also maps the servers' segments: a window shows each unit
// in one contiguous range, as the model needs it:
//
//     server 0's segment   | head | key 0 | key 2 |            server 1's   | head | key 1 | key 3 |
//                                    |       '----------------------.              |       |
//     window, unit 0       | key 0 | key 1 |    unit 1    | key 2 | key 3 |  <-----'-------'
//
// A key of a server that shares nothing has private pages of this worker in the window, and arrives in frames.
//
// A worker on a GPU keeps the page-locked twins of all gradients and weights in its segment (staging.h). They remain
// page-locked as long as the arena exists; the arena is released before the segment is unmapped.
//
// Order       create, attach (ps/worker/enter.h), settle; then the window is complete and no longer changes.
// Threads     One at a time; nothing changes after settle.
#ifndef STARRING_PS_WORKER_SHARING_H
#define STARRING_PS_WORKER_SHARING_H

#include "ps/worker/worker_memory.h"
#include "shared/core/segment.h"

struct sharing {
    const struct config *c;  // the run's, or tcp
    struct config tcp;       // the run's without shared memory, if this worker's device cannot use it
    const struct layout *l;
    const struct shard_map *map;
    struct segment own;
    bool in_place;
    char *window;  // NULL: weights are not read in place
    size_t window_bytes;
    struct segment *servers;  // (servers)
    bool *shared;             // (shards)
};

// Takes the worker's memory: shared memory in a segment, the rest from the arena. If the configuration shares nothing,
// or the device cannot share and need not, all memory is from the arena and the other functions do nothing. Returns 0,
// or -1 after logging; release the arena before sharing_destroy in both cases.
int sharing_create(struct sharing *s, const struct config *c, const struct layout *l,
                   const struct shard_map *m, struct arena *a, struct worker_buffers *out);
void sharing_destroy(struct sharing *s);  // Accepts a zeroed struct.
// Shard `shard` uses this worker's segment; name: its server's own segment, "" for none. Returns 0, or -1 with why.
int sharing_attach(struct sharing *s, int shard, const char *name, char why[SEGMENT_WHY_MAX]);
// Maps the window, after sharing_attach for all servers. Returns 0, or -1 after logging.
int sharing_settle(struct sharing *s, struct arena *a);
// Writes the initial weights of keys that the servers do not share; the servers write the others.
int sharing_load(const struct sharing *s, int u, const float *values, void *weights);
const char *sharing_medium(const struct sharing *s);  // "shm", "tcp", "shm and tcp"

#endif
