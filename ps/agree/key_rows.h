// The rows of a checkpoint about a star's keys, beside their tensors: how many updates each has had, and of which worker how
// many pushes. Where steps commit that is the same for all keys and follows from the step. Where pushes are applied on
// arrival each server writes a row for each of its keys, as I64 arrays in its own file:
//
//     "star/shape"    keys, workers
//     "star/keys"     (keys, 3)        unit, first and last+1 element of it
//     "star/version"  (keys)           pushes applied: updates of this job, also those of other topologies before it
//     "star/updates"  (keys)           updates of its moments: Adam's t
//     "star/pushed"   (keys, workers)  pushes applied of each worker
//     "star/budget"   samples of a batch, words of a row below
//     "star/batches"  (keys, words)    which batches of the job's budget the key holds: a row of ps/job/batches.h
//     "star/check"    (1)              the xxh64 of the numbers above, in their order
//
// Every role reads all rows, and checks these numbers alone: the bytes of a file are hashed by the servers that take their state
// from it. A file whose rows do not check is hashed as a whole.
//
// A key that was cut differently then gets the row of that piece of it which has had the most updates. Each worker goes on
// behind the steps that all its keys have: what some keys have beyond, they know by the batch. With another number of workers
// each goes on behind worker 0's, and with batches of another size as many samples count as used as were. A checkpoint
// without rows (of a ring, or of steps that commit) makes rows in which each worker has pushed every step.
#ifndef STARRING_PS_AGREE_KEY_ROWS_H
#define STARRING_PS_AGREE_KEY_ROWS_H

#include "ps/job/shard_map.h"
#include "shared/state/checkpoint_read.h"

struct key_counts {
    int key;
    int64_t version;         // updates applied
    int64_t updates;         // by the count of its moments (Adam's t): another topology may have begun them
    int64_t clock;           // steps over; 0 where pushes are applied on arrival
    const int64_t *pushed;   // (N) pushes applied of each worker
    const int64_t *batches;  // a row (ps/job/batches.h), where pushes are applied on arrival; else NULL
};

// Of all keys of a job, in the order of its map.
struct key_rows {
    int count, workers, words;
    struct key_counts *keys;  // (count); pushed: into the array below
    int64_t *pushed;          // (count, workers)
    int64_t *batches;         // (count, words): batches_words
};
// 0, or -1 after logging; key_rows_free either way.
int key_rows_read(struct key_rows *r, struct checkpoint *c, const struct config *config,
                  const struct shard_map *map);
void key_rows_free(struct key_rows *r);
// The first step that worker `worker` has not pushed to every key: there it goes on. Keys that have the push drop it.
int64_t key_rows_step(const struct key_rows *r, int worker);
// The lowest batch that some key lacks, and whether every key has this one.
int64_t key_rows_low(const struct key_rows *r);
bool key_rows_has(const struct key_rows *r, int64_t batch);
int64_t key_rows_next(const struct key_rows *r);  // no key has this one, or any beyond
// Updates that every key has had.
int64_t key_rows_version(const struct key_rows *r);

// The other direction: the rows of one server's keys as they come.
struct key_table;
// keys: how many will come.
struct key_table *key_table_create(const struct shard_map *map, int keys, const struct config *c);
void key_table_add(struct key_table *t, const struct key_counts *k);
#define KEY_TABLE_EXTRAS 8
// For part_options; what they name is the table's, and complete when all keys are.
void key_table_extras(const struct key_table *t, struct part_extra out[KEY_TABLE_EXTRAS]);
void key_table_destroy(struct key_table **t);

#endif
