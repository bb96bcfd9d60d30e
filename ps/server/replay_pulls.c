#include "ps/server/replay_pulls.h"

#include <stdlib.h>
#include <string.h>

#include "ps/record/arrivals.h"
#include "shared/core/error.h"

struct replay_key *replay_key_create(int workers) {
    struct replay_key *r = xcalloc(1, sizeof *r + (unsigned long)workers * sizeof *r->w);
    r->workers = workers;
    return r;
}

void replay_key_destroy(struct replay_key **at) {
    struct replay_key *r = *at;
    if (!r) return;
    for (int w = 0; w < r->workers; w++) {
        free(r->w[w].push);
        free(r->w[w].copy);
    }
    free(r);
    *at = NULL;
}

void replay_hold(struct server_core *c, size_t bytes) {
    c->totals.held_bytes += bytes;
    if (c->totals.held_bytes > c->totals.held_peak_bytes) c->totals.held_peak_bytes = c->totals.held_bytes;
}

void replay_drop_copy(struct server_core *c, struct server_key *k, int worker) {
    struct replay_worker *r = &k->replay->w[worker];
    if (r->copy) c->totals.held_bytes -= (size_t)k->n * dtype_size(c->o.dtype);
    free(r->copy);
    r->copy = NULL;
}

// The recorded version of the weights of an open pull; -1: any, for nothing is computed on them.
static int64_t wanted(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    const struct arrival *a = p->final ? NULL : arrivals_of(c->o.replay, k->key, worker, p->want);
    return a ? (int64_t)a->version : -1;
}

bool replay_ready(const struct server_core *c, const struct server_key *k, int worker) {
    const struct replay_worker *r = &k->replay->w[worker];
    int64_t version = wanted(c, k, worker);
    if (r->done < k->pulls[worker].want) return false;
    return version < 0 || r->told == k->pulls[worker].want || version == k->version;
}

void replay_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    struct replay_worker *r = &k->replay->w[worker];
    if (wanted(c, k, worker) < 0) return;
    if (r->told != k->pulls[worker].want) {
        r->told = k->pulls[worker].want;
        r->version = k->version;
        if (!c->segments[worker].base) {
            replay_hold(c, m->bytes);
            r->copy = xcalloc(1, m->bytes);
            memcpy(r->copy, m->payload, m->bytes);
        }
    }
    m->header.version = r->version;
    if (r->copy) m->payload = r->copy;
}
