// Slow is not dead: how a process knows, of the others over MPI or tcp, who lives and who is at work. A rank that has
// waited for half its deadline asks all others, again and again; a thread of each process answers. Nothing is sent
// while nobody waits long. A process that is stopped or gone does not answer.
//
//     waits on    while every rank that has not come answers, and some rank of the world is at work: its device, or the main
//                 thread beside it, which may stand in a file for long
//     gives up    at the deadline, or half a deadline after that has ceased
//
// Some rank, not the one that has not come: that one may itself wait for a third that is slow. Where none is at work,
// calls differ or a rank is stuck.
//
// Threads   rank_pulse_start, _stop: the main thread, while the engine moves messages. The rest: any.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RANK_PULSE_H
#define STARRING_DECENTRAL_COLLECTIVE_RANK_PULSE_H

#include <stdbool.h>

struct device;
struct rank_pulse;

// The words that ranks say to each other.
enum pulse_word { PULSE_ASK, PULSE_TELL, PULSE_WORDS };

// How an engine carries them. Both are called by the pulse's thread alone.
struct pulse_ways {
    // at: what the sender is at (enum dev_work). False, and nothing is sent: the last word of this kind to that rank is
    // still under way.
    bool (*send)(void *ctx, int to, enum pulse_word word, char at);
    // Each tick, 50 times a second: what has come is given to rank_pulse_heard.
    void (*look)(void *ctx, struct rank_pulse *p);
};

// A wait of this rank that has come to its deadline.
struct pulse_wait {
    const char *what;  // the operation, for people
    double waited_s, deadline_s;
    const bool *missing;  // (size) which ranks have not come
};

// NULL after logging. ways and ctx outlive it; ctx may be called before this returns.
struct rank_pulse *rank_pulse_start(int rank, int size, const struct pulse_ways *ways, void *ctx);
void rank_pulse_stop(struct rank_pulse **p);
// A word has come.
void rank_pulse_heard(struct rank_pulse *p, int from, enum pulse_word word, char at);
// The device that this process computes on from now on; NULL: none any more. Until it is told, the process is at work: on its way.
void rank_pulse_computes(struct rank_pulse *p, struct device *dev);
// The main thread itself begins, or ends, to wait for others.
void rank_pulse_waits(struct rank_pulse *p, bool waits);
// Others are asked for a while. Called all along the second half of a deadline, and beyond it.
void rank_pulse_ask(struct rank_pulse *p, double deadline_s);
// Whether the wait should go on. A slow rank is named, once a rank and job. silent: (size) out: of the missing, those
// that do not answer.
bool rank_pulse_slow(struct rank_pulse *p, const struct pulse_wait *w, bool *silent);

#endif
