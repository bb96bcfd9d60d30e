#include "shared/bench/bench_work.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/bench/bench.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/system.h"
#include "shared/device/device_choice.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"
#include "shared/predict/memory_check.h"

#define MEASUREMENT_S 0.010  // of a measurement on a GPU
#define LAUNCHES_MAX  1000

int bench_open(struct bench_device *b, const struct cli_args *args) {
    // Keys of --set that a single operation depends on.
    static const char *const known[] = {"cpu.kernel", "cuda.attention", "cuda.attention_slice", "cuda.gelu",
                                        NULL};
    long threads, rounds;
    if (bench_dtype(args, DT_BF16, &b->dt) || cli_integer(args, "threads", 1, 4096, 0, &threads) ||
        cli_integer(args, "rounds", 1, BENCH_ROUNDS_MOST, 7, &rounds))
        return -1;
    b->rounds = (int)rounds;
    b->threads = threads ? (int)threads : processors_given();
    const struct backend *backend = bench_backend(args);
    struct device_options o = {.threads = b->threads, .label = "bench"};
    if (!backend || cli_only_sets(args, known,
                                  "is not used here; cpu.kernel, cuda.attention, cuda.attention_slice and "
                                  "cuda.gelu are"))
        return -1;
    if (args->override_count) {
        struct config *c = config_load(&topology_local_alone, NULL, args->overrides, args->override_count);
        if (!c) return -1;
        c->device = backend->host_memory ? DEVICE_CPU : DEVICE_CUDA;
        c->dtype = b->dt;
        device_resolve(c);
        o.cuda = c->cuda;
        o.kernel = c->cpu_kernel;
        bool can = device_backend(c) != NULL;
        config_destroy(&c);
        if (!can) return -1;
    }
    if (dev_open(backend, &o, &b->dev)) return fail("cannot open the %s device", backend->name);
    b->s = stream_create(b->dev, "bench");
    if (!b->s) return fail("cannot create a stream: %s", dev_error(b->dev));
    arena_init(&b->arena, b->dev);
    b->gpu = !dev_host_memory(b->dev);
    if (!b->gpu) cpu_peak_init(&b->peak, o.kernel, b->dt, b->threads);
    return b->gpu && dev_facts(b->dev, &b->facts) ? fail("cannot ask the device: %s", dev_error(b->dev)) : 0;
}

void bench_close(struct bench_device *b) {
    if (!b->dev) return;
    if (b->s) stream_destroy(&b->s);
    arena_release(&b->arena);
    dev_close(&b->dev);
}

// ---------------------------------------------------------------- a rank that trains
int bench_rank_load(struct bench_rank *r, const char *who, const struct topology_table *t,
                    const struct config_override *own, size_t count, const struct cli_args *a,
                    const char *advice) {
    struct config_override set[16] = {
        {"topology", "local", who},   {"model", "gpt2-124m", who},
        {"data.path", "demo", who},   {"train_micro_batch_size_per_gpu", "4", who},
        {"data.seq_len", "256", who}, {"dtype", "bf16", who},
        {"eval_batches", "0", who}};
    assert(count <= sizeof set / sizeof *set - 7);
    for (size_t i = 0; i < count; i++) set[7 + i] = own[i];
    struct config *c = r->config = cli_config(t, set, 7 + count, a);
    if (!c || model_spec_load(c->model, &r->spec) || model_spec_check_seq(&r->spec, c->seq)) return -1;
    if (c->row != &topology_local) return fail("%s: --set topology=%s: %s", who, c->topology, advice);
    if (c->documents == DOCUMENTS_WHOLE)
        return fail("%s: data.documents whole: steps of one length are timed; other lengths with --seq", who);
    r->layout = model_layout_create(&r->spec, 1);
    return r->layout ? 0 : -1;
}

int bench_rank_open(struct bench_rank *r, const struct backend *backend) {
    const struct config *c = r->config;
    struct data_options data = {
        .path = c->data, .tokenizer = c->tokenizer, .val_fraction = c->val_fraction, .vocab = r->spec.vocab};
    if (!(r->data = data_open(&data))) return -1;
    r->ready = true;
    if (dev_open(backend,
                 &(struct device_options){
                     .threads = c->threads, .label = "bench", .kernel = c->cpu_kernel, .cuda = c->cuda},
                 &r->dev))
        return fail("cannot open the %s device", backend->name);
    r->compute = stream_create(r->dev, "compute");
    return r->compute ? 0 : fail("cannot create a stream: %s", dev_error(r->dev));
}

struct job bench_rank_job(const struct bench_rank *r) {
    return (struct job){.config = r->config, .spec = r->spec, .layout = r->layout, .ranks_here = 1};
}

// Missing memory is reported before anything is allocated: a failing allocation would not know how much is missing,
// and on a CPU the system would kill the program without a message.
int bench_rank_join(struct bench_rank *r, size_t more_bytes) {
    const struct config *c = r->config;
    struct memory_part part = {.role = "worker", .count = 1, .processes = true, .gpus = device_gpus(c)};
    struct memory_need need;
    struct job job = bench_rank_job(r);
    char what[160];
    if (memory_need_of(&job, &part, &need)) return -1;
    struct memory_sum *sum = config_device(c)->gpu ? &need.gpu[0] : &need.host;
    sum->predicted_bytes += (double)more_bytes;
    snprintf(what, sizeof what, "%s with --batch %lld --seq %lld (smaller ones need less)", r->spec.name,
             (long long)c->micro_batch, (long long)c->seq);
    if (memory_check(c, &need, what)) return -1;
    struct local_options local = local_options_of(c, r->layout);
    local.dev = r->dev;
    local.compute = r->compute;
    return (r->topology = local_create(&local)) ? 0 : -1;
}

int bench_rank_train(struct bench_rank *r, const struct train_observer *observer) {
    struct train_options o = {.config = r->config,
                              .spec = &r->spec,
                              .data = r->data,
                              .topology = r->topology,
                              .observer = observer,
                              .stop = &r->stop};
    return train_run(&o, &r->result);
}

void bench_rank_close(struct bench_rank *r) {
    train_result_free(&r->result);
    if (r->topology) topology_destroy(&r->topology);
    if (r->compute) stream_destroy(&r->compute);
    if (r->dev) dev_close(&r->dev);
    if (r->data) data_close(&r->data);
    layout_destroy(&r->layout);
    config_destroy(&r->config);
}

// ---------------------------------------------------------------- buffers

#define PATTERN 1048573  // elements: a prime, so that no two rows of a matrix begin alike

int bench_fill(struct stream *s, void *p, enum dtype dt, int64_t n, float scale, uint64_t seed) {
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
    if (!p || bench_fill(b->s, p, dt, n, scale, (uint64_t)b->arena.count)) return NULL;
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

// Returns how many launches make a measurement, after a first launch that is not counted.
static int launches_of(const struct bench_device *b, const struct bench_work *w) {
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

int bench_measure(struct bench_device *b, struct bench_work *w) {
    const struct bench_work *yard = w->work.flops > 0 ? &b->product : &b->copy;
    int yard_launches = launches_of(b, yard);
    w->launches = launches_of(b, w);
    bool computes = w->work.flops > 0 && !b->gpu;
    if (computes) bench_peak(b->s, &b->peak);
    for (int i = 0; i < b->rounds; i++) {
        if (computes) w->peak_seconds[i] = bench_peak(b->s, &b->peak);
        w->yard_seconds[i] = bench_launches(b->s, yard, yard_launches) / yard_launches;
        w->seconds[i] = bench_launches(b->s, w, w->launches) / w->launches;
    }
    return stream_sync(b->s) ? fail("%s: %s", op_name(w->op), dev_error(b->dev)) : 0;
}

// ---------------------------------------------------------------- results

double bench_median(const double *v, int n) {
    double sorted[BENCH_ROUNDS_MOST];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    return median(sorted, n);
}

double bench_share(const struct bench_device *b, const struct bench_work *w) {
    double share[BENCH_ROUNDS_MOST];
    const struct bench_work *yard = w->work.flops > 0 ? &b->product : &b->copy;
    for (int i = 0; i < b->rounds; i++)
        share[i] = w->work.flops > 0
                       ? w->work.flops / w->seconds[i] / (yard->work.flops / w->yard_seconds[i])
                       : w->work.bytes / w->seconds[i] / (yard->work.bytes / w->yard_seconds[i]);
    return bench_median(share, b->rounds);
}

double bench_peak_rate(const struct bench_device *b, const struct bench_work *w) {
    return b->peak.flops / bench_median(w->peak_seconds, b->rounds);
}

// Returns the FLOP in `seconds` as a share of the peak in the same round.
static double share_of_peak(const struct bench_device *b, const struct bench_work *w, double flops,
                            const double *seconds) {
    double share[BENCH_ROUNDS_MOST];
    for (int i = 0; i < b->rounds; i++) share[i] = flops / seconds[i] / (b->peak.flops / w->peak_seconds[i]);
    return bench_median(share, b->rounds);
}

double bench_share_of_peak(const struct bench_device *b, const struct bench_work *w) {
    return share_of_peak(b, w, w->work.flops, w->seconds);
}

double bench_yard_share_of_peak(const struct bench_device *b, const struct bench_work *w) {
    return share_of_peak(b, w, b->product.work.flops, w->yard_seconds);
}
