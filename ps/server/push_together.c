// Pushes that make an update K at a time, of K different workers, each of which waits for that update
// (parameter_server.distinct_workers): K-async (Dutta et al. 2018).
//
//     push of w          held: a frame is acknowledged and kept, a segment is read later
//     SET (u, workers)   the scheduler's: those whose pushes make update u, one set for all keys (ps/scheduler/turns.h)
//     update u           when u - 1 is made and the pushes of its workers are here: their mean, added in worker order
//     pull of w          answered when w's push is in an update
//
// If it were decided key by key, three workers and K = 2 could wait for each other for ever: key 1 has the pushes of A and B and holds
// C's, key 2 those of A and C and holds B's, key 3 those of B and C and holds A's. The scheduler's word is one for all
// keys, and of each update it comes when K workers have computed; so none waits for a push that waits for another update.
//
// A worker has one push at a time, so there are at most N sets of which a key still lacks updates. A skipped push, and one that is too old,
// is in no sum: the mean is of the others.
//
// A checkpoint has each key at a moment of its own, so one key may have a push that another lacks; whoever goes on from it would wait
// for what is there already. Checkpoints are refused (ps/star.c).
//
// Memory: frames of all workers, N P b / S bytes of transport, reported as held.
#include <stdlib.h>

#include "ps/agree/step_set.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

static bool are_held(const struct server_core *c, const struct server_key *k, uint64_t set) {
    for (int w = 0; w < c->rule.workers; w++)
        if (set & elastic_bit(w) && !is_late(k, w)) return false;
    return true;
}

// The set of the key's next update; 0: the scheduler has not said it yet.
static uint64_t next_set(const struct server_core *c, const struct server_key *k) {
    const struct shard_turn *t = &c->turns[k->sum.updates % c->rule.workers];
    return t->update == k->sum.updates + 1 ? t->set : 0;
}

static int together_advance(struct server_core *c, struct server_key *k) {
    for (uint64_t set; (set = next_set(c, k)) && are_held(c, k, set);) {
        k->sum.updates++;
        k->sum.left = elastic_count(set);
        for (int w = 0; w < c->rule.workers; w++) {
            if (!(set & elastic_bit(w))) continue;
            k->sum.left--;
            if (late_apply(c, k, w) != 0) return -1;
        }
        if (sum_advance(c, k) != 0) return -1;  // the last one of the set may be in no sum
    }
    return 0;
}

static int together_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                          const struct gradient *g) {
    late_hold(c, k, h, g);
    if (g->frame) acknowledge(c, k, h->rank, h->step, false);
    return together_advance(c, k);
}

static int together_fix(struct server_core *c, const struct wire_header *h) {
    if (h->step < 0 || !h->mask) return 0;
    c->turns[h->step % c->rule.workers] = (struct shard_turn){h->step + 1, h->mask};
    for (int i = 0; i < c->count; i++)
        if (together_advance(c, &c->keys[i]) != 0) return -1;
    return 0;
}

// Not within an update: of a sum that is under way the weights lack all.
static bool together_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    (void)c;
    bool within = k->sum.left > 0 || k->sum.pushes > 0;
    return !within && k->pushed[worker] - is_late(k, worker) >= k->pulls[worker].want;
}

static bool together_completes(const struct server_core *c, const struct server_key *k) {
    (void)c;
    return k->sum.left == 0;
}

const struct push_policy push_together = {.takes_frames = true,
                                          .copies = true,
                                          .unfit = on_arrival_unfit,
                                          .admit = together_admit,
                                          .may_read = together_may_read,
                                          .advance = together_advance,
                                          .fix = together_fix,
                                          .answer = note_sent,
                                          .begin_life = forget_sent,
                                          .completes = together_completes,
                                          .key_bytes = late_bytes,
                                          .open = late_open};
