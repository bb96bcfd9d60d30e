#include "ps/worker/worker_times.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/report/span_files.h"

#define TRACE_TID 1000  // after the ids of the device's streams

struct worker_times {
    int units, lead, open;     // open: transfers that are not over
    struct transfer_ids *ids;  // (1 + lead, units); 0: over
};

struct worker_times *worker_times_create(int units, int lead) {
    struct worker_times *t = xcalloc(1, sizeof *t);
    *t = (struct worker_times){.units = units, .lead = lead};
    t->ids = xcalloc((unsigned long)units * (1 + (unsigned long)lead), sizeof *t->ids);
    return t;
}

void worker_times_destroy(struct worker_times **t) {
    if (!*t) return;
    free((*t)->ids);
    free(*t);
    *t = NULL;
}

static struct transfer_ids *ids_of(const struct worker_times *t, int u, int64_t step) {
    return &t->ids[worker_slot_of(step, t->lead) * t->units + u];
}

void worker_times_open(struct worker_times *t, int u, int64_t step, struct transfer_ids ids) {
    struct transfer_ids *old = ids_of(t, u, step);
    t->open += (ids.gradients && !old->gradients) + (ids.weights && !old->weights);
    old->in = ids.in;
    if (ids.gradients) old->gradients = ids.gradients;
    if (ids.weights) old->weights = ids.weights;
}

struct transfer_ids worker_times_ids(const struct worker_times *t, int u, int64_t step) {
    return *ids_of(t, u, step);
}

void worker_times_tell(struct worker_times *t, const struct worker_core *core, bool staged) {
    for (int i = 0; i < t->units * (1 + t->lead) && t->open > 0; i++) {
        const struct unit_times *at = worker_core_times(core, i % t->units, i / t->units);
        struct transfer_ids *ids = &t->ids[i];
        if (ids->gradients && at->acknowledged_ns) {
            timeline_first_byte(ids->in, ids->gradients, at->sent_ns);
            timeline_peers_ready(ids->in, ids->gradients, at->acknowledged_peers_ns,
                                 ps_moment_rank(at->acknowledged_peers_ns));
            timeline_done(ids->in, ids->gradients, at->acknowledged_ns);
            ids->gradients = 0;
            t->open--;
        }
        if (ids->weights && at->landed_ns) {
            timeline_first_byte(ids->in, ids->weights, at->landed_first_ns);
            timeline_peers_ready(ids->in, ids->weights, at->landed_peers_ns,
                                 ps_moment_rank(at->landed_peers_ns));
            if (!staged) timeline_done(ids->in, ids->weights, at->landed_ns);
            ids->weights = 0;
            t->open--;
        }
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

static char arrow(const struct span *s) {
    return s->part == WORKER_PUSH ? 's' : s->part == WORKER_PULL ? 'f' : 0;
}

int worker_trace_write(const struct worker_trace *t) {
    struct span_thread thread = {.name = "communication", .spans = thread_time_traced(t->spans)};
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
    return trace_write_threads(&r);
}
