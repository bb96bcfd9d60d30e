// What a worker's core knows: its keys, what is being sent, what it has asked. For the files of the core alone:
// worker_core.c takes requests and messages, worker_repeat.c asks again, worker_core_state.c tells how far things are.
#ifndef STARRING_PS_WORKER_WORKER_CORE_STATE_H
#define STARRING_PS_WORKER_WORKER_CORE_STATE_H

#include "ps/net/rto.h"
#include "ps/standstill.h"
#include "ps/worker/credits.h"
#include "ps/worker/worker_core.h"

enum sending { SEND_IDLE, SEND_QUEUED, SEND_SENT, SEND_HELD, SEND_GIVEN };

struct worker_key {
    const struct partition *part;
    size_t bytes;                // of its weights
    size_t push_at, push_bytes;  // of what is pushed: its place in the unit's
    bool shared, told;           // through this worker's segment; its push has been sent
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
    // Questions. The last message about this key that the shard has to answer:
    uint32_t ask;  // its number
    double ask_s;  // when it was sent
    bool arrived;  // the shard has what was sent, and the answer waits for others
    // The payload itself:
    uint32_t sent_ask;  // its number when it was sent last
    double sent_s;
    uint32_t want_ask;     // the number of the last request for an answer that is lost
    uint32_t sampled_ask;  // the last answer that gave a round trip
};

// Between this worker and a shard.
struct shard_line {
    double heard_s;  // when it said something last
    struct rto rto;
    uint64_t sent, heard;  // messages about keys
    // The last question for all of its keys: which key's, its number, what had been sent with it, when.
    int key;
    uint32_t ask;  // 0: it has been answered
    uint64_t sent_then;
    double asked_s;
    int unanswered;  // such questions since the shard last said anything
    int waits;       // and those after which all was known to be there, and others were waited for
    int64_t lost_up, lost_down;  // messages, as the last answer counts
    bool loses;                  // something of a key was said again, since it has not come
};

// The key of a shard that was spoken of the longest time ago; -1: there is none.
struct oldest {
    int fresh;    // of those that may be lost
    int arrived;  // of those whose answers wait for others
};

struct worker_unit {
    struct unit_times times;
    int unacknowledged, unlanded;  // keys of its last push
};

// A request to the scheduler that is repeated until answered.
struct request {
    bool open;
    int repeats;
    double sent_s;
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
    struct standstill still;
    struct shard_line *lines;  // (shards)
    struct oldest *oldest;     // (shards) scratch
    struct rto rto;            // of the scheduler
    char error[WIRE_TEXT_MAX];
};

#endif
