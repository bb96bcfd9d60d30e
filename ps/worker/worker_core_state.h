// The state of a worker's core: its keys, what is being sent, what it has asked. For worker_core.c, and for the records that
// are made of its keys.
#ifndef STARRING_PS_WORKER_WORKER_CORE_STATE_H
#define STARRING_PS_WORKER_WORKER_CORE_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "ps/job/timing.h"
#include "ps/worker/worker_core.h"
#include "shared/time/turn_clock.h"

// Credits: how many bytes a worker may have pushed that are in no sum yet, and which of them an urgent key gets past.
//
//     QUEUED --may go--> under way --the shard has it, an earlier worker's turn--> held --summed--> returned
//                            \--------------------------------- summed -----------------------------/
//
// Gradients become ready in the opposite order of their urgency, so workers of unequal speed push in unequal orders.
// A gradient that one has sent too early is held until the others send it, which they may do last of all; and they wait for its
// urgent keys meanwhile. So what is held takes credits from less urgent keys alone: half of the credits are for what is
// under way and the more urgent ones held, all of them for everything. One key more may go where nothing is under way
// and nothing as urgent is held.
//
// Credits that are enough for all that this worker has open (all) hold nothing back, however late the worker is whose turn is
// first. What is under way is bounded even so: bytes that a transport has taken are in front of every key that is more urgent.
// So the window is what has lately arrived in CREDITS_WINDOW_S and in twice the shortest time of an answer, of the time in
// which anything was under way: two partitions at least, and 32 MiB until the first answers and at most.
#define CREDITS_WINDOW_MOST ((size_t)32 << 20)
#define CREDITS_WINDOW_S    0.06
#define CREDITS_FADE        0.95  // of what arrived before, per arrival: the last 20 count

struct credits {
    size_t most, taken, held;  // bytes; held: the part of taken that has arrived
    size_t window;             // for what is under way
    bool all;
    size_t least;           // window
    double bytes, seconds;  // that arrived, and that it took; fading
    double since_s;         // the last arrival, or since when anything is under way
    double answer_s;        // the shortest time of an answer; 0: none yet
};

// `bytes` that were under way since sent_s have arrived.
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

// Whether a key of `bytes` may go. held_before: bytes held of keys more urgent than it. Keys are asked for in order of
// urgency, and after the first that may not go no other may.
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
    size_t bytes;                // of its weights
    size_t push_at, push_bytes;  // of what is pushed: its place in the unit's
    bool shared;                 // through this worker's segment
    uint64_t weight_at;
    int64_t landed, version;
    int64_t fills;  // answered pulls
    int64_t lacks;  // with a lead: steps before `landed` whose updates its weights do not hold
};

// The least that a unit's keys have of one of these, and how many of them have it.
struct least {
    int64_t value;
    int have;
};
enum mark { MARK_LANDED, MARK_VERSION, MARK_FILLS, MARKS };

// A key's part in a step: its push, and the pull behind it. worker_core.h draws its life.
struct worker_slot {
    enum sending sending;
    bool init;  // what is being sent: initial values (in the slot of step 0), else a gradient
    bool pulling, pull_final;
    uint32_t pull_more;  // flags beside FINAL
    struct push_info push;
    int64_t staleness;  // with a lead, of the gradient
    const void *payload;
    size_t payload_bytes;
    double sent_s;
    uint64_t init_round;
    _Atomic int inflight;  // payloads the transport still reads
    struct worker_slot *next_lingering;
    int64_t pull_want;
    uint64_t pull_seq;
};

// A shard, as far as this worker knows it.
struct shard_side {
    double heard_s;  // when it said something last
    int owes;        // answers: to pushes that have not arrived for all this worker knows, and to pulls
    double asked_s;  // since when it has owed any
};

// A unit's push of a step.
struct worker_unit {
    struct unit_times times;
    int unacknowledged, unlanded;    // keys of it
    int64_t handed;                  // by unit: pushes so far
    int queued, sending, lingering;  // and slots: of those that are idle, some are in the transport's hands
    int next;                        // no key before it is queued
    bool visited;  // all keys have been seen since they were queued: what needs no credit has gone
    size_t held;   // bytes of credits.held
};

// A step that this worker has reported, and the scheduler's answer, once it is closed. Steps that go on without this worker are
// closed before it reports them.
struct worker_report {
    bool open, closed;
    struct step_outcome out;
};

struct worker_core {
    struct worker_core_options o;
    struct worker_key *keys;        // (map->count)
    struct worker_slot *slots;      // (map->count, 1 + lead)
    struct worker_unit *units;      // (1 + lead, units)
    struct least *least;            // (units, MARKS)
    struct worker_report *reports;  // (1 + lag)
    struct worker_report *early;    // (early_room), of step t t % early_room: closed, and not reported yet
    int early_room;
    int64_t jump;  // weights of this step are wanted, or of a later one
    struct ps_clock clock;
    int queued, sending;            // slots
    struct worker_slot *lingering;  // idle, with payloads that the transport still reads
    struct credits credits;
    bool full;  // of this turn: no less urgent key may go
    uint64_t pull_seq;
    int64_t take_step;       // that TAKE was said of last
    bool taking, gathering;  // TAKE, GATHER have no answer yet
    int gather_count;
    struct worker_status status;
    int64_t begin, step;
    bool stop;          // this worker was asked to leave
    uint64_t progress;  // pushes and initial values taken: a slow worker is told from a stuck one by it
    double beat_s;
    struct turn_clock turns;    // the shards' moments are of it
    struct shard_side *shards;  // (shards)
    char error[WIRE_TEXT_MAX];
};

#endif
