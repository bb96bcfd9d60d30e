// A worker's device memory and wire bytes, predicted by the code that allocates: the same carving runs in a
// measuring arena and in an allocating one.
#ifndef STARRING_PS_WORKER_WORKER_MEMORY_H
#define STARRING_PS_WORKER_WORKER_MEMORY_H

#include "kernels/exact_sum.h"
#include "ps/job/shard_map.h"
#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/core/unit.h"
#include "shared/model/grad_buffers.h"

// The results of a step that a worker's host reads, in one copy.
struct worker_words {
    double loss_sum;
    struct exact_sum sum;  // the exact norm of the worker's own gradient, if it decides by itself
};

// Each array is the host's own: (units) of (n_pad) in dtype. Arrays of gradients, and of what is made of them, are (1 +
// lead, units): that many steps may be open (worker_buffer).
struct worker_buffers {
    int units, lead;
    void **weights, **grads;  // the model's
    struct grad_sums sums;    // of its micro-batches
    void **pushes;            // what is sent: grads, or codes of them
    size_t *push_bytes;       // (units) of each push
    float **errors;           // (units) of (n_pad): the errors of the codes; NULL if nothing is coded
    void **wire_weights,
        **wire_grads;  // what the wire uses: page-locked twins of weights and pushes, or these (staging.h)
    uint64_t *grad_at, *weight_at;    // offsets of wire_grads and wire_weights in the segment; 0: not there
    struct worker_words *words;       // on the device, if the worker decides by itself; else NULL
    struct worker_words *wire_words;  // page-locked; NULL: the host reads the device's memory
};
// The index of unit u's gradient of `step` in grads, pushes, wire_grads and grad_at.
static inline int worker_buffer(const struct worker_buffers *b, int u, int64_t step) {
    return (int)(step % (1 + b->lead)) * b->units + u;
}
// Returns 0, or -1 after logging what is impossible.
int worker_buffers_init(struct worker_buffers *b, const struct config *c, const struct layout *l);
// Frees the arrays. The arena owns the memory to which they point.
void worker_buffers_free(struct worker_buffers *b);

// room: the worker's segment, which holds what servers read and write; NULL: nothing is shared. Weights that are read
// in place are not allocated here: they are NULL in out until a window shows them (sharing.h). worker_lock counts the
// twins in a room, not this function. in_place: ps_weights_in_place (ps/net/medium.h).
void worker_carve(struct arena *a, const struct config *c, const struct layout *l, bool in_place,
                  struct arena_room *room, struct worker_buffers *out);
// Page-locks the used pages of the room if they hold the twins of a device's buffers, and counts them.
// Returns 0, also if they hold none; -1 with the reason in *why.
int worker_lock(struct arena *a, const struct config *c, const struct arena_room *room, const char **why);
// Counts, with weights in place, this worker's private pages for the keys of shards that share nothing with it.
void worker_count_unshared(struct arena *a, const struct config *c, const struct shard_map *m,
                           const bool *shared);
// Predicts the memory that worker_carve, worker_lock and worker_count_unshared take. shared (shards).
void worker_predict_memory(const struct config *c, const struct layout *l, const struct shard_map *m,
                           const bool *shared, struct topology_memory *out);

#endif
