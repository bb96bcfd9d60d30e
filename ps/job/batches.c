#include "ps/job/batches.h"

int64_t batches_total(const struct config *c) { return c->train_batch / config_own_sequences(c) * c->steps; }

void batches_clear(int64_t *row, int words) {
    for (int i = 1; i < words; i++) row[i] = -1;
}

// The index of a hole; -1 finds a free entry. Returns 0 if there is none.
static int slot_of_batch(const int64_t *row, int words, int64_t batch) {
    for (int i = 1; i < words; i++)
        if (row[i] == batch) return i;
    return 0;
}

bool batches_has(const int64_t *row, int words, int64_t batch) {
    return batch < row[0] && !slot_of_batch(row, words, batch);
}

int batches_holes(const int64_t *row, int words) {
    int holes = 0;
    for (int i = 1; i < words; i++) holes += row[i] >= 0;
    return holes;
}

bool batches_fits(const int64_t *row, int words, int64_t batch) {
    return batch < row[0] || batch - row[0] < words - batches_holes(row, words);
}

void batches_add(int64_t *row, int words, int64_t batch) {
    int hole = batch < row[0] ? slot_of_batch(row, words, batch) : 0;
    if (hole) row[hole] = -1;
    for (; row[0] < batch; row[0]++) row[slot_of_batch(row, words, -1)] = row[0];
    if (row[0] == batch) row[0]++;
}

void batches_remove(int64_t *row, int words, int64_t batch) {
    int hole = slot_of_batch(row, words, -1);
    if (hole) row[hole] = batch;
}
