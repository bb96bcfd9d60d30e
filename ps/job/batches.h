// Which batches of the job's budget a key holds, where workers run ahead and share the budget (ps/agree/budget.h):
// every batch of every key once, whoever brings it, and however often. Pure.
//
// A row is all of it, for checkpoints and messages alike:
//
//     next | hole hole -1 -1 ..        all batches below next, but for the holes: handed out, and not here yet
//
// A batch is a number, 0, 1, ..: the job's samples number * own .. (number + 1) * own - 1, own being a worker's share of
// a step.
#ifndef STARRING_PS_JOB_BATCHES_H
#define STARRING_PS_JOB_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/config/config.h"

#define BATCHES_OPEN \
    2  // that a worker may have: one whose gradients are on their way, one that it computes on

// Of the whole job; samples of one.
int64_t batches_total(const struct config *c);
static inline int64_t batches_own(const struct config *c) { return c->micro_batch * c->accumulation; }

// Words of a row: room for what all workers have open, and for what is in a sum that a checkpoint leaves out.
static inline int batches_words(const struct config *c) {
    return 1 + BATCHES_OPEN * c->workers + pushes_per_update(c) - 1;
}
void batches_clear(int64_t *row, int words);  // all batches below row[0], no holes
bool batches_has(const int64_t *row, int words, int64_t batch);
// Whether the batch can be added: it is not there, or there is room for the holes before it.
bool batches_fits(const int64_t *row, int words, int64_t batch);
void batches_add(int64_t *row, int words, int64_t batch);     // fits
void batches_remove(int64_t *row, int words, int64_t batch);  // it is there, and there is room for a hole
int batches_holes(const int64_t *row, int words);
static inline int64_t batches_count(const int64_t *row, int words) {
    return row[0] - batches_holes(row, words);
}

#endif
