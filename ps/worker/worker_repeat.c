#include "ps/worker/worker_repeat.h"

#include <math.h>

#include "ps/timing.h"

// ---------------------------------------------------------------- requests to the scheduler
void request_open(struct worker_core *c, struct request *r, const struct wire_header *h, double now) {
    *r = (struct request){.open = true, .sent_s = now, .h = *h};
    port_tell(&c->o.port, PEER_SCHEDULER, h);
}

// The answer may wait for the slowest worker: the pauses grow, and stay small beside a lost answer's price.
static void repeat(struct worker_core *c, struct request *r, double now) {
    double most = fmin(c->o.repeat_most_s, REQUEST_MOST_S);
    if (!r->open || now - r->sent_s <= rto_backoff(rto_s(&c->rto), r->repeats, most)) return;
    r->sent_s = now;
    r->repeats++;
    r->h.flags |= WIRE_AGAIN;
    c->status.questions++;
    port_tell(&c->o.port, PEER_SCHEDULER, &r->h);
}

void requests_tick(struct worker_core *c, double now) {
    repeat(c, &c->report, now);
    repeat(c, &c->gather, now);
    repeat(c, &c->goodbye, now);
}

// ---------------------------------------------------------------- keys
// A message about the key leaves now; the number it carries.
static uint32_t key_asks(struct worker_key *k, double now) {
    k->ask_s = now;
    return ++k->ask;
}

// A push goes with the pull of what comes after it, as long as that one is open.
static void ask_as_well(const struct worker_key *k, struct wire_header *h) {
    if (!k->pulling || k->pull_want != k->push.step + 1) return;
    h->flags |= WIRE_PULLS;
    h->seq = k->pull_seq;
    h->into = k->weight_at;
}

void send_key(struct worker_core *c, int key, double now) {
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
                                 .lr = k->push.lr,
                                 .grad_scale = k->push.grad_scale,
                                 .flags = (k->push.skip ? WIRE_SKIP : 0) | (k->push.keep ? WIRE_KEEP : 0),
                                 .ready_ns = k->push.ready_ns};
    if (!k->init) ask_as_well(k, &m.header);
    if (!k->init && k->added) m.header.flags |= WIRE_CREW;
    m.header.ask = key_asks(k, now);
    if (k->told) m.header.flags |= WIRE_AGAIN;
    k->told = true;
    if (!k->init && k->shared) {
        m.header.place = k->grad_at;
        m.header.place_bytes = k->push_bytes;
        m = (struct ps_message){.header = m.header};
    }
    int64_t *sent_ns = &c->units[k->part->unit].times.sent_ns;
    if (!k->init && !*sent_ns) *sent_ns = ps_clock_ns(now);
    k->sent_s = now;
    k->sent_ask = k->ask;
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

void send_pull(struct worker_core *c, int key, uint32_t flags, double now) {
    struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_PULL,
                                      .key = key,
                                      .step = k->pull_want,
                                      .seq = k->pull_seq,
                                      .into = k->weight_at,
                                      .ask = key_asks(k, now),
                                      .flags = flags | (k->pull_final ? WIRE_FINAL : 0)}};
    c->o.port.send(c->o.port.ctx, k->part->shard, &m);
}

// Has it come? A push is open as long as the pull behind it, so one question is about both.
static void ask(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct wire_header h = {.kind = WIRE_INIT, .key = key, .seq = k->init_round, .flags = WIRE_AGAIN};
    k->asked++;
    c->status.questions++;
    if (k->pulling) {
        send_pull(c, key, WIRE_AGAIN, now);
        return;
    }
    h.ask = key_asks(k, now);
    port_tell(&c->o.port, k->part->shard, &h);
}

// How long the shard may take until it is asked again. An answer that waits for others is not late: the questions
// after it are rare, unless no others are waited for.
static double patience(const struct worker_core *c, const struct worker_key *k) {
    double first = rto_s(&c->shard_rto[k->part->shard]);
    if (k->arrived) first = fmax(first, c->o.peers_s);
    return rto_backoff(first, k->asked, c->o.repeat_most_s);
}

// A payload that has not left, or that is leaving, is not lost yet.
static bool is_overdue(const struct worker_core *c, struct worker_key *k, double now) {
    if (k->sending == SEND_QUEUED || (k->sending == SEND_IDLE && !k->pulling)) return false;
    if (k->sending == SEND_SENT && atomic_load(&k->inflight) > 0) k->ask_s = now;
    return now - k->ask_s > patience(c, k);
}

void keys_tick(struct worker_core *c, double now) {
    for (int key = 0; key < c->o.map->count; key++) {
        struct worker_key *k = &c->keys[key];
        if (is_overdue(c, k, now)) ask(c, key, now);
        bool owed = k->sending == SEND_SENT || k->pulling;
        double silent_s = now - fmax(k->asked_s, c->shard_s[k->part->shard]);
        if (owed && silent_s > c->status.silent_s) c->status.silent_s = silent_s;
    }
}

void keys_step_done(struct worker_core *c, double now) {
    for (struct worker_key *k = c->keys; k < c->keys + c->o.map->count; k++) {
        if (!k->pulling || k->pull_want > c->status.steps_done) continue;
        k->arrived = false;
        k->asked = 0;
        k->ask_s = now;
    }
}

// ---------------------------------------------------------------- answers
void key_answered(struct worker_core *c, struct worker_key *k, uint32_t number, bool payload, double now) {
    if (number <= k->sampled_ask) return;
    bool first = payload && number == k->sent_ask;
    if (!first && (number != k->ask || number == k->sent_ask)) return;
    k->sampled_ask = number;
    rto_sample(&c->shard_rto[k->part->shard], now - (first ? k->sent_s : k->ask_s));
}

void key_arrived(struct worker_key *k) {
    if (!k->arrived) k->asked = 0;
    k->arrived = true;
}

// The question was sent behind the payload, and has overtaken it: that is lost.
void key_missing(struct worker_core *c, int key, uint32_t number, double now) {
    struct worker_key *k = &c->keys[key];
    if (k->sending != SEND_SENT || number <= k->sent_ask || atomic_load(&k->inflight) > 0) return;
    c->status.resent++;
    send_key(c, key, now);
}

// The answer left before this word, which has overtaken it. What was asked before the last request for it is older.
void key_answer_lost(struct worker_core *c, int key, uint32_t number, double now) {
    struct worker_key *k = &c->keys[key];
    if (!k->pulling || number <= k->want_ask) return;
    send_pull(c, key, WIRE_AGAIN | WIRE_MISSING, now);
    k->want_ask = k->ask;
}
