// The batches of the job's budget that a key holds, where workers run ahead and share the budget (ps/agree/budget.h).
// A key takes every batch once, whichever worker sends it and however often. Pure.
//
// A row is the whole record, in checkpoints and messages:
//
//     next | hole hole -1 -1 ..        all batches below next, except the holes: handed out, and not arrived yet
//
// A batch is a number, 0, 1, ..: the job's samples number * own .. (number + 1) * own - 1, where own is a worker's
// share of a step.
#ifndef STARRING_PS_JOB_BATCHES_H
#define STARRING_PS_JOB_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/job/consistency.h"
#include "shared/config/config.h"

#define BATCHES_OPEN \
    2  // open batches of a worker: one whose gradients are in transfer, one that it computes on

// Batches of the whole job, each of config_own_sequences samples.
int64_t batches_total(const struct config *c);

// Words of a row: enough for the open batches of all workers, and for those of a sum that a checkpoint leaves out.
static inline int batches_words(const struct config *c) {
    return 1 + BATCHES_OPEN * c->workers + consistency_of(c).per_update - 1;
}
void batches_clear(int64_t *row, int words);  // Removes the holes: the row then has all batches below row[0].
bool batches_has(const int64_t *row, int words, int64_t batch);
// Whether the batch can be added: it is not in the row, or the row has room for the holes before it.
bool batches_fits(const int64_t *row, int words, int64_t batch);
void batches_add(int64_t *row, int words, int64_t batch);  // Adds the batch, which must fit.
// Removes the batch, which must be in the row, and for which the row must have room for a hole.
void batches_remove(int64_t *row, int words, int64_t batch);
int batches_holes(const int64_t *row, int words);
static inline int64_t batches_count(const int64_t *row, int words) {
    return row[0] - batches_holes(row, words);
}

#endif
