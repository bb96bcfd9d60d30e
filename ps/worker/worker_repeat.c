#include "ps/worker/worker_repeat.h"

#include <math.h>

#include "ps/timing.h"

// Questions during a wait for others that are about each key: the third (1.75 s), then every eighth.
#define EACH_FIRST 2
#define EACH_EVERY 8

// ---------------------------------------------------------------- requests to the scheduler
void request_open(struct worker_core *c, struct request *r, const struct wire_header *h, double now) {
    *r = (struct request){.open = true, .sent_s = now, .h = *h};
    port_tell(&c->o.port, PEER_SCHEDULER, h);
}

// The answer may wait for the slowest worker: the pauses grow, so that a lost answer costs as much again as the wait at most.
static void repeat(struct worker_core *c, struct request *r, double now) {
    double pause_s = rto_backoff(rto_s(&c->rto), r->repeats, c->o.repeat_most_s);
    if (!r->open || now - r->sent_s <= pause_s) return;
    r->sent_s = now;
    r->repeats++;
    r->h.flags |= WIRE_AGAIN;
    c->status.questions++;
    port_tell(&c->o.port, PEER_SCHEDULER, &r->h);
}

void requests_tick(struct worker_core *c, double now) {
    repeat(c, &c->report, now);
    repeat(c, &c->gather, now);
    repeat(c, &c->take, now);
    repeat(c, &c->goodbye, now);
}

// ---------------------------------------------------------------- one budget of batches
// This worker's steps that every key has acknowledged, while it asks for the next one.
static int64_t acknowledged(const struct worker_core *c) {
    int64_t next = c->take.h.step, least = next;
    if (c->sending > 0 || c->queued > 0) return next - 1;
    for (int u = 0; u < c->o.layout->count && next > c->first; u++)
        if (c->units[u].times.step + 1 < least) least = c->units[u].times.step + 1;
    return least;
}

void worker_core_take(struct worker_core *c, int64_t step, const struct wire_header *done, double now) {
    struct wire_header h = {.kind = WIRE_TAKE, .step = step};
    if (done) {
        h.version = done->version;
        h.count = done->count;
        memcpy(h.values, done->values, sizeof h.values);
    }
    if (c->first < 0) c->first = step;
    c->take.h.step = step;
    h.seq = (uint64_t)acknowledged(c);
    request_open(c, &c->take, &h, now);
}

// What is open of this worker's is known to nobody else: its end is told as soon as it comes.
void take_tick(struct worker_core *c, double now) {
    struct wire_header h = c->take.h;
    if (!c->take.open || acknowledged(c) <= (int64_t)h.seq) return;
    h.seq = (uint64_t)acknowledged(c);
    request_open(c, &c->take, &h, now);
}

// ---------------------------------------------------------------- keys
static void tell_shard(struct worker_core *c, int shard, const struct ps_message *m) {
    c->lines[shard].sent++;
    c->o.port.send(c->o.port.ctx, shard, m);
}

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
                                 .batch = k->push.batch,
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
    tell_shard(c, k->part->shard, &m);
}

void send_pull(struct worker_core *c, int key, uint32_t flags, double now) {
    struct worker_key *k = &c->keys[key];
    struct ps_message m = {.header = {.kind = WIRE_PULL,
                                      .key = key,
                                      .step = k->pull_want,
                                      .seq = k->pull_seq,
                                      .into = k->weight_at,
                                      .ask = key_asks(k, now),
                                      .flags = flags | (k->pull_final ? WIRE_FINAL : 0) |
                                               (k->pull_keep ? (uint32_t)WIRE_KEEP : 0)}};
    tell_shard(c, k->part->shard, &m);
}

// Has it come? A push is open as long as the pull behind it, so one question is about both.
static void ask(struct worker_core *c, int key, double now) {
    struct worker_key *k = &c->keys[key];
    struct wire_header h = {.kind = WIRE_INIT, .key = key, .seq = k->init_round, .flags = WIRE_AGAIN};
    c->status.questions++;
    if (k->pulling) {
        send_pull(c, key, WIRE_AGAIN, now);
        return;
    }
    h.ask = key_asks(k, now);
    tell_shard(c, k->part->shard, &(struct ps_message){.header = h});
}

// Whether the shard owes an answer. A payload that has not left, or that is leaving, is not lost yet.
static bool owes(struct worker_key *k, double now) {
    if (k->sending == SEND_QUEUED || (k->sending == SEND_IDLE && !k->pulling)) return false;
    if (k->sending == SEND_SENT && atomic_load(&k->inflight) > 0) k->ask_s = now;
    return true;
}

static void note_oldest(const struct worker_core *c, int key, struct oldest *o) {
    int *at = c->keys[key].arrived ? &o->arrived : &o->fresh;
    if (*at < 0 || c->keys[key].ask_s < c->keys[*at].ask_s) *at = key;
}

// Counts are as they should be, too, where one message was lost and another came twice: a wait for others that lasts asks
// about each key by itself, now and then.
static void ask_each(struct worker_core *c, int shard, int but, double now) {
    for (int key = 0; key < c->o.map->count; key++)
        if (key != but && c->keys[key].part->shard == shard && owes(&c->keys[key], now)) ask(c, key, now);
}

// One question is about all keys of the shard (line_answered), as RFC 6298 has one timer for a connection: it runs from
// the oldest message that may be lost, anew from each word of the shard, and doubles while there is none. An answer that
// waits for others is not late: questions after it are rare, unless no others are waited for.
static void line_tick(struct worker_core *c, int shard, double now) {
    struct shard_line *l = &c->lines[shard];
    const struct oldest *o = &c->oldest[shard];
    int key = o->fresh >= 0 ? o->fresh : o->arrived, repeats = l->unanswered;
    double first_s = rto_s(&l->rto);
    if (key < 0) return;
    if (o->fresh < 0) {
        first_s = fmax(first_s, c->o.peers_s);
        repeats = l->waits > repeats ? l->waits : repeats;
    }
    double since_s = fmax(c->keys[key].ask_s, fmax(l->asked_s, l->heard_s));
    if (now - since_s <= rto_backoff(first_s, repeats, c->o.repeat_most_s)) return;
    ask(c, key, now);
    l->key = key;
    l->ask = c->keys[key].ask;
    l->sent_then = l->sent;
    l->asked_s = now;
    l->unanswered++;
    if (o->fresh >= 0) return;
    if (l->waits == EACH_FIRST || l->waits % EACH_EVERY == EACH_EVERY - 1) ask_each(c, shard, key, now);
    l->waits++;
}

void keys_tick(struct worker_core *c, double now) {
    for (int g = 0; g < c->o.map->shards; g++) c->oldest[g] = (struct oldest){-1, -1};
    for (int key = 0; key < c->o.map->count; key++) {
        struct worker_key *k = &c->keys[key];
        int shard = k->part->shard;
        if (owes(k, now)) note_oldest(c, key, &c->oldest[shard]);
        bool owed = k->sending == SEND_SENT || k->pulling;
        double silent_s = now - fmax(k->asked_s, c->lines[shard].heard_s);
        if (owed && silent_s > c->status.silent_s) c->status.silent_s = silent_s;
    }
    for (int g = 0; g < c->o.map->shards; g++) line_tick(c, g, now);
}

void keys_step_done(struct worker_core *c, double now) {
    for (struct worker_key *k = c->keys; k < c->keys + c->o.map->count; k++) {
        if (!k->pulling || k->pull_want > c->status.steps_done) continue;
        k->arrived = false;
        k->ask_s = now;
        c->lines[k->part->shard].waits = 0;
    }
}

// ---------------------------------------------------------------- answers
void key_answered(struct worker_core *c, struct worker_key *k, uint32_t number, bool payload, double now) {
    if (number <= k->sampled_ask) return;
    bool first = payload && number == k->sent_ask;
    if (!first && (number != k->ask || number == k->sent_ask)) return;
    k->sampled_ask = number;
    rto_sample(&c->lines[k->part->shard].rto, now - (first ? k->sent_s : k->ask_s));
}

void line_heard(struct shard_line *l, const struct wire_header *h) {
    l->unanswered = 0;
    l->heard += h->kind == WIRE_INIT_ACK || h->kind == WIRE_PUSH_ACK || h->kind == WIRE_PULL_REPLY ||
                h->kind == WIRE_PULL_SENT;
}

// Each has had of the other what had been sent by then, or more is lost than the last time.
void line_answered(struct worker_core *c, int shard, const struct wire_header *h, double now) {
    struct shard_line *l = &c->lines[shard];
    double asked_s = l->asked_s;
    if (!l->ask || h->ask != l->ask || h->key != l->key) return;
    l->ask = 0;
    int64_t up = (int64_t)(l->sent_then - h->heard), down = (int64_t)(h->said - l->heard);
    bool lost = !h->said || up != l->lost_up || down != l->lost_down || l->loses;
    if (h->said) l->lost_up = up, l->lost_down = down;
    l->loses = false;
    for (int key = 0; key < c->o.map->count; key++) {
        struct worker_key *k = &c->keys[key];
        if (k->part->shard != shard || !owes(k, now) || k->ask_s > asked_s) continue;
        if (!lost)
            k->arrived = true;
        else if (key != h->key)
            ask(c, key, now);
    }
}

// The question was sent behind the payload, and has overtaken it: that is lost.
void key_missing(struct worker_core *c, int key, uint32_t number, double now) {
    struct worker_key *k = &c->keys[key];
    if (k->sending != SEND_SENT || number <= k->sent_ask || atomic_load(&k->inflight) > 0) return;
    c->status.resent++;
    c->lines[k->part->shard].loses = true;
    send_key(c, key, now);
}

// The answer left before this word, which has overtaken it. What was asked before the last request for it is older.
void key_answer_lost(struct worker_core *c, int key, uint32_t number, double now) {
    struct worker_key *k = &c->keys[key];
    if (!k->pulling || number <= k->want_ask) return;
    send_pull(c, key, WIRE_AGAIN | WIRE_MISSING, now);
    c->lines[k->part->shard].loses = true;
    k->want_ask = k->ask;
}
