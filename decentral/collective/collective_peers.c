#include "decentral/collective/collective_peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/operations.h"
#include "shared/core/error.h"

#define WHOLE_BYTES  ((size_t)512 << 10)  // a piece of up to this size is not split
#define SLICE_BYTES  ((size_t)128 << 10)  // bytes of a sum between two calls of push
#define STAGED_BYTES ((size_t)2 << 20)    // staging per peer, for two chunks

// ---------------------------------------------------------------- exchanges
static size_t bytes_from(size_t total, size_t at, size_t most) {
    if (total <= at) return 0;
    return total - at < most ? total - at : most;
}

void peers_count(struct collective_peers *m, enum collective_primitive p, size_t at, size_t most) {
    if (p == COLLECTIVE_BARRIER) return;
    for (int i = 0; i < m->impl.head.size; i++)
        collective_count_peer(&m->impl.head, i, bytes_from(m->transfers[i].send_bytes, at, most),
                              bytes_from(m->transfers[i].recv_bytes, at, most));
}

// Exchanges one byte with every rank.
static int run_barrier(struct collective_peers *m) {
    char out = 1, in[REDUCE_MAX];
    for (int i = 0; i < m->impl.head.size; i++)
        m->transfers[i] = (struct collective_transfer){&out, &in[i], 1, 1};
    m->transfers[m->impl.head.rank] = (struct collective_transfer){0};
    return m->engine->begin(m, COLLECTIVE_BARRIER) == 0 ? m->engine->end(m, COLLECTIVE_BARRIER) : -1;
}

static int begin_step(struct collective_peers *m, const struct collective_plan *p, size_t step) {
    struct collective_team team = collective_team_of(p->call, m->impl.head.size);
    for (int i = 0; i < m->impl.head.size; i++) m->transfers[i] = (struct collective_transfer){0};
    for (int i = 0; i < p->size; i++)
        if (i != p->rank) m->transfers[collective_member(team, i)] = collective_step(p, step, i);
    return m->engine->begin(m, p->call->primitive);
}

// under_way: an exchange is in flight during the sum, and has to progress.
static int sum_step(struct collective_peers *m, const struct collective_plan *p, size_t step,
                    bool under_way) {
    struct reduce_args all = collective_step_sum(p, step, m->inputs), slice = all;
    size_t e = dtype_size(p->call->dt);
    bool pushed = under_way && m->engine->push;
    int64_t most = pushed ? (int64_t)(SLICE_BYTES / e) : all.n;
    for (int64_t done = 0; done < all.n; done += slice.n) {
        slice.n = all.n - done < most ? all.n - done : most;
        if (collective_sum(&m->impl, &slice) != 0) return -1;
        slice.out = (char *)slice.out + (size_t)slice.n * e;
        for (int i = 0; i < p->size; i++) m->inputs[i] = (const char *)m->inputs[i] + (size_t)slice.n * e;
        if (pushed) m->engine->push(m);
    }
    return 0;
}

// The steps of a call are those of its plan (collective_plan.h). Sums in pieces are safe in place (send == recv): only
// the last step overwrites a rank's pieces, and all its sends have completed by then.
static int run_exchanges(struct collective_peers *m, const struct collective_call *c,
                         const struct collective_room *staging) {
    if (c->primitive == COLLECTIVE_BARRIER) return run_barrier(m);
    struct collective_staging_room room = {staging->at, staging->bytes, WHOLE_BYTES};
    struct collective_plan p = collective_plan_steps(c, m->impl.head.rank, m->impl.head.size, &room);
    struct collective_transfer own = collective_own_copy(&p);
    int rc = 0;
    bool under_way = false;
    if (own.recv_bytes) memmove(own.recv, own.send, own.recv_bytes);
    for (size_t i = 0; i < collective_actions(&p) && rc == 0; i++) {
        struct collective_action a = collective_action(&p, i);
        if (a.what == ACTION_SUM) {
            rc = sum_step(m, &p, a.step, under_way);
            if (rc != 0 && under_way) m->engine->end(m, c->primitive);
        } else {
            rc = a.what == ACTION_BEGIN ? begin_step(m, &p, a.step) : m->engine->end(m, c->primitive);
            under_way = a.what == ACTION_BEGIN && rc == 0;
        }
    }
    return rc;
}

// ---------------------------------------------------------------- calls
static int peers_run(struct collective_impl *impl, const struct collective_call *call,
                     const struct collective_room *staging) {
    struct collective_peers *m = (struct collective_peers *)impl;
    bool several = impl->head.size > 1;
    bool native = several && m->engine->native && collective_by_library(call, impl->head.mode);
    // The library's own all_reduce and reduce need no staging.
    bool staged = several && collective_reduces(call->primitive) &&
                  (call->primitive == COLLECTIVE_REDUCE_SCATTER || !native);
    m->stream = call->stream;
    if (staged && !staging->at)
        return collective_impl_fail(impl, "%s on channel %d: this channel was created without staging",
                                    collective_name(call->primitive), impl->channel);
    impl->head.method = native ? "library" : "exchange";
    return native ? m->engine->native(m, call, staging) : run_exchanges(m, call, staging);
}

// ---------------------------------------------------------------- create and destroy
size_t peers_staging_bytes(int size, size_t max_count, enum dtype dt) {
    return collective_staging_bytes(size, max_count, dt, STAGED_BYTES);
}

int peers_init(struct collective_peers *m, const struct collective_ops *ops, int rank, int size,
               const struct collective_options *o) {
    m->impl.run = peers_run;
    m->impl.on_host = true;
    if (collective_impl_init(&m->impl, ops, rank, size, o)) return -1;
    m->transfers = xcalloc((unsigned long)size, sizeof *m->transfers);
    m->inputs = xcalloc((unsigned long)size, sizeof *m->inputs);
    return 0;
}

void peers_fini(struct collective_peers *m) {
    free(m->transfers);
    free(m->inputs);
    collective_impl_fini(&m->impl);
}

// ---------------------------------------------------------------- waits
int peers_fail(struct collective_peers *m, const char *what, const char *why) {
    atomic_store(m->broken, true);
    return collective_impl_fail(&m->impl, "%s on channel %d: %s", what, m->impl.channel, why);
}

static void end_all(struct collective_peers *m, const char *why, bool lost) {
    if (!rank_liveness_end_all(m->impl.lives, why, lost)) return;
    if (m->engine->send_reason)
        m->engine->send_reason(m, why);
    else
        rank_liveness_send_reason(m->impl.lives, why);
}

int peers_lose(struct collective_peers *m, const char *what, const char *why) {
    peers_fail(m, what, why);
    end_all(m, m->impl.error, true);
    return -1;
}

void peers_abort(struct collective *c, const char *why) {
    struct collective_peers *m = (struct collective_peers *)c;
    atomic_store(m->broken, true);
    end_all(m, why, false);
}

int peers_check(struct collective_peers *m, struct liveness_wait *w) {
    char why[256];
    if (rank_liveness_end_reason(m->impl.lives)) {
        atomic_store(m->broken, true);
        return collective_impl_fail_aborted(&m->impl, w->what);
    }
    return rank_liveness_wait_failed(m->impl.lives, w, why, sizeof why) ? peers_lose(m, w->what, why) : 0;
}

void peers_wait_begins(struct collective_peers *m) {
    if (m->stream) stream_set_waiting(m->stream, true);
    if (!m->stream) rank_liveness_set_waiting(m->impl.lives, true);
}

void peers_wait_ends(struct collective_peers *m) {
    if (m->stream) stream_set_waiting(m->stream, false);
    if (!m->stream) rank_liveness_set_waiting(m->impl.lives, false);
}
