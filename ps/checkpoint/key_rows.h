// What a checkpoint says of a star's keys beside their tensors: how many updates each has had, and of which worker how
// many pushes. Where steps commit that is the same for all keys and follows from the step. Where pushes are applied on
// arrival each server writes a row for each of its keys, as I64 arrays in its own file:
//
//     "star/shape"    keys, workers
//     "star/keys"     (keys, 3)        unit, first and last+1 element of it
//     "star/version"  (keys)           pushes applied: updates of this job, also those of other topologies before it
//     "star/updates"  (keys)           updates of its moments: Adam's t
//     "star/pushed"   (keys, workers)  pushes applied of each worker
//
// A key that was cut differently then gets the row of that piece of it which has had the most updates. With another
// number of workers each begins where the mean of the old ones was. A checkpoint without rows (of a ring, or of steps that
// commit) makes rows in which each worker has pushed every step.
#ifndef STARRING_PS_CHECKPOINT_KEY_ROWS_H
#define STARRING_PS_CHECKPOINT_KEY_ROWS_H

#include "ps/server/server_options.h"
#include "shared/state/checkpoint_read.h"

// Of all keys of a job, in the order of its map.
struct key_rows {
    int count, workers;
    struct key_counts *keys;  // (count); pushed: into the array below
    int64_t *pushed;          // (count, workers)
};
// 0, or -1 after logging; key_rows_free either way.
int key_rows_read(struct key_rows *r, struct checkpoint *c, const struct config *config,
                  const struct shard_map *map);
void key_rows_free(struct key_rows *r);
// The first step that worker `worker` has not pushed to every key: there it goes on. Keys that have the push drop it.
int64_t key_rows_step(const struct key_rows *r, int worker);
// Updates that every key has had.
int64_t key_rows_version(const struct key_rows *r);

// The other direction: the rows of one server's keys as they come.
struct key_table;
// keys: how many will come.
struct key_table *key_table_create(const struct shard_map *map, int keys, int workers);
void key_table_add(struct key_table *t, const struct key_counts *k);
#define KEY_TABLE_EXTRAS 5
// For part_options; what they name is the table's, and complete when all keys are.
void key_table_extras(const struct key_table *t, struct part_extra out[KEY_TABLE_EXTRAS]);
void key_table_destroy(struct key_table **t);

#endif
