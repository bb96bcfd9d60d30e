// The rows of a checkpoint about a star's keys: the updates of each key, and the pushes of each worker. Where steps
// commit both are the same for all keys and follow from the step. Where pushes are applied on arrival each server
// writes a row for each of its keys, as I64 arrays in its own file:
//
//     "star/shape"    keys, workers
//     "star/keys"     (keys, 3)        unit, first and last+1 element of it
//     "star/version"  (keys)           pushes applied: updates of this job, and those of other topologies before it
//     "star/updates"  (keys)           updates of its moments: Adam's t
//     "star/pushed"   (keys, workers)  pushes applied of each worker
//     "star/budget"   samples of a batch, words of a row below
//     "star/batches"  (keys, words)    the batches of the job's budget that the key holds: a row of ps/job/batches.h
//     "star/check"    (1)              the xxh64 of the numbers above, in their order
//
// Every role reads all rows and checks only these numbers: the servers that take their state from a file hash its
// bytes. A file whose rows do not check is hashed as a whole.
//
// If keys were cut differently, a key gets the row of the overlapping old key with the most updates. Each worker
// resumes after the steps that all its keys have: keys recognize later pushes by the batch. With another number of
// workers each resumes at worker 0's step. With batches of another size the same number of samples counts as used. For
// a checkpoint without rows (of a ring, or of steps that commit) rows are made in which each worker has pushed every
// step.
#ifndef STARRING_PS_AGREE_KEY_ROWS_H
#define STARRING_PS_AGREE_KEY_ROWS_H

#include "ps/job/shard_map.h"
#include "shared/state/checkpoint_read.h"

struct key_counts {
    int key;
    int64_t version;        // updates applied
    int64_t updates;        // updates that its moments count (Adam's t): another topology may have begun them
    int64_t clock;          // steps committed; 0 where pushes are applied on arrival
    const int64_t *pushed;  // (N) pushes applied of each worker
    const int64_t *batches;  // a row (ps/job/batches.h), where pushes are applied on arrival; else NULL
};

// The rows of all keys of a job, in the order of its map.
struct key_rows {
    int count, workers, words;
    struct key_counts *keys;  // (count); their `pushed` points to the array below
    int64_t *pushed;          // (count, workers)
    int64_t *batches;         // (count, words): batches_words
};
// Returns 0, or -1 after logging; call key_rows_free in both cases.
int key_rows_read(struct key_rows *r, struct checkpoint *c, const struct config *config,
                  const struct shard_map *map);
void key_rows_free(struct key_rows *r);
// The first step that worker `worker` has not pushed to every key: it resumes there. Keys that have the push drop it.
int64_t key_rows_step(const struct key_rows *r, int worker);
// low: the lowest batch that is missing at some key. has: whether every key has this batch.
int64_t key_rows_low(const struct key_rows *r);
bool key_rows_has(const struct key_rows *r, int64_t batch);
int64_t key_rows_next(const struct key_rows *r);  // Returns the first batch from which on no key has any.

// Writing: the rows of one server's keys.
struct key_table;
struct key_table *key_table_create(const struct shard_map *map, int keys, const struct config *c);
// Sets row i of `keys`. Different rows may be set by different threads.
void key_table_put(struct key_table *t, int i, const struct key_counts *k);
void key_table_complete(struct key_table *t);  // Called when all rows are set.
#define KEY_TABLE_EXTRAS 8
// Fills in the arrays for struct part_options. The table owns them.
void key_table_extras(const struct key_table *t, struct part_extra out[KEY_TABLE_EXTRAS]);
void key_table_destroy(struct key_table **t);

#endif
