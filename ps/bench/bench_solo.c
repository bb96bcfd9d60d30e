// One thread without any transport: a copy, and a shard's real state machine on gradients that lie in memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/bench/bench_roles.h"
#include "ps/server/server_core.h"
#include "shared/core/error.h"

#define JOB        1
#define COPY_BYTES ((size_t)64 << 20)  // of each array: beyond any cache
#define PATIENCE_S 1e9

struct solo {
    struct bench_plan plan;  // one server of one thread
    struct config *c;
    struct layout *l;
    struct shard_map *map;
    struct device *dev;
    struct arena arena;
    struct server_buffers *buffers;
    struct server_core *core;
    struct ps_frame *frames;  // (workers, keys)
    char *from, *to;
    int64_t step;
    char *refused;  // what the core said, NULL: nothing
};

static void keep_frame(struct ps_frame *f) { (void)f; }

static void drop(void *ctx, int peer, const struct ps_message *m) {
    struct solo *s = ctx;
    (void)peer;
    if (m->header.kind == WIRE_REFUSED && !s->refused) s->refused = xstrdup(m->header.text);
}

static int tell(struct solo *s, const struct wire_header *h, struct ps_frame *frame) {
    if (server_core_message(s->core, h, frame, 0) != 0) return fail("%s", server_core_error(s->core));
    return s->refused ? fail("bench ps: %s", s->refused) : 0;
}

static int64_t elements_of(const struct solo *s, int key) {
    return s->map->parts[key].end - s->map->parts[key].begin;
}

static int load(struct solo *s) {
    struct ps_frame zeros = {xcalloc((unsigned long)bench_elements(&s->plan), sizeof(float)),
                             (size_t)bench_elements(&s->plan) * sizeof(float), keep_frame};
    int rc = 0;
    for (int key = 0; key < s->map->count && !rc; key++) {
        zeros.bytes = (size_t)elements_of(s, key) * sizeof(float);
        rc = tell(
            s,
            &(struct wire_header){
                .kind = WIRE_INIT, .role = PS_WORKER, .job = JOB, .incarnation = 1, .key = key, .seq = 1},
            &zeros);
    }
    free((void *)zeros.data);
    return rc;
}

static int open_gradients(struct solo *s) {
    int keys = s->map->count, workers = s->plan.workers;
    s->frames = xcalloc((unsigned long)(workers * keys), sizeof *s->frames);
    for (int i = 0; i < workers * keys; i++) {
        void *p = arena_take(&s->arena, MEM_GRADIENT, s->plan.bytes);
        if (!p) return -1;
        bench_fill_gradient(&s->plan, p);
        s->frames[i] =
            (struct ps_frame){p, (size_t)elements_of(s, i % keys) * dtype_size(s->plan.dtype), keep_frame};
    }
    s->from = arena_take(&s->arena, MEM_COMM, COPY_BYTES);
    s->to = arena_take(&s->arena, MEM_COMM, COPY_BYTES);
    if (!s->from || !s->to) return -1;
    memset(s->from, 1, COPY_BYTES);
    return 0;
}

static int open_solo(struct solo *s, const struct bench_seat *seat) {
    const char *why = NULL;
    const struct backend *b = backend_find("cpu", &why);
    struct device_options d = {.threads = 1, .label = error_label()};
    s->l = bench_layout(&s->plan);
    if (!(s->c = bench_config(seat->topologies, &s->plan)) || !(s->map = shard_map_of(s->c, s->l))) return -1;
    s->c->clip =
        0;  // no scheduler decides here: an update is made as soon as the last gradient of its key has come
    if (!b || dev_open(b, &d, &s->dev) != 0) return fail("cannot open the cpu device: %s", why ? why : "");
    arena_init(&s->arena, s->dev);
    s->buffers = xcalloc((unsigned long)s->map->count, sizeof *s->buffers);
    for (int key = 0; key < s->map->count; key++)
        server_carve_key(&s->arena, s->c, &s->map->parts[key], NULL, &s->buffers[key]);
    if (s->arena.failed || open_gradients(s) != 0) return -1;
    struct server_core_options o = {
        .config = s->c, .layout = s->l, .map = s->map, .buffers = s->buffers, .job = JOB, .port = {s, drop}};
    s->core = server_core_create(&o);
    for (int w = 0; w < s->plan.workers; w++) server_core_member(s->core, w, (uint64_t)w + 1, 0);
    return load(s);
}

// A step: the last worker's gradient of a key makes its update, and publishes it in the run's dtype.
static int apply(struct solo *s) {
    int keys = s->map->count;
    for (int key = 0; key < keys; key++)
        for (int w = 0; w < s->plan.workers; w++) {
            struct wire_header h = {.kind = WIRE_PUSH,
                                    .role = PS_WORKER,
                                    .rank = w,
                                    .job = JOB,
                                    .incarnation = (uint64_t)w + 1,
                                    .key = key,
                                    .step = s->step,
                                    .version = s->step,
                                    .lr = s->c->optimizer.lr,
                                    .grad_scale = 1.0f};
            if (tell(s, &h, &s->frames[w * keys + key]) != 0) return -1;
        }
    s->step++;
    for (int key = 0; key < keys; key++)
        if (server_core_version(s->core, key) != s->step)
            return fail("bench ps: key %d is at update %lld instead of %lld", key,
                        (long long)server_core_version(s->core, key), (long long)s->step);
    return 0;
}

static int measure(struct solo *s, const char *what) {
    size_t piece = !strcmp(what, "pieces") && s->plan.bytes < COPY_BYTES ? s->plan.bytes : COPY_BYTES;
    if (!strcmp(what, "apply")) return apply(s);
    for (size_t at = 0; at + piece <= COPY_BYTES; at += piece) memcpy(s->to + at, s->from + at, piece);
    return 0;
}

int bench_solo(const struct bench_seat *seat) {
    struct solo s = {.plan = seat->plan};
    char line[BENCH_LINE_MAX];
    s.plan.servers = s.plan.threads = 1;
    s.plan.kind = BENCH_STREAM;
    int rc = open_solo(&s, seat);
    size_t copied = COPY_BYTES / seat->plan.bytes * seat->plan.bytes;
    if (!rc)
        rc = bench_say(seat->control, "%d %zu %zu", (int)getpid(), COPY_BYTES, copied ? copied : COPY_BYTES);
    while (!rc && !(rc = bench_hear(seat->control, line)) && strcmp(line, "end") != 0) {
        char what[16];
        int64_t start;
        if (sscanf(line, "%15s %" SCNd64, what, &start) != 2) {
            rc = fail("bench ps: told \"%s\"", line);
            break;
        }
        bench_wait_until(start);
        // CPU time: nothing here waits, and what else wants the core does not count.
        int64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        rc = measure(&s, what);
        if (!rc)
            rc = bench_say(seat->control, "%" PRId64 " %" PRId64, begin, clock_ns(CLOCK_THREAD_CPUTIME_ID));
    }
    server_core_destroy(&s.core);
    if (s.dev) {
        arena_release(&s.arena);
        dev_close(&s.dev);
    }
    free(s.frames);
    free(s.buffers);
    free(s.refused);
    shard_map_destroy(&s.map);
    layout_destroy(&s.l);
    config_destroy(&s.c);
    return rc ? rc : bench_say(seat->control, "done");
}
