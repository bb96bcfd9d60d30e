#include "ps/server/server_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/clock.h"
#include "ps/server/key_pass.h"
#include "ps/server/replay.h"
#include "ps/server/replay_pulls.h"
#include "ps/server/server_step.h"
#include "shared/core/error.h"

// Tells a sender why its message was not taken. The text is the worker's error.
static void refuse(struct server_core *c, const struct wire_header *h, const char *why) {
    struct wire_header r = {.kind = WIRE_REFUSED, .key = h->key, .step = h->step};
    snprintf(r.text, sizeof r.text, "%s of key %d, step %lld: %s", wire_kind_name(h->kind), h->key,
             (long long)h->step, why);
    c->totals.refused++;
    port_tell(&c->o.port, h->rank, &r);
}

// ---------------------------------------------------------------- messages
// The gradient that came with a push; data NULL where it is said to lie in a segment and does not.
static struct gradient gradient_of(const struct server_core *c, const struct wire_header *h,
                                   struct ps_frame *frame) {
    const struct server_segment *s = &c->segments[h->rank];
    bool held = s->base && h->place_bytes <= s->bytes && h->place <= s->bytes - h->place_bytes;
    if (frame) return (struct gradient){frame->data, frame->bytes, frame};
    return (struct gradient){held ? s->base + h->place : NULL, h->place_bytes, NULL};
}

// Whether a worker's last push is held for it, credits and all. A replay takes frames for its own.
static bool is_held(const struct server_key *k, int worker) {
    return k->held[worker].data != NULL && !(k->replay && k->held[worker].frame);
}

static int on_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                   struct ps_frame *frame, double now) {
    int64_t expected = k->pushed[h->rank];
    const struct consistency_rule *rule = &c->o.rule;
    const struct gradient g = gradient_of(c, h, frame);
    const char *why = NULL;
    if (h->step < expected) {
        c->totals.duplicates++;
        ps_frame_release(frame);
        if (h->step == expected - 1) acknowledge(c, k, h->rank, is_held(k, h->rank));
        return 0;
    }
    if (!k->loaded)
        why = "its initial weights have not been loaded";
    else if (!g.data)
        why = "its gradient lies outside of what the worker shares";
    else if (g.bytes != (size_t)k->n * dtype_size(c->o.dtype))
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
    if (k->replay) return replay_push(c, k, h, &g);
    return rule->row->on_arrival ? push_on_arrival(c, k, h, &g) : push_in_order(c, k, h, &g, now);
}

// want: the step whose weights are asked for.
static void on_pull(struct server_core *c, struct server_key *k, const struct wire_header *h, int64_t want) {
    struct server_pull *p = &k->pulls[h->rank];
    const struct server_segment *s = &c->segments[h->rank];
    size_t bytes = (size_t)k->n * dtype_size(c->o.dtype);
    if (!k->loaded || (h->into && (bytes > s->bytes || h->into > s->bytes - bytes))) {
        refuse(c, h,
               k->loaded ? "it asks for weights outside of what it shares"
                         : "its initial weights have not been loaded");
        return;
    }
    if (h->seq < p->seq || want > k->step + 1 + k->pushed[h->rank]) return;
    // This repetition crossed its answer on the way. Only the next one would tell that the answer was lost.
    if (h->seq == p->seq && !p->pending && c->now - p->answered_s < 0.5 * c->o.resend_s) return;
    // A repeated pull repeats the acknowledgement of its push too: that may be lost, and credits with it.
    if (h->seq == p->seq && k->pushed[h->rank] == want && want > 0)
        acknowledge(c, k, h->rank, is_held(k, h->rank));
    if (h->seq > p->seq)
        *p = (struct server_pull){
            .want = want, .seq = h->seq, .into = h->into, .final = (h->flags & WIRE_FINAL) != 0};
    p->pending = true;
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
    bool carries = (h->kind == WIRE_PUSH && !h->place_bytes) || h->kind == WIRE_INIT;
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
            if (h->flags & WIRE_PULLS) on_pull(c, k, h, h->step + 1);
            return on_push(c, k, h, frame, now);
        case WIRE_PULL:
            on_pull(c, k, h, h->step);
            return k->replay ? replay_advance(c, k) : 0;
        case WIRE_SNAPSHOT:
            on_snapshot(c, k, h);
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

bool server_core_holds(const struct server_core *c) { return c->open > 0; }
bool server_core_hurry(const struct server_core *c) { return c->waiting_for_transport; }

int server_core_tick(struct server_core *c, double now) {
    if (c->error[0]) return -1;
    c->now = now;
    if (c->waiting_for_transport) {
        if (commit_all(c) != 0) return -1;
        end_round(c);
    }
    if (c->round.reported && !c->round.decided && now - c->round.sent_s > c->o.resend_s) report_sum(c, now);
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
    if (c->o.replay) k->replay = replay_key_create(c->o.rule.workers);
}

struct server_core *server_core_create(const struct server_core_options *o) {
    struct server_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->index = xcalloc((unsigned long)o->map->count + 1, sizeof *c->index);
    c->keys = xcalloc((unsigned long)o->map->shard_keys[o->shard] + 1, sizeof *c->keys);
    c->incarnation = xcalloc((unsigned long)o->rule.workers, sizeof *c->incarnation);
    c->segments = xcalloc((unsigned long)o->rule.workers, sizeof *c->segments);
    c->grads = xcalloc((unsigned long)o->rule.workers, sizeof *c->grads);
    c->chunk = xcalloc(KEY_PASS_CHUNK, sizeof(float));
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
        for (int w = 0; w < c->o.rule.workers; w++) ps_frame_release(k->held[w].frame);
        free(k->held);
        free(k->pushed);
        free(k->staleness);
        free(k->ready_ns);
        free(k->pulls);
        replay_key_destroy(&k->replay);
    }
    free(c->keys);
    free(c->index);
    free(c->incarnation);
    free(c->segments);
    free(c->grads);
    free(c->chunk);
    free(c);
    *core = NULL;
}

void server_core_attach(struct server_core *c, int worker, const struct server_segment *s) {
    c->attached += (s->base != NULL) - (c->segments[worker].base != NULL);
    c->segments[worker] = *s;
}

void server_core_set_job(struct server_core *c, uint64_t job) { c->o.job = job; }

const char *server_core_error(const struct server_core *c) { return c->error; }

void server_core_totals(const struct server_core *c, struct server_totals *out) { *out = c->totals; }

int64_t server_core_version(const struct server_core *c, int key) {
    int i = key >= 0 && key < c->o.map->count ? c->index[key] : -1;
    return i < 0 ? -1 : c->keys[i].version;
}
