// The job that all ranks of a run have in common: model, data, and where the run goes on from (config.recovery).
//
//     --resume        --out             what happens
//     latest          DIR               goes on from DIR's newest checkpoint, in DIR; begins where there is none
//     DIR, or a       the same DIR      goes on from it, in DIR; what came after that step goes
//       checkpoint    another, or none  goes on from it; the new directory begins with the next step
//     with --resume-weights-only        a new run that begins with these weights
#ifndef STARRING_SHARED_TRAIN_JOB_H
#define STARRING_SHARED_TRAIN_JOB_H

#include "shared/config/config.h"
#include "shared/data/data.h"
#include "shared/model/spec.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/identity.h"

// Read-only and shareable between threads once open.
struct job {
    const struct config *config;
    struct model_spec spec;
    struct layout *layout;      // padded for config->workers
    struct token_source *data;  // NULL when only predictions are wanted
    const char *dir;            // run directory, or NULL: nothing is written
    bool takes_dir;             // worker 0 takes it (run_dir_take), as nobody has: a star by hand
    bool force;                 // an earlier run in it may go
    char *resume;            // checkpoint to go on from, found once for all ranks of this process; NULL: none
    bool resume_found;       // it has been looked for
    int64_t resume_step;     // behind which it was written
    int64_t resume_place;    // steps of the run that are done then
    const char *weights_in;  // Hugging Face directory to start from, or NULL
    bool no_weights;         // do not write DIR/weights
    bool save_on_interrupt;  // write DIR/weights of an interrupted run too
    bool no_metrics;         // print no steps (--quiet)
    bool no_bar;             // stdout only looks like a terminal (mpirun lends its ranks one)
    bool steps_to_stderr;    // stdout is for one JSON document
    int ranks_here;          // ranks on this machine, which share its processors
    bool bound;              // but each has processors of its own (processors_bound)
    const _Atomic int *stop;
};

// Loads model, layout and (unless predict_only) data. 0, or -1 after logging; job_close either way.
int job_open(struct job *j, const struct config *c, bool predict_only);
// Whether model and data of the configuration are here and fit each other. Says nothing; if not, error_last() does.
// predicted: the same configuration's job, opened without data, whose layout serves; or NULL.
bool job_opens(const struct config *c, const struct job *predicted);
// Finds the checkpoint to go on from, and refuses one that cannot be gone on from, before anything is started. 0, or -1
// after logging. For runs of one process, their ranks over MPI, and the launcher of a star: a star's ranks are told.
int job_resume(struct job *j, bool says);
void job_resume_forget(struct job *j);  // each rank looks for itself, once its topology is there
void job_close(struct job *j);
struct identity_source job_identity(const struct job *j);
// Threads an operation of one rank may use: config->threads, or its share of the processors (shared/core/processors.h).
int job_threads(const struct job *j);

// ---- where it goes on from
// The checkpoint that the configuration asks for, as an absolute path (malloc'd) into *path; NULL: from the beginning. says: it
// tells people where "latest" finds none. 0, or -1 after logging.
int resume_find(const struct config *c, bool says, char **path);
// Whether the checkpoint is one of the run directory's own.
bool resume_is_own(const char *path, const char *dir);
// Opens it, and refuses what is of another run: -> NULL after naming the key and both values. says: this process is the one
// that tells what else is new. The identity's source is complete (layout, spec, data).
struct checkpoint *resume_open(const char *path, const struct identity_source *s, bool says);
// Takes the run directory for a run that begins with the checkpoint (NULL: none). 0, or -1 after logging.
int resume_take_dir(const struct config *c, const char *path, const char *dir, bool force);

#endif
