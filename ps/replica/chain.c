#include "ps/replica/chain.h"

#include "ps/replica/replica.h"

bool chain_has_loaded(const struct server_core *c, const struct server_key *k) {
    return !c->o.replicate || k->load_kept == k->load_seq;
}

static bool is_missed(const struct server_core *c, const struct server_key *k) {
    return !chain_has_loaded(c, k) || (c->o.replicate && k->complete && !k->chain.kept);
}

// Of the next message about the key: a question, or the payload's.
static struct wire_header next_header(struct server_core *c, struct server_key *k, uint32_t again) {
    const struct update_scalars *last = &c->decided;
    uint32_t number = ++k->chain.ask;
    k->chain.said_s = c->now;
    if (!chain_has_loaded(c, k))
        return (struct wire_header){
            .kind = WIRE_REPLICATE, .key = k->key, .seq = k->load_seq, .ask = number, .flags = again};
    return (struct wire_header){.kind = WIRE_REPLICATE,
                                .key = k->key,
                                .ask = number,
                                .step = k->step,
                                .version = k->version,
                                .lr = k->lr,
                                .grad_scale = last->grad_scale,
                                .flags = again | (last->skip ? WIRE_SKIP : 0)};
}

// What lies in acc and in the masters changes while the message may still wait: both leave as copies.
static void send_payload(struct server_core *c, struct server_key *k, uint32_t again) {
    bool loads = !chain_has_loaded(c, k);
    const struct ps_message m = {.header = next_header(c, k, again),
                                 .payload = loads ? k->buf.master : k->buf.acc,
                                 .bytes = (size_t)k->n * (loads ? sizeof(float) : dtype_size(c->o.dtype))};
    c->o.port.send(c->o.port.ctx, PEER_NEIGHBOUR, &m);
}

void chain_send(struct server_core *c, struct server_key *k) { send_payload(c, k, 0); }

static void ask(struct server_core *c, struct server_key *k) {
    const struct wire_header h = next_header(c, k, WIRE_AGAIN);
    k->chain.repeats++;
    port_tell(&c->o.port, PEER_NEIGHBOUR, &h);
}

bool chain_complete(const struct server_core *c) {
    return c->round.keys == c->count && (!c->o.replicate || c->round.replicated == c->count);
}

bool chain_answered(struct server_core *c, const struct wire_header *h) {
    int i = h->key < c->o.map->count ? c->index[h->key] : -1;
    struct server_key *k = i < 0 ? NULL : &c->keys[i];
    if (!k || !is_missed(c, k)) return false;
    bool loads = !chain_has_loaded(c, k), newest = h->ask == k->chain.ask;
    if (loads ? h->seq != k->load_seq : h->seq != 0 || h->step != k->step) return false;
    if (newest) rto_sample(&c->chain_rto, c->now - k->chain.said_s);
    if (h->flags & WIRE_MISSING) {
        if (newest) send_payload(c, k, WIRE_AGAIN);
        return false;
    }
    k->chain.repeats = 0;
    if (loads) {
        const struct wire_header r = {.kind = WIRE_INIT_ACK, .key = k->key, .seq = h->seq};
        k->load_kept = h->seq;
        tell_worker(c, 0, &(struct ps_message){.header = r});
        return false;
    }
    k->chain.kept = true;
    c->round.replicated++;
    return chain_complete(c);
}

void chain_tick(struct server_core *c) {
    double first_s = rto_s(&c->chain_rto);
    for (int i = 0; i < c->count && c->o.replicate; i++) {
        struct server_key *k = &c->keys[i];
        double pause_s = rto_backoff(first_s, k->chain.repeats, c->o.repeat_most_s);
        if (is_missed(c, k) && c->now - k->chain.said_s > pause_s) ask(c, k);
    }
}

void chain_meets(struct server_core *c) {
    for (int i = 0; i < c->count; i++)
        if (is_missed(c, &c->keys[i])) chain_send(c, &c->keys[i]);
}
