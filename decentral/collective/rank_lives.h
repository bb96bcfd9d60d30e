// Slow is not dead: which ranks of a ring live, which are at work, and why all of them end. Of processes the thread of the meeting
// (shared/fabric/peer.h) gives signs of life that say what the rank is at, also while its others compute or stand in a
// file, and a process that is stopped or gone gives none. It leaves them in the memory that ranks share, which is there however
// their launcher stands, and at the meeting, which tells ranks that share none. A rank that has waited for half its deadline
// looks them up, again and again. Threads live as long as their process, which looks at them itself. Where nobody tells, the
// deadline is final.
//
//     waits on    while every rank that has not come lives, and some rank of the world is at work: its device, or the main
//                 thread beside it, which may stand in a file for long
//     gives up    at the deadline, or half a deadline after that has ceased; those that give no sign of life a little later, so
//                 that their launcher, which names them with how they ended, comes first
//
// Some rank, not the one that has not come: that one may itself wait for a third that is slow. Where none is at work,
// calls differ or a rank is stuck.
//
// Time        Silence is counted in looks, and where the meeting tells in what it reports. While it reports nothing, since its
//             process or this one stands still (Ctrl-Z, no core for a while), nobody is silent, and nothing is decided, but
//             of rank 0, whose process it is.
// The end, once one has said it, is everybody's: all their waits end with its words (decentral/collective/last_word.h).
//
// Threads   rank_lives_open, _meet, _share, _close: the main thread, one at a time. The rest: any.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RANK_LIVES_H
#define STARRING_DECENTRAL_COLLECTIVE_RANK_LIVES_H

#include <stddef.h>
#include <stdint.h>

#include "decentral/collective/last_word.h"

struct device;
struct rank_lives;
struct rendezvous;

// A wait of this rank, from its beginning on.
struct lives_wait {
    const char *what;  // the operation, for people
    double since_s, deadline_s;
    bool (*missing)(const void *ctx,
                    int rank);  // whether it has not come; NULL: the library's call, which does not tell
    const void *ctx;
    // rank_lives_in_vain's own: when it looks next, and the last report that it has decided by
    double look_s;
    int64_t decided;
};

// rank -1: the ranks are threads of this process.
struct rank_lives *rank_lives_open(int rank, int size);
// Where the ranks say what they are at. It is closed before this.
void rank_lives_meet(struct rank_lives *l, struct rendezvous *meet);
// Memory that all share: the end is said there. signs: (size) of life, which processes leave there; NULL: of threads. end NULL:
// it is shared no more.
void rank_lives_share(struct rank_lives *l, struct last_word *end, _Atomic uint16_t *signs);
void rank_lives_close(struct rank_lives **l);
// The device that a rank of this process computes on from now on; NULL: none any more. Until it is told, the rank is at work: on
// its way.
void rank_lives_computes(struct rank_lives *l, int rank, struct device *dev);
// The main thread itself begins, or ends, to wait for others.
void rank_lives_waits(struct rank_lives *l, bool waits);
// Whether nobody is to be waited for any more; asked all along a wait. A slow rank is named, once a rank and job. why: out where
// true, which ranks did not come, for people.
bool rank_lives_in_vain(struct rank_lives *l, struct lives_wait *w, char *why, size_t why_bytes);

// All ranks end, unless one has said so before. lost: a rank is given up. Where the run may be started again this process ends here
// (stop_run_lost), and the first says why, to its launcher alone, which ends the others. Returns whether the caller is to tell them.
bool rank_lives_end(struct rank_lives *l, const char *why, bool lost);
void rank_lives_tell(struct rank_lives *l, const char *why);  // at the meeting
void rank_lives_told(void *lives, const char *why);           // by another one
const char *rank_lives_ended(struct rank_lives *l);           // why all end, which stays; NULL: they go on

#endif
