#include "ps/server/server_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "shared/core/error.h"
#include "shared/report/span_files.h"

#define KEPT_LEAST 4096   // spans in a shard's ring
#define KEPT_MOST  65536  // 2.5 MiB

static const char *const names[SERVER_PARTS] = {"receive", "sum", "hold", "wait", "update", "reply"};

struct thread_time *server_thread_time(const struct config *c, const struct shard_map *map, int shard) {
    // Of each key a step has: of each worker a push, a sum, two answers and a pull; an update; idleness between.
    size_t a_step = (size_t)map->shard_keys[shard] * (6 * (size_t)c->workers + 4);
    size_t kept = a_step * (SERVER_PICTURED + 2);
    struct thread_time_options o = {.names = names,
                                    .parts = SERVER_PARTS,
                                    .idle = 1u << SERVER_HOLD | 1u << SERVER_WAIT,
                                    .work = 1u << SERVER_SUM | 1u << SERVER_UPDATE | 1u << SERVER_REPLY,
                                    .kept = kept < KEPT_LEAST  ? KEPT_LEAST
                                            : kept > KEPT_MOST ? KEPT_MOST
                                                               : kept,
                                    .trace = c->trace};
    return thread_time_create(&o);
}

void server_time_add(struct server_time *sum, const struct thread_time *t) {
    int64_t ns[THREAD_PARTS];
    sum->total += (double)thread_time_totals(t, ns) * 1e-9;
    sum->receive += (double)ns[SERVER_RECEIVE] * 1e-9;
    sum->sum += (double)ns[SERVER_SUM] * 1e-9;
    sum->hold += (double)ns[SERVER_HOLD] * 1e-9;
    sum->wait += (double)ns[SERVER_WAIT] * 1e-9;
    sum->update += (double)ns[SERVER_UPDATE] * 1e-9;
    sum->reply += (double)ns[SERVER_REPLY] * 1e-9;
    sum->threads++;
}

// A partition's arrow passes here; gradients that are received and held are on their way to the sum.
static char arrow(const struct span *s) {
    return s->part == SERVER_SUM || s->part == SERVER_UPDATE || s->part == SERVER_REPLY ? 't' : 0;
}

int server_time_write(const struct server_time_files *f) {
    struct span_thread *threads = xcalloc((unsigned long)f->count, sizeof *threads);
    char(*labels)[24] = xcalloc((unsigned long)f->count, sizeof *labels);
    const struct ps_clock *clock = &f->id->clock;
    for (int t = 0; t < f->count; t++) {
        snprintf(labels[t], sizeof labels[t], "shard %d", t);
        threads[t] =
            (struct span_thread){labels[t], thread_time_last(f->shards[t]), thread_time_traced(f->shards[t])};
    }
    struct span_role r = {.dir = f->dir,
                          .role = "server",
                          .rank = f->id->rank,
                          .shift_ns = clock->offset_ns,
                          .error_ns = ps_clock_error(clock, clock_now_ns(CLOCK_MONOTONIC)),
                          .threads = threads,
                          .count = f->count,
                          .first_tid = 1,
                          .workers = f->config->workers,
                          .keys = f->map->count,
                          .arrow = arrow};
    int rc = f->dir ? timeline_write_threads(&r, SERVER_PICTURED) : 0;
    if (!rc && f->dir && f->config->trace) rc = trace_write_threads(&r);
    free(labels);
    free(threads);
    return rc;
}
