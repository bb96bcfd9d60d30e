// The frozen weights of a run with LoRA (shared/core/unit.h): no gradient, no master, no state. A rank has all of them, in
// the run's type, and nothing of them moves after the start; or the topology shards them over its workers or servers (topology_row.h, shards_frozen).
//
// The rank's main thread calls all functions.
#ifndef STARRING_SHARED_TRAIN_FROZEN_H
#define STARRING_SHARED_TRAIN_FROZEN_H

#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/unit.h"

struct frozen;
// Adds the bytes that frozen_create takes.
void frozen_predict(const struct layout *l, enum dtype dt, size_t bytes[MEM_CLASSES]);
// Returns whether ranks hold shards of the frozen weights.
bool shards_frozen(const struct config *c);
// Returns the textbook's bytes of a worker, in the run's type: F, or the worker's share of the copies.
size_t frozen_formula(const struct config *c, const struct layout *l);
// Takes the memory. Returns NULL if nothing is frozen, or after fail() with *failed set.
struct frozen *frozen_create(struct device *dev, const struct layout *l, enum dtype dt, bool *failed);
void frozen_destroy(struct frozen **f);
// Rounds the frozen elements of the model's unit u from fp32 values on the host. Blocks. Returns 0, or -1 after fail().
int frozen_load(struct frozen *f, struct stream *s, int u, const float *values);
// Returns the frozen elements of the model's unit u. NULL: f is NULL.
const void *frozen_unit(const struct frozen *f, int u);

#endif
