// manifest.json of a checkpoint: the list of its files, and everything that is not a tensor (schema in
// docs/checkpoint-format.md). It contains the xxh64 of its own text, so any changed byte is detected.
//
// Ownership  A manifest that was read owns its members until manifest_free. A manifest to be written borrows them.
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
    char name[PART_NAME_MAX];  // "worker-0.safetensors": no directory, unique
    int64_t bytes;
    uint64_t xxh64;
};

struct manifest {
    bool weights;    // a snapshot: the weights only, of the run's dtype
    double seconds;  // of a snapshot: seconds of training until then
    struct train_state train;
    const char *dtype, *optimizer;
    int states;
    const struct cJSON *identity;  // an object of texts, or NULL
    struct manifest_file *files;
    int count;
    struct cJSON *document;  // of a manifest that was read: owns the texts
};

char *manifest_text(const struct manifest *m);  // malloc'd
// Reads the manifest of checkpoint `dir`. Returns 0, or -1 after fail() named file and reason; *out is then empty.
int manifest_read(const char *dir, struct manifest *out);
void manifest_free(struct manifest *m);
// For a manifest that was read: returns the host on which an earlier version of this program left the file, in a folder
// that other hosts do not see; NULL: it is in the checkpoint's directory.
const char *manifest_left_on(const struct manifest *m, int file);
const char *manifest_seal(
    const struct manifest *m);  // of one that was read: the xxh64 of its text, 16 digits

// Returns whether name is a participant's: letters, digits and '-' ("worker-0"), so that no path leads out of the directory.
bool participant_name(const char *name);

// Writes x as 16 hexadecimal digits, lower case.
void hex64(char text[17], uint64_t x);
bool hex64_read(const char *text, uint64_t *out);  // accepts exactly these; false for NULL

#endif
