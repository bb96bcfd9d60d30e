#include "decentral/bench/bench_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"

#define CHUNK_BYTES ((size_t)1 << 20)
#define POISON      0xa5
enum { CHANNEL_TESTED, CHANNEL_CONTROL };

struct rank {
    const struct bench_rank_options *o;
    struct device *dev;
    struct stream *s;
    struct arena arena;
    struct collective *tested, *control;
    int rank, size;
    char *send, *recv;            // device: large enough for every shape
    double *own, *all;            // device: (2), (2 * size): this rank's figures, all ranks' figures
    char *host, *want, *scratch;  // host: a chunk each; scratch: a chunk per rank, the inputs of sums
    uint64_t seed;
};

// The buffers of a call.
struct buffers {
    char *send, *recv;  // of the call
    char *data;         // the input: bench_send_count elements
};

double bench_algorithm_rate(const struct bench_row *r, enum bench_place place) {
    const struct bench_figure *f = &r->figure[place];
    return f->measured && f->seconds > 0 ? (double)bench_shape_bytes(&r->shape) / f->seconds : 0;
}

double bench_bus_rate(const struct bench_row *r, enum bench_place place) {
    return bench_algorithm_rate(r, place) * bench_bus_factor(r->shape.what, r->shape.ranks);
}

// ---------------------------------------------------------------- opening
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// Returns the bytes of the larger buffer over all shapes.
static size_t most_bytes(const struct rank *x) {
    size_t most = 0;
    for (int i = 0; i < COLLECTIVE_PRIMITIVES; i++) {
        struct bench_shape s =
            bench_shape_of((enum collective_primitive)i, x->size, x->o->dt, x->o->max_bytes);
        if (x->o->wanted[i]) most = larger(most, bench_shape_bytes(&s));
    }
    return larger(most, DEV_ALIGN);
}

static struct collective *open_channel(struct rank *x, const struct collective_source *src, int channel) {
    bool control = channel == CHANNEL_CONTROL;
    enum dtype dt = control ? DT_F64 : x->o->dt;
    size_t count = control ? 2 : most_bytes(x) / dtype_size(dt);
    struct collective_options o = {
        .mode = control ? REDUCE_ORDERED : x->o->mode, .control = control, .deadline_s = x->o->deadline_s};
    o.staging_bytes = collective_staging(src, count, dt);
    o.staging = arena_take(&x->arena, MEM_COMM, o.staging_bytes);
    o.host_staging_bytes = collective_host_staging(src, count, dt);
    o.host_staging = arena_take(&x->arena, MEM_HOST, o.host_staging_bytes);
    return x->arena.failed ? NULL : collective_create(src, channel, &o);
}

static int open_rank(struct rank *x, const struct collective_source *src) {
    size_t bytes = most_bytes(x), chunk = CHUNK_BYTES;
    x->s = stream_create(x->dev, "bench");
    if (!x->s) return fail("bench collective: cannot create a stream: %s", dev_error(x->dev));
    x->send = arena_take(&x->arena, MEM_COMM, bytes);
    x->recv = arena_take(&x->arena, MEM_COMM, bytes);
    x->own = arena_take(&x->arena, MEM_COMM, 2 * sizeof *x->own);
    x->all = arena_take(&x->arena, MEM_COMM, 2 * (size_t)x->size * sizeof *x->all);
    x->host = xcalloc(1, chunk);
    x->want = xcalloc(1, chunk);
    x->scratch = xcalloc((unsigned long)x->size, chunk);
    if (x->arena.failed) return -1;
    x->tested = open_channel(x, src, CHANNEL_TESTED);
    x->control = x->tested ? open_channel(x, src, CHANNEL_CONTROL) : NULL;
    return x->control ? 0 : -1;
}

static void close_rank(struct rank *x) {
    if (x->s) stream_destroy(&x->s);
    if (x->control) collective_destroy(&x->control);
    if (x->tested) collective_destroy(&x->tested);
    arena_release(&x->arena);
    free(x->host);
    free(x->want);
    free(x->scratch);
}

// Aborts the channels, so that no peer waits for this rank. Returns -1 after logging.
static int fail_rank(struct rank *x, const char *what) {
    const char *why = collective_error(x->tested);
    if (!*why) why = collective_error(x->control);
    if (!*why) why = dev_error(x->dev);
    fail("bench collective: rank %d: %s: %s", x->rank, what, *why ? why : "no reason given");
    collective_abort(x->tested, error_last());
    collective_abort(x->control, error_last());
    return -1;
}

static int wait_for(struct rank *x, const char *what) { return stream_sync(x->s) ? fail_rank(x, what) : 0; }

// ---------------------------------------------------------------- one call
static struct buffers buffers_of(const struct rank *x, const struct bench_shape *s, enum bench_place place) {
    struct buffers p = {x->send, x->recv, x->send};
    struct collective_call c = bench_call(s, s->what, x->rank);
    struct collective_plan plan = collective_plan_of(&c, x->rank, x->size);
    bool both = plan.send_blocks && plan.recv_blocks;
    if (place == OUT_OF_PLACE || !(both || collective_in_one_buffer(s->what))) return p;
    size_t own = (size_t)x->rank * s->count * dtype_size(s->dt);
    p.send = p.data = x->recv + (plan.row->n_received ? own : 0);
    p.recv = x->recv + (plan.row->n_sent ? own : 0);
    return p;
}

static void enqueue_one(struct rank *x, const struct bench_shape *s, enum collective_primitive what,
                        const struct buffers *p) {
    struct collective_call c = bench_call(s, what, x->rank);
    struct collective_plan plan = collective_plan_of(&c, x->rank, x->size);
    bool one = collective_in_one_buffer(what);
    c.stream = x->s;
    c.send = plan.send_blocks || one ? p->send : NULL;
    c.recv = plan.recv_blocks || one ? p->recv : NULL;
    collective_enqueue(x->tested, &c);
}

// If the ranks send and receive around a circle, even ranks send first: a send may block until its receiver receives.
static void enqueue(struct rank *x, const struct bench_shape *s, const struct buffers *p) {
    bool circle = s->what == COLLECTIVE_SEND, odd = circle && x->rank % 2 == 1;
    if (odd) enqueue_one(x, s, COLLECTIVE_RECV, p);
    enqueue_one(x, s, s->what, p);
    if (circle && !odd) enqueue_one(x, s, COLLECTIVE_RECV, p);
}

// ---------------------------------------------------------------- data
static struct bench_data data_of(const struct rank *x, const struct bench_shape *s) {
    return (struct bench_data){.seed = x->seed,
                               .exact = collective_reduces(s->what) && x->o->mode == REDUCE_NATIVE};
}

// Fills the input; all other elements, results included, become POISON.
static int fill(struct rank *x, const struct bench_shape *s, const struct buffers *p) {
    struct bench_data d = data_of(x, s);
    size_t e = dtype_size(s->dt), n = bench_send_count(s, x->rank), bytes = bench_shape_bytes(s);
    memset(x->host, POISON, CHUNK_BYTES);
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES)
        dev_copy(x->s, x->recv + at, x->host, bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES);
    if (wait_for(x, "filling the buffers")) return -1;
    for (size_t at = 0; at < n; at += CHUNK_BYTES / e) {
        size_t part = n - at < CHUNK_BYTES / e ? n - at : CHUNK_BYTES / e;
        bench_input(&d, s, x->rank, at, part, x->host);
        dev_copy(x->s, p->data + at * e, x->host, part * e);
        if (wait_for(x, "filling the buffers")) return -1;
    }
    return 0;
}

// Returns the number of wrong elements of this rank, or -1 after logging.
static int64_t count_wrong(struct rank *x, const struct bench_shape *s, const struct buffers *p) {
    struct bench_data d = data_of(x, s);
    size_t e = dtype_size(s->dt), n = bench_recv_count(s, x->rank);
    int64_t wrong = 0;
    for (size_t at = 0; at < n; at += CHUNK_BYTES / e) {
        size_t part = n - at < CHUNK_BYTES / e ? n - at : CHUNK_BYTES / e;
        dev_copy(x->s, x->host, p->recv + at * e, part * e);
        if (wait_for(x, "reading the result")) return -1;
        bench_expected(&d, s, x->rank, at, part, x->want, x->scratch);
        wrong += bench_wrong(x->host, x->want, part, s->dt);
    }
    return wrong;
}

// ---------------------------------------------------------------- measuring
// Replaces seconds by the mean over the ranks and wrong by the sum over the ranks.
static int share(struct rank *x, struct bench_figure *f) {
    double mine[2] = {f->seconds, (double)f->wrong}, all[2 * REDUCE_MAX];
    dev_copy(x->s, x->own, mine, sizeof mine);
    collective_all_gather(x->control, x->s, x->own, x->all, 2, DT_F64);
    dev_copy(x->s, all, x->all, 2 * (size_t)x->size * sizeof *all);
    if (wait_for(x, "sharing the figures")) return -1;
    double seconds = 0, wrong = 0;
    for (int r = 0; r < x->size; r++) {
        seconds += all[2 * r];
        wrong += all[2 * r + 1];
    }
    *f = (struct bench_figure){.measured = true, .seconds = seconds / x->size, .wrong = (int64_t)wrong};
    return 0;
}

static int time_calls(struct rank *x, const struct bench_shape *s, const struct buffers *p, double *seconds) {
    for (int i = 0; i < x->o->warmup; i++) enqueue(x, s, p);
    if (wait_for(x, bench_name(s->what))) return -1;
    collective_barrier(x->control, x->s);
    if (wait_for(x, "barrier")) return -1;
    double start = now_seconds();
    for (int i = 0; i < x->o->iterations; i++) enqueue(x, s, p);
    if (wait_for(x, bench_name(s->what))) return -1;
    *seconds = (now_seconds() - start) / x->o->iterations;
    return 0;
}

static int measure(struct rank *x, const struct bench_shape *s, enum bench_place place,
                   struct bench_figure *f) {
    struct buffers p = buffers_of(x, s, place);
    x->seed++;
    if (fill(x, s, &p) || time_calls(x, s, &p, &f->seconds)) return -1;
    x->seed++;
    if (s->count) {
        if (fill(x, s, &p)) return -1;
        enqueue(x, s, &p);
        if (wait_for(x, bench_name(s->what))) return -1;
        f->wrong = count_wrong(x, s, &p);
        if (f->wrong < 0) return -1;
    }
    return share(x, f);
}

static int run_row(struct rank *x, enum collective_primitive what, size_t bytes, int64_t *wrong) {
    struct bench_row row = {.shape = bench_shape_of(what, x->size, x->o->dt, bytes)};
    row.shape.reduction = x->o->reduction;
    bool has[BENCH_PLACES] = {[OUT_OF_PLACE] = bench_out_of_place(what), [IN_PLACE] = bench_in_place(what)};
    for (int place = 0; place < BENCH_PLACES; place++) {
        if (has[place] && measure(x, &row.shape, place, &row.figure[place])) return -1;
        *wrong += row.figure[place].wrong;
    }
    row.by = x->tested->method;
    if (x->o->on_row) x->o->on_row(x->o->ctx, &row);
    return 0;
}

static int run_ones(struct rank *x) {
    struct bench_shape s = {COLLECTIVE_ALL_REDUCE, x->size, DT_F32, 1, x->o->reduction};
    struct buffers p = buffers_of(x, &s, OUT_OF_PLACE);
    float value = 1.0f;
    dev_copy(x->s, p.send, &value, sizeof value);
    enqueue(x, &s, &p);
    dev_copy(x->s, &value, p.recv, sizeof value);
    if (wait_for(x, bench_name(s.what))) return -1;
    printf("%.1f\n", (double)value);
    return 0;
}

int bench_rank_run(const struct bench_rank_options *o, const struct collective_source *source,
                   struct device *dev, int64_t *wrong) {
    struct rank x = {.o = o, .dev = dev, .rank = source->rank, .size = source->size};
    *wrong = 0;
    arena_init(&x.arena, dev);
    int rc = open_rank(&x, source);
    if (!rc && o->ones) rc = run_ones(&x);
    for (int i = 0; i < COLLECTIVE_PRIMITIVES; i++) {
        enum collective_primitive what = (enum collective_primitive)i;
        if (!o->wanted[i] || o->ones || (what == COLLECTIVE_SEND && x.size < 2)) continue;
        for (size_t bytes = o->min_bytes; bytes <= o->max_bytes && !rc; bytes *= o->factor) {
            rc = run_row(&x, what, bytes, wrong);
            if (what == COLLECTIVE_BARRIER || bytes > SIZE_MAX / o->factor) break;  // a barrier has no size
        }
    }
    close_rank(&x);
    return rc;
}
