#include "ps/server/server_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ps/diary/diary_file.h"
#include "shared/core/error.h"

#define KEPT_LEAST 4096   // spans in a shard's ring
#define KEPT_MOST  65536  // 2.5 MiB

static const char *const names[SERVER_PARTS] = {"receive", "sum", "hold", "wait", "update", "reply"};

struct diary *server_diary(const struct config *c, const struct shard_map *map, int shard) {
    // Of each key a step has: of each worker a push, a sum, two answers and a pull; an update; idleness between.
    size_t a_step = (size_t)map->shard_keys[shard] * (6 * (size_t)c->workers + 4);
    size_t kept = a_step * (SERVER_PICTURED + 2);
    struct diary_options o = {.names = names,
                              .parts = SERVER_PARTS,
                              .idle = 1u << SERVER_HOLD | 1u << SERVER_WAIT,
                              .work = 1u << SERVER_SUM | 1u << SERVER_UPDATE | 1u << SERVER_REPLY,
                              .kept = kept < KEPT_LEAST  ? KEPT_LEAST
                                      : kept > KEPT_MOST ? KEPT_MOST
                                                         : kept,
                              .trace = c->trace};
    return diary_create(&o);
}

void server_time_add(struct server_time *sum, const struct diary *d) {
    int64_t ns[DIARY_PARTS_MAX];
    sum->total += (double)diary_totals(d, ns) * 1e-9;
    sum->receive += (double)ns[SERVER_RECEIVE] * 1e-9;
    sum->sum += (double)ns[SERVER_SUM] * 1e-9;
    sum->hold += (double)ns[SERVER_HOLD] * 1e-9;
    sum->wait += (double)ns[SERVER_WAIT] * 1e-9;
    sum->update += (double)ns[SERVER_UPDATE] * 1e-9;
    sum->reply += (double)ns[SERVER_REPLY] * 1e-9;
    sum->threads++;
}

// Where a partition's arrow passes; gradients that are received and held are on their way to the sum.
static char arrow(const struct diary_span *s) {
    return s->part == SERVER_SUM || s->part == SERVER_UPDATE || s->part == SERVER_REPLY ? 't' : 0;
}

int server_time_write(const struct server_time_files *f) {
    struct diary_thread *threads = xcalloc((unsigned long)f->count, sizeof *threads);
    char(*labels)[24] = xcalloc((unsigned long)f->count, sizeof *labels);
    const struct ps_clock *clock = &f->id->clock;
    for (int t = 0; t < f->count; t++) {
        snprintf(labels[t], sizeof labels[t], "shard %d", t);
        threads[t] = (struct diary_thread){labels[t], f->diaries[t]};
    }
    struct diary_role r = {.dir = f->dir,
                           .role = "server",
                           .rank = f->id->rank,
                           .shift_ns = clock->offset_ns,
                           .error_ns = ps_clock_error(clock, clock_now_ns(CLOCK_MONOTONIC)),
                           .threads = threads,
                           .count = f->count,
                           .pid = trace_pid_server(f->config->workers, f->id->rank),
                           .first_tid = 1,
                           .workers = f->config->workers,
                           .keys = f->map->count,
                           .arrow = arrow};
    int rc = f->dir ? diary_write_timeline(&r, SERVER_PICTURED) : 0;
    if (!rc && f->dir && f->config->trace) rc = diary_write_trace(&r);
    free(labels);
    free(threads);
    return rc;
}
