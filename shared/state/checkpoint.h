// The directory of a checkpoint and of all checkpoints of a run (docs/checkpoint-format.md draws it):
//
//     RUN/checkpoints/step-120/                    complete: manifest.json and the participants' files
//     RUN/checkpoints/.step-120.<life>.partial/    being written
//     RUN/checkpoints/.step-120.<life>.gone/       being removed
//     RUN/checkpoints/step-120.old/                complete, while another step-120 takes its place on a file system that
//                                                  cannot exchange two names
//
// A snapshot is a checkpoint of the weights alone, below RUN/snapshots: the same files and names, the same commit.
//
// A checkpoint is complete or absent, whichever process dies when: what bears the name step-N has everything on disk.
// The file system is the rendezvous: participants (part_file.h) leave their files and sidecars, one of them besides waits
// for all and commits; no message passes between them.
//
// Errors    Texts (malloc'd, the caller's) where there is a char **error; nothing is logged. Rotating and sweeping warn.
// Threads   Any; but only one process at a time commits, rotates and sweeps in a run directory.
#ifndef STARRING_SHARED_STATE_CHECKPOINT_H
#define STARRING_SHARED_STATE_CHECKPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/core/train_state.h"

#define CHECKPOINT_FORMAT 1

enum checkpoint_kind { CHECKPOINT_ALL, CHECKPOINT_WEIGHTS, CHECKPOINT_KINDS };

// RUN/checkpoints/.step-<step>.<life in 16 hex digits>.partial (malloc'd). Makes nothing.
char *checkpoint_partial(const char *run_dir, enum checkpoint_kind kind, int64_t step, uint64_t life);

struct cJSON;

struct checkpoint_commit {
    const char *run_dir;
    enum checkpoint_kind kind;
    double seconds;                   // of training until then: of weights
    uint64_t life;                    // with train->step: names the partial directory
    const char *const *participants;  // whose files belong to it: "worker-0", "server-1", ..
    int count;                        // at least 1
    const struct train_state *train;
    const struct cJSON *identity;  // an object of texts (shared/state/identity.h); NULL: none
    const char *dtype, *optimizer;
    int states;            // of the optimizer: kinds STATE_OPTIMIZER .. STATE_OPTIMIZER + states - 1
    double stall_seconds;  // given up when no participant's file has grown for so long; 0: never
};

// The reason of a participant whose disk has no room for one.
#define CHECKPOINT_NO_REASON "could not write it, nor the reason"

// Waits until every participant has left its sidecar, compares the sizes, writes the manifest and renames the partial
// directory to step-N, all on disk when it returns 0. If there is a step-N already it is replaced, without a
// moment in which there is none. -1: a participant failed, something could not be written, *quit became true (NULL:
// never), or nothing moved for stall_seconds; the partial directory has been removed as far as possible, and *error says why
// and which checkpoint is the newest that is kept.
int checkpoint_complete(const struct checkpoint_commit *c, const _Atomic int *quit, char **error);

// Removes complete checkpoints but the newest keep_last and those whose step is a multiple of keep_every (steps).
// keep_last 0: nothing is removed; keep_every 0: none besides. The newest always stays.
void checkpoint_rotate(const char *run_dir, int keep_last, int64_t keep_every);

// Of the complete checkpoint with the most steps: absolute path (malloc'd), or NULL.
char *checkpoint_latest(const char *run_dir);
int64_t checkpoint_latest_step(const char *run_dir);  // or -1
// The newest complete one beside this checkpoint that is of an earlier step (malloc'd path), or NULL.
char *checkpoint_older(const char *path);

// The checkpoint that --resume names, as an absolute path (malloc'd): "latest" is run_dir's newest (NULL without an error where
// there is none); a checkpoint's directory is itself; a run's directory, or its checkpoints/, is the newest there. NULL: *error
// says what was found instead.
char *checkpoint_resolve(const char *text, const char *run_dir, char **error);

// Removes what lives that are over have left unfinished, all but that of own_life (0: no exception), and ends what
// they had begun to replace. Where there is no exception a directory that is then empty goes as well: in a life of its own another
// rank may be about to write there. To be called by what commits, when it starts; no other
// life may be writing there.
void checkpoint_sweep(const char *run_dir, enum checkpoint_kind kind, uint64_t own_life);
// Removes complete checkpoints of more than `step` steps: a run that goes on from an older one writes them anew.
void checkpoint_drop_later(const char *run_dir, enum checkpoint_kind kind, int64_t step);

// The steps of the complete ones, ascending (malloc'd).
int64_t *checkpoint_steps(const char *run_dir, enum checkpoint_kind kind, int *count);
// RUN/checkpoints/step-N (malloc'd).
char *checkpoint_path_of(const char *run_dir, enum checkpoint_kind kind, int64_t step);
// Removes one that is not wanted any more, and with the last one RUN/checkpoints; what cannot be removed is warned of.
void checkpoint_drop(const char *run_dir, enum checkpoint_kind kind, int64_t step);

// The step that the name of a checkpoint's directory says; -1: it bears a name of its own.
int64_t checkpoint_named(const char *path);

#endif
