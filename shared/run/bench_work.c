#include "shared/run/bench_work.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/run/cli.h"

static int read_dtype(const struct cli_args *args, enum dtype *out) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    const char *name = cli_get(args, "dtype");
    *out = DT_BF16;
    if (!name) return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *out = types[i];
        if (!strcmp(name, dtype_name(types[i]))) return 0;
    }
    return fail("--dtype %s: expected fp32, bf16 or fp16", name);
}

int bench_open(struct bench_device *b, const struct cli_args *args) {
    const char *why = NULL;
    long threads, rounds;
    if (read_dtype(args, &b->dt) || cli_integer(args, "threads", 1, 4096, 0, &threads) ||
        cli_integer(args, "rounds", 1, BENCH_ROUNDS_MAX, 7, &rounds))
        return -1;
    b->rounds = (int)rounds;
    b->threads = (int)(threads ? threads : sysconf(_SC_NPROCESSORS_ONLN));
    const struct backend *backend = backend_find("cpu", &why);
    if (!backend) return fail("no cpu device: %s", why);
    if (dev_open(backend, &(struct device_options){.threads = b->threads, .label = "bench"}, &b->dev))
        return fail("cannot open the cpu device");
    b->s = stream_create(b->dev, "bench");
    arena_init(&b->arena, b->dev);
    return 0;
}

void bench_close(struct bench_device *b) {
    if (!b->dev) return;
    stream_destroy(&b->s);
    arena_release(&b->arena);
    dev_close(&b->dev);
}

#define PATTERN 8191  // elements: a prime, so that no power of two of them repeats

void *bench_buffer(struct bench_device *b, enum dtype dt, int64_t n, float scale) {
    size_t size = dtype_size(dt), total = (size_t)n * size;
    char *p = arena_take(&b->arena, MEM_WORKSPACE, total);
    if (!p) return NULL;
    char *pattern = xcalloc(PATTERN, size);
    for (size_t i = 0; i < PATTERN; i++) {
        float x = (float)((i * 2654435761u) % 65521) / 65521.0f;
        dtype_store(dt, pattern, i, scale < 0 ? -scale * x : scale * (2.0f * x - 1.0f));
    }
    for (size_t at = 0; at < total; at += PATTERN * size)
        dev_copy(b->s, p + at, pattern, total - at < PATTERN * size ? total - at : PATTERN * size);
    int rc = stream_sync(b->s);
    free(pattern);
    if (rc) fail("filling a buffer: %s", dev_error(b->dev));
    return rc ? NULL : p;
}

void bench_work_set(struct bench_work *w, enum op op, const void *args, size_t args_bytes) {
    assert(args_bytes <= sizeof w->args);
    w->op = op;
    w->args_bytes = args_bytes;
    memcpy(w->args, args, args_bytes);
}

int bench_set_copy(struct bench_device *b, int64_t bytes) {
    int64_t n = bytes / (int64_t)sizeof(float);
    const void *in = bench_buffer(b, DT_F32, n, 1.0f);
    void *out = bench_buffer(b, DT_F32, n, 1.0f);
    if (!in || !out) return -1;
    BENCH_SET(&b->copy, OP_CAST, cast_args, .out = out, .in = in, .n = n, .from = DT_F32, .to = DT_F32);
    b->copy.bytes = 2.0 * (double)n * sizeof(float);
    return 0;
}

double bench_once(struct bench_device *b, const struct bench_work *w) {
    double start = now_seconds();
    dev_launch(b->s, w->op, w->args, w->args_bytes);
    stream_sync(b->s);
    return now_seconds() - start;
}

int bench_measure(struct bench_device *b, struct bench_work *w) {
    const struct bench_work *yard = w->flops > 0 ? &b->product : &b->copy;
    bench_once(b, yard);
    bench_once(b, w);
    for (int i = 0; i < b->rounds; i++) {
        w->yard_seconds[i] = bench_once(b, yard);
        w->seconds[i] = bench_once(b, w);
    }
    return stream_sync(b->s) ? fail("%s: %s", op_name(w->op), dev_error(b->dev)) : 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *v, int n) {
    double sorted[BENCH_ROUNDS_MAX];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

double bench_share(const struct bench_device *b, const struct bench_work *w) {
    double share[BENCH_ROUNDS_MAX];
    const struct bench_work *yard = w->flops > 0 ? &b->product : &b->copy;
    for (int i = 0; i < b->rounds; i++)
        share[i] = w->flops > 0 ? w->flops / w->seconds[i] / (yard->flops / w->yard_seconds[i])
                                : w->bytes / w->seconds[i] / (yard->bytes / w->yard_seconds[i]);
    return bench_median(share, b->rounds);
}
