// Deaths and verdicts: messages between the launchers of a job, which see their children die, and the process that
// decides. That process decides what happens to the job and counts restarts, at its rendezvous (shared/fabric/rendezvous.h):
// a star's scheduler, or a ring's launcher (launch_ranks.c).
#ifndef STARRING_SHARED_LAUNCH_VERDICT_H
#define STARRING_SHARED_LAUNCH_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#define VERDICT_NAME 32

// How often a job restarts after a death. The deciding process keeps it.
struct restarts {
    int count, used;  // count: at most so often; 0: never
};
static inline bool restarts_take(struct restarts *r) {
    bool left = r->used < r->count;
    r->used += left;
    return left;
}
#define RESTARTS_USED_UP "all restarts are used up (--restart %d)"

struct death {
    char name[VERDICT_NAME];  // of the child: "worker 1"
    int pid;
    int leaving;    // the job was asked to end: nothing is restarted
    char why[192];  // a sentence that begins with the name
};

// The words that a launcher sends to the deciding process, and the names under which that process puts verdicts, K =
// 0, 1, ..
#define VERDICT_DEAD "dead"  // a struct death
#define VERDICT_DONE "done"  // a byte: 1: no child of this launcher is left; 0: one has been started again
#define VERDICT_SAID "launch/said/%d"  // a struct verdict

enum verdict_kind {
    VERDICT_WITHOUT,  // the others continue
    VERDICT_ANEW,     // all restart, also children that have ended well
    VERDICT_ENDS,     // the job ends
    VERDICT_LOST,     // this child counts as lost: if it still runs, it is to be killed
    VERDICT_BEGINS,   // all processes that the job needs after a restart are there
    VERDICT_OVER,     // the job is over: no more verdicts follow
};

// WITHOUT, ANEW and ENDS answer a death; name and pid are the dead process's.
struct verdict {
    enum verdict_kind kind;
    char name[VERDICT_NAME];
    int pid;           // 0: any process with the name
    int again;         // whether the process is restarted
    int left, of;      // restarts left after this one, and their total number
    char reason[256];  // for ENDS: a reason besides the death; "": none
};

// ---------------------------------------------------------------- the deciding process
struct rendezvous;
struct member_news;
// Returns whether n is a death, which *out receives.
bool verdict_death(const struct member_news *n, struct death *out);
// said: the number of verdicts sent so far.
void verdict_send(struct rendezvous *meet, int *said, const struct verdict *v);

#endif
