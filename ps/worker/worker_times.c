#include "ps/worker/worker_times.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/report/span_files.h"

#define TRACE_TID 1000  // behind those of the device's streams

struct worker_times {
    int units, open;           // transfers that are not over
    struct transfer_ids *ids;  // (units); 0: over
};

struct worker_times *worker_times_create(int units) {
    struct worker_times *t = xcalloc(1, sizeof *t);
    t->units = units;
    t->ids = xcalloc((unsigned long)units, sizeof *t->ids);
    return t;
}

void worker_times_destroy(struct worker_times **t) {
    if (!*t) return;
    free((*t)->ids);
    free(*t);
    *t = NULL;
}

void worker_times_open(struct worker_times *t, int u, struct transfer_ids ids) {
    struct transfer_ids *old = &t->ids[u];
    t->open += (ids.gradients && !old->gradients) + (ids.weights && !old->weights);
    *old = ids;
}

struct transfer_ids worker_times_ids(const struct worker_times *t, int u) {
    return t->ids[u];
}

static void tell_gradients(struct worker_times *t, int u, const struct unit_times *at) {
    struct timeline *tl = t->ids[u].in;
    uint64_t id = t->ids[u].gradients;
    if (!id || !at->acknowledged_ns) return;
    timeline_first_byte(tl, id, at->sent_ns);
    timeline_peers_ready(tl, id, at->acknowledged_peers_ns, ps_moment_rank(at->acknowledged_peers_ns));
    timeline_done(tl, id, at->acknowledged_ns);
    t->ids[u].gradients = 0;
    t->open--;
}

static void tell_weights(struct worker_times *t, int u, const struct unit_times *at, bool staged) {
    struct timeline *tl = t->ids[u].in;
    uint64_t id = t->ids[u].weights;
    if (!id || !at->landed_ns) return;
    timeline_first_byte(tl, id, at->landed_first_ns);
    timeline_peers_ready(tl, id, at->landed_peers_ns, ps_moment_rank(at->landed_peers_ns));
    if (!staged) timeline_done(tl, id, at->landed_ns);
    t->ids[u].weights = 0;
    t->open--;
}

void worker_times_tell(struct worker_times *t, const struct worker_core *core, bool staged) {
    for (int u = 0; u < t->units && t->open > 0; u++) {
        const struct unit_times *at = worker_core_times(core, u);
        tell_gradients(t, u, at);
        tell_weights(t, u, at, staged);
    }
}

// ---------------------------------------------------------------- the communication thread
struct thread_time *worker_thread_time(const struct ps_role_options *role) {
    static const char *const names[WORKER_PARTS] = {"idle", "protocol", "push", "pull"};
    struct thread_time_options o = {.names = names,
                                    .parts = WORKER_PARTS,
                                    .idle = 1u << WORKER_IDLE | 1u << WORKER_PROTOCOL,
                                    .trace = true};
    return role->dir && role->config->trace ? thread_time_create(&o) : NULL;
}

void worker_thread_message(struct thread_time *t, int rank, const struct wire_header *h) {
    bool push = h->kind == WIRE_PUSH, pull = h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL);
    if (push) thread_time_enter(t, WORKER_PUSH, span_for(h->step, h->key, rank, 1));
    if (pull) thread_time_enter(t, WORKER_PULL, span_for(h->step - 1, h->key, rank, 1));
}

static char arrow(const struct span *s) {
    return s->part == WORKER_PUSH ? 's' : s->part == WORKER_PULL ? 'f' : 0;
}

int worker_trace_write(const struct worker_trace *t) {
    struct span_thread thread = {.name = "communication", .traced = thread_time_traced(t->spans)};
    struct span_role r = {.dir = t->role->dir,
                          .role = "worker",
                          .rank = t->rank,
                          .shift_ns = t->clock->offset_ns,
                          .threads = &thread,
                          .count = 1,
                          .first_tid = TRACE_TID,
                          .workers = t->role->config->workers,
                          .keys = t->map->count,
                          .arrow = arrow};
    thread_time_end(t->spans);
    return trace_write_threads(&r);
}
