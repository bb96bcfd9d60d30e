// One run, from its directory to its closing table, by the process that stands for it: the one that the user
// started, or rank 0 of those that the user's mpirun did. How the ranks live in between is the topology's (topology_row.run).
//
//   run_begin    the run directory and its config.json
//   ...          the ranks train and leave their reports
//   run_end      what they left becomes summary.json and the closing table
#ifndef STARRING_SHARED_LAUNCH_RUN_H
#define STARRING_SHARED_LAUNCH_RUN_H

#include "shared/launch/rank_env.h"
#include "shared/train/session.h"

struct run {
    struct config *config;
    struct job job;
    struct rank_env env;                    // how this process was started
    int (*tell)(char *text, size_t bytes);  // topology_table's
    // Of the ranks that others have started (joined.h), from run_join to run_leave; of a launcher and its child, from run_come to
    // run_go; else NULL.
    struct rendezvous *meet;
    bool apart;  // such a rank does not see rank 0's directory: config.out is a folder of its own (joined.h)
    bool force;  // an earlier run in the directory may go
    int life;    // of a child of a launcher (launch_ranks.h), or a rank of it: 1, 2, ..; else 0
    uint64_t lives;  // of that launcher: which job those are lives of, a random number; 0: it has one life
};

// Whether the checkpoint that the run is to go on from is the last one of a run that is complete in the same directory.
bool run_is_over(const struct run *r);
// Says so, evaluates what still waits, and shows the closing table. The program's exit status.
int run_show(struct run *r);

// The meeting of a launcher, member 0, and its `count` children, the cast "rank". port: 0, of the launcher: any. NULL after logging.
struct rendezvous *run_meeting(const struct config *c, int member, int count, int port);
#define RUN_WHY "failed/%d"  // a child's word, with its life: why it has
// A child comes there. It does not wait. 0, or -1 after logging.
int run_come(struct run *r);
void run_go(void *run, const char *failed);  // why; NULL: it has not

// Before any rank is started. 0, or -1 after logging.
int run_begin(struct run *r);
// The steps that a run which has ended before its last one has not kept, and what keeps them; nothing where it lacks none.
// Not failed: it was interrupted.
void run_say_lost(const struct job *j, bool failed);
// status: the ranks'; number: the signal that asked them to end, or 0. The program's exit status.
int run_end(struct run *r, int status, int number);

// The whole, where the ranks are of this process: `ranks` trains and returns 0, or -1 after logging; it looks at
// job.stop, the flag of Ctrl-C and SIGTERM. In a launcher's child, who stands for the run is the launcher. The program's exit
// status.
int run_here(struct run *r, int (*ranks)(void *ctx, const struct job *j), void *ctx);

#endif
