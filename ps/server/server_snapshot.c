// Snapshots of the weights, for worker 0 (ps/worker/snapshot_pulls.h): a copy of a key at the first moment at which its
// version is the wanted one, or a later one.
#include "ps/server/server_step.h"

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
