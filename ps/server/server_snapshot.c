// Snapshots of the weights, for worker 0 (ps/worker/snapshot_pulls.h): a copy of a key at the first moment at which its
// version is the wanted one, or a later one. It is the last answer that an update gives, and nobody waits for it.
#include "ps/server/server_step.h"

void answer_snapshot(struct server_core *c, struct server_key *k) {
    struct server_shot *s = &k->shot;
    if (!s->pending || k->version < s->want) return;
    struct ps_message m = {
        .header = {.kind = WIRE_SNAPSHOT_REPLY, .key = k->key, .version = k->version, .seq = s->seq},
        .payload = k->buf.weight,
        .bytes = (size_t)k->n * dtype_size(c->o.dtype)};
    s->pending = false;
    s->answered_s = c->now;
    c->o.port.send(c->o.port.ctx, s->worker, &m);
}

void on_snapshot(struct server_core *c, struct server_key *k, const struct wire_header *h) {
    struct server_shot *s = &k->shot;
    bool again = h->seq == s->seq;
    // Requests of one worker arrive in order: an older one is a repetition that nobody waits for any more.
    if (!k->loaded || h->seq < s->seq ||
        (again && (s->pending || c->now - s->answered_s < 0.5 * c->o.resend_s)))
        return;
    *s = (struct server_shot){.pending = true, .worker = h->rank, .want = h->version, .seq = h->seq};
    answer_snapshot(c, k);
}
