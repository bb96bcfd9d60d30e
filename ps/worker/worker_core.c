#include "ps/worker/worker_core_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/sum/push_code.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- sending
static void open_pull(struct worker_core *c, struct worker_key *k, int64_t want, bool final) {
    if (!k->pulling) c->status.pulling++;
    k->pulling = true;
    k->pull_final = final;
    k->pull_keep = false;
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
static size_t credit(const struct worker_key *k) {
    return k->sending == SEND_GIVEN || (k->shared && !k->init) ? 0 : k->payload_bytes;
}

// A push goes with the pull of what comes after it, as long as that one is open.
static void ask_as_well(const struct worker_key *k, struct wire_header *h) {
    if (!k->pulling || k->pull_want != k->push.step + 1) return;
    h->flags |= WIRE_PULLS;
    h->seq = k->pull_seq;
    h->into = k->weight_at;
}

static void send_key(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_INIT, .key = key, .seq = k->init_round},
                           .payload = k->payload,
                           .bytes = k->payload_bytes,
                           .inflight = &k->inflight};
    if (!k->init)
        m.header =
            (struct wire_header){.kind = WIRE_PUSH,
                                 .key = key,
                                 .step = k->push.step,
                                 .version = k->version,
                                 .batch = k->push.batch,
                                 .lr = k->push.lr,
                                 .grad_scale = k->push.grad_scale,
                                 .flags = (k->push.skip ? WIRE_SKIP : 0) | (k->push.keep ? WIRE_KEEP : 0),
                                 .ready_ns = k->push.ready_ns};
    if (!k->init) ask_as_well(k, &m.header);
    if (!k->init && k->added) m.header.flags |= WIRE_CREW;
    if (!k->init && k->shared) {
        m.header.place = k->grad_at;
        m.header.place_bytes = k->push_bytes;
        m = (struct ps_message){.header = m.header};
    }
    int64_t *sent_ns = &c->units[k->part->unit].times.sent_ns;
    if (!k->init && !*sent_ns) *sent_ns = ps_clock_ns(now);
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

static void send_pull(struct worker_core *c, int key) {
    const struct worker_key *k = &c->keys[key];
    port_tell(&c->o.port, k->part->shard,
              &(struct wire_header){
                  .kind = WIRE_PULL,
                  .key = key,
                  .step = k->pull_want,
                  .seq = k->pull_seq,
                  .into = k->weight_at,
                  .flags = (k->pull_final ? WIRE_FINAL : 0) | (k->pull_keep ? (uint32_t)WIRE_KEEP : 0)});
}

// ---------------------------------------------------------------- a crew
static void count_crew(const struct worker_core *c, uint64_t sent, uint64_t received) {
    atomic_fetch_add(&c->crew->wire->payload_sent, sent);
    atomic_fetch_add(&c->crew->wire->payload_received, received);
}

// Another one leads: it reads the gradient where it lies, and this worker asks for what comes of it.
static void give(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    int64_t *sent_ns = &c->units[k->part->unit].times.sent_ns;
    if (!*sent_ns) *sent_ns = ps_clock_ns(now);
    k->sending = SEND_GIVEN;
    c->queued--;
    c->given++;
    k->asked_s = now;
    open_pull(c, k, k->push.step + 1, false);
    count_crew(c, k->bytes, 0);
    send_pull(c, key);
}

// Whether the key may be pushed: it is led by this worker, and the sum of all members. 1, 0 or -1 with an error.
static int crew_allows(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct crew_info info = {.step = k->push.step};
    if (!c->crew || k->init || k->added) return 1;
    if (!crew_leads(c->crew, key)) {
        give(c, key, now);
        return 0;
    }
    if (crew_lacks(c->crew, key, k->push.step) >= 0) {
        c->awaiting++;
        return 0;
    }
    if (crew_add(c->crew, key, &info, c->error, sizeof c->error) != 0) return -1;
    k->push.ready_ns = info.ready_ns;
    k->push.keep = info.keep;
    k->added = true;
    count_crew(c, 0, (uint64_t)(c->crew->size - 1) * k->bytes);
    return 1;
}

// Keys are ordered by unit, and unit 0 is what the next forward needs first.
static int pump(struct worker_core *c, double now) {
    bool full = false;
    size_t held = 0;  // of the keys so far
    c->awaiting = 0;
    for (int key = 0; key < c->o.map->count && c->queued > 0; key++) {
        struct worker_key *k = &c->keys[key];
        size_t takes = credit(k);
        if (k->sending == SEND_HELD) held += takes;
        if (k->sending != SEND_QUEUED) continue;
        int may = crew_allows(c, key, now);
        if (may < 0) return -1;
        if (!may) continue;
        full = full || !credits_allow(&c->credits, takes, held);
        if (takes && full) continue;
        k->sending = SEND_SENT;
        c->queued--;
        c->credits.taken += takes;
        k->asked_s = now;
        if (!k->init) open_pull(c, k, k->push.step + 1, false);
        send_key(c, key, now);
    }
    return 0;
}

static int64_t own_moment(const struct worker_core *c, int64_t own_ns) {
    return ps_moment_of(ps_clock_to_scheduler(&c->clock, own_ns), c->o.rank);
}

void worker_core_push_unit(struct worker_core *c, int u, const struct push_info *info) {
    int64_t oldest = INT64_MAX, newest = 0;
    for (const struct worker_key *k = c->keys; k < c->keys + c->o.map->count; k++) {
        if (k->version < oldest) oldest = k->version;
        if (k->version > newest) newest = k->version;
    }
    struct staleness *s = &c->status.staleness;
    // The first push of a step: behind each, weights are replaced.
    if (info->step == c->begin + (int64_t)s->spreads) staleness_spread(s, (uint64_t)(newest - oldest));
    const int *first = c->o.map->first;
    struct push_info push = *info;
    push.ready_ns = own_moment(c, info->ready_ns);
    c->units[u] = (struct worker_unit){.times = {.step = info->step, .ready_ns = info->ready_ns},
                                       .unacknowledged = first[u + 1] - first[u],
                                       .unlanded = first[u + 1] - first[u]};
    c->step = info->step;
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_key *k = &c->keys[key];
        k->init = k->added = false;
        k->push = push;
        queue_key(c, k, (const char *)c->o.grads[u] + k->push_at, k->push_bytes);
    }
    const struct crew_info handed = {info->step, push.ready_ns, info->lr, info->keep};
    if (c->crew) crew_hand(c->crew, u, &handed);
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

void worker_core_begin(struct worker_core *c, int64_t step) {
    c->begin = c->step = step;
    c->status.steps_done = step;
    for (int key = 0; key < c->o.map->count; key++) c->keys[key].landed = step;
}

void worker_core_gathers(struct worker_core *c, uint64_t done) { c->status.gathers_done = done; }
void worker_core_crew(struct worker_core *c, struct crew *crew) { c->crew = crew; }

static void request_open(struct worker_core *c, struct request *r, const struct wire_header *h) {
    *r = (struct request){.open = true, .h = *h};
    port_tell(&c->o.port, PEER_SCHEDULER, h);
}

void worker_core_report(struct worker_core *c, const struct step_report *r) {
    struct wire_header h = {.kind = WIRE_REPORT,
                            .step = r->in.step,
                            .loss = r->loss,
                            .lr = r->in.lr,
                            .loss_scale = r->in.loss_scale,
                            .clip = r->in.clip,
                            .flags = r->in.stop ? WIRE_STOP : 0,
                            .ready_ns = own_moment(c, r->ready_ns)};
    if (r->deal) deal_write(r->deal, &h);
    request_open(c, &c->report, &h);
}

void worker_core_stop(struct worker_core *c) {
    if (!c->stop) c->beat_s = 0;
    c->stop = true;
}

void worker_core_gather(struct worker_core *c, const double *values, int count) {
    struct wire_header h = {.kind = WIRE_GATHER, .seq = c->status.gathers_done, .count = count};
    if (count) memcpy(h.values, values, (size_t)count * sizeof *values);
    request_open(c, &c->gather, &h);
}

void worker_core_pull_all(struct worker_core *c, bool keep, double now) {
    for (int key = 0; key < c->o.map->count; key++) {
        c->keys[key].asked_s = now;
        open_pull(c, &c->keys[key], c->keys[key].landed, true);
        c->keys[key].pull_keep = keep;
        send_pull(c, key);
    }
}

void worker_core_goodbye(struct worker_core *c) {
    struct wire_header h = {.kind = WIRE_GOODBYE, .step = c->step};
    request_open(c, &c->goodbye, &h);
}

// This worker's steps that every key has acknowledged, while it asks for the next one.
static int64_t acknowledged(const struct worker_core *c) {
    int64_t next = c->take.h.step, least = next;
    if (c->sending > 0 || c->queued > 0) return next - 1;
    for (int u = 0; u < c->o.layout->count && next > c->first; u++)
        if (c->units[u].times.step + 1 < least) least = c->units[u].times.step + 1;
    return least;
}

void worker_core_take(struct worker_core *c, int64_t step, const struct wire_header *done) {
    struct wire_header h = {.kind = WIRE_TAKE, .step = step};
    if (done) {
        h.version = done->version;
        h.count = done->count;
        memcpy(h.values, done->values, sizeof h.values);
    }
    if (c->first < 0) c->first = step;
    c->take.h.step = step;
    h.seq = (uint64_t)acknowledged(c);
    request_open(c, &c->take, &h);
}

// Nobody else knows which of this worker's steps are open: the end of one is told as soon as it comes.
static void take_tick(struct worker_core *c) {
    struct wire_header h = c->take.h;
    if (!c->take.open || acknowledged(c) <= (int64_t)h.seq) return;
    h.seq = (uint64_t)acknowledged(c);
    request_open(c, &c->take, &h);
}

// ---------------------------------------------------------------- answers
static int64_t needed_ns(const struct worker_core *c, const struct wire_header *h, int64_t before_ns) {
    int64_t own_ns = ps_clock_from_scheduler(&c->clock, h->peers_ready_ns);
    return ps_later(before_ns, ps_moment_of(own_ns, ps_moment_rank(h->peers_ready_ns)));
}

static void note_acknowledged(struct worker_core *c, const struct worker_key *k, const struct wire_header *h,
                              double now) {
    struct worker_unit *u = &c->units[k->part->unit];
    struct unit_times *t = &u->times;
    t->acknowledged_peers_ns = needed_ns(c, h, t->acknowledged_peers_ns);
    // A group's leader may have added after now was read.
    if (--u->unacknowledged == 0) t->acknowledged_ns = ps_later(ps_clock_ns(now), t->acknowledged_peers_ns);
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
    if (k->sending == SEND_GIVEN) c->given--;
    k->sending = SEND_IDLE;
    c->sending--;
    c->progress++;
}

static void on_push_ack(struct worker_core *c, int key, const struct wire_header *h, double now) {
    struct worker_key *k = &c->keys[key];
    bool open = k->sending == SEND_SENT || k->sending == SEND_HELD;
    if (k->init || h->step != k->push.step) return;
    if (!open) return;
    if (h->flags & WIRE_HELD) {
        // Overtaken by weights that contain it, or by its last word.
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
    bool open = k->sending == SEND_SENT || k->sending == SEND_HELD || k->sending == SEND_GIVEN;
    if (open && !k->init && k->push.step < k->landed - h->untaken) {
        staleness_count(&c->status.staleness, (uint64_t)h->staleness);
        note_acknowledged(c, k, h, now);
        sent_through(c, k);
    }
    return 0;
}

static void on_init_ack(struct worker_core *c, int key, const struct wire_header *h) {
    struct worker_key *k = &c->keys[key];
    if (k->sending != SEND_SENT || !k->init || h->seq != k->init_round) return;
    sent_through(c, k);
}

static int on_shard(struct worker_core *c, int shard, const struct wire_header *h,
                    const struct ps_frame *frame, double now) {
    if (h->kind == WIRE_REFUSED)
        return core_fail(c->error, "server %d refused: %.400s", shard / c->o.map->threads, h->text);
    if (h->key >= c->o.map->count || c->o.map->parts[h->key].shard != shard) return 0;
    if (h->kind == WIRE_PULL_REPLY) return on_pull_reply(c, h->key, h, frame, now);
    if (h->kind == WIRE_PUSH_ACK) on_push_ack(c, h->key, h, now);
    if (h->kind == WIRE_INIT_ACK) on_init_ack(c, h->key, h);
    return 0;
}

static int on_scheduler(struct worker_core *c, const struct wire_header *h, double now) {
    switch (h->kind) {
        case WIRE_STEP_DONE:
            if (!c->report.open || h->step != c->report.h.step) return 0;
            if (h->count && deal_read(h, &c->status.deal) != 0) return 0;
            c->status.deal.state.step = h->step + 1;  // it opens
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
        case WIRE_TAKEN:
            if (!c->take.open || h->step != c->take.h.step) return 0;
            c->take.open = false;
            c->status.taken_step = h->step;
            c->status.taken = h->flags & WIRE_FINAL ? -1 : h->batch;
            c->status.handed_out = h->flags & WIRE_FINAL ? h->batch : h->batch + 1;
            c->status.done_ns = ps_clock_ns(now);
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
            c->status.told = true;
            c->status.ended = h->kind == WIRE_ABORT;
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
        c->shards[peer].heard_s = now;
        rc = on_shard(c, peer, h, frame, now);
    }
    ps_frame_release(frame);
    return rc;
}

// A gradient that its leader has added is this worker's own again.
static void take_back(struct worker_core *c, double now) {
    for (int key = 0; key < c->o.map->count && c->given > 0; key++) {
        struct worker_key *k = &c->keys[key];
        struct wire_header added = {.kind = WIRE_NONE};
        if (k->sending != SEND_GIVEN || !crew_added(c->crew, key, k->push.step, &added.peers_ready_ns))
            continue;
        staleness_count(&c->status.staleness, 0);
        note_acknowledged(c, k, &added, now);
        sent_through(c, k);
    }
}

// ---------------------------------------------------------------- time
// This process was frozen, or slept: its peers were not silent, and what they have said since is yet to be heard.
static void note_stall(struct worker_core *c, double now) {
    double excused_s = turn_stall_excused(&c->still, c->o.lost_s, now);
    if (excused_s <= 0) return;
    c->heard_s = turn_stall_moved(c->heard_s, excused_s, now);
    for (struct shard_side *l = c->shards; l < c->shards + c->o.map->shards; l++)
        l->heard_s = turn_stall_moved(l->heard_s, excused_s, now);
    for (struct worker_key *k = c->keys; k < c->keys + c->o.map->count; k++)
        k->asked_s = turn_stall_moved(k->asked_s, excused_s, now);
}

// Which shards owe answers, and the longest that one of them has been silent.
static void note_silence(struct worker_core *c, double now) {
    c->status.silent_s = 0;
    for (int g = 0; g < c->o.map->shards; g++) c->shards[g].owes = false;
    for (int key = 0; worker_core_transferring(c) && key < c->o.map->count; key++) {
        const struct worker_key *k = &c->keys[key];
        struct shard_side *shard = &c->shards[k->part->shard];
        if (k->sending != SEND_SENT && !k->pulling) continue;
        shard->owes = true;
        c->status.silent_s = fmax(c->status.silent_s, now - fmax(k->asked_s, shard->heard_s));
    }
}

int worker_core_tick(struct worker_core *c, double now) {
    if (c->error[0]) return -1;
    note_stall(c, now);
    if (pump(c, now) != 0) return -1;
    take_back(c, now);
    note_silence(c, now);
    take_tick(c);
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
    c->status.scheduler_silent_s = now - c->heard_s;
    c->status.lost_scheduler = now - c->heard_s > c->o.lost_s && !c->status.parted;
    char stood[TURN_STALL_WORDS];
    if (c->status.lost_scheduler)
        return core_fail(c->error, "the scheduler was lost at step %lld: silent for %.1f s%s" PS_LOST_KEY,
                         (long long)c->step, now - c->heard_s,
                         turn_stall_words(&c->still, c->o.lost_s, c->heard_s, stood));
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
bool worker_core_hurry(const struct worker_core *c) { return c->awaiting > 0; }
bool worker_core_transferring(const struct worker_core *c) { return c->sending > 0 || c->status.pulling > 0; }

bool worker_core_owes(const struct worker_core *c, int shard) { return c->shards[shard].owes; }

bool worker_core_renew(const struct worker_core *c, const struct wire_header *h) {
    const struct worker_key *k = &c->keys[h->key];
    if (k->sending != SEND_SENT || k->init != (h->kind == WIRE_INIT)) return false;
    return k->init ? k->init_round == h->seq : k->push.step == h->step;
}

const char *worker_core_error(const struct worker_core *c) { return c->error; }
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size) {
    const int *first = c->o.map->first;
    snprintf(out, size, "unit %s", c->o.layout->units[u].name);
    for (int key = first[u]; key < first[u + 1]; key++) {
        const struct worker_key *k = &c->keys[key];
        if (!k->pulling && k->sending == SEND_IDLE) continue;
        snprintf(out, size, "unit %s, key %d of server %d (%s, %s)", c->o.layout->units[u].name, key,
                 k->part->shard / c->o.map->threads,
                 k->sending == SEND_IDLE    ? "push acknowledged"
                 : k->sending == SEND_GIVEN ? "gradient handed to the group's leader of the key"
                 : k->sending == SEND_QUEUED && c->awaiting ? "push waits for the group's other workers"
                 : k->sending == SEND_QUEUED                ? "push waits for credits"
                 : k->sending == SEND_HELD                  ? "push held until earlier workers have pushed"
                                                            : "push not acknowledged",
                 k->pulling ? "pull not answered" : "no pull open");
        return;
    }
}

// ---------------------------------------------------------------- create and destroy
static void key_init(const struct worker_core *c, struct worker_key *k, const struct partition *part) {
    const struct worker_core_options *o = &c->o;
    size_t size = dtype_size(o->dtype), begin = (size_t)part->begin * size;
    k->part = part;
    k->bytes = (size_t)(part->end - part->begin) * size;
    k->shared = o->shared && o->shared[part->shard];
    k->push_bytes = push_bytes(&o->code, o->dtype, part->end - part->begin);
    if (part->begin > 0) k->push_at = k[-1].push_at + k[-1].push_bytes;
    if (k->shared) k->grad_at = o->grad_at[part->unit] + k->push_at;
    if (k->shared && o->weight_at) k->weight_at = o->weight_at[part->unit] + begin;
}

struct worker_core *worker_core_create(const struct worker_core_options *o) {
    struct worker_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->credits.most = (size_t)o->credit_bytes;
    c->heard_s = o->start_s;
    c->first = c->status.taken_step = -1;
    c->clock = o->clock;
    c->keys = xcalloc((unsigned long)o->map->count, sizeof *c->keys);
    c->shards = xcalloc((unsigned long)o->map->shards, sizeof *c->shards);
    c->units = xcalloc((unsigned long)o->layout->count, sizeof *c->units);
    for (int key = 0; key < o->map->count; key++) key_init(c, &c->keys[key], &o->map->parts[key]);
    return c;
}

void worker_core_destroy(struct worker_core **c) {
    if (!*c) return;
    free((*c)->keys);
    free((*c)->shards);
    free((*c)->units);
    free(*c);
    *c = NULL;
}
