// One clock for the roles of a job: the scheduler's monotonic clock. Processes of one host read the same clock. A
// process on another host estimates the offset of its own clock from round trips with the scheduler, all through the
// run: NTP's on-wire protocol (RFC 5905, section 8).
//
//     this role   t1 ------------------------------> t4      HEARTBEAT, HEARTBEAT_ACK
//     scheduler          t2 (answered at once: = t3)
//
//     offset = ((t2 - t1) + (t2 - t4)) / 2       error <= (t4 - t1) / 2, and grows with age: clocks drift
//
// Plain data without hidden state; times are nanoseconds.
#ifndef STARRING_PS_NET_CLOCK_H
#define STARRING_PS_NET_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define PS_CLOCK_FIRST   8     // samples taken quickly, before the first step
#define PS_CLOCK_FIRST_S 0.01  // between two of them

struct ps_clock {
    bool other_host;     // on another host than the scheduler; else all fields below are 0
    int samples;         // round trips so far
    int64_t offset_ns;   // the scheduler's clock minus this host's
    int64_t error_ns;    // largest error of the offset at the time of its measurement
    int64_t sampled_ns;  // the time of that measurement, by this host's clock
    int64_t worst_ns;    // the largest error in use since the first sample
};

// Identifies the clock that this process reads: equal for processes with the same monotonic clock. 0: unknown,
// and equal to no other.
uint64_t ps_clock_id(void);
// Returns the struct for a role that reads clock `own`, if the scheduler reads clock `schedulers` (ps_clock_id).
struct ps_clock ps_clock_of(uint64_t own, uint64_t schedulers);

// Takes a round trip: sent and received at sent_ns and back_ns of this host's clock, at the scheduler at there_ns of
// the scheduler's clock. The sample is kept if its error is no larger than the current one; impossible samples are
// dropped.
void ps_clock_sample(struct ps_clock *c, int64_t sent_ns, int64_t there_ns, int64_t back_ns);
// The largest possible error of the offset at own_ns.
int64_t ps_clock_error(const struct ps_clock *c, int64_t own_ns);

// Converts times of one clock to the other; 0 (no time) remains 0.
int64_t ps_clock_to_scheduler(const struct ps_clock *c, int64_t own_ns);
int64_t ps_clock_from_scheduler(const struct ps_clock *c, int64_t ns);

// A time at which a worker's data was ready names the worker: the remainder by PS_TIME_RANKS is its rank. So the
// latest of many times, through shards, groups and the scheduler, names the last worker. It is off by at most a
// microsecond.
#define PS_TIME_RANKS 1024
static inline int64_t ps_time_with_rank(int64_t ns, int rank) {
    return ns > 0 ? ns - ns % PS_TIME_RANKS + rank % PS_TIME_RANKS : 0;
}
static inline int ps_time_rank(int64_t ns) { return ns > 0 ? (int)(ns % PS_TIME_RANKS) : -1; }

static inline int64_t ps_later(int64_t a_ns, int64_t b_ns) { return a_ns > b_ns ? a_ns : b_ns; }
// Seconds of now_seconds() as nanoseconds.
static inline int64_t ps_clock_ns(double seconds) { return (int64_t)(seconds * 1e9); }

#endif
