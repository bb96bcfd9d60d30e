// A clock for a thread that polls its messages in a loop. While its process is stopped, sleeps, or waits for a core,
// the thread receives no messages, although its peers send them. So this clock stops while the thread does, and the
// silence of a peer is measured with this clock:
//
//     polls          |  |  |  |                  |  |  |
//     the host's     0  1  2  3                  12 13 14
//     this one       0  1  2  3                  4  5  6
//
// At most a 32nd of lost_s counts between two polls. So on a host so busy that polls are a second apart, it takes longer
// until a peer counts as lost. A peer that is silent for 33 polls is lost, however slow the polls are.
//
// Times       Seconds. Functions take times of now_seconds() and return times of this clock. Before the first poll,
//             and as long as the thread is never stalled, the two are the same. Other threads, hosts and messages
//             receive times of the host's clock, and round trips use it.
// One thread. (shared/time/stall.h finds all stalls of a process, with a thread of its own.)
#ifndef STARRING_SHARED_TIME_POLL_CLOCK_H
#define STARRING_SHARED_TIME_POLL_CLOCK_H

#include <stdint.h>

#define POLL_CLOCK_TEXT 96

// Starts as {.lost_s = ..}.
struct poll_clock {
    double lost_s;   // a peer that is silent for this long is lost
    double pause_s;  // the normal time between two polls: it counts, even if it exceeds a 32nd of lost_s
    double poll_s, lag_s;  // the last poll, of the host's clock; how far this clock lags
    // The end of the last stall, on this clock; its length, on the host's. 0: none.
    double stall_end_s, stall_s;
};

// The thread polls now. Returns the time of this poll.
double poll_clock_poll(struct poll_clock *c, double host_s);
// Returns the time of something that happens after this poll, or before the first one.
double poll_clock_at(const struct poll_clock *c, double host_s);

// Writes the text after "silent for ..": that this process was stalled shortly before or after heard_s, the time of
// the peer's last message; "" if it was not. Returns out.
const char *poll_clock_text(const struct poll_clock *c, double heard_s, char out[POLL_CLOCK_TEXT]);

// For a thread that watches whether another thread of this process still polls. Starts as {0}.
struct poll_watch {
    uint64_t polls;
    double seen_s;  // when `polls` last changed, or was still 0
};

// polls: how many polls the watched thread has made. Returns the seconds since that number last changed. now_s should be
// of the watcher's own poll clock: a stall of the process stops both threads, and so it does not count.
double poll_watch_idle_s(struct poll_watch *t, uint64_t polls, double now_s);

#endif
