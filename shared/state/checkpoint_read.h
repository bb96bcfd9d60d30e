// Reading a checkpoint, whatever wrote it: any number of files, cut anywhere, for a layout with any padding.
//
// Everything is checked. checkpoint_open: the manifest's own hash, its format, every file's size and header, and that
// the pieces neither overlap nor leave holes. The first read from a file compares the xxh64 of all its bytes with the
// manifest before it hands out a value. The first read for a layout compares all tensors with it.
//
// Errors    -1 or NULL after fail() named the file and what is wrong. It never warns and goes on.
// Threads   Any thread may read from an open checkpoint; one opens and closes it.
#ifndef STARRING_SHARED_STATE_CHECKPOINT_READ_H
#define STARRING_SHARED_STATE_CHECKPOINT_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/core/train_state.h"
#include "shared/core/unit.h"
#include "shared/state/checkpoint.h"
#include "shared/state/part_file.h"

struct checkpoint;
struct checkpoint *checkpoint_open(const char *path);  // the directory
void checkpoint_close(struct checkpoint **c);          // NULL inside is allowed

const char *checkpoint_path(const struct checkpoint *c);
bool checkpoint_is_weights(const struct checkpoint *c);  // a snapshot
double checkpoint_seconds(const struct checkpoint *c);   // of a snapshot: of training until then
const char *checkpoint_seal(
    const struct checkpoint *c);  // of its content: the xxh64 of the manifest, which has each file's
const struct train_state *checkpoint_train(const struct checkpoint *c);
const char *checkpoint_dtype(const struct checkpoint *c);
const char *checkpoint_optimizer(const struct checkpoint *c);
int checkpoint_states(const struct checkpoint *c);                             // of the optimizer
const char *checkpoint_identity(const struct checkpoint *c, const char *key);  // NULL: no such key
const struct cJSON *checkpoint_identity_json(const struct checkpoint *c);      // the object of all keys; c's

// Whether the bytes of all files are those that were written: reads all of them. 0, or -1. To be called by whoever is about to
// remove what the checkpoint would have to replace.
int checkpoint_verify(struct checkpoint *c);
// Whether it holds every element of this model, of masters and states, and nothing else. 0, or -1. Called by the
// first checkpoint_read for a layout; to be called earlier by whoever wants to refuse earlier.
int checkpoint_fits(struct checkpoint *c, const struct layout *l);
// out[i] = element begin + i of the unit, 0 <= begin <= end <= n_pad; gaps, padding and reserved elements are 0.
int checkpoint_read(struct checkpoint *c, const struct layout *l, int unit, int kind, int64_t begin,
                    int64_t end, float *out);
// Of a snapshot: the unit's weights, (n_pad) of the type that checkpoint_dtype says, likewise.
int checkpoint_weights(struct checkpoint *c, const struct layout *l, int unit, void *out);
// The numbers that a participant (NULL: any; the first in the order of the files) wrote under this name. 0; 1 and
// nothing logged: it is not there; -1: the file is not what was written, or the array has another count. out NULL: the same,
// without them.
int checkpoint_extra(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                     int count);
// A worker's own state of a unit, if so many workers wrote the checkpoint: (n_pad). kind: below 0. 0; 1 and
// nothing logged: it is not there; -1: the file is not what was written. out NULL: the same, without it.
int checkpoint_own(struct checkpoint *c, int kind, int worker, int workers, const struct unit *unit,
                   float *out);
// The numbers again, without a look at the file's other bytes, nor at whether these are those that were written: the caller knows
// how to tell.
int checkpoint_extra_alone(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                           int count);

#endif
