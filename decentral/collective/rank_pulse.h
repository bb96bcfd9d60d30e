// Slow is not dead: which ranks of a ring live, which are at work, and why all of them end. A rank that has waited for half its deadline asks all
// others, again and again. Of processes a thread of each answers, also while its others compute or stand in a file; nothing is
// sent while nobody waits long, and a process that is stopped or gone does not answer. Threads live as long as their
// process, which looks at them itself.
//
//     waits on    while every rank that has not come answers, and some rank of the world is at work: its device, or the main
//                 thread beside it, which may stand in a file for long
//     gives up    at the deadline, or half a deadline after that has ceased; those that do not answer a little later, so that
//                 their launcher, which names them with how they ended, comes first
//
// Some rank, not the one that has not come: that one may itself wait for a third that is slow. Where none is at work,
// calls differ or a rank is stuck. A process that stood still itself (Ctrl-Z, no core for a while) does not take that time for
// the others' silence: its thread's clock stands meanwhile (shared/time/turn_clock.h).
//
// The end, once one has said it, is everybody's: all their waits end with its words (decentral/collective/last_word.h).
//
// Threads   rank_pulse_start, _stop: the main thread, while the engine moves messages. The rest: any.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RANK_PULSE_H
#define STARRING_DECENTRAL_COLLECTIVE_RANK_PULSE_H

#include <stddef.h>

#include "decentral/collective/last_word.h"

struct device;
struct rank_pulse;

// The words that ranks say to each other.
enum pulse_kind { PULSE_ASK, PULSE_TELL, PULSE_END, PULSE_KINDS };
struct pulse_word {
    char kind;      // enum pulse_kind
    char at;        // of the first two, what the sender is at (enum dev_work)
    char why[254];  // of PULSE_END
};

// How an engine carries them. The pulse's thread alone calls them, but for wake, and for send of PULSE_END.
struct pulse_ways {
    // False, and nothing is sent: the last word of this kind to that rank is still under way.
    bool (*send)(void *ctx, int to, const struct pulse_word *word);
    // What has come is given to rank_pulse_heard.
    void (*look)(void *ctx, struct rank_pulse *p);
    // Sleeps until the next look; asks: this rank waits for answers. NULL: both are not needed, 50 looks a second are.
    void (*rest)(void *ctx, bool asks);
    void (*wake)(void *ctx);  // ends the rest
};

// A wait of this rank, from its beginning on.
struct pulse_wait {
    const char *what;  // the operation, for people
    double since_s, deadline_s;
    bool (*missing)(const void *ctx,
                    int rank);  // whether it has not come; NULL: the library's call, which does not tell
    const void *ctx;
    double look_s;  // rank_pulse_in_vain's own: when it looks next
};

// NULL after logging. ways and ctx outlive it; ctx may be called before this returns. ways NULL: the ranks are threads of
// this process, and the pulse is the one of all; rank is -1. end: in memory that all share, which outlives it; NULL: they share none.
struct rank_pulse *rank_pulse_start(int rank, int size, const struct pulse_ways *ways, void *ctx,
                                    struct last_word *end);
void rank_pulse_stop(struct rank_pulse **p);
// A word has come. None of these is no word.
void rank_pulse_heard(struct rank_pulse *p, int from, const struct pulse_word *word);
// The device that a rank of this process computes on from now on; NULL: none any more. Until it is told, the rank is at work: on
// its way.
void rank_pulse_computes(struct rank_pulse *p, int rank, struct device *dev);
// The main thread itself begins, or ends, to wait for others.
void rank_pulse_waits(struct rank_pulse *p, bool waits);
// Whether nobody is to be waited for any more; asked all along a wait. A slow rank is named, once a rank and job. why: out where
// true, which ranks did not come, for people.
bool rank_pulse_in_vain(struct rank_pulse *p, struct pulse_wait *w, char *why, size_t why_bytes);

// All ranks end, unless one has said so before. lost: a rank is given up. Where the run may be started again this process ends here
// (stop_run_lost), and the first says why, to its launcher alone, which ends the others.
void rank_pulse_end(struct rank_pulse *p, const char *why, bool lost);
// Why all end, which stays; NULL: they go on.
const char *rank_pulse_ended(struct rank_pulse *p);

#endif
