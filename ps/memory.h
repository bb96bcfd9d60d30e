// Device memory and wire of a role, predicted by the code that takes it: the same carving runs against
// a measuring arena and an allocating one.
#ifndef STARRING_PS_MEMORY_H
#define STARRING_PS_MEMORY_H

#include "ps/server_core.h"
#include "shared/core/arena.h"

struct worker_buffers {
    void **weights;         // (units) of (n_pad) in dtype
    void **grads;           // (units) of (n_pad) in dtype
    struct exact_sum *sum;  // async: of the worker's own gradient; else NULL
};

// weights and grads are host arrays of the caller's, one entry a unit.
void worker_carve(struct arena *a, const struct layout *l, enum dtype dtype, bool own_norm,
                  struct worker_buffers *out);
// Buffers of one key of a server.
void server_carve_key(struct arena *a, const struct partition *p, enum dtype dtype,
                      struct server_buffers *out);

// The partition map a configuration means; NULL after logging.
struct shard_map *ps_map_create(const struct config *c, const struct layout *l);
struct consistency_rule ps_rule(const struct config *c);

#endif
