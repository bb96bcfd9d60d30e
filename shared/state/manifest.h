// manifest.json of a checkpoint: which files belong to it, and what is no tensor (docs/checkpoint-format.md has the schema). It
// carries the xxh64 of its own text, so that no byte of it can be another unnoticed.
//
// Ownership  A manifest that was read owns its members until manifest_free; one that is to be written borrows them.
#ifndef STARRING_SHARED_STATE_MANIFEST_H
#define STARRING_SHARED_STATE_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/core/train_state.h"

#define MANIFEST_NAME   "manifest.json"
#define PART_ENDING     ".safetensors"
#define PART_NAME_MAX   64
#define MANIFEST_FORMAT 1

struct cJSON;

struct manifest_file {
    char name[PART_NAME_MAX];  // "worker-0.safetensors": plain, and unlike those of all others
    int64_t bytes;
    uint64_t xxh64;
};

struct manifest {
    bool weights;    // it is a snapshot: the weights alone, of the run's dtype
    double seconds;  // of a snapshot: of training until then
    struct train_state train;
    const char *dtype, *optimizer;
    int states;
    const struct cJSON *identity;  // an object of texts, or NULL
    struct manifest_file *files;
    int count;
    struct cJSON *document;  // of one that was read: what the texts belong to
};

char *manifest_text(const struct manifest *m);  // malloc'd
// Of the checkpoint `dir`. 0, or -1 after fail() named file and reason; *out is then empty.
int manifest_read(const char *dir, struct manifest *out);
void manifest_free(struct manifest *m);
// Of one that was read: the host on which an earlier version left that file, in a folder that others do not see; NULL: none.
const char *manifest_left_on(const struct manifest *m, int file);
const char *manifest_seal(
    const struct manifest *m);  // of one that was read: the xxh64 of its text, 16 digits

// "worker-0": letters, digits and '-', so that no name leads out of a directory.
bool participant_name(const char *name);

// 16 hexadecimal digits, small letters.
void hex64(char text[17], uint64_t x);
bool hex64_read(const char *text, uint64_t *out);  // exactly these; NULL is none

#endif
