// A clock for a thread that looks at its messages in turns. While its process is frozen, sleeps, or waits for a core, its peers are
// not silent: nobody listens. So this clock stands for as long as the thread does, and since when a peer has not been heard
// is a moment of this clock:
//
//     turns          |  |  |  |                  |  |  |
//     the host's     0  1  2  3                  12 13 14
//     this one       0  1  2  3                  4  5  6
//
// Of a turn's length a 32nd of lost_s counts at most. Where a host is so busy that its threads take turns of a second, peers wait
// as long for theirs; a peer that is silent for 33 turns is lost however slow they are.
//
// Moments     Seconds. Those of now_seconds() come in, those of this clock go out. Before the first turn, and as long as the
//             thread never stands still, they are the same. What other threads, hosts or people are told, and round trips, take
//             the host's clock.
// One thread. (shared/time/stall.h finds all stalls of a process, by a thread of its own.)
#ifndef STARRING_SHARED_TIME_TURN_CLOCK_H
#define STARRING_SHARED_TIME_TURN_CLOCK_H

#include <stdint.h>

#define TURN_CLOCK_WORDS 96

// {.lost_s = ..} to begin with.
struct turn_clock {
    double lost_s;   // a peer that is silent for so long is lost
    double pause_s;  // between two turns where nothing comes: it counts, even if it is more than a 32nd
    double turn_s, behind_s;  // the last turn, of the host's clock; how far this one is behind
    double woke_s, stood_s;   // of this clock, behind what it stood still last; for how long. 0: it never did
};

// A turn begins. Returns the moment.
double turn_clock_turn(struct turn_clock *c, double host_s);
// The moment of something that happens in this turn, or before the first one.
double turn_clock_at(const struct turn_clock *c, double host_s);

// To be put behind "silent for ..": that this process had stood still shortly before or since heard_s, when a peer was heard
// last; "" where it had not. Returns out.
const char *turn_clock_words(const struct turn_clock *c, double heard_s, char out[TURN_CLOCK_WORDS]);

// Another thread of this process, whose turns are short, as the thread that watches it sees it. {0} to begin with.
struct turning {
    uint64_t turns;
    double seen_s;  // when they last changed, or had not begun
};

// Seconds since its last turn. now_s is best of the watcher's clock: where a process stands still, all its threads do.
double turning_stood(struct turning *t, uint64_t turns, double now_s);

#endif
