#include "ps/server/chain.h"

#include "ps/server/replica.h"

bool chain_has_loaded(const struct server_core *c, const struct server_key *k) {
    return !c->o.replicate || k->load_kept == k->load_seq;
}

// The content of acc and of the masters changes while the message may still wait in a queue: both leave as copies. Both stay as
// they are until the neighbour has acknowledged them.
void chain_send(struct server_core *c, struct server_key *k) {
    const struct update_scalars *last = &c->decided;
    bool loads = !chain_has_loaded(c, k);
    struct ps_message m = {.header = {.kind = WIRE_REPLICATE, .key = k->key, .seq = k->load_seq},
                           .payload = loads ? k->buf.master : k->buf.acc,
                           .bytes = (size_t)k->n * (loads ? sizeof(float) : dtype_size(c->o.dtype))};
    if (!loads)
        m.header = (struct wire_header){.kind = WIRE_REPLICATE,
                                        .key = k->key,
                                        .step = k->step,
                                        .version = k->version,
                                        .lr = k->lr,
                                        .grad_scale = last->grad_scale,
                                        .flags = last->skip ? WIRE_SKIP : 0};
    c->o.port.send(c->o.port.ctx, PEER_NEIGHBOUR, &m);
}

bool chain_complete(const struct server_core *c) {
    return c->round.keys == c->count && (!c->o.replicate || c->round.replicated == c->count);
}

bool chain_answered(struct server_core *c, const struct wire_header *h) {
    int i = h->key < c->o.map->count ? c->index[h->key] : -1;
    struct server_key *k = i < 0 ? NULL : &c->keys[i];
    if (!k) return false;
    if (!chain_has_loaded(c, k)) {
        const struct wire_header r = {.kind = WIRE_INIT_ACK, .key = k->key, .seq = h->seq};
        if (h->seq != k->load_seq) return false;
        k->load_kept = h->seq;
        port_tell(&c->o.port, 0, &r);
        return false;
    }
    if (h->seq || h->step != k->step || !k->complete || k->replicated) return false;
    k->replicated = true;
    c->round.replicated++;
    return chain_complete(c);
}
