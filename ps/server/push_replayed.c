// An asynchronous run repeated bit for bit. Pushes are applied in the recorded order, and a worker gets each key's
// weights at the version that it computed on in that run.
//
//     push of w     held until it is the key's next in the recording
//     applied       when no worker still has to be sent the version that it would replace
//     pull of w     answered when the key has reached the version recorded for the worker's step
//
// No deadlock: each of these waits for something that happened earlier in the recorded run. That is an earlier push of
// the key; a worker's push, hence its pulls of that step and its pushes of the step before; or a pull that a worker
// sends with its push, before it waits for anything. So the earliest event of the recorded run that has not happened
// yet can always happen. Nothing else delays a worker: a frame is acknowledged as taken when it arrives, which returns
// its credits, and belongs to the server from then on (counted as transport memory). An answer is kept until the
// worker's next push proves that it arrived: it may have to be resent after the key has changed.
#include <stdlib.h>
#include <string.h>

#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

struct replay_worker {
    // The weights that the worker was sent last:
    int64_t sent_step;  // the step of that pull
    int64_t version;
    void *copy;             // the weights, until the worker's next push; NULL: no copy is needed
    struct held_push push;  // the header of the push whose gradient is held
};

struct replay_key {
    int64_t next;  // index of the next push in the recording
    int workers;
    struct replay_worker w[];  // (workers)
};

static struct replay_key *replay_of(const struct server_key *k) { return k->own; }
// Pushes of the worker that were applied.
static int64_t applied(const struct server_key *k, int worker) {
    return k->pushed[worker] - is_held(k, worker);
}

// ---------------------------------------------------------------- pulls
// The recorded version of the weights of an open pull; -1: any, since nothing is computed on them.
static int64_t wanted(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    const struct arrival *a = p->final ? NULL : arrivals_of(c->o.replay, k->key, worker, p->want);
    return a ? (int64_t)a->version : -1;
}

static bool replayed_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    int64_t version = wanted(c, k, worker), want = k->pulls[worker].want;
    if (applied(k, worker) < want) return false;
    return version < 0 || replay_of(k)->w[worker].sent_step == want || version == k->version;
}

static void replayed_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    struct replay_worker *r = &replay_of(k)->w[worker];
    answer_as_sent(c, k, worker, m);
    if (wanted(c, k, worker) < 0) return;
    if (r->sent_step != k->pulls[worker].want) {
        r->sent_step = k->pulls[worker].want;
        r->version = k->version;
        if (!c->segments[worker].base) {
            r->copy = xcalloc(1, m->bytes);
            memcpy(r->copy, m->payload, m->bytes);
            c->totals.held_bytes += m->bytes;
            update_held_peak(c);
        }
    }
    m->header.updates -= age_of(c, m->header.version - r->version);
    m->header.version = r->version;
    if (r->copy) m->payload = r->copy;
}

// ---------------------------------------------------------------- pushes
// Whether the current weights must still be sent to some worker.
static bool version_needed(const struct server_core *c, const struct server_key *k) {
    for (int w = 0; w < c->rule.workers; w++) {
        int64_t done = applied(k, w);
        const struct arrival *a = arrivals_of(c->o.replay, k->key, w, done);
        if (done > 0 && a && a->version == (uint64_t)k->version && replay_of(k)->w[w].sent_step < done)
            return true;
    }
    return false;
}

// An altered recording may ask for a version that never exists. a: the key's next push.
static int check_reachable(struct server_core *c, const struct server_key *k, const struct arrival *a) {
    int64_t now = (int64_t)a->version + a->staleness;
    int missed = -1;
    for (int w = 0; w < c->rule.workers; w++) {
        int64_t version = k->pulls[w].pending ? wanted(c, k, w) : -1;
        if (version >= 0 && version < k->version && replay_of(k)->w[w].sent_step != k->pulls[w].want)
            missed = w;
    }
    if (now == k->version && missed < 0) return 0;
    if (missed < 0)
        return core_fail(
            c->error,
            "key %d: version %lld has worker %d's push next, in the recording version %lld: it is of another run",
            k->key, (long long)k->version, a->worker, (long long)now);
    return core_fail(
        c->error,
        "key %d, step %lld: worker %d computed on version %lld in the recording, and the key is at version %lld: it "
        "is of another run",
        k->key, (long long)k->pulls[missed].want, missed, (long long)wanted(c, k, missed),
        (long long)k->version);
}

static int replayed_advance(struct server_core *c, struct server_key *k) {
    for (const struct arrival *a; (a = arrivals_at(c->o.replay, k->key, replay_of(k)->next));) {
        if (check_reachable(c, k, a) != 0) return -1;
        const struct held_push *p = &replay_of(k)->w[a->worker].push;
        if (!is_held(k, a->worker) || version_needed(c, k)) return 0;
        if (check_recorded(c, k, p, a) != 0) return -1;
        // The header of the held push, which is next in the recording.
        const struct wire_header h = held_push_header(p, k->key, a->worker);
        const struct gradient g = k->slots->held[a->worker];
        k->slots->held[a->worker] = (struct gradient){0};
        if (g.frame) c->totals.held_bytes -= g.bytes;
        replay_of(k)->next++;
        if (on_arrival_admit(c, k, &h, &g) != 0) return -1;
    }
    return 0;
}

static int replayed_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                          const struct gradient *g) {
    struct replay_worker *r = &replay_of(k)->w[h->rank];
    const struct arrival *a = arrivals_of(c->o.replay, k->key, h->rank, h->step);
    if (!a) {
        ps_frame_release(g->frame);
        return core_fail(c->error, "key %d, step %lld: worker %d pushed more than was recorded", k->key,
                         (long long)h->step, h->rank);
    }
    // The push proves that the worker has the last answer.
    if (r->copy) c->totals.held_bytes -= (size_t)k->n * dtype_size(c->dtype);
    free(r->copy);
    r->copy = NULL;
    r->push = held_push_of(h);
    gradient_hold(c, &k->slots->held[h->rank], g);
    update_held_peak(c);
    k->pushed[h->rank] = h->step + 1;
    k->staleness[h->rank] = age_for_worker(c, h->flags, (uint64_t)age_of(c, a->staleness));
    if (g->frame) acknowledge(c, k, h->rank, h->step, false);
    return replayed_advance(c, k);
}

// ---------------------------------------------------------------- the policy
static void replayed_open(struct server_core *c, struct server_key *k) {
    unsigned long workers = (unsigned long)c->rule.workers;
    on_arrival_open(c, k);
    k->own = xcalloc(1, sizeof(struct replay_key) + workers * sizeof(struct replay_worker));
    replay_of(k)->workers = c->rule.workers;
}

static void replayed_close(struct server_key *k) {
    for (int w = 0; w < replay_of(k)->workers; w++) free(replay_of(k)->w[w].copy);
    free(k->own);
}

static int64_t replayed_bytes(const struct config *c) {
    return on_arrival_bytes(c) + (int64_t)sizeof(struct replay_key) +
           c->workers * (int64_t)sizeof(struct replay_worker);
}

// Gradients wait until they are next to be applied. Answers wait because they may have to be resent.
static double replayed_waiting(const struct config *c, double gradients, double weights) {
    return c->medium == MEDIUM_SHM ? 0 : c->workers * (gradients + weights);
}

const struct push_policy push_replayed = {.carve = on_arrival_carve,
                                          .key_bytes = replayed_bytes,
                                          .waiting = replayed_waiting,
                                          .takes_frames = true,
                                          .copies = true,
                                          .unfit = on_arrival_unfit,
                                          .admit = replayed_admit,
                                          .may_read = replayed_may_read,
                                          .advance = replayed_advance,
                                          .answer = replayed_answer,
                                          .end = commit_last_sum,
                                          .open = replayed_open,
                                          .close = replayed_close};
