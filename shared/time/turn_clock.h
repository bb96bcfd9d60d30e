// A clock for a thread that polls its messages in turns. While its process is frozen, sleeps, or waits for a core,
// its peers are not silent: the thread does not listen. So this clock stops while the thread does, and the silence
// of a peer is measured with this clock:
//
//     turns          |  |  |  |                  |  |  |
//     the host's     0  1  2  3                  12 13 14
//     this one       0  1  2  3                  4  5  6
//
// At most a 32nd of lost_s counts of each turn. On a host so busy that turns take a second, peers wait longer in
// proportion; a peer that is silent for 33 turns is lost, however slow they are.
//
// Moments     Seconds. Functions take times of now_seconds() and return times of this clock. Before the first turn,
//             and as long as the thread is never stalled, the two are the same. Other threads, hosts and messages
//             receive times of the host's clock, and round trips use it.
// One thread. (shared/time/stall.h finds all stalls of a process, with a thread of its own.)
#ifndef STARRING_SHARED_TIME_TURN_CLOCK_H
#define STARRING_SHARED_TIME_TURN_CLOCK_H

#include <stdint.h>

#define TURN_CLOCK_WORDS 96

// Starts as {.lost_s = ..}.
struct turn_clock {
    double lost_s;            // a peer that is silent for this long is lost
    double pause_s;           // between two turns without messages: it counts, even if it is more than a 32nd
    double turn_s, behind_s;  // the last turn, of the host's clock; how far this clock lags
    double woke_s, stood_s;   // of this clock: the end of the last stall; its length. 0: none
};

// A turn begins. Returns its time.
double turn_clock_turn(struct turn_clock *c, double host_s);
// Returns the time of something that happens in this turn, or before the first one.
double turn_clock_at(const struct turn_clock *c, double host_s);

// Writes the text after "silent for ..": that this process was stalled shortly before or after heard_s, the time of
// the peer's last message; "" if it was not. Returns out.
const char *turn_clock_words(const struct turn_clock *c, double heard_s, char out[TURN_CLOCK_WORDS]);

// Another thread of this process, whose turns are short, as seen by the thread that watches it. Starts as {0}.
struct turning {
    uint64_t turns;
    double seen_s;  // when `turns` last changed, or was still 0
};

// Returns the seconds since its last turn. now_s should be of the watcher's turn clock: if a process is stalled,
// all its threads are.
double turning_stood(struct turning *t, uint64_t turns, double now_s);

#endif
