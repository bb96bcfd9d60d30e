// The directory of one checkpoint, and of all checkpoints of a run (drawn in docs/checkpoint-format.md):
//
//     RUN/checkpoints/step-120/                    complete: manifest.json and the participants' files
//     RUN/checkpoints/.step-120.<start>.partial/   being written
//     RUN/checkpoints/.step-120.<start>.gone/      being removed
//     RUN/checkpoints/step-120.old/                complete, while another step-120 replaces it on a file system that
//                                                  cannot exchange two names
//
// <start> is a number that differs for each start or restart of the job. A snapshot is a checkpoint of the weights only,
// below RUN/snapshots: the same files and names, the same commit.
//
// A checkpoint is complete or absent, whichever process dies at any time: a directory named step-N has everything
// on disk. Participants synchronize through the file system (part_file.h): each leaves its file and its sidecar.
// One participant also waits for all of them and commits. They exchange no messages.
//
// Errors    A char **error receives a text (malloc'd, the caller frees it); nothing is logged. checkpoint_rotate and
//           checkpoint_sweep log warnings.
// Threads   Any. Only one process at a time may commit, rotate and sweep in a run directory.
#ifndef STARRING_SHARED_STATE_CHECKPOINT_H
#define STARRING_SHARED_STATE_CHECKPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/core/train_state.h"

#define CHECKPOINT_FORMAT 1

enum checkpoint_kind { CHECKPOINT_ALL, CHECKPOINT_WEIGHTS, CHECKPOINT_KINDS };

// Returns RUN/checkpoints/.step-<step>.<start_number in 16 hex digits>.partial (malloc'd). Creates nothing.
char *checkpoint_partial(const char *run_dir, enum checkpoint_kind kind, int64_t step, uint64_t start_number);

struct cJSON;

struct checkpoint_commit {
    const char *run_dir;
    enum checkpoint_kind kind;
    double seconds;                   // a snapshot's: seconds of training until then
    uint64_t start_number;            // with train->step: names the partial directory
    const char *const *participants;  // participants whose files it needs: "worker-0", "server-1", ..
    int count;                        // at least 1
    const struct train_state *train;
    const struct cJSON *identity;  // an object of texts (shared/state/identity.h); NULL: none
    const char *dtype, *optimizer;
    int states;            // of the optimizer: kinds STATE_OPTIMIZER .. STATE_OPTIMIZER + states - 1
    const char *failed;    // why the caller's own file will not exist; NULL: it exists or will exist
    double stall_seconds;  // timeout: it gives up when no participant's file has grown for so long; 0: none
};

// The reason for a participant whose NAME.failed is empty: its disk had no room for the reason.
#define CHECKPOINT_NO_REASON "could not write it, nor the reason"

// Waits until every participant has left its sidecar, compares the sizes, writes the manifest and renames the
// partial directory to step-N. Returns 0 when everything is on disk. An existing step-N is replaced; one complete
// step-N exists at any time. Returns -1 if a participant failed, a write failed, *quit became true (NULL: never),
// or no file grew for stall_seconds. Then the partial directory has been removed as far as possible, and *error
// says why and which checkpoint is the newest that is kept.
int checkpoint_complete(const struct checkpoint_commit *c, const _Atomic int *quit, char **error);

// Removes complete checkpoints, except the newest keep_last and those whose step is a multiple of keep_every
// (steps). keep_last 0: removes none. keep_every 0: no such multiples. The newest always stays.
void checkpoint_rotate(const char *run_dir, int keep_last, int64_t keep_every);

// Returns the absolute path of the complete checkpoint with the most steps (malloc'd), or NULL.
char *checkpoint_latest(const char *run_dir);
int64_t checkpoint_latest_step(const char *run_dir);  // or -1
// Returns the newest complete checkpoint of an earlier step in the same directory (malloc'd path), or NULL.
char *checkpoint_older(const char *path);

// Resolves the text of --resume to the absolute path of a checkpoint (malloc'd). "latest": run_dir's newest checkpoint
// (NULL without an error if there is none). The directory of a checkpoint: that checkpoint. The directory of a run, or its
// checkpoints/: the newest one there. Otherwise returns NULL; *error receives what was found instead.
char *checkpoint_resolve(const char *text, const char *run_dir, char **error);

// Removes what earlier starts left unfinished, except files of own_start (0: no exception), and completes
// replacements that they began. With own_start 0 it also removes the directory if it is then empty; otherwise
// another rank of this start may be about to write there. The committing process calls it when it starts. No other
// start may be writing there.
void checkpoint_sweep(const char *run_dir, enum checkpoint_kind kind, uint64_t own_start);
// Removes complete checkpoints of more than `step` steps: a run that resumes from `step` writes them again.
void checkpoint_drop_later(const char *run_dir, enum checkpoint_kind kind, int64_t step);

// Returns the steps of the complete checkpoints, ascending (malloc'd).
int64_t *checkpoint_steps(const char *run_dir, enum checkpoint_kind kind, int *count);
// Returns RUN/checkpoints/step-N (malloc'd).
char *checkpoint_path_of(const char *run_dir, enum checkpoint_kind kind, int64_t step);
// Removes a checkpoint that is no longer needed, and RUN/checkpoints if it was the last one. Warns if it cannot.
void checkpoint_drop(const char *run_dir, enum checkpoint_kind kind, int64_t step);

// Returns the step in the name of a checkpoint's directory, or -1 if it has another name.
int64_t checkpoint_named(const char *path);

#endif
