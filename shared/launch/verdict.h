// Deaths go in and verdicts come out: between the launchers of a job, who see their children die, and the one who decides what
// becomes of the job (a star's scheduler). Only the latter counts restarts.
//
//     launcher    verdicts_tell     a child has died
//                 verdicts_hear     what becomes of the job; which child is given up; that a life of the job has begun
//     decider     verdicts_fd       readable when there is news
//                 verdicts_death    a death that has been told
//                 verdicts_say
//
// In memory, between the threads of one process. Launchers of other ranks send and get the same structs through the meeting
// (ps/star_ranks.h).
//
// Threads     All functions: any thread, but open and close.   Blocking   None.
#ifndef STARRING_SHARED_LAUNCH_VERDICT_H
#define STARRING_SHARED_LAUNCH_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#define VERDICT_NAME 32

struct death {
    char name[VERDICT_NAME];  // of the child: "worker 1"
    int pid;
    int leaving;    // the job has been asked to end: nothing begins anew
    char why[192];  // in words, beginning with the name
};

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
    int left;          // restarts behind that
    char reason[256];  // ENDS, beyond the death: in words; or ""
};

struct verdicts;
struct verdicts *verdicts_open(void);  // NULL after logging
void verdicts_close(struct verdicts **v);

void verdicts_tell(struct verdicts *v, const struct death *d);
bool verdicts_hear(struct verdicts *v, struct verdict *out);  // false: there is none
// No child is left, and whoever might be told of is known: the decider may end. Or one has been started again.
void verdicts_over(struct verdicts *v, bool over);

int verdicts_fd(const struct verdicts *v);
bool verdicts_death(struct verdicts *v, struct death *out);  // false: there is none
void verdicts_say(struct verdicts *v, const struct verdict *said);
bool verdicts_are_over(const struct verdicts *v);

// Steps that the decider knows to be done; -1: it does not know.
void verdicts_set_step(struct verdicts *v, int64_t step);
int64_t verdicts_step(const struct verdicts *v);

#endif
