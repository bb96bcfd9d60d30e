// Deaths go in and verdicts come out: between the launchers of a job, who see their children die, and the one who decides what
// becomes of it and counts restarts, at its meeting (shared/fabric/peer.h): a star's scheduler, or a ring's launcher (launch_ranks.c).
#ifndef STARRING_SHARED_LAUNCH_VERDICT_H
#define STARRING_SHARED_LAUNCH_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#define VERDICT_NAME 32

// How often a job begins anew after a death. Kept by whoever decides.
struct restarts {
    int count, used;  // count: as often; 0: never
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
    int leaving;    // the job has been asked to end: nothing begins anew
    char why[192];  // in words, beginning with the name
};

// What a launcher says to the process of who decides, and under which names that puts verdicts, K = 0, 1, ..
#define VERDICT_DEAD "dead"  // a struct death
#define VERDICT_DONE "done"  // a byte: 1: no child of this launcher is left; 0: one has been started again
#define VERDICT_SAID "launch/said/%d"  // a struct verdict

enum verdict_kind {
    VERDICT_WITHOUT,  // the others go on
    VERDICT_ANEW,     // all begin anew; a child that has ended well is needed again
    VERDICT_ENDS,     // the job
    VERDICT_LOST,     // this child is given up: it only stands still, if it still runs, and is to be killed
    VERDICT_BEGINS,   // a life of the job: all that it needs are there
    VERDICT_OVER,     // the job: nothing is decided any more
};

// WITHOUT, ANEW and ENDS answer a death; name and pid are the dead process's.
struct verdict {
    enum verdict_kind kind;
    char name[VERDICT_NAME];
    int pid;           // 0: whatever process has the name
    int again;         // it is started again
    int left, of;      // restarts behind that, and how many there were
    char reason[256];  // ENDS, beyond the death: in words; or ""
};

// ---------------------------------------------------------------- who decides
struct rendezvous;
struct member_news;
bool verdict_death(const struct member_news *n, struct death *out);             // whether it is one
void verdict_say(struct rendezvous *meet, int *said, const struct verdict *v);  // said: how many have been

#endif
