#include "ps/diary/worker_trace.h"

#include <time.h>

#include "ps/diary/diary_file.h"

#define TID 1000  // behind those of the device's streams

static const char *const names[WORKER_PARTS] = {"idle", "protocol", "push", "pull"};

struct diary *worker_diary(const struct ps_role_options *role) {
    struct diary_options o = {.names = names,
                              .parts = WORKER_PARTS,
                              .idle = 1u << WORKER_IDLE | 1u << WORKER_PROTOCOL,
                              .trace = true};
    return role->dir && role->config->trace ? diary_create(&o) : NULL;
}

void worker_trace_message(struct diary *d, int rank, const struct wire_header *h) {
    bool push = h->kind == WIRE_PUSH, pull = h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL);
    if (!push && !pull) return;
    diary_enter(d, push ? WORKER_PUSH : WORKER_PULL,
                &(struct diary_of){h->key, rank, 1, push ? h->step : h->step - 1});
}

static char arrow(const struct diary_span *s) {
    return s->part == WORKER_PUSH ? 's' : s->part == WORKER_PULL ? 'f' : 0;
}

int worker_trace_write(const struct worker_trace *t) {
    struct diary_thread thread = {"communication", t->diary};
    struct diary_role r = {.dir = t->role->dir,
                           .role = "worker",
                           .rank = t->rank,
                           .shift_ns = t->clock->offset_ns,
                           .threads = &thread,
                           .count = 1,
                           .pid = trace_pid_worker(t->rank),
                           .first_tid = TID,
                           .workers = t->role->config->workers,
                           .keys = t->map->count,
                           .arrow = arrow};
    diary_end(t->diary);
    return diary_write_trace(&r);
}
