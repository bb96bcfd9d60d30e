#include "shared/bench/bench_work.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/device/device_facts.h"

#define MEASUREMENT_S 0.010  // of a measurement on a GPU
#define LAUNCHES_MAX  1000

// ---------------------------------------------------------------- buffers

#define PATTERN 1048573  // elements: a prime, so that no two rows of a matrix begin alike

// Equal seeds give equal numbers. Returns 0, or -1 after logging.
static int fill(struct stream *s, void *p, enum dtype dt, int64_t n, float scale, uint64_t seed) {
    size_t size = dtype_size(dt), total = (size_t)n * size;
    size_t length = n < PATTERN ? (size_t)n : PATTERN;
    char *pattern = xcalloc(length, size);
    for (size_t i = 0; i < length; i++) {
        float x = ldexpf((float)(philox(seed, i / 4, 0).v[i % 4] >> 8), -24);
        dtype_store(dt, pattern, i, scale < 0 ? -scale * x : scale * (2.0f * x - 1.0f));
    }
    for (size_t at = 0; at < total; at += length * size)
        dev_copy(s, (char *)p + at, pattern, total - at < length * size ? total - at : length * size);
    int rc = stream_sync(s);
    free(pattern);
    return rc ? fail("filling a buffer: %s", dev_error(stream_device(s))) : 0;
}

void *bench_buffer(struct bench_device *b, enum dtype dt, int64_t n, float scale) {
    void *p = arena_take(&b->arena, MEM_WORKSPACE, (size_t)n * dtype_size(dt));
    if (!p || fill(b->s, p, dt, n, scale, (uint64_t)b->arena.count)) return NULL;
    return p;
}

// ---------------------------------------------------------------- operations

void bench_work_set(struct bench_work *w, enum op op, const void *args, size_t args_bytes) {
    assert(args_bytes <= sizeof w->args);
    w->op = op;
    w->args_bytes = args_bytes;
    memcpy(w->args, args, args_bytes);
    const struct bench_copy *copy = op == BENCH_OP_COPY ? args : NULL;
    w->work = copy ? (struct op_work){.bytes = 2.0 * (double)copy->bytes} : op_work_of(op, args);
}

// A GPU has one way to copy. On a host, the cast from fp32 to fp32 copies with all threads.
int bench_set_copy(struct bench_device *b, int64_t bytes) {
    int64_t n = bytes / (int64_t)sizeof(float);
    const void *in = bench_buffer(b, DT_F32, n, 1.0f);
    void *out = bench_buffer(b, DT_F32, n, 1.0f);
    if (!in || !out) return -1;
    if (b->gpu)
        bench_work_set(&b->copy, BENCH_OP_COPY, &(struct bench_copy){out, in, (size_t)n * sizeof(float)},
                       sizeof(struct bench_copy));
    else
        BENCH_SET(&b->copy, cast, cast_args, .out = out, .in = in, .n = n, .from = DT_F32, .to = DT_F32);
    return 0;
}

const char *bench_copy_text(const struct bench_device *b) {
    return b->gpu ? "cudaMemcpyAsync between two large arrays of the device; bytes read + written"
                  : "glibc's memcpy between two large arrays, same threads (it may bypass the caches); bytes "
                    "read + written";
}

double bench_launches(struct stream *s, const struct bench_work *w, int launches) {
    double start = now_seconds();
    for (int i = 0; i < launches; i++) {
        if (w->op == BENCH_OP_COPY) {
            struct bench_copy c;
            memcpy(&c, w->args, sizeof c);
            dev_copy(s, c.dst, c.src, c.bytes);
        } else {
            dev_launch(s, w->op, w->args, w->args_bytes);
        }
    }
    stream_sync(s);
    return now_seconds() - start;
}

int bench_launch_count(const struct bench_device *b, const struct bench_work *w) {
    bench_launches(b->s, w, 1);
    if (!b->gpu) return 1;
    double n = ceil(MEASUREMENT_S / bench_launches(b->s, w, 1));
    return n > LAUNCHES_MAX ? LAUNCHES_MAX : (int)n;
}

double bench_peak(struct stream *s, struct cpu_peak *p) {
    double start = now_seconds();
    stream_host(s, "peak", cpu_peak_run, p);
    stream_sync(s);
    return now_seconds() - start;
}

void bench_put_device(cJSON *document, const struct device_facts *f) {
    char line[DEVICE_FACTS_LINE], *work = NULL;
    size_t size;
    cJSON *device = device_facts_json(f);
    FILE *text = open_memstream(&work, &size);
    if (text) {
        device_work_print(text, device);
        fclose(text);
        work[strcspn(work, "\n")] = 0;
    }
    cJSON_AddItemToObject(document, "device", device);
    cJSON_AddStringToObject(document, "#device", device_facts_line(line, f));
    json_put_text(document, "#device_work", work);
    free(work);
}
