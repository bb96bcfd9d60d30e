// The state of a worker's core: its keys, what is being sent, what it has asked. For worker_core.c, and for the records that
// are made of its keys.
#ifndef STARRING_PS_WORKER_WORKER_CORE_STATE_H
#define STARRING_PS_WORKER_WORKER_CORE_STATE_H

#include "ps/job/turn_stall.h"
#include "ps/worker/credits.h"
#include "ps/worker/worker_core.h"

enum sending { SEND_IDLE, SEND_QUEUED, SEND_SENT, SEND_HELD, SEND_GIVEN };

struct worker_key {
    const struct partition *part;
    size_t bytes;                // of its weights
    size_t push_at, push_bytes;  // of what is pushed: its place in the unit's
    bool shared;                 // through this worker's segment
    uint64_t grad_at, weight_at;
    enum sending sending;
    bool init;   // what is being sent: initial values, else a gradient
    bool added;  // in a crew: it is the sum of all members
    struct push_info push;
    const void *payload;
    size_t payload_bytes;
    uint64_t init_round;
    double asked_s;        // when all of this began
    _Atomic int inflight;  // payloads the transport still reads
    bool pulling, pull_final, pull_keep;
    int64_t pull_want;
    uint64_t pull_seq;
    int64_t landed, version;
    uint64_t fills;  // answered pulls
};

// A shard, as far as this worker knows it.
struct shard_side {
    double heard_s;  // when it said something last
    bool owes;       // an answer
};

struct worker_unit {
    struct unit_times times;
    int unacknowledged, unlanded;  // keys of its last push
};

// A request to the scheduler.
struct request {
    bool open;  // it has not been answered
    struct wire_header h;
};

struct worker_core {
    struct worker_core_options o;
    struct worker_key *keys;    // (map->count)
    struct worker_unit *units;  // (units)
    struct ps_clock clock;
    int queued, sending;  // keys
    struct crew *crew;    // NULL: this worker pushes for itself
    int given, awaiting;  // keys handed to their leaders; keys led, of whom members have not come
    struct credits credits;
    uint64_t pull_seq;
    struct request report, gather, take, goodbye;
    struct worker_status status;
    int64_t begin, step;
    int64_t first;      // step of the first TAKE; -1: none yet
    bool stop;          // this worker was asked to leave
    uint64_t progress;  // pushes and initial values taken: a slow worker is told from a stuck one by it
    double beat_s, heard_s;
    struct turn_stall still;
    struct shard_side *shards;  // (shards)
    char error[WIRE_TEXT_MAX];
};

#endif
