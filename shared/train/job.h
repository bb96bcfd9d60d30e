// The job that all ranks of a run share: model, data, and the checkpoint that the run resumes from
// (config.recovery).
//
//     --resume        --out             what happens
//     latest          DIR               resumes from DIR's newest checkpoint, in DIR; starts new if DIR has none
//     DIR, or a       the same DIR      resumes from it, in DIR; deletes everything after that step
//       checkpoint    another, or none  resumes from it; the new directory begins with the next step
//     with --resume-weights-only        starts a new run that begins with these weights
#ifndef STARRING_SHARED_TRAIN_JOB_H
#define STARRING_SHARED_TRAIN_JOB_H

#include "shared/config/config.h"
#include "shared/data/data.h"
#include "shared/model/spec.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/identity.h"

// Read-only after job_open. Threads may share it.
struct job {
    const struct config *config;
    struct model_spec spec;
    struct layout *layout;      // padded for config->workers
    struct token_source *data;  // NULL when only predictions are wanted
    const char *dir;            // run directory, or NULL: no files are written
    bool owns_dir;  // worker 0 takes the directory (run_dir_take), no launcher has: a star started by hand
    bool force;     // an earlier run in the directory may be deleted
    char *resume;   // checkpoint to resume from, found once for all ranks of this process; NULL: none
    bool resume_found;           // job_resume has searched for the checkpoint
    int64_t resume_step;         // the step after which the checkpoint was written
    int64_t resume_step_of_run;  // steps of the run that are done at that checkpoint
    const char *weights_in;      // Hugging Face directory to start from, or NULL
    bool no_weights;             // do not write DIR/weights
    bool save_on_interrupt;      // write DIR/weights for an interrupted run too
    bool no_metrics;             // print no steps (--quiet)
    bool no_bar;                 // stdout only seems to be a terminal (mpirun gives its ranks one)
    bool steps_to_stderr;        // stdout is reserved for one JSON document
    int ranks_here;              // ranks on this machine, which share its processors
    bool bound;                  // each rank is bound to its own processors (processors_bound)
    const _Atomic int *stop;
};

// Loads the model's description, with the adapters that the configuration asks for. Returns 0, or -1 after fail().
int job_spec(const struct config *c, struct model_spec *s);
// Loads model, layout and (unless predict_only) data. Returns 0, or -1 after logging. Call job_close in both cases.
int job_open(struct job *j, const struct config *c, bool predict_only);
// Returns whether the configuration's model and data exist and fit each other. Logs nothing; on failure
// error_last() holds the reason. predicted: the same configuration's job, opened without data, whose layout
// is used; or NULL.
bool job_opens(const struct config *c, const struct job *predicted);
// Finds the checkpoint to resume from, and checks before any rank starts that the run can resume from it. For
// runs of one process, for their ranks over MPI, and for the launcher of a star (the ranks of a star get the
// path from the scheduler). Returns 0, or -1 after logging.
int job_resume(struct job *j, bool verbose);
// After this, each rank finds the checkpoint itself, when its topology exists.
void job_resume_clear(struct job *j);
void job_close(struct job *j);
struct identity_source job_identity(const struct job *j);
// Threads that one operation of a rank may use: config->threads, or its share of the processors
// (shared/core/system.h).
int job_threads(const struct job *j);

// ---- the checkpoint that a run resumes from
// *path receives the configured checkpoint as an absolute path (malloc'd), or NULL: the run starts from the
// beginning. verbose: print a line when "latest" finds no checkpoint. Returns 0, or -1 after logging.
int resume_find(const struct config *c, bool verbose, char **path);
// Returns whether the checkpoint is inside the run directory.
bool resume_is_inside(const char *path, const char *dir);
// Opens the checkpoint. Returns NULL if it belongs to another run, after logging the key and both values.
// verbose: also print which other settings differ; one process per job does. The identity's source is complete
// (layout, spec, data).
struct checkpoint *resume_open(const char *path, const struct identity_source *s, bool verbose);
// Takes the run directory for a run that begins with the checkpoint (NULL: none). Returns 0, or -1 after logging.
int resume_take_dir(const struct config *c, const char *path, const char *dir, bool force);

#endif
