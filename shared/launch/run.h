// One run, from its directory to its closing table, in the process that represents it. That process is the one that
// the user started, or rank 0 of those that the user's mpirun started. The topology runs the ranks in between
// (topology_row.run).
//
//   run_begin    the run directory and its config.json
//   ...          the ranks train and write their reports
//   run_end      the reports are merged into summary.json and the closing table
#ifndef STARRING_SHARED_LAUNCH_RUN_H
#define STARRING_SHARED_LAUNCH_RUN_H

#include "shared/launch/rank_env.h"
#include "shared/train/session.h"

struct run {
    struct config *config;
    struct job job;
    struct rank_env env;                    // how this process was started
    int (*tell)(char *text, size_t bytes);  // see topology_table
    // The rendezvous of ranks that another program has started (joined.h), from run_join to run_leave; or of a
    // launcher and its child, from run_join_launcher to run_leave_launcher; else NULL.
    struct rendezvous *meet;
    bool apart;  // this rank cannot access rank 0's directory: config.out is its own folder (joined.h)
    bool force;  // an earlier run in the directory may be deleted
    int life;    // in a launcher's child (launch_ranks.h) or its ranks: the number of this start, 1, 2, ..;
                 // else 0
    uint64_t lives;  // a random number of the launcher's job, recorded with its lives; 0: it never restarts
};

// Returns whether the checkpoint to resume from is the last one of a complete run in the same directory.
bool run_is_over(const struct run *r);
// Logs that the run is over, evaluates waiting snapshots, and shows the closing table. Returns the program's exit
// status.
int run_show(struct run *r);

// Opens the rendezvous of a launcher (member 0) and its `count` children, which have the role "rank". port: 0, for the
// launcher: any free port. Returns NULL after logging.
struct rendezvous *run_meeting(const struct config *c, int member, int count, int port);
#define RUN_WHY "failed/%d"  // the word, with its life, under which a child sends why it failed
// Joins the launcher's rendezvous as its child, without waiting. Returns 0, or -1 after logging.
int run_join_launcher(struct run *r);
void run_leave_launcher(void *run, const char *failed);  // failed: why; NULL: it did not fail

// Called before any rank is started. Returns 0, or -1 after logging.
int run_begin(struct run *r);
// Logs how many steps a run that ended early has lost, and which option keeps them; nothing if none are lost. failed
// false: it was interrupted.
void run_say_lost(const struct job *j, bool failed);
// status: the ranks' exit status; number: the signal that asked them to end, or 0. Returns the program's exit status.
int run_end(struct run *r, int status, int number);

// Runs all, if the ranks are in this process. `ranks` trains and returns 0, or -1 after logging; it checks job.stop,
// the flag of Ctrl-C and SIGTERM. In a launcher's child, the launcher does run_begin and run_end. Returns the
// program's exit status.
int run_here(struct run *r, int (*ranks)(void *ctx, const struct job *j), void *ctx);

#endif
