// The end of a run: what its ranks left becomes trace.json, summary.json and the closing table. Done by the
// process that stands for the run (train, rank 0 under mpirun) or, where the roles of a star were started one
// by one, by the last to leave:
//
//   rank     writes DIR/ranks/ROLE-RANK.json, then looks for those of all other ranks
//            all there, of this job  -->  whoever makes DIR/ranks/last-JOB (O_EXCL) prints; the others have
//                                         seen the same and leave it to that one
//            some are missing        -->  later ranks will find this one's; says where it is
//
// Every rank writes before it looks, so that the last one to write sees all: a directory that all machines
// share gets exactly one table, in any order of leaving. Machines that share none get no table, nor does a
// failed job, whose ranks leave no report.
#ifndef STARRING_SHARED_LAUNCH_CLOSING_H
#define STARRING_SHARED_LAUNCH_CLOSING_H

#include "shared/config/config.h"
#include "shared/evaluation/evaluate.h"

struct cJSON;

// Writes trace.json (config->trace) and summary.json. The document (the caller deletes it), or NULL after
// logging.
struct cJSON *closing_merge(const struct config *c, const char *dir);
// The table on standard output; the document with --json; nothing with --quiet.
void closing_show(const struct config *c, const char *dir, const struct cJSON *summary);

// Says so of a run that was to keep checkpoints and has none. 0: it has, or was to keep none; -1 after logging.
int closing_unkept(const char *dir, const struct cJSON *summary);

struct closing_rank {
    const struct config *config;
    const char *dir;
    const char *role;  // "worker", "server": its report has been written
    int rank;
    uint64_t job;             // not 0
    const _Atomic int *stop;  // that ends an evaluation; or NULL
};
enum closing {
    CLOSING_FAILED = -1,  // after logging
    CLOSING_LEFT,         // somebody else is or will be the last; said in a line, unless quiet
    CLOSING_LAST,         // merged and shown by this call
};
enum closing closing_leave(const struct closing_rank *r);

// For the end of a run and for `starring evaluate`.
struct evaluate_dir_options {
    const struct topology_table *topologies;
    const char *dir;
    bool keep;                // also where the configuration does not say so
    const _Atomic int *stop;  // or NULL
    FILE *say;                // or NULL
};
// Evaluates the snapshots that wait in dir as dir/config.json says. Opens model and data only where there are any.
enum evaluated evaluate_dir(const struct evaluate_dir_options *o);

#endif
