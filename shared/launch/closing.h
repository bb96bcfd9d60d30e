// The end of a run: the reports of its ranks are merged into trace.json, summary.json and the closing table, and what
// is left of its snapshots is evaluated. The process that represents the run does it (train, rank 0 under mpirun). If
// the roles of a star were started one by one, the last rank to leave does it:
//
//   rank     writes DIR/ranks/ROLE-RANK.json, then looks for those of all other ranks
//            all there, of this job  -->  the rank that creates DIR/ranks/last-JOB (O_EXCL) prints; the others
//                                         have seen the same files and leave it to that one
//            some are missing        -->  later ranks will find this one's; logs where it is
//
// Every rank writes before it looks, so that the last one to write sees all. A directory that all machines share gets
// exactly one table, in any order of leaving. Machines that share no directory get no table, nor does a failed job,
// whose ranks leave no report.
#ifndef STARRING_SHARED_LAUNCH_CLOSING_H
#define STARRING_SHARED_LAUNCH_CLOSING_H

#include "shared/config/config.h"
#include "shared/infer/evaluate.h"

struct cJSON;
struct job;

// Writes trace.json (config->trace) and summary.json. Returns the summary (the caller deletes it), or NULL after
// logging.
struct cJSON *closing_merge(const struct config *c, const char *dir);
// Logs an error if the run was to keep checkpoints and has none. Returns -1 then, else 0.
int closing_unkept(const char *dir, const struct cJSON *summary);

// For the end of a run and for `starring evaluate`.
struct evaluate_dir_options {
    const struct topology_table *topologies;
    const char *dir;
    const struct job
        *job;   // its configuration, model and data are used; NULL: those of dir/config.json are opened
    bool keep;  // the snapshots are kept, whatever the configuration says
    const _Atomic int *stop;  // NULL: no signal ends it; closing_show installs one
    FILE *say;                // progress is printed here; NULL: nowhere
};
// Evaluates the waiting snapshots of dir. Opens model and data only if there are any. After an interruption it logs the
// command that evaluates the rest.
enum evaluated evaluate_dir(const struct evaluate_dir_options *o);
// Evaluates the waiting snapshots, unless the run was interrupted, and prints the table on standard output; with --json
// the document; with --quiet nothing. o: dir, job and stop. *summary: closing_merge's, or NULL: it is merged here. The
// caller deletes it. Returns the exit status of the evaluation, or EXIT_RUN_FAILED with *summary NULL, after logging.
int closing_show(const struct config *c, const struct evaluate_dir_options *o, struct cJSON **summary);

struct closing_rank {
    const struct config *config;
    const char *dir;
    const char *role;  // "worker", "server": its report has been written
    int rank;
    uint64_t job;             // not 0
    const _Atomic int *stop;  // the flag that ends an evaluation; NULL: none
};
enum closing {
    CLOSING_FAILED = -1,  // the error was logged
    CLOSING_LEFT,         // another rank is or will be the last; logged in one line, unless quiet
    CLOSING_LAST,         // merged and shown by this call
};
enum closing closing_leave(const struct closing_rank *r);

#endif
