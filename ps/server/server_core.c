#include "ps/server/server_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/clock.h"
#include "ps/server/sum.h"
#include "shared/core/error.h"

// The pull of one worker that waits for its step, or the last one answered.
struct server_pull {
    bool pending, final;
    int64_t want;  // the key's clock it waits for
    uint64_t seq;  // 0: none yet
    double answered_s;
};

struct server_key {
    int key;
    const struct partition *part;
    const struct unit *unit;
    int64_t n;  // elements
    struct server_buffers buf;
    bool loaded;
    uint64_t load_seq;
    int64_t version;  // updates applied
    int64_t step;     // the key's clock: steps committed
    // Of the open step, where pushes are summed in worker order:
    int turn;         // the worker whose gradient is added next
    int contributed;  // gradients taken, held ones included
    bool complete;    // summed and rounded, not yet committed
    float lr;
    int lr_worker;
    double first_s;             // when the first gradient came
    int64_t open_ready_ns;      // the latest ready_ns of its gradients: what the open step's update needs
    int64_t update_ready_ns;    // that of the last update: with a commit round, of all keys
    struct ps_frame **held;     // (N)
    int64_t *pushed;            // (N) pushes taken; the next step expected
    int64_t *staleness;         // (N) of the last push
    int64_t *ready_ns;          // (N) of the last push; once added, with those added before it
    struct server_pull *pulls;  // (N)
    _Atomic int inflight;       // replies that the transport still reads from buf.weight
};

// A shard's part in the commit round of one step.
struct server_round {
    int64_t step;
    int keys;  // complete so far
    bool reported, decided;
    double sent_s;
    struct exact_sum sum;
    struct update_scalars scalars;
    int64_t ready_ns;  // of the keys complete so far; after the decision, of all that it needed
};

struct server_core {
    struct server_core_options o;
    int count;  // keys of this shard
    struct server_key *keys;
    int *index;             // (map->count): key -> place in keys, -1: not ours
    uint64_t *incarnation;  // (N); 0: not heard yet
    double now;             // of the last message or tick
    struct server_round round;
    int uncommitted;  // complete keys
    bool waiting_for_transport;
    uint64_t applied;  // pushes, where each is applied on arrival
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

// Tells a sender why its message was not taken. The text is the worker's error.
static void refuse(struct server_core *c, const struct wire_header *h, const char *why) {
    struct wire_header r = {.kind = WIRE_REFUSED, .key = h->key, .step = h->step};
    snprintf(r.text, sizeof r.text, "%s of key %d, step %lld: %s", wire_kind_name(h->kind), h->key,
             (long long)h->step, why);
    c->totals.refused++;
    port_tell(&c->o.port, h->rank, &r);
}

static void acknowledge(struct server_core *c, const struct server_key *k, int worker, bool held) {
    struct wire_header r = {.kind = WIRE_PUSH_ACK,
                            .key = k->key,
                            .step = k->pushed[worker] - 1,
                            .staleness = k->staleness[worker],
                            .peers_ready_ns = held ? 0 : k->ready_ns[worker],
                            .flags = held ? WIRE_HELD : 0};
    port_tell(&c->o.port, worker, &r);
}

// Only a pull with the largest delay allowed needed the last update. Any other: this worker's push alone.
static int64_t pull_needed_ns(const struct server_core *c, const struct server_key *k, int worker) {
    bool update = k->pulls[worker].want - k->step == c->o.rule.delay;
    return ps_later(k->ready_ns[worker], update ? k->update_ready_ns : 0);
}

// Where steps commit, a commit waits for replies that are still leaving, so weights are sent from where they
// lie. Where pushes are applied on arrival, the next one may come at any time: the reply is a copy.
static void answer_pull(struct server_core *c, struct server_key *k, int worker) {
    struct server_pull *pull = &k->pulls[worker];
    bool zero_copy = !c->o.rule.row->on_arrival;
    struct ps_message m = {.header = {.kind = WIRE_PULL_REPLY,
                                      .key = k->key,
                                      .step = pull->want,
                                      .version = k->version,
                                      .seq = pull->seq,
                                      .peers_ready_ns = pull_needed_ns(c, k, worker),
                                      .flags = pull->final ? WIRE_FINAL : 0},
                           .payload = k->buf.weight,
                           .bytes = (size_t)k->n * dtype_size(c->o.dtype),
                           .inflight = zero_copy ? &k->inflight : NULL};
    pull->pending = false;
    pull->answered_s = c->now;
    c->o.port.send(c->o.port.ctx, worker, &m);
}

static bool pull_ready(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    return k->pushed[worker] >= p->want && consistency_allows(&c->o.rule, p->want - k->step);
}

static void answer_pulls(struct server_core *c, struct server_key *k) {
    for (int w = 0; w < c->o.rule.workers; w++)
        if (k->pulls[w].pending && pull_ready(c, k, w)) answer_pull(c, k, w);
}

static int apply(struct server_core *c, struct server_key *k, const void *grad, float lr,
                 const struct update_scalars *scalars) {
    struct update_range r = {.unit = k->unit,
                             .begin = k->part->begin,
                             .end = k->part->end,
                             .master = k->buf.master,
                             .weight = k->buf.weight,
                             .grad = grad,
                             .dtype = c->o.dtype};
    const struct update_step step = {.lr = lr, .t = k->version + 1, .scalars = scalars};
    memcpy(r.state, k->buf.state, sizeof r.state);
    if (scalars->skip) return 0;
    if (optimizer_apply(&c->o.optimizer, &r, &step, 1) != 0)
        return core_fail(c->error, "key %d (%s), update %lld: the optimizer failed", k->key, k->unit->name,
                         (long long)k->version + 1);
    k->version++;
    return 0;
}

// ---------------------------------------------------------------- pushes summed in worker order
static void report_sum(struct server_core *c, double now) {
    const struct server_round *r = &c->round;
    struct wire_header h = {.kind = WIRE_SHARD_SUM, .step = r->step, .has_sum = true, .sum = r->sum};
    h.peers_ready_ns = r->ready_ns;
    c->round.sent_s = now;
    port_tell(&c->o.port, PEER_SCHEDULER, &h);
}

// A complete key joins the shard's sum; the last one closes the shard's step.
static int close_key(struct server_core *c, struct server_key *k, double now) {
    struct sumsq_args a = {.out = &c->round.sum, .x = k->buf.acc, .n = k->n, .dt = c->o.dtype};
    const char *why = "";
    sum_round(k->buf.acc, k->n, c->o.dtype);
    if (cpu_ops[OP_SUMSQ](1, &a, &why) != 0)
        return core_fail(c->error, "key %d (%s), step %lld: %s", k->key, k->unit->name, (long long)k->step,
                         why);
    k->complete = true;
    c->round.ready_ns = ps_later(c->round.ready_ns, k->open_ready_ns);
    c->uncommitted++;
    if (++c->round.keys == c->count) {
        c->round.reported = true;
        report_sum(c, now);
    }
    return 0;
}

static const struct update_scalars *round_scalars(const struct server_core *c) {
    static const struct update_scalars plain = {.grad_scale = 1.0f};
    if (!c->o.commit_round) return &plain;
    return c->round.decided ? &c->round.scalars : NULL;
}

// Applies the step of a complete key, unless the decision is out or a reply still leaves its buffer.
static int commit_key(struct server_core *c, struct server_key *k) {
    const struct update_scalars *scalars = round_scalars(c);
    if (!k->complete || !scalars) return 0;
    if (atomic_load(&k->inflight) > 0) {
        c->waiting_for_transport = true;
        return 0;
    }
    if (apply(c, k, k->buf.acc, k->lr, scalars) != 0) return -1;
    k->complete = false;
    k->update_ready_ns = c->o.commit_round ? c->round.ready_ns : k->open_ready_ns;
    k->step++;
    k->turn = 0;
    k->contributed = 0;
    c->uncommitted--;
    answer_pulls(c, k);
    return 0;
}

static int commit_all(struct server_core *c) {
    c->waiting_for_transport = false;
    for (int i = 0; i < c->count && c->uncommitted > 0; i++)
        if (commit_key(c, &c->keys[i]) != 0) return -1;
    return 0;
}

// The round of step t is over when the scheduler has answered and every key has committed.
static void end_round(struct server_core *c) {
    if (!c->round.reported || !c->round.decided || c->uncommitted > 0) return;
    int64_t next = c->round.step + 1;
    c->round = (struct server_round){.step = next};
    c->totals.steps = next;
}

static void take_turn(struct server_core *c, struct server_key *k, struct ps_frame *frame) {
    struct sum_args a = {
        .acc = k->buf.acc, .grad = frame->data, .n = k->n, .dtype = c->o.dtype, .first = k->turn == 0};
    sum_add(&a);
    ps_frame_release(frame);
    if (k->turn > 0) k->ready_ns[k->turn] = ps_later(k->ready_ns[k->turn], k->ready_ns[k->turn - 1]);
    acknowledge(c, k, k->turn, false);
    k->turn++;
}

static int push_in_order(struct server_core *c, struct server_key *k, const struct wire_header *h,
                         struct ps_frame *frame, double now) {
    int w = h->rank;
    // A worker begins step t+1 only after the scheduler has closed step t, and with all weights of it: the
    // scheduler's decision, which only ends the round here, is still on its way to this shard.
    if (h->step > c->round.step && c->round.reported && !c->o.commit_round) {
        c->round.decided = true;
        end_round(c);
    }
    if (k->contributed == 0) {
        k->lr = h->lr;
        k->lr_worker = w;
        k->first_s = now;
    } else if (f32_to_bits(k->lr) != f32_to_bits(h->lr)) {
        ps_frame_release(frame);
        return core_fail(c->error,
                         "key %d, step %lld: worker %d pushed with learning rate %.9g, worker %d with %.9g",
                         k->key, (long long)h->step, w, (double)h->lr, k->lr_worker, (double)k->lr);
    }
    k->pushed[w] = h->step + 1;
    k->contributed++;
    k->ready_ns[w] = h->ready_ns;
    k->open_ready_ns = ps_later(k->open_ready_ns, h->ready_ns);
    c->totals.pushes++;
    staleness_count(&c->totals.staleness, (uint64_t)(k->version - h->version));
    if (w != k->turn) {
        k->held[w] = frame;
        c->totals.held_bytes += frame->bytes;
        if (c->totals.held_bytes > c->totals.held_peak_bytes)
            c->totals.held_peak_bytes = c->totals.held_bytes;
        acknowledge(c, k, w, true);
        return 0;
    }
    take_turn(c, k, frame);
    while (k->turn < c->o.rule.workers && k->held[k->turn]) {
        struct ps_frame *held = k->held[k->turn];
        k->held[k->turn] = NULL;
        c->totals.held_bytes -= held->bytes;
        take_turn(c, k, held);
    }
    if (!consistency_completes(&c->o.rule, k->turn)) return 0;
    if (close_key(c, k, now) != 0 || commit_key(c, k) != 0) return -1;
    end_round(c);
    return 0;
}

// ---------------------------------------------------------------- pushes applied on arrival
static int push_on_arrival(struct server_core *c, struct server_key *k, const struct wire_header *h,
                           struct ps_frame *frame) {
    struct update_scalars scalars = {.grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0};
    uint64_t tau = (uint64_t)(k->version - h->version);
    int rc = apply(c, k, frame->data, h->lr, &scalars);
    ps_frame_release(frame);
    if (rc != 0) return -1;
    k->pushed[h->rank] = h->step + 1;
    k->staleness[h->rank] = (int64_t)tau;
    k->ready_ns[h->rank] = h->ready_ns;
    staleness_count(&c->totals.staleness, tau);
    c->totals.pushes++;
    if (++c->applied % ((uint64_t)c->count * (uint64_t)c->o.rule.workers) == 0) c->totals.steps++;
    acknowledge(c, k, h->rank, false);
    answer_pulls(c, k);
    return 0;
}

// ---------------------------------------------------------------- messages
static int on_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                   struct ps_frame *frame, double now) {
    int64_t expected = k->pushed[h->rank];
    const struct consistency_rule *rule = &c->o.rule;
    const char *why = NULL;
    if (h->step < expected) {
        bool held = k->held[h->rank] != NULL;
        c->totals.duplicates++;
        ps_frame_release(frame);
        if (h->step == expected - 1) acknowledge(c, k, h->rank, held);
        return 0;
    }
    if (!k->loaded)
        why = "its initial weights have not been loaded";
    else if (frame->bytes != (size_t)k->n * dtype_size(c->o.dtype))
        why = "the payload's size is not the partition's";
    else if (h->step > expected || !consistency_allows(rule, h->step - k->step))
        why = "an earlier step is not over";
    else if (h->version > k->version || !consistency_allows(rule, k->version - h->version))
        why = "it was computed on a version the server does not have";
    if (why) {
        ps_frame_release(frame);
        refuse(c, h, why);
        return 0;
    }
    return rule->row->on_arrival ? push_on_arrival(c, k, h, frame) : push_in_order(c, k, h, frame, now);
}

static void on_pull(struct server_core *c, struct server_key *k, const struct wire_header *h) {
    struct server_pull *p = &k->pulls[h->rank];
    if (!k->loaded) {
        refuse(c, h, "its initial weights have not been loaded");
        return;
    }
    if (h->seq < p->seq || h->step > k->step + 1 + k->pushed[h->rank]) return;
    // This repetition crossed its answer on the way. Only the next one would tell that the answer was lost.
    if (h->seq == p->seq && !p->pending && c->now - p->answered_s < 0.5 * c->o.resend_s) return;
    // A repeated pull repeats the acknowledgement of its push too: that may be lost, and credits with it.
    if (h->seq == p->seq && k->pushed[h->rank] == h->step && h->step > 0)
        acknowledge(c, k, h->rank, k->held[h->rank] != NULL);
    *p = (struct server_pull){
        .pending = true, .want = h->step, .seq = h->seq, .final = (h->flags & WIRE_FINAL) != 0};
    if (pull_ready(c, k, h->rank)) answer_pull(c, k, h->rank);
}

// Worker 0 loads the masters in fp32; the weights are rounded from them once. A repeated or late request is
// acknowledged and dropped.
static void on_init(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    struct ps_frame *frame) {
    bool started = k->version > 0 || k->contributed > 0 || k->step > 0;
    for (int w = 0; w < c->o.rule.workers; w++) started = started || k->pushed[w] > 0;
    if (h->rank != 0 || frame->bytes != (size_t)k->n * sizeof(float)) {
        refuse(c, h,
               h->rank != 0 ? "only worker 0 loads weights" : "the payload's size is not the partition's");
    } else {
        if (!started && h->seq > k->load_seq && atomic_load(&k->inflight) == 0) {
            struct cast_args a = {
                .out = k->buf.weight, .in = k->buf.master, .n = k->n, .from = DT_F32, .to = c->o.dtype};
            const char *why = "";
            memcpy(k->buf.master, frame->data, frame->bytes);
            if (k->buf.weight != (void *)k->buf.master) cpu_ops[OP_CAST](1, &a, &why);
            k->load_seq = h->seq;
            k->loaded = true;
        }
        struct wire_header r = {.kind = WIRE_INIT_ACK, .key = k->key, .seq = h->seq};
        port_tell(&c->o.port, h->rank, &r);
    }
    ps_frame_release(frame);
}

// Anything else is dropped without an answer: the routing id behind it may be anyone's.
bool server_core_knows(struct server_core *c, const struct wire_header *h) {
    if (h->role != PS_WORKER || h->rank < 0 || h->rank >= c->o.rule.workers) return false;
    if (c->o.job == 0 || h->job != c->o.job) return false;
    if (c->incarnation[h->rank] == 0) c->incarnation[h->rank] = h->incarnation;
    return c->incarnation[h->rank] == h->incarnation;
}

int server_core_message(struct server_core *c, const struct wire_header *h, struct ps_frame *frame,
                        double now) {
    struct server_key *k = NULL;
    c->now = now;
    bool carries = h->kind == WIRE_PUSH || h->kind == WIRE_INIT;
    if (c->error[0] || !server_core_knows(c, h) || (frame != NULL) != carries) {
        c->totals.refused++;
        ps_frame_release(frame);
        return c->error[0] ? -1 : 0;
    }
    if (h->key < c->o.map->count && c->o.map->parts[h->key].shard == c->o.shard)
        k = &c->keys[c->index[h->key]];
    if (!k) {
        ps_frame_release(frame);
        refuse(c, h, "this shard does not own the key");
        return 0;
    }
    switch (h->kind) {
        case WIRE_PUSH:
            return on_push(c, k, h, frame, now);
        case WIRE_PULL:
            on_pull(c, k, h);
            return 0;
        case WIRE_INIT:
            on_init(c, k, h, frame);
            return 0;
        default:
            refuse(c, h, "a shard takes no such message");
            return 0;
    }
}

int server_core_decision(struct server_core *c, const struct wire_header *h) {
    if (c->error[0]) return -1;
    if (h->step != c->round.step || !c->round.reported || c->round.decided) return 0;
    c->round.decided = true;
    c->round.scalars = (struct update_scalars){
        .grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0, .norm = h->norm};
    c->round.ready_ns = ps_later(c->round.ready_ns, h->peers_ready_ns);
    if (commit_all(c) != 0) return -1;
    end_round(c);
    return 0;
}

bool server_core_hurry(const struct server_core *c) { return c->waiting_for_transport; }

// Names the workers whose gradient of k has not come.
static int overdue(struct server_core *c, const struct server_key *k, double now) {
    char missing[160] = "";
    size_t at = 0;
    for (int w = 0; w < c->o.rule.workers && at + 16 < sizeof missing; w++)
        if (k->pushed[w] <= k->step)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%d", at ? ", " : "", w);
    return core_fail(c->error,
                     "step %lld: no gradient of key %d (%s, elements %lld to %lld) from worker %s for %.1f s",
                     (long long)k->step, k->key, k->unit->name, (long long)k->part->begin,
                     (long long)k->part->end, missing, now - k->first_s);
}

int server_core_tick(struct server_core *c, double now) {
    if (c->error[0]) return -1;
    c->now = now;
    if (c->waiting_for_transport) {
        if (commit_all(c) != 0) return -1;
        end_round(c);
    }
    if (c->round.reported && !c->round.decided && now - c->round.sent_s > c->o.resend_s) report_sum(c, now);
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        bool waits = consistency_waits(&c->o.rule, k->contributed);
        if (waits && now - k->first_s > c->o.deadline_s) return overdue(c, k, now);
    }
    return 0;
}

// ---------------------------------------------------------------- create, destroy, state
static void key_init(struct server_core *c, struct server_key *k, int key) {
    unsigned long workers = (unsigned long)c->o.rule.workers;
    k->key = key;
    k->part = &c->o.map->parts[key];
    k->unit = &c->o.layout->units[k->part->unit];
    k->n = k->part->end - k->part->begin;
    k->buf = c->o.buffers[key];
    k->held = xcalloc(workers, sizeof *k->held);
    k->pushed = xcalloc(workers, sizeof *k->pushed);
    k->staleness = xcalloc(workers, sizeof *k->staleness);
    k->ready_ns = xcalloc(workers, sizeof *k->ready_ns);
    k->pulls = xcalloc(workers, sizeof *k->pulls);
}

struct server_core *server_core_create(const struct server_core_options *o) {
    struct server_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->index = xcalloc((unsigned long)o->map->count + 1, sizeof *c->index);
    c->keys = xcalloc((unsigned long)o->map->shard_keys[o->shard] + 1, sizeof *c->keys);
    c->incarnation = xcalloc((unsigned long)o->rule.workers, sizeof *c->incarnation);
    for (int key = 0; key < o->map->count; key++) {
        c->index[key] = -1;
        if (o->map->parts[key].shard != o->shard) continue;
        c->index[key] = c->count;
        key_init(c, &c->keys[c->count++], key);
    }
    return c;
}

void server_core_destroy(struct server_core **core) {
    struct server_core *c = *core;
    if (!c) return;
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        for (int w = 0; w < c->o.rule.workers; w++) ps_frame_release(k->held[w]);
        free(k->held);
        free(k->pushed);
        free(k->staleness);
        free(k->ready_ns);
        free(k->pulls);
    }
    free(c->keys);
    free(c->index);
    free(c->incarnation);
    free(c);
    *core = NULL;
}

void server_core_set_job(struct server_core *c, uint64_t job) { c->o.job = job; }

const char *server_core_error(const struct server_core *c) { return c->error; }

void server_core_totals(const struct server_core *c, struct server_totals *out) { *out = c->totals; }

int64_t server_core_version(const struct server_core *c, int key) {
    int i = key >= 0 && key < c->o.map->count ? c->index[key] : -1;
    return i < 0 ? -1 : c->keys[i].version;
}
