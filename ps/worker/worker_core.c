#include "ps/worker/worker_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/consistency.h"
#include "ps/worker/credits.h"
#include "shared/core/error.h"

enum sending { SEND_IDLE, SEND_QUEUED, SEND_SENT, SEND_HELD };

struct worker_key {
    const struct partition *part;
    size_t bytes;       // of weights or gradient
    bool shared, told;  // through this worker's segment; its push has been sent
    uint64_t grad_at, weight_at;
    enum sending sending;
    bool init;  // what is being sent: initial values, else a gradient
    struct push_info push;
    const void *payload;
    size_t payload_bytes;
    uint64_t init_round;
    double sent_s, asked_s;  // last; first
    _Atomic int inflight;    // payloads the transport still reads
    bool pulling, pull_final;
    int64_t pull_want;
    uint64_t pull_seq;
    double pulled_s;
    int64_t landed, version;
    uint64_t fills;  // answered pulls
};

struct worker_unit {
    struct unit_times times;
    int unacknowledged, unlanded;  // keys of its last push
};

// A request to the scheduler that is repeated until answered.
struct request {
    bool open;
    double sent_s;
    struct wire_header h;
};

struct worker_core {
    struct worker_core_options o;
    struct worker_key *keys;    // (map->count)
    struct worker_unit *units;  // (units)
    struct ps_clock clock;
    int queued, sending;  // keys
    struct credits credits;
    uint64_t pull_seq;
    struct request report, gather, goodbye;
    struct worker_status status;
    int64_t step;
    bool stop;          // this worker was asked to leave
    uint64_t progress;  // pushes and initial values taken: a slow worker is told from a stuck one by it
    double beat_s, heard_s;
    double *shard_s;  // (shards) when each was heard last
    char error[WIRE_TEXT_MAX];
};

static void request_open(struct worker_core *c, struct request *r, const struct wire_header *h, double now) {
    *r = (struct request){true, now, *h};
    port_tell(&c->o.port, PEER_SCHEDULER, h);
}

// ---------------------------------------------------------------- sending
// A push goes with the pull of what comes after it, as long as that one is open.
static void ask_as_well(struct worker_key *k, struct wire_header *h, double now) {
    if (!k->pulling || k->pull_want != k->push.step + 1) return;
    h->flags |= WIRE_PULLS;
    h->seq = k->pull_seq;
    h->into = k->weight_at;
    k->pulled_s = now;
}

static void send_key(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_INIT, .key = key, .seq = k->init_round},
                           .payload = k->payload,
                           .bytes = k->payload_bytes,
                           .inflight = &k->inflight};
    if (!k->init)
        m.header = (struct wire_header){.kind = WIRE_PUSH,
                                        .key = key,
                                        .step = k->push.step,
                                        .version = k->version,
                                        .lr = k->push.lr,
                                        .grad_scale = k->push.grad_scale,
                                        .flags = k->push.skip ? WIRE_SKIP : 0,
                                        .ready_ns = k->push.ready_ns};
    if (!k->init) ask_as_well(k, &m.header, now);
    if (!k->init && k->shared) {
        m.header.place = k->grad_at;
        m.header.place_bytes = k->bytes;
        if (k->told) m.header.flags |= WIRE_AGAIN;
        k->told = true;
        m = (struct ps_message){.header = m.header};
    }
    int64_t *sent_ns = &c->units[k->part->unit].times.sent_ns;
    if (!k->init && !*sent_ns) *sent_ns = ps_clock_ns(now);
    k->sent_s = now;
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

static void send_pull(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_PULL,
                                      .key = key,
                                      .step = k->pull_want,
                                      .seq = k->pull_seq,
                                      .into = k->weight_at,
                                      .flags = k->pull_final ? WIRE_FINAL : 0}};
    k->pulled_s = now;
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

static void open_pull(struct worker_core *c, struct worker_key *k, int64_t want, bool final) {
    if (!k->pulling) c->status.pulling++;
    k->pulling = true;
    k->pull_final = final;
    k->pull_want = want;
    k->pull_seq = ++c->pull_seq;
}

static void queue_key(struct worker_core *c, struct worker_key *k, const void *payload, size_t bytes) {
    if (k->sending == SEND_IDLE) {
        c->queued++;
        c->sending++;
    }
    k->sending = SEND_QUEUED;
    k->payload = payload;
    k->payload_bytes = bytes;
}

// Bytes of the transport that a key's sending takes.
static size_t credit(const struct worker_key *k) { return k->shared && !k->init ? 0 : k->payload_bytes; }

// Keys are ordered by unit, and unit 0 is what the next forward needs first.
static void pump(struct worker_core *c, double now) {
    bool full = false;
    size_t held = 0;  // of the keys so far
    for (int key = 0; key < c->o.map->count && c->queued > 0; key++) {
        struct worker_key *k = &c->keys[key];
        size_t takes = credit(k);
        if (k->sending == SEND_HELD) held += takes;
        if (k->sending != SEND_QUEUED) continue;
        full = full || !credits_allow(&c->credits, takes, held);
        if (takes && full) continue;
        k->sending = SEND_SENT;
        k->told = false;
        c->queued--;
        c->credits.taken += takes;
        k->asked_s = now;
        if (!k->init) open_pull(c, k, k->push.step + 1, false);
        send_key(c, key, now);
    }
}

void worker_core_push_unit(struct worker_core *c, int u, const struct push_info *info) {
    int64_t oldest = INT64_MAX, newest = 0;
    for (const struct worker_key *k = c->keys; k < c->keys + c->o.map->count; k++) {
        if (k->version < oldest) oldest = k->version;
        if (k->version > newest) newest = k->version;
    }
    struct staleness *s = &c->status.staleness;
    // The first push of a step: behind each, weights are replaced.
    if (info->step == (int64_t)s->spreads) staleness_spread(s, (uint64_t)(newest - oldest));
    const int *first = c->o.map->first;
    struct push_info push = *info;
    push.ready_ns = ps_clock_to_scheduler(&c->clock, info->ready_ns);
    c->units[u] = (struct worker_unit){.times = {.step = info->step, .ready_ns = info->ready_ns},
                                       .unacknowledged = first[u + 1] - first[u],
                                       .unlanded = first[u + 1] - first[u]};
    c->step = info->step;
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_key *k = &c->keys[key];
        k->init = false;
        k->push = push;
        queue_key(c, k, (const char *)c->o.grads[u] + (size_t)k->part->begin * dtype_size(c->o.dtype),
                  k->bytes);
    }
}

void worker_core_init_unit(struct worker_core *c, int u, const float *values, uint64_t round) {
    const int *first = c->o.map->first;
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_key *k = &c->keys[key];
        k->init = true;
        k->init_round = round;
        queue_key(c, k, values + k->part->begin, (size_t)(k->part->end - k->part->begin) * sizeof(float));
    }
}

void worker_core_report(struct worker_core *c, const struct step_report *r, double now) {
    struct wire_header h = {.kind = WIRE_REPORT,
                            .step = r->in.step,
                            .loss = r->loss,
                            .lr = r->in.lr,
                            .loss_scale = r->in.loss_scale,
                            .clip = r->in.clip,
                            .flags = r->in.stop ? WIRE_STOP : 0,
                            .ready_ns = ps_clock_to_scheduler(&c->clock, r->ready_ns)};
    request_open(c, &c->report, &h, now);
}

void worker_core_stop(struct worker_core *c) {
    if (!c->stop) c->beat_s = 0;
    c->stop = true;
}

void worker_core_gather(struct worker_core *c, const double *values, int count, double now) {
    struct wire_header h = {.kind = WIRE_GATHER, .seq = c->status.gathers_done, .count = count};
    if (count) memcpy(h.values, values, (size_t)count * sizeof *values);
    request_open(c, &c->gather, &h, now);
}

void worker_core_pull_all(struct worker_core *c, double now) {
    for (int key = 0; key < c->o.map->count; key++) {
        c->keys[key].asked_s = now;
        open_pull(c, &c->keys[key], c->keys[key].landed, true);
        send_pull(c, key, now);
    }
}

void worker_core_goodbye(struct worker_core *c, double now) {
    struct wire_header h = {.kind = WIRE_GOODBYE, .step = c->step};
    request_open(c, &c->goodbye, &h, now);
}

// ---------------------------------------------------------------- answers
static int64_t needed_ns(const struct worker_core *c, const struct wire_header *h, int64_t before_ns) {
    return ps_later(before_ns, ps_clock_from_scheduler(&c->clock, h->peers_ready_ns));
}

static void note_acknowledged(struct worker_core *c, const struct worker_key *k, const struct wire_header *h,
                              double now) {
    struct worker_unit *u = &c->units[k->part->unit];
    struct unit_times *t = &u->times;
    t->acknowledged_peers_ns = needed_ns(c, h, t->acknowledged_peers_ns);
    if (--u->unacknowledged == 0) t->acknowledged_ns = ps_clock_ns(now);
}

static void note_landed(struct worker_core *c, const struct worker_key *k, const struct wire_header *h,
                        double now) {
    struct worker_unit *u = &c->units[k->part->unit];
    struct unit_times *t = &u->times;
    if (k->pull_final) return;  // it follows no push
    t->landed_peers_ns = needed_ns(c, h, t->landed_peers_ns);
    if (!t->landed_first_ns) t->landed_first_ns = ps_clock_ns(now);
    if (--u->unlanded == 0) t->landed_ns = ps_clock_ns(now);
}

static void sent_through(struct worker_core *c, struct worker_key *k) {
    c->credits.taken -= credit(k);
    if (k->sending == SEND_HELD) c->credits.held -= credit(k);
    k->sending = SEND_IDLE;
    c->sending--;
    c->progress++;
}

static void on_push_ack(struct worker_core *c, struct worker_key *k, const struct wire_header *h,
                        double now) {
    bool open = k->sending == SEND_SENT || k->sending == SEND_HELD;
    if (!open || k->init || h->step != k->push.step) return;
    if (h->flags & WIRE_HELD) {
        // Overtaken by weights that contain it: this goes on being repeated until the last word comes.
        if (k->landed > k->push.step || k->sending == SEND_HELD) return;
        k->sending = SEND_HELD;
        c->credits.held += credit(k);
        return;
    }
    staleness_count(&c->status.staleness, (uint64_t)h->staleness);
    note_acknowledged(c, k, h, now);
    sent_through(c, k);
}

static int on_pull_reply(struct worker_core *c, int key, const struct wire_header *h,
                         const struct ps_frame *frame, double now) {
    struct worker_key *k = &c->keys[key];
    if (!k->pulling || h->seq != k->pull_seq || h->step != k->pull_want) return 0;
    size_t bytes = frame ? frame->bytes : k->shared ? h->place_bytes : 0;
    if (bytes != k->bytes)
        return core_fail(c->error,
                         "key %d, step %lld: server %d answered with %zu bytes of weights instead of %zu",
                         key, (long long)h->step, k->part->shard / c->o.map->threads, bytes, k->bytes);
    char *unit = c->o.weights[k->part->unit];
    if (frame) memcpy(unit + (size_t)k->part->begin * dtype_size(c->o.dtype), frame->data, bytes);
    k->pulling = false;
    k->landed = k->pull_want;
    k->version = h->version;
    k->fills++;
    c->status.pulling--;
    note_landed(c, k, h, now);
    // Weights that contain the push prove that it came: it is acknowledged no other way, or the acknowledgement
    // was lost.
    bool open = k->sending == SEND_SENT || k->sending == SEND_HELD;
    if (open && !k->init && k->push.step < k->landed) {
        staleness_count(&c->status.staleness, (uint64_t)h->staleness);
        note_acknowledged(c, k, h, now);
        sent_through(c, k);
    }
    return 0;
}

static int on_shard(struct worker_core *c, int shard, const struct wire_header *h,
                    const struct ps_frame *frame, double now) {
    if (h->kind == WIRE_REFUSED)
        return core_fail(c->error, "server %d refused: %.400s", shard / c->o.map->threads, h->text);
    if (h->key >= c->o.map->count || c->o.map->parts[h->key].shard != shard) return 0;
    struct worker_key *k = &c->keys[h->key];
    switch (h->kind) {
        case WIRE_PUSH_ACK:
            on_push_ack(c, k, h, now);
            return 0;
        case WIRE_PULL_REPLY:
            return on_pull_reply(c, h->key, h, frame, now);
        case WIRE_INIT_ACK:
            if (k->sending == SEND_SENT && k->init && h->seq == k->init_round) sent_through(c, k);
            return 0;
        default:
            return 0;
    }
}

static int on_scheduler(struct worker_core *c, const struct wire_header *h, double now) {
    switch (h->kind) {
        case WIRE_STEP_DONE:
            if (!c->report.open || h->step != c->report.h.step) return 0;
            c->report.open = false;
            c->status.steps_done = h->step + 1;
            c->status.done_ns = ps_clock_ns(now);
            c->status.done_peers_ns = needed_ns(c, h, 0);
            c->status.stats = (struct step_stats){.loss = h->loss,
                                                  .grad_norm = h->norm,
                                                  .skipped = (h->flags & WIRE_SKIP) != 0,
                                                  .stop = (h->flags & WIRE_STOP) != 0};
            return 0;
        case WIRE_HEARTBEAT_ACK:
            ps_clock_sample(&c->clock, h->ready_ns, h->peers_ready_ns, ps_clock_ns(now));
            c->status.clock = c->clock;
            if (h->flags & WIRE_STOP) c->status.stopped = true;
            return 0;
        case WIRE_GATHER_DONE:
            if (!c->gather.open || h->seq != c->gather.h.seq || h->count != c->gather.h.count) return 0;
            c->gather.open = false;
            c->status.gathers_done++;
            memcpy(c->status.gathered, h->values, sizeof c->status.gathered);
            return 0;
        case WIRE_GOODBYE_ACK:
            c->status.parted = c->goodbye.open;
            c->goodbye.open = false;
            return 0;
        case WIRE_ABORT:
        case WIRE_REFUSED:
            return core_fail(c->error, "%s", h->text[0] ? h->text : "the scheduler ended the job");
        default:
            return 0;
    }
}

int worker_core_message(struct worker_core *c, int peer, const struct wire_header *h, struct ps_frame *frame,
                        double now) {
    int rc = c->error[0] ? -1 : 0;
    if (peer == PEER_SCHEDULER) {
        c->heard_s = now;
        if (!rc) rc = on_scheduler(c, h, now);
    } else if (!rc) {
        c->shard_s[peer] = now;
        rc = on_shard(c, peer, h, frame, now);
    }
    ps_frame_release(frame);
    return rc;
}

// ---------------------------------------------------------------- time
static void repeat(struct worker_core *c, struct request *r, double now) {
    if (!r->open || now - r->sent_s <= c->o.resend_s) return;
    r->sent_s = now;
    port_tell(&c->o.port, PEER_SCHEDULER, &r->h);
}

// A held push is not repeated, but the pull behind it is.
static void repeat_keys(struct worker_core *c, double now) {
    for (int key = 0; key < c->o.map->count; key++) {
        struct worker_key *k = &c->keys[key];
        if (k->sending == SEND_SENT && now - k->sent_s > c->o.resend_s) send_key(c, key, now);
        if (k->pulling && now - k->pulled_s > c->o.resend_s) send_pull(c, key, now);
        bool owed = k->sending == SEND_SENT || k->pulling;
        double silent_s = now - fmax(k->asked_s, c->shard_s[k->part->shard]);
        if (owed && silent_s > c->status.silent_s) c->status.silent_s = silent_s;
    }
}

int worker_core_tick(struct worker_core *c, double now) {
    if (c->error[0]) return -1;
    pump(c, now);
    c->status.silent_s = 0;
    if (worker_core_transferring(c)) repeat_keys(c, now);
    repeat(c, &c->report, now);
    repeat(c, &c->gather, now);
    repeat(c, &c->goodbye, now);
    bool sampling = c->clock.apart && c->clock.samples < PS_CLOCK_FIRST;
    if (now - c->beat_s >= (sampling ? PS_CLOCK_FIRST_S : c->o.heartbeat_s)) {
        struct wire_header h = {.kind = WIRE_HEARTBEAT,
                                .step = c->step,
                                .seq = c->progress,
                                .ready_ns = ps_clock_ns(now),
                                .flags = c->stop ? WIRE_STOP : 0};
        c->beat_s = now;
        port_tell(&c->o.port, PEER_SCHEDULER, &h);
    }
    if (now - c->heard_s > c->o.lost_s && !c->status.parted)
        return core_fail(c->error, "the scheduler was lost at step %lld: silent for %.1f s",
                         (long long)c->step, now - c->heard_s);
    return 0;
}

// ---------------------------------------------------------------- state
// The least that the unit's keys have of a field.
#define LEAST(field, type, most)                                        \
    type worker_core_##field(const struct worker_core *c, int u) {      \
        const int *first = c->o.map->first;                             \
        type least = most;                                              \
        for (int key = first[u]; key < first[u + 1]; key++)             \
            if (c->keys[key].field < least) least = c->keys[key].field; \
        return least;                                                   \
    }
LEAST(landed, int64_t, INT64_MAX)
LEAST(version, int64_t, INT64_MAX)
LEAST(fills, uint64_t, UINT64_MAX)

const struct unit_times *worker_core_times(const struct worker_core *c, int u) { return &c->units[u].times; }
const struct ps_clock *worker_core_clock(const struct worker_core *c) { return &c->clock; }

int worker_core_busy(const struct worker_core *c, int u) {
    const int *first = c->o.map->first;
    int busy = 0;
    for (int key = first[u]; key < first[u + 1]; key++)
        busy += c->keys[key].sending != SEND_IDLE || atomic_load(&c->keys[key].inflight) > 0;
    return busy;
}

const struct worker_status *worker_core_status(const struct worker_core *c) { return &c->status; }
bool worker_core_transferring(const struct worker_core *c) { return c->sending > 0 || c->status.pulling > 0; }

const char *worker_core_error(const struct worker_core *c) { return c->error; }
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size) {
    const int *first = c->o.map->first;
    snprintf(out, size, "unit %s", c->o.layout->units[u].name);
    for (int key = first[u]; key < first[u + 1]; key++) {
        const struct worker_key *k = &c->keys[key];
        if (!k->pulling && k->sending == SEND_IDLE) continue;
        snprintf(out, size, "unit %s, key %d of server %d (%s, %s)", c->o.layout->units[u].name, key,
                 k->part->shard / c->o.map->threads,
                 k->sending == SEND_IDLE     ? "push acknowledged"
                 : k->sending == SEND_QUEUED ? "push waits for credits"
                 : k->sending == SEND_HELD   ? "push held until earlier workers have pushed"
                                             : "push not acknowledged",
                 k->pulling ? "pull not answered" : "no pull open");
        return;
    }
}

static void key_init(const struct worker_core *c, struct worker_key *k, const struct partition *part) {
    const struct worker_core_options *o = &c->o;
    size_t size = dtype_size(o->dtype), begin = (size_t)part->begin * size;
    k->part = part;
    k->bytes = (size_t)(part->end - part->begin) * size;
    k->shared = o->shared && o->shared[part->shard];
    if (k->shared) k->grad_at = o->grad_at[part->unit] + begin;
    if (k->shared && o->weight_at) k->weight_at = o->weight_at[part->unit] + begin;
}

struct worker_core *worker_core_create(const struct worker_core_options *o) {
    struct worker_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->credits.most = (size_t)o->credit_bytes;
    c->heard_s = o->start_s;
    c->clock = o->clock;
    c->keys = xcalloc((unsigned long)o->map->count, sizeof *c->keys);
    c->shard_s = xcalloc((unsigned long)o->map->shards, sizeof *c->shard_s);
    c->units = xcalloc((unsigned long)o->layout->count, sizeof *c->units);
    for (int key = 0; key < o->map->count; key++) key_init(c, &c->keys[key], &o->map->parts[key]);
    return c;
}

void worker_core_destroy(struct worker_core **c) {
    if (!*c) return;
    free((*c)->keys);
    free((*c)->shard_s);
    free((*c)->units);
    free(*c);
    *c = NULL;
}
