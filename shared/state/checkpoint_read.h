// Reads a checkpoint of any writer: any number of files, split anywhere, for a layout with any padding.
//
// Everything is checked. checkpoint_open checks the manifest's own hash, its format, every file's size and header,
// and that the pieces neither overlap nor leave holes. The first read from a file compares the xxh64 of all its
// bytes with the manifest before it returns a value. The first read for a layout compares all tensors with it.
//
// Errors    -1 or NULL after fail() named the file and the error. It never warns and continues.
// Threads   Any thread may read from an open checkpoint; one thread opens and closes it.
#ifndef STARRING_SHARED_STATE_CHECKPOINT_READ_H
#define STARRING_SHARED_STATE_CHECKPOINT_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/core/train_state.h"
#include "shared/core/unit.h"
#include "shared/state/checkpoint.h"
#include "shared/state/part_file.h"

struct checkpoint;
struct checkpoint *checkpoint_open(const char *path);  // path: the checkpoint's directory
void checkpoint_close(struct checkpoint **c);          // *c may be NULL

const char *checkpoint_path(const struct checkpoint *c);
bool checkpoint_is_weights(const struct checkpoint *c);  // a snapshot
double checkpoint_seconds(const struct checkpoint *c);   // of a snapshot: seconds of training until then
const char *checkpoint_seal(
    const struct checkpoint *c);  // hash of its content: the xxh64 of the manifest, which holds each file's
const struct train_state *checkpoint_train(const struct checkpoint *c);
const char *checkpoint_dtype(const struct checkpoint *c);
const char *checkpoint_optimizer(const struct checkpoint *c);
int checkpoint_states(const struct checkpoint *c);                             // of the optimizer
const char *checkpoint_identity(const struct checkpoint *c, const char *key);  // NULL: no such key
const struct cJSON *checkpoint_identity_json(const struct checkpoint *c);  // object of all keys, owned by c

// Reads all files and compares their hashes with the manifest. Returns 0, or -1. Call it before newer checkpoints are
// removed: if this one is damaged, they are still needed.
int checkpoint_verify(struct checkpoint *c);
// Checks that it holds every element of this model's masters and states, and nothing else. Returns 0, or -1. The
// first checkpoint_read for a layout calls it; a caller that calls it before gets the error earlier.
int checkpoint_fits(struct checkpoint *c, const struct layout *l);
// Writes element begin + i of the unit to out[i], 0 <= begin <= end <= n_pad; gaps, padding and reserved elements are 0.
int checkpoint_read(struct checkpoint *c, const struct layout *l, int unit, int kind, int64_t begin,
                    int64_t end, float *out);
// For a snapshot: reads the unit's weights, (n_pad) of the type checkpoint_dtype; gaps are 0 here too.
int checkpoint_weights(struct checkpoint *c, const struct layout *l, int unit, void *out);
// Reads the numbers that a participant (NULL: the first file that has them) wrote under this name. Returns 0; 1
// without logging if they do not exist; -1 if the file is damaged or the count differs. out NULL: only checks.
int checkpoint_extra(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                     int count);
// Reads a worker's own state of a unit, (n_pad). kind: below 0. Returns 0; 1 without logging if it does not exist, or if
// another number of workers than `workers` wrote the checkpoint; -1 if the file is damaged. out NULL: only checks.
int checkpoint_own(struct checkpoint *c, int kind, int worker, int workers, const struct unit *unit,
                   float *out);
// As checkpoint_extra, but without reading and hashing the rest of the file. The caller itself must check the numbers.
int checkpoint_extra_alone(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                           int count);

#endif
