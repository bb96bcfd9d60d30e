#include "ps/worker/worker_core_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/push_code.h"
#include "ps/job/timing.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

// ---------------------------------------------------------------- slots
static int slots(const struct worker_core *c) { return 1 + c->o.rule.lead; }
static struct worker_slot *slot_at(const struct worker_core *c, int key, int64_t step) {
    return &c->slots[key * slots(c) + worker_slot_of(step, c->o.rule.lead)];
}
static struct worker_unit *unit_at(const struct worker_core *c, int u, int64_t step) {
    return &c->units[worker_slot_of(step, c->o.rule.lead) * c->o.map->units + u];
}
static struct worker_report *report_of(const struct worker_core *c, int64_t step) {
    return &c->reports[step % c->room];
}
static int unit_of(const struct worker_core *c, int key) { return c->o.map->parts[key].unit; }
static struct worker_unit *unit_of_slot(const struct worker_core *c, const struct worker_slot *s) {
    int64_t i = s - c->slots;
    return unit_at(c, unit_of(c, (int)(i / slots(c))), i % slots(c));
}

// ---------------------------------------------------------------- summaries of many keys
// A wake-up costs what has changed, however many keys there are: counts over the keys of a unit or a shard are updated
// when one key changes.
static int64_t *mark_of(struct worker_key *k, enum mark mark) {
    return mark == MARK_LANDED    ? &k->landed
           : mark == MARK_VERSION ? &k->version
           : mark == MARK_UPDATES ? &k->updates
                                  : &k->fills;
}

// Scans all keys of a unit only when the last key with the least value rises: at most once per key.
static void set_mark(struct worker_core *c, int key, enum mark mark, int64_t to) {
    int u = unit_of(c, key);
    const int *first = c->o.map->first;
    struct least *l = &c->least[u * MARKS + mark];
    int64_t *at = mark_of(&c->keys[key], mark);
    l->have -= *at == l->value;
    *at = to;
    if (to < l->value) *l = (struct least){to, 1};
    if (l->have > 0) return;
    l->value = INT64_MAX;
    for (int i = first[u]; i < first[u + 1]; i++) {
        int64_t has = *mark_of(&c->keys[i], mark);
        if (has < l->value) *l = (struct least){has, 0};
        l->have += has == l->value;
    }
}

static void count_answers(struct worker_core *c, int key, int answers, double now) {
    struct shard_side *shard = &c->shards[c->o.map->parts[key].shard];
    if (shard->pending_answers == 0) shard->asked_s = poll_clock_at(&c->turns, now);
    shard->pending_answers += answers;
}

// ---------------------------------------------------------------- sending
static void open_pull(struct worker_core *c, int key, struct worker_slot *s, int64_t want, bool final,
                      double now) {
    if (!s->pulling) {
        c->status.pulling++;
        count_answers(c, key, 1, now);
    }
    s->pulling = true;
    s->pull_final = final;
    s->pull_more = 0;
    s->pull_want = want;
    s->pull_seq = ++c->pull_seq;
}

static void queue(struct worker_core *c, struct worker_slot *s, const void *payload, size_t bytes) {
    struct worker_unit *u = unit_of_slot(c, s);
    if (s->sending == SEND_IDLE) {
        c->queued++;
        c->sending++;
        u->queued++;
        u->sending++;
    }
    u->visited = false;
    s->sending = SEND_QUEUED;
    s->payload = payload;
    s->payload_bytes = bytes;
}

// Bytes of the transport that a slot's payload takes.
static size_t credit(const struct worker_core *c, int key, const struct worker_slot *s) {
    bool costs_nothing = c->keys[key].shared && !s->init && !s->push.pulls_separately;
    return costs_nothing ? 0 : s->payload_bytes;
}

// A push carries the pull of the weights after it, if that pull is open.
static void send(struct worker_core *c, int key, struct worker_slot *s, double now) {
    const struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_INIT, .key = key, .seq = s->init_round},
                           .payload = s->payload,
                           .bytes = s->payload_bytes,
                           .inflight = &s->inflight};
    if (!s->init) {
        bool pulls = !s->push.pulls_separately && s->pulling && s->pull_want == s->push.step + 1;
        int64_t *sent_ns = &unit_at(c, k->part->unit, s->push.step)->times.sent_ns;
        if (!*sent_ns) *sent_ns = ps_clock_ns(now);
        m.header = (struct wire_header){
            .kind = WIRE_PUSH,
            .key = key,
            .step = s->push.step,
            .version = k->version,
            .batch = s->push.batch,
            .lr = s->push.lr,
            .grad_scale = s->push.grad_scale,
            .flags = (s->push.skip ? WIRE_SKIP : 0) | (s->push.keep ? (uint32_t)WIRE_KEEP : 0) |
                     (s->push.drain ? (uint32_t)WIRE_DRAINS : 0) | (pulls ? (uint32_t)WIRE_PULLS : 0),
            .seq = pulls ? s->pull_seq : 0,
            .reply_offset = pulls ? k->weight_at : 0,
            .tokens = s->push.tokens,
            .mean_tokens = s->push.mean_tokens,
            .ready_ns = s->push.ready_ns};
    }
    if (!s->init && k->shared) {
        int at = worker_buffer(c->o.buffers, k->part->unit, s->push.step);
        m.header.data_offset = c->o.buffers->grad_at[at] + k->push_at;
        m.header.data_bytes = k->push_bytes;
        m = (struct ps_message){.header = m.header};
    }
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

static void send_pull(struct worker_core *c, int key, const struct worker_slot *s) {
    const struct worker_key *k = &c->keys[key];
    port_tell(&c->o.port, k->part->shard,
              &(struct wire_header){.kind = WIRE_PULL,
                                    .key = key,
                                    .step = s->pull_want,
                                    .seq = s->pull_seq,
                                    .reply_offset = k->weight_at,
                                    .flags = (s->pull_final ? WIRE_FINAL : 0) | s->pull_more});
}

// Sends what the credits allow of a unit. held: held bytes of it and of more urgent units.
static void pump_unit(struct worker_core *c, int unit, struct worker_unit *u, int64_t step, size_t held,
                      double now) {
    bool visited = u->visited;
    u->visited = true;
    for (int key = u->next; key < c->o.map->first[unit + 1] && u->queued > 0; key++) {
        struct worker_slot *s = slot_at(c, key, step);
        if (s->sending != SEND_QUEUED) {
            u->next += u->next == key;
            continue;
        }
        size_t takes = credit(c, key, s);
        c->full = c->full || !credits_allow(&c->credits, takes, held);
        if (takes && c->full) {
            if (visited) return;
            continue;
        }
        s->sending = SEND_SENT;
        s->sent_s = now;
        c->queued--;
        u->queued--;
        if (takes && c->credits.taken == c->credits.held) c->credits.since_s = now;
        c->credits.taken += takes;
        count_answers(c, key, 1, now);
        if (!s->init && !s->push.pulls_separately) open_pull(c, key, s, s->push.step + 1, false, now);
        send(c, key, s, now);
    }
}

// Sends queued keys, those of the oldest step first. Keys are ordered by unit, and the next forward pass needs unit 0
// first.
static void pump(struct worker_core *c, double now) {
    size_t held = 0;  // held bytes of the units so far
    c->full = false;
    for (int64_t step = c->step + 1; step <= c->step + slots(c) && c->queued > 0; step++)
        for (int u = 0; u < c->o.map->units && c->queued > 0; u++) {
            struct worker_unit *x = unit_at(c, u, step);
            held += x->held;
            if (x->queued > 0 && !(x->visited && c->full)) pump_unit(c, u, x, step, held, now);
        }
}

// ---------------------------------------------------------------- requests
static int64_t own_time(const struct worker_core *c, int64_t own_ns) {
    return ps_time_with_rank(ps_clock_to_scheduler(&c->status.clock, own_ns), c->o.rank);
}

static void keep_ids(struct unit_times *t, const struct transfer_ids *ids) {
    t->ids.in = ids->in;
    if (ids->gradients) t->ids.gradients = ids->gradients;
    if (ids->weights) t->ids.weights = ids->weights;
}

// The unit's next weights are those of the pull that the caller requests now. Resets the times of their arrival.
static void open_landing(const struct worker_core *c, int u, struct worker_unit *x) {
    x->unlanded = c->o.map->first[u + 1] - c->o.map->first[u];
    x->times.landed_first_ns = x->times.landed_ns = x->times.landed_peers_ns = 0;
}

// Queues the unit's keys; pump sends them (worker_comm.h draws the way).
void worker_core_push_unit(struct worker_core *c, int u, const struct push_info *info) {
    struct staleness *stale = &c->status.staleness;
    // The spread is counted at the first push of a step: after each push, newer weights arrive.
    if (info->step > c->step || !stale->spreads) {
        int64_t oldest = INT64_MAX, newest = 0;
        for (const struct worker_key *k = c->keys; k < c->keys + c->o.map->trained; k++) {
            if (k->version < oldest) oldest = k->version;
            if (k->version > newest) newest = k->version;
        }
        staleness_spread(stale,
                         (uint64_t)((newest - oldest + c->o.rule.per_update - 1) / c->o.rule.per_update));
    }
    const int *first = c->o.map->first;
    const char *grads = c->o.buffers->wire_grads[worker_buffer(c->o.buffers, u, info->step)];
    struct push_info push = *info;
    push.ready_ns = own_time(c, info->ready_ns);
    struct worker_unit *x = unit_at(c, u, info->step);
    x->times = (struct unit_times){.step = info->step,
                                   .ready_ns = info->ready_ns,
                                   .landed_first_ns = x->times.landed_first_ns,
                                   .landed_ns = x->times.landed_ns,
                                   .landed_peers_ns = x->times.landed_peers_ns,
                                   .ids = x->times.ids};
    keep_ids(&x->times, &info->ids);
    x->unacknowledged = first[u + 1] - first[u];
    if (info->pulls_separately)
        c->credits.all = false;  // a step has as many pushes as micro-batches
    else
        open_landing(c, u, x);
    x->handed++;
    x->next = first[u];
    c->step = info->step;
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_slot *s = slot_at(c, key, info->step);
        s->init = false;
        s->push = push;
        s->staleness = c->keys[key].missing_updates;
        queue(c, s, grads + c->keys[key].push_at, c->keys[key].push_bytes);
    }
}

void worker_core_pull_unit(struct worker_core *c, int u, const struct pull_info *info, double now) {
    const int *first = c->o.map->first;
    struct worker_unit *x = unit_at(c, u, info->step - 1);
    keep_ids(&x->times, &info->ids);
    open_landing(c, u, x);
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_slot *s = slot_at(c, key, info->step - 1);
        open_pull(c, key, s, info->step, info->as_control, now);
        send_pull(c, key, s);
    }
}

void worker_core_init_unit(struct worker_core *c, int u, const float *values, uint64_t round) {
    const int *first = c->o.map->first;
    unit_at(c, u, 0)->next = first[u];
    for (int key = first[u]; key < first[u + 1]; key++) {
        struct worker_slot *s = slot_at(c, key, 0);
        const struct partition *p = c->keys[key].part;
        s->init = true;
        s->init_round = round;
        queue(c, s, values + p->begin, (size_t)(p->end - p->begin) * sizeof(float));
    }
}

void worker_core_begin(struct worker_core *c, int64_t step) {
    c->begin = c->step = step;
    c->status.steps_done = c->status.steps_closed = step;
    for (int key = 0; key < c->o.map->count; key++) set_mark(c, key, MARK_LANDED, step);
}

void worker_core_gathers(struct worker_core *c, uint64_t done) { c->status.gathers_done = done; }

static void tell_scheduler(const struct worker_core *c, const struct wire_header *h) {
    port_tell(&c->o.port, PEER_SCHEDULER, h);
}

#define BEHIND_MOST (1 << 20)  // steps that a worker may be late; each takes less than 200 bytes

// Makes room for the answer to a step that this worker may not have reported yet. Returns false if that step is too
// far ahead.
static bool make_room(struct worker_core *c, int64_t step) {
    int64_t done = c->status.steps_done, room = c->room, first = done - 1 - c->o.rule.lag;
    if (step - done >= BEHIND_MOST) return false;
    while (step - first >= c->room) c->room *= 2;
    if (c->room == room) return true;
    struct worker_report *old = c->reports;
    c->reports = xcalloc((unsigned long)c->room, sizeof *c->reports);
    for (const struct worker_report *r = old; r < old + room; r++)
        if (r->reported || r->closed) *report_of(c, r->out.step) = *r;
    free(old);
    return true;
}

static void count_steps(struct worker_core *c) {
    struct worker_status *at = &c->status;
    const struct worker_report *r;
    while ((r = report_of(c, at->steps_done))->reported && r->closed && r->out.step == at->steps_done)
        at->steps_done++;
    if (at->steps_closed < at->steps_done) at->steps_closed = at->steps_done;
    while ((r = report_of(c, at->steps_closed))->closed && r->out.step == at->steps_closed)
        at->steps_closed++;
}

void worker_core_report(struct worker_core *c, const struct step_report *r) {
    struct wire_header h = {.kind = WIRE_REPORT,
                            .step = r->in.step,
                            .loss = r->loss,
                            .lr = r->in.lr,
                            .loss_scale = r->in.loss_scale,
                            .clip = r->in.clip,
                            .tokens = r->tokens,
                            .mean_tokens = r->mean_tokens,
                            .flags = r->in.stop ? WIRE_STOP : 0,
                            .ready_ns = own_time(c, r->ready_ns)};
    if (r->opening) opening_write(r->opening, &h);
    struct worker_report *own = report_of(c, h.step);
    if (own->out.step != h.step || own->reported) *own = (struct worker_report){.out.step = h.step};
    own->reported = true;
    tell_scheduler(c, &h);
    count_steps(c);
}

void worker_core_snapshot(struct worker_core *c, int64_t version, struct snapshot *s) {
    snapshot_pulls_open(c->snapshots, version, s);
}

void worker_core_end_snapshots(struct worker_core *c) { snapshot_pulls_end(c->snapshots); }

void worker_core_stop(struct worker_core *c) {
    if (!c->stop) c->beat_s = 0;
    c->stop = true;
}

void worker_core_gather(struct worker_core *c, const double *values, int count) {
    struct wire_header h = {.kind = WIRE_GATHER, .seq = c->status.gathers_done, .count = count};
    if (count) memcpy(h.values, values, (size_t)count * sizeof *values);
    c->gathering = true;
    c->gather_count = count;
    tell_scheduler(c, &h);
}

void worker_core_pull_all(struct worker_core *c, uint32_t more, double now) {
    for (int key = 0; key < c->o.map->trained; key++) {
        int64_t want = c->keys[key].landed;
        struct worker_slot *s = slot_at(c, key, want - 1);
        open_pull(c, key, s, want, true, now);
        s->pull_more = more;
        send_pull(c, key, s);
    }
}

void worker_core_take(struct worker_core *c, int64_t step, const struct wire_header *done) {
    struct wire_header h = {.kind = WIRE_TAKE, .step = step, .flags = c->stop ? WIRE_STOP : 0};
    if (done) {
        h.version = done->version;
        h.count = done->count;
        memcpy(h.values, done->values, sizeof done->values);
    }
    c->take_step = step;
    c->taking = true;
    tell_scheduler(c, &h);
}

// ---------------------------------------------------------------- answers
static int64_t needed_ns(const struct worker_core *c, const struct wire_header *h, int64_t before_ns) {
    int64_t own_ns = ps_clock_from_scheduler(&c->status.clock, h->peers_ready_ns);
    return ps_later(before_ns, ps_time_with_rank(own_ns, ps_time_rank(h->peers_ready_ns)));
}

static void note_acknowledged(struct worker_core *c, int key, const struct worker_slot *s,
                              const struct wire_header *h, double now) {
    struct worker_unit *u = unit_at(c, unit_of(c, key), s->push.step);
    struct unit_times *t = &u->times;
    t->acknowledged_peers_ns = needed_ns(c, h, t->acknowledged_peers_ns);
    // Some keys may have been handed over after `now` was read, so the later of the two times counts.
    if (--u->unacknowledged == 0) t->acknowledged_ns = ps_later(ps_clock_ns(now), t->acknowledged_peers_ns);
}

static void free_slot(struct worker_core *c, int key, struct worker_slot *s, double now) {
    size_t given_back = credit(c, key, s);
    struct worker_unit *u = unit_of_slot(c, s);
    c->credits.taken -= given_back;
    if (s->sending == SEND_HELD) c->credits.held -= given_back;
    if (s->sending == SEND_HELD) u->held -= given_back;
    if (s->sending == SEND_SENT) {
        count_answers(c, key, -1, now);
        credits_arrived(&c->credits, given_back, s->sent_s, now);
    }
    s->sending = SEND_IDLE;
    c->sending--;
    u->sending--;
    c->progress++;
    if (atomic_load(&s->inflight) == 0) return;
    u->lingering++;
    s->next_lingering = c->lingering;
    c->lingering = s;
}

static void count_acknowledged_age(struct worker_core *c, const struct wire_header *h, int64_t age) {
    if (!(h->flags & WIRE_UNUSED)) staleness_count(&c->status.staleness, (uint64_t)age);
}

// The shard has the gradient. With a lead the worker knows the gradient's age; else the shard sends it, now or with the
// next weights.
static void taken(struct worker_core *c, int key, struct worker_slot *s, const struct wire_header *h,
                  double now) {
    if (!consistency_ages_late(c->o.rule))
        count_acknowledged_age(c, h, c->o.rule.lead > 0 ? s->staleness : h->staleness);
    note_acknowledged(c, key, s, h, now);
    free_slot(c, key, s, now);
}

// The shard has the gradient, in a sum or as its own copy, and the buffer is free. The credit of a copy returns once it
// is in the sum. That answer may arrive before the acknowledgement of the copy.
static void on_copied_ack(struct worker_core *c, int key, const struct wire_header *h, double now) {
    struct worker_slot *s = slot_at(c, key, h->step);
    bool held = (h->flags & WIRE_HELD) != 0;
    bool waits = s->sending == SEND_SENT && !s->init && h->step == s->push.step && h->batch == s->push.batch;
    size_t bytes = c->keys[key].push_bytes;
    if (waits) {
        taken(c, key, s, h, now);
        c->credits.taken += held ? bytes : 0;
        c->credits.held += held ? bytes : 0;
    } else if (!held && c->credits.held >= bytes) {
        c->credits.taken -= bytes;
        c->credits.held -= bytes;
    }
}

// ---------------------------------------------------------------- steps that closed without this worker
// When a worker jumps, its pushes of the step before that are still queued are dropped.
static void drop_queued(struct worker_core *c, int key, struct worker_slot *s, double now) {
    struct wire_header nothing = {.kind = WIRE_NONE};
    struct worker_unit *u = unit_at(c, unit_of(c, key), s->push.step);
    note_acknowledged(c, key, s, &nothing, now);
    if (!u->times.landed_first_ns) u->times.landed_first_ns = ps_clock_ns(now);
    if (--u->unlanded == 0) u->times.landed_ns = ps_clock_ns(now);
    s->sending = SEND_IDLE;
    c->queued--;
    c->sending--;
    u->queued--;
    u->sending--;
}

static void pull_jump(struct worker_core *c, int key, double now) {
    struct worker_slot *s = slot_at(c, key, c->jump - 1);
    if (c->keys[key].landed >= c->jump || s->pulling) return;
    open_pull(c, key, s, c->jump, true, now);
    send_pull(c, key, s);
}

// Pushes that credits allow leave first, as predicted: no tick may have come since they were requested.
void worker_core_jump(struct worker_core *c, int64_t step, double now) {
    pump(c, now);
    c->jump = step;
    if (c->step < step - 1) c->step = step - 1;
    for (int key = 0; key < c->o.map->trained; key++) {
        struct worker_slot *s = slot_at(c, key, step - 1);
        if (s->sending == SEND_QUEUED && !s->init) drop_queued(c, key, s, now);
        pull_jump(c, key, now);
    }
}

// ---------------------------------------------------------------- answers of shards
static void on_push_ack(struct worker_core *c, int key, const struct wire_header *h, double now) {
    struct worker_slot *s = slot_at(c, key, h->step);
    bool open = s->sending == SEND_SENT || s->sending == SEND_HELD;
    if (s->init || h->step != s->push.step || !open) return;
    if (!(h->flags & WIRE_HELD)) {
        taken(c, key, s, h, now);
    } else if (s->sending == SEND_SENT) {
        s->sending = SEND_HELD;
        count_answers(c, key, -1, now);
        credits_arrived(&c->credits, credit(c, key, s), s->sent_s, now);
        c->credits.held += credit(c, key, s);
        unit_of_slot(c, s)->held += credit(c, key, s);
    }
}

// The open pull that this message answers; NULL: none.
static const struct worker_slot *pull_answered(const struct worker_core *c, int peer,
                                               const struct wire_header *h) {
    if (h->kind != WIRE_PULL_REPLY || h->key >= c->o.map->count || c->o.map->parts[h->key].shard != peer)
        return NULL;
    const struct worker_slot *asked = slot_at(c, h->key, h->step - 1);
    if (!asked->pulling || h->seq != asked->pull_seq) return NULL;
    return h->step < asked->pull_want || (h->step > asked->pull_want && !consistency_drops(c->o.rule))
               ? NULL
               : asked;
}

void *worker_core_target(struct worker_core *c, int peer, const struct wire_header *h,
                         const struct ps_frame *frame) {
    void *to = NULL;
    if (frame && peer != PEER_SCHEDULER && h->kind == WIRE_SNAPSHOT_REPLY) {
        to = snapshot_pulls_target(c->snapshots, h, frame);
    } else if (frame && pull_answered(c, peer, h) && frame->bytes == c->keys[h->key].bytes) {
        const struct partition *p = c->keys[h->key].part;
        to = (char *)c->o.buffers->wire_weights[p->unit] + (size_t)p->begin * dtype_size(c->o.dtype);
    }
    c->copying = to != NULL;
    return to;
}

// Weights of a step answer the pulls of earlier steps too, which the shard may have dropped for it. They also
// acknowledge the pushes before them, which may get no other answer. Where steps close without stragglers, a pull may
// be answered with weights of a later step than it asked for. Elsewhere such an answer belongs to no request and is
// dropped.
static int on_pull_reply(struct worker_core *c, int key, const struct wire_header *h,
                         const struct ps_frame *frame, double now) {
    struct worker_key *k = &c->keys[key];
    size_t bytes = frame ? frame->bytes : k->shared ? h->data_bytes : 0;
    if (bytes != k->bytes)
        return core_fail(c->error,
                         "key %d, step %lld: server %d answered with %zu bytes of weights instead of %zu",
                         key, (long long)h->step, k->part->shard / c->o.map->threads, bytes, k->bytes);
    set_mark(c, key, MARK_LANDED, h->step);
    set_mark(c, key, MARK_VERSION, h->version);
    set_mark(c, key, MARK_UPDATES, h->updates);
    set_mark(c, key, MARK_FILLS, k->fills + 1);
    if (c->o.rule.lead > 0) k->missing_updates = h->staleness;
    for (int i = 0; i < slots(c); i++) {
        struct worker_slot *s = slot_at(c, key, i);
        if (s->pulling && s->pull_want <= k->landed) {
            struct worker_unit *u = unit_at(c, k->part->unit, i);
            struct unit_times *t = &u->times;
            s->pulling = false;
            c->status.pulling--;
            count_answers(c, key, -1, now);
            if (s->pull_final) continue;  // this pull follows no push
            if (consistency_ages_late(c->o.rule)) count_acknowledged_age(c, h, h->staleness);
            t->landed_peers_ns = needed_ns(c, h, t->landed_peers_ns);
            if (!t->landed_first_ns) t->landed_first_ns = ps_clock_ns(now);
            if (--u->unlanded == 0) t->landed_ns = ps_clock_ns(now);
        }
        bool open = s->sending == SEND_SENT || s->sending == SEND_HELD;
        if (!open || s->init || s->push.pulls_separately || s->push.step >= k->landed - h->pending_pushes)
            continue;
        taken(c, key, s, h, now);
    }
    pull_jump(c, key, now);
    return 0;
}

static int on_shard(struct worker_core *c, int shard, const struct wire_header *h,
                    const struct ps_frame *frame, double now) {
    if (h->kind == WIRE_REFUSED)
        return core_fail(c->error, "server %d refused: %.400s", shard / c->o.map->threads, h->text);
    if (h->key >= c->o.map->count || c->o.map->parts[h->key].shard != shard) return 0;
    if (h->kind == WIRE_SNAPSHOT_REPLY) snapshot_pulls_answer(c->snapshots, h, frame);
    if (pull_answered(c, shard, h)) return on_pull_reply(c, h->key, h, frame, now);
    if (h->kind == WIRE_PUSH_ACK) {
        bool copied = slot_at(c, h->key, h->step)->push.pulls_separately;
        (copied ? on_copied_ack : on_push_ack)(c, h->key, h, now);
    }
    struct worker_slot *init = slot_at(c, h->key, 0);
    if (h->kind == WIRE_INIT_ACK && init->init && init->sending == SEND_SENT && h->seq == init->init_round)
        free_slot(c, h->key, init, now);
    return 0;
}

// Answers to reports count in the order of their steps.
static int on_step_done(struct worker_core *c, const struct wire_header *h, double now) {
    bool drops = consistency_drops(c->o.rule);
    if (h->step < c->status.steps_done) return 0;
    if (drops && !make_room(c, h->step))
        return core_fail(c->error,
                         "the job closes step %lld, and this worker is at step %lld: it is too far behind",
                         (long long)h->step, (long long)c->status.steps_done);
    struct worker_report *r = report_of(c, h->step);
    if (drops && r->out.step != h->step) *r = (struct worker_report){.out.step = h->step};
    if (r->out.step != h->step || r->closed || !(drops || r->reported)) return 0;
    if (h->count && opening_read(h, &r->out.opening) != 0) return 0;
    r->out.opening.state.step = h->step + 1 + c->o.rule.lead;  // the step that opens when this one is done
    r->closed = true;
    r->out.late = (h->flags & WIRE_LATE) != 0;
    r->out.done_ns = ps_clock_ns(now);
    r->out.done_peers_ns = needed_ns(c, h, 0);
    r->out.stats = (struct step_stats){.loss = h->loss,
                                       .grad_norm = h->norm,
                                       .skipped = (h->flags & WIRE_SKIP) != 0,
                                       .stop = (h->flags & WIRE_STOP) != 0};
    count_steps(c);
    return 0;
}

static int on_scheduler(struct worker_core *c, const struct wire_header *h, double now) {
    switch (h->kind) {
        case WIRE_STEP_DONE:
            return on_step_done(c, h, now);
        case WIRE_HEARTBEAT_ACK:
            ps_clock_sample(&c->status.clock, h->ready_ns, h->peers_ready_ns, ps_clock_ns(now));
            if (h->flags & WIRE_STOP) c->status.stopped = true;
            return 0;
        case WIRE_TAKEN:
            if (!c->taking || h->step != c->take_step) return 0;
            c->taking = false;
            c->status.taken_step = h->step;
            c->status.taken = h->flags & WIRE_FINAL ? -1 : h->batch;
            c->status.handed_out = h->flags & WIRE_FINAL ? h->batch : h->batch + 1;
            c->status.taken_ns = ps_clock_ns(now);
            return 0;
        case WIRE_GATHER_DONE:
            if (!c->gathering || h->seq != c->status.gathers_done || h->count != c->gather_count) return 0;
            c->gathering = false;
            c->status.gathers_done++;
            memcpy(c->status.gathered, h->values, sizeof c->status.gathered);
            return 0;
        case WIRE_REFUSED:
            return core_fail(c->error, "%s", h->text[0] ? h->text : "the scheduler ended the job");
        default:
            return 0;
    }
}

int worker_core_message(struct worker_core *c, int peer, const struct wire_header *h, struct ps_frame *frame,
                        double now) {
    int rc = c->error[0] ? -1 : 0;
    c->copying = false;
    if (!rc && peer == PEER_SCHEDULER)
        rc = on_scheduler(c, h, now);
    else if (!rc) {
        c->shards[peer].heard_s = poll_clock_at(&c->turns, now);
        rc = on_shard(c, peer, h, frame, now);
    }
    ps_frame_release(frame);
    return rc;
}

// ---------------------------------------------------------------- time
// Frees the slots whose payload the transport no longer reads.
static void note_free(struct worker_core *c) {
    for (struct worker_slot *s, **at = &c->lingering; (s = *at);) {
        if (atomic_load(&s->inflight) > 0) {
            at = &s->next_lingering;
            continue;
        }
        *at = s->next_lingering;
        unit_of_slot(c, s)->lingering--;
    }
}

int worker_core_tick(struct worker_core *c, double now) {
    if (c->error[0]) return -1;
    double turn_s = poll_clock_poll(&c->turns, now);
    snapshot_pulls_tick(c->snapshots);
    pump(c, now);
    note_free(c);
    c->status.silent_s = 0;
    for (const struct shard_side *l = c->shards; l < c->shards + c->o.map->shards; l++)
        if (l->pending_answers)
            c->status.silent_s = fmax(c->status.silent_s, turn_s - fmax(l->asked_s, l->heard_s));
    bool sampling = c->status.clock.other_host && c->status.clock.samples < PS_CLOCK_FIRST;
    if (now - c->beat_s >= (sampling ? PS_CLOCK_FIRST_S : c->o.heartbeat_s)) {
        struct wire_header h = {.kind = WIRE_HEARTBEAT,
                                .step = c->step,
                                .seq = c->progress,
                                .ready_ns = ps_clock_ns(now),
                                .flags = c->stop ? WIRE_STOP : 0};
        c->beat_s = now;
        tell_scheduler(c, &h);
    }
    return 0;
}

// ---------------------------------------------------------------- state
int64_t worker_core_landed(const struct worker_core *c, int u) {
    return c->least[u * MARKS + MARK_LANDED].value;
}
static int64_t least_of_all(const struct worker_core *c, enum mark mark) {
    int64_t least = INT64_MAX;
    for (int u = 0; u < c->o.layout->count; u++)
        if (c->least[u * MARKS + mark].value < least) least = c->least[u * MARKS + mark].value;
    return least;
}
int64_t worker_core_version(const struct worker_core *c) { return least_of_all(c, MARK_VERSION); }
int64_t worker_core_updates(const struct worker_core *c) { return least_of_all(c, MARK_UPDATES); }
uint64_t worker_core_fills(const struct worker_core *c, int u) {
    return (uint64_t)c->least[u * MARKS + MARK_FILLS].value;
}

const struct unit_times *worker_core_times(const struct worker_core *c, int u, int64_t step) {
    return &unit_at(c, u, step)->times;
}

int worker_core_busy(const struct worker_core *c, int u, int64_t step) {
    const struct worker_unit *x = unit_at(c, u, step);
    return x->sending + x->lingering;
}

const struct worker_status *worker_core_status(const struct worker_core *c) { return &c->status; }
const struct step_outcome *worker_core_outcome(const struct worker_core *c, int64_t step) {
    return &report_of(c, step)->out;
}
bool worker_core_transferring(const struct worker_core *c) { return c->sending > 0 || c->status.pulling > 0; }
bool worker_core_lingers(const struct worker_core *c) { return c->lingering && !worker_core_transferring(c); }

bool worker_core_awaits_answer(const struct worker_core *c, int shard) {
    return c->shards[shard].pending_answers > 0;
}

bool worker_core_renew(const struct worker_core *c, const struct wire_header *h) {
    bool init = h->kind == WIRE_INIT;
    const struct worker_slot *s = slot_at(c, h->key, init ? 0 : h->step);
    if (s->sending != SEND_SENT || s->init != init) return false;
    return init ? s->init_round == h->seq : s->push.step == h->step;
}

// ---------------------------------------------------------------- conditions
bool worker_core_has_landed(const struct worker_core *c, int u, int64_t step, int64_t count) {
    return worker_core_landed(c, u) >= step && (int64_t)worker_core_fills(c, u) >= count;
}
bool worker_core_has_freed(const struct worker_core *c, int u, int64_t step, int64_t count) {
    return unit_at(c, u, step)->handed >= count && worker_core_busy(c, u, step) == 0;
}
bool worker_core_has_pulled(const struct worker_core *c, int u, int64_t step, int64_t count) {
    (void)u, (void)step, (void)count;
    return c->status.pulling == 0 && !c->copying;
}
bool worker_core_has_gathered(const struct worker_core *c, int u, int64_t step, int64_t count) {
    (void)u, (void)step, (void)count;
    return !c->gathering;
}
bool worker_core_has_taken(const struct worker_core *c, int u, int64_t step, int64_t count) {
    (void)u, (void)count;
    return c->status.taken_step == step;
}
bool worker_core_has_closed(const struct worker_core *c, int u, int64_t step, int64_t count) {
    (void)u, (void)count;
    return c->status.steps_done > step;
}
bool worker_core_has_snapshotted(const struct worker_core *c, int u, int64_t step, int64_t count) {
    (void)u, (void)step, (void)count;
    return !snapshot_pulls_busy(c->snapshots);
}

// ---------------------------------------------------------------- errors
const char *worker_core_error(const struct worker_core *c) { return c->error; }
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size) {
    const int *first = c->o.map->first;
    snprintf(out, size, "unit %s", c->o.layout->units[u].name);
    for (int i = first[u] * slots(c); i < first[u + 1] * slots(c); i++) {
        const struct worker_slot *s = &c->slots[i];
        if (!s->pulling && s->sending == SEND_IDLE) continue;
        snprintf(out, size, "unit %s, key %d of server %d (%s, %s)", c->o.layout->units[u].name, i / slots(c),
                 c->keys[i / slots(c)].part->shard / c->o.map->threads,
                 s->sending == SEND_IDLE     ? "push acknowledged"
                 : s->sending == SEND_QUEUED ? "push waits for credits"
                 : s->sending == SEND_HELD   ? "push held until earlier workers have pushed"
                                             : "push not acknowledged",
                 s->pulling ? "pull not answered" : "no pull open");
        return;
    }
}

// ---------------------------------------------------------------- create and destroy
int64_t ps_worker_records(const struct config *c, const struct layout *l) {
    struct shard_cut cut, frozen = {0};
    if (shard_cut_of(c, l, &cut) || (ps_frozen(c, l) && shard_cut_of(c, l->rest, &frozen))) return -1;
    // Bytes per key: its state, its shard and offset, and whether its share of a snapshot has arrived.
    uint64_t slots = (1 + (uint64_t)consistency_of(c).lead) * sizeof(struct worker_slot);
    return size_times((int64_t)(sizeof(struct partition) + sizeof(struct worker_key) + slots +
                                sizeof(size_t) + sizeof(bool) + sizeof(uint32_t)),
                      cut.keys + frozen.keys);
}

struct worker_core *worker_core_create(const struct worker_core_options *o) {
    struct worker_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->credits.most = (size_t)o->credit_bytes;
    c->turns.lost_s = o->lost_s;
    c->status.taken_step = -1;
    c->status.clock = o->clock;
    unsigned long open = (unsigned long)slots(c);
    c->keys = xcalloc((unsigned long)o->map->count, sizeof *c->keys);
    c->slots = xcalloc((unsigned long)o->map->count * open, sizeof *c->slots);
    c->shards = xcalloc((unsigned long)o->map->shards, sizeof *c->shards);
    c->units = xcalloc((unsigned long)o->map->units * open, sizeof *c->units);
    c->room = 1 + o->rule.lag;
    c->reports = xcalloc((unsigned long)c->room, sizeof *c->reports);
    c->least = xcalloc((unsigned long)o->map->units * MARKS, sizeof *c->least);
    for (int i = 0; i < o->map->units * MARKS; i++)
        c->least[i].have = o->map->first[i / MARKS + 1] - o->map->first[i / MARKS];
    size_t size = dtype_size(o->dtype), opened = 0, largest = 0;
    for (int key = 0; key < o->map->count; key++) {
        const struct partition *p = &o->map->parts[key];
        struct worker_key *k = &c->keys[key];
        k->part = p;
        k->bytes = (size_t)(p->end - p->begin) * size;
        k->shared = o->shared && o->shared[p->shard];
        k->push_bytes = push_bytes(&o->code, o->dtype, p->end - p->begin);
        if (p->begin > 0) k->push_at = k[-1].push_at + k[-1].push_bytes;
        opened += k->push_bytes * open;
        if (largest < k->push_bytes) largest = k->push_bytes;
        if (k->shared && !o->in_place)
            k->weight_at = o->buffers->weight_at[p->unit] + (size_t)p->begin * size;
    }
    c->snapshots = snapshot_pulls_create(
        &(struct snapshot_pulls_options){.map = o->map, .dtype = o->dtype, .port = o->port});
    c->credits.window = CREDITS_WINDOW_MOST;
    c->credits.least = 2 * largest;
    c->credits.all = c->credits.most >= opened;
    return c;
}

void worker_core_destroy(struct worker_core **c) {
    if (!*c) return;
    snapshot_pulls_destroy(&(*c)->snapshots);
    free((*c)->keys);
    free((*c)->slots);
    free((*c)->shards);
    free((*c)->units);
    free((*c)->reports);
    free((*c)->least);
    free(*c);
    *c = NULL;
}
