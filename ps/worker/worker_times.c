#include "ps/worker/worker_times.h"

#include <stdlib.h>

#include "ps/worker/worker_core_state.h"
#include "shared/report/span_files.h"

#define TRACE_TID 1000  // after the ids of the device's streams

void worker_times_record(struct worker_core *core, bool staged) {
    for (int i = 0; i < core->o.layout->count * (1 + core->o.lead); i++) {
        struct unit_times *at = &core->units[i].times;
        struct transfer_ids *ids = &at->ids;
        if (ids->gradients && at->acknowledged_ns) {
            timeline_first_byte(ids->in, ids->gradients, at->sent_ns);
            timeline_peers_ready(ids->in, ids->gradients, at->acknowledged_peers_ns,
                                 ps_time_rank(at->acknowledged_peers_ns));
            timeline_done(ids->in, ids->gradients, at->acknowledged_ns);
            ids->gradients = 0;
        }
        if (ids->weights && at->landed_ns) {
            timeline_first_byte(ids->in, ids->weights, at->landed_first_ns);
            timeline_peers_ready(ids->in, ids->weights, at->landed_peers_ns,
                                 ps_time_rank(at->landed_peers_ns));
            if (!staged) timeline_done(ids->in, ids->weights, at->landed_ns);
            ids->weights = 0;
        }
    }
}

// ---------------------------------------------------------------- the communication thread
struct thread_time *worker_thread_time(const struct ps_role_options *role) {
    static const char *const names[WORKER_ACTIVITIES] = {"idle", "protocol", "push", "pull"};
    struct thread_time_options o = {.names = names,
                                    .parts = WORKER_ACTIVITIES,
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
