// The state of a worker's core: its keys, its pushes and its open requests. For worker_core.c, and for worker_comm.c,
// which records the times of its units.
#ifndef STARRING_PS_WORKER_WORKER_CORE_STATE_H
#define STARRING_PS_WORKER_WORKER_CORE_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "ps/job/timing.h"
#include "ps/worker/snapshot_pulls.h"
#include "ps/worker/worker_core.h"
#include "shared/time/poll_clock.h"

// Credits limit the bytes that a worker has pushed and that are in no sum yet, and let urgent keys overtake others.
//
//     QUEUED --may go--> under way --the shard has it, waits for earlier worker--> held --summed--> returned
//                            \--------------------------------- summed -----------------------------/
//
// Gradients become ready in the opposite order of their urgency, so workers of unequal speed push in unequal orders. A
// shard holds a gradient until the earlier workers send theirs. They may send theirs last, and meanwhile wait for this
// worker's urgent keys. So held bytes take credits from less urgent keys only. Half of the credits are for bytes under
// way and for more urgent held bytes. All of the credits are for these and the other held bytes. One more key may go if
// nothing is under way and nothing as urgent is held.
//
// If the credits cover all that this worker can have open (all), they hold nothing back, however slow the first worker
// of the sum is. Bytes under way are limited even then: bytes that a transport has taken precede every more urgent key.
// The window is the bytes that arrive in CREDITS_WINDOW_S plus twice the shortest time of an answer, at the recent rate
// of the time in which anything was under way. It is at least two partitions, at most 32 MiB, and 32 MiB until the
// first answers.
#define CREDITS_WINDOW_MOST ((size_t)32 << 20)
#define CREDITS_WINDOW_S    0.06
#define CREDITS_FADE        0.95  // weight of earlier arrivals, per arrival: about the last 20 count

struct credits {
    size_t most, taken, held;  // bytes; held: those of taken that have arrived
    size_t window;             // bytes that may be in flight
    bool all;
    size_t least;           // the smallest window
    double bytes, seconds;  // bytes that arrived, and the time they took; fading
    double since_s;         // the last arrival, or when the first bytes went under way
    double answer_s;        // the shortest time of an answer; 0: none yet
};

// `bytes` in flight since sent_s have arrived: adapts the window.
static inline void credits_arrived(struct credits *c, size_t bytes, double sent_s, double now) {
    double took_s = now - sent_s;
    if (!bytes || took_s <= 0) return;
    if (c->answer_s <= 0 || took_s < c->answer_s) c->answer_s = took_s;
    c->bytes = c->bytes * CREDITS_FADE + (double)bytes;
    c->seconds = c->seconds * CREDITS_FADE + (now - c->since_s);
    c->since_s = now;
    double window = c->bytes * (2 * c->answer_s + CREDITS_WINDOW_S);
    if (window >= c->seconds * (double)CREDITS_WINDOW_MOST)
        c->window = CREDITS_WINDOW_MOST;
    else
        c->window = window > c->seconds * (double)c->least ? (size_t)(window / c->seconds) : c->least;
}

// Whether a key of `bytes` may be sent. held_before: held bytes of more urgent keys. The caller asks in order of
// urgency; after the first refusal no other key may be sent.
static inline bool credits_allow(const struct credits *c, size_t bytes, size_t held_before) {
    size_t under_way = c->taken - c->held;
    if (c->all) return !under_way || under_way + bytes <= c->window;
    if (!under_way && !held_before) return c->taken <= c->most;
    return under_way + bytes <= c->window && under_way + held_before + bytes <= c->most / 2 &&
           c->taken + bytes <= c->most;
}

enum sending { SEND_IDLE, SEND_QUEUED, SEND_SENT, SEND_HELD };

struct worker_key {
    const struct partition *part;
    size_t bytes;
    size_t push_at, push_bytes;  // of the pushed bytes: their offset in the unit's
    bool shared;                 // the shard reads and writes this worker's segment
    uint64_t weight_at;
    int64_t landed, version, updates;
    int64_t fills;            // pulls answered
    int64_t missing_updates;  // with a lead: steps before `landed` whose updates its weights do not hold
};

// The smallest value of one mark among a unit's keys, and how many keys have it.
struct least {
    int64_t value;
    int have;
};
enum mark { MARK_LANDED, MARK_VERSION, MARK_UPDATES, MARK_FILLS, MARKS };

// A key's push of a step, and the pull after it. worker_core.h draws the states.
struct worker_slot {
    enum sending sending;
    bool init;  // initial values are sent (in the slot of step 0); else a gradient
    bool pulling, pull_final;
    uint32_t pull_more;  // flags besides FINAL
    struct push_info push;
    int64_t staleness;  // of the gradient, with a lead
    const void *payload;
    size_t payload_bytes;
    double sent_s;
    uint64_t init_round;
    _Atomic int inflight;  // payloads the transport still reads
    struct worker_slot *next_lingering;
    int64_t pull_want;
    uint64_t pull_seq;
};

// A shard's state, as this worker knows it.
struct shard_side {
    double heard_s;       // when its last message arrived
    int pending_answers;  // answers: to pushes that this worker does not know to have arrived, and to pulls
    double asked_s;       // when the oldest pending answer was requested
};

// A unit's push of a step.
struct worker_unit {
    struct unit_times times;
    int unacknowledged, unlanded;    // keys
    int64_t handed;                  // pushes so far
    int queued, sending, lingering;  // slots; lingering: idle, but the transport still reads their payload
    int next;                        // no key before it is queued
    bool visited;  // all keys were checked since they were queued: those that need no credit are sent
    size_t held;   // held bytes of credits
};

// A step that this worker has reported, and the scheduler's answer once the step is closed. Steps that close without
// this worker are closed before it reports them.
struct worker_report {
    bool reported, closed;
    struct step_outcome out;  // its step tells which step has the entry
};

struct worker_core {
    struct worker_core_options o;
    struct worker_key *keys;    // (map->count)
    struct worker_slot *slots;  // (map->count, 1 + lead)
    struct worker_unit *units;  // (1 + lead, units)
    struct least *least;        // (units, MARKS)
    struct worker_report
        *reports;  // (room), step t at t % room: the last 1 + lag steps, and those that closed early
    int room;
    int64_t jump;                   // weights of this step or of a later one are wanted
    int queued, sending;            // slots
    struct worker_slot *lingering;  // idle, with payloads that the transport still reads
    struct credits credits;
    bool full;  // in this pump a key was refused, so no less urgent key may be sent
    uint64_t pull_seq;
    int64_t take_step;       // the step of the last TAKE
    bool taking, gathering;  // TAKE, GATHER have no answer yet
    int gather_count;
    struct worker_status status;
    struct snapshot_pulls *snapshots;
    bool copying;  // between worker_core_target and worker_core_message a frame is copied
    int64_t begin, step;
    bool stop;          // this worker was asked to stop
    uint64_t progress;  // pushes and initial values acknowledged. It does not grow while a worker is stuck
    double beat_s;
    struct poll_clock turns;    // the clock of the shards' times
    struct shard_side *shards;  // (shards)
    char error[WIRE_TEXT_MAX];
};

#endif
