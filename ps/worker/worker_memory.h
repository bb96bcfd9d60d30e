// A worker's device memory and wire, predicted by the code that takes it: the same carving runs against a
// measuring arena and an allocating one.
#ifndef STARRING_PS_WORKER_WORKER_MEMORY_H
#define STARRING_PS_WORKER_WORKER_MEMORY_H

#include "kernels/exact_sum.h"
#include "ps/job/shard_map.h"
#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/core/unit.h"
#include "shared/model/grad_sum.h"

// The words that a worker's host reads of a step, in one copy.
struct worker_words {
    double loss_sum;
    struct exact_sum sum;  // of the worker's own gradient, where it decides alone
};

// Each array is the host's own: (units) of (n_pad) in dtype; of gradients, and what becomes of them, (1 + lead, units), for so
// many steps may be open (worker_buffer).
struct worker_buffers {
    int units, lead;
    void **weights, **grads;  // the model's
    struct grad_sums sums;    // of its micro-batches
    void **pushes;            // what leaves: grads, or codes of them
    size_t *push_bytes;       // (units) of each of them
    float **errors;           // (n_pad): what the codes have not said; NULL where nothing is coded
    void **wire_weights,
        **wire_grads;  // the wire's: page-locked twins of weights and pushes, or these (staging.h)
    uint64_t *grad_at, *weight_at;    // of wire_grads and wire_weights in the segment; 0: not there
    struct worker_words *words;       // on the device, where the worker decides alone; else NULL
    struct worker_words *wire_words;  // page-locked; NULL: the host reads the device's memory
};
// The place of unit u's gradient of `step` in grads, pushes, wire_grads and grad_at.
static inline int worker_buffer(const struct worker_buffers *b, int u, int64_t step) {
    return (int)(step % (1 + b->lead)) * b->units + u;
}
// 0, or -1 after logging what is impossible.
int worker_buffers_init(struct worker_buffers *b, const struct config *c, const struct layout *l);
void worker_buffers_free(struct worker_buffers *b);  // the arrays; what they name is the arena's

// room: of the worker's segment, which holds what servers read and write; NULL: nothing is shared. Weights that are
// read in place are nobody's here: NULL in out, until a window shows them (sharing.h). Twins in a room are not counted
// here: worker_lock counts them. in_place: ps_weights_in_place (ps/net/medium.h).
void worker_carve(struct arena *a, const struct config *c, const struct layout *l, bool in_place,
                  struct arena_room *room, struct worker_buffers *out);
// Page-locks the room's pages, as far as they are used, where they hold the twins of a device's buffers, and counts them.
// 0, also where they hold none; -1 with the reason in *why.
int worker_lock(struct arena *a, const struct config *c, const struct arena_room *room, const char **why);
// Weights in place: pages of the worker's own, for the keys of shards that it shares nothing with.
void worker_count_unshared(struct arena *a, const struct config *c, const struct shard_map *m,
                           const bool *shared);
// The memory that worker_carve, worker_lock and worker_count_unshared take. shared (shards).
void worker_predict_memory(const struct config *c, const struct layout *l, const struct shard_map *m,
                           const bool *shared, struct topology_memory *out);

#endif
