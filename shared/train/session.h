// One rank of a run, from its device to its report: opens the device and the compute stream, has the
// topology made, trains, leaves DIR/ranks/worker-R.json (worker 0: metrics.jsonl and weights/ too).
//
// Threads   Runs on the caller's thread; several sessions may run at once on threads of one process.
// Ordering  With more than one worker it returns only after every worker has written its report.
#ifndef STARRING_SHARED_TRAIN_SESSION_H
#define STARRING_SHARED_TRAIN_SESSION_H

#include "shared/train/train.h"

// What every rank of a run has in common; read-only and shareable between threads once open.
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
    int ranks_here;          // ranks on this machine, for cores per rank
    const _Atomic int *stop;
};

// Loads model, layout and (unless predict_only) data. 0, or -1 after logging; job_close either way.
int job_open(struct job *j, const struct config *c, bool predict_only);
// Whether model and data of the configuration are here and fit each other. Says nothing; if not, error_last() does.
// predicted: the same configuration's job, opened without data, whose layout serves; or NULL.
bool job_opens(const struct config *c, const struct job *predicted);
// Finds the checkpoint to go on from, and refuses one that cannot be gone on from, before anything is started. 0, or -1
// after logging. For runs of one process, their ranks over MPI, and who starts a star: a star's ranks are told.
int job_resume(struct job *j, bool says);
void job_resume_forget(struct job *j);  // each rank looks for itself, once its topology is there
void job_close(struct job *j);
// Threads an operation of one rank may use: config->threads, or cores / ranks_here, at least 1.
int job_threads(const struct job *j);

struct session_options {
    const struct job *job;
    int rank;        // -1: the topology will know
    int local_rank;  // among the ranks of this machine: picks its GPU, modulo their number; -1: not known,
                     // the first
    // Makes the rank's topology on dev and compute, which outlive it; NULL after logging.
    struct topology *(*create)(void *ctx, struct device *dev, struct stream *compute);
    // When the topology is no more (or was never made) and its device still is; or NULL.
    void (*end)(void *ctx);
    void *ctx;
};

struct session_end {
    bool interrupted;  // it was stop that ended it
    int rank;
    uint64_t job;  // struct topology's
};
// 0, or -1 after logging. end may be NULL.
int session_run(const struct session_options *o, struct session_end *end);

#endif
