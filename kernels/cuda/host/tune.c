// Measures the algorithms that cuBLASLt's heuristic names for a product and chooses one (`starring bench tune`).
//
// Order       Rounds, and in each of them every candidate in turn, beginning with another one each time, so
//             that changes of the GPU's clock affect all of them alike. A measurement is as many launches as
//             last about two milliseconds, between two events; the median of the rounds counts.
// Memory      Operands are random, as a GPU multiplies zeros and repetitions faster, and of the real sizes.
//             Launches take sets of operands in turn, as many as make three times the L2 (or SETS_MAX), so
//             that each finds its operands in memory, as most of a training step's products do.
// Candidates  Each runs twice on the same operands and must give the same bits, and those of the first
//             heuristic but for rounding. That excludes algorithms that add with atomics; those that report
//             it (matmul_algo_refused) are not run.
// Choice      The fastest, if it is faster than the first heuristic by more than GAIN_MIN: less is noise, and
//             a table that changes with each measurement would change the bits with it.
//
// Everything runs on the stream's thread, like an operation of the stream.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/matmul_layout.h"
#include "kernels/cuda/host/matmul_plan.h"
#include "kernels/statistics.h"

#define GAIN_MIN        0.01
#define MEASUREMENT_MS  2.0
#define LAUNCHES_MAX    64
#define SETS_MAX        64
#define PATTERN_NUMBERS 1048573  // a prime: rows of a matrix begin at different places of the pattern

struct candidate {
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    int rank;  // the library's
    double seconds[PRODUCT_ROUNDS_MAX];
};

// A set of operands: offsets from its begin, and sizes in elements. bias: also a bias gradient.
struct operands {
    size_t a, b, bias, aux, c, bytes;
    int64_t a_count, b_count, bias_count, aux_count, c_count;
};

struct tuner {
    struct cuda_stream *s;
    struct cuda_device *d;
    struct product_key key;
    int rounds;
    struct product_timing *out;
    struct matmul_plan *plan;
    struct operands each;
    char *pool;
    int sets, turn;
    char *results;  // two copies of what a product writes: the first heuristic's, and a run's
    size_t result_bytes;
    void *pattern;  // host
    size_t pattern_bytes;
    void *workspace;
    struct candidate candidates[PRODUCT_CANDIDATES];
    int count;
    cudaEvent_t start, end;
};

// ---------------------------------------------------------------- operands

// Room for count elements whose first one has the alignment that was promised, no more. Returns its place.
static size_t place(size_t *at, int64_t count, uint32_t align, enum dtype dt) {
    if (!count) return 0;
    size_t begin = *at + (align < 16 ? align : 0);
    *at = dev_round(begin + (size_t)count * dtype_size(dt));
    return begin;
}

// The library's A is our b (matmul_layout.h), and so are the alignments.
static struct operands operands_of(const struct product_key *k) {
    enum dtype dt = (enum dtype)k->dt;
    struct operands o = {.a_count = (k->trans_a ? k->k : k->m) * k->lda,
                         .b_count = (k->trans_b ? k->n : k->k) * k->ldb,
                         .bias_count = !k->bias_align                      ? 0
                                       : k->epilogue == EPILOGUE_BIAS_GRAD ? k->m
                                                                           : k->n,
                         .aux_count = k->aux_align ? k->m * k->n : 0,
                         .c_count = k->m * k->ldc};
    o.a = place(&o.bytes, o.a_count, k->b_align, dt);
    o.b = place(&o.bytes, o.b_count, k->a_align, dt);
    o.bias = place(&o.bytes, o.bias_count, k->bias_align, dt);
    o.aux = place(&o.bytes, o.aux_count, k->aux_align, dt);
    o.c = place(&o.bytes, o.c_count, k->c_align, dt);
    return o;
}

static struct matmul_args args_of(const struct tuner *t, int set) {
    const struct product_key *k = &t->key;
    char *at = t->pool + (size_t)set * t->each.bytes;
    bool grad = k->epilogue == EPILOGUE_BIAS_GRAD;
    return (struct matmul_args){.c = at + t->each.c,
                                .a = at + t->each.a,
                                .b = at + t->each.b,
                                .bias = k->bias_align && !grad ? at + t->each.bias : NULL,
                                .bias_grad = grad ? at + t->each.bias : NULL,
                                .aux = k->aux_align ? at + t->each.aux : NULL,
                                .m = k->m,
                                .n = k->n,
                                .k = k->k,
                                .lda = k->lda,
                                .ldb = k->ldb,
                                .ldc = k->ldc,
                                .trans_a = k->trans_a,
                                .trans_b = k->trans_b,
                                .accumulate = k->accumulate,
                                .epilogue = (enum matmul_epilogue)k->epilogue,
                                .dt = (enum dtype)k->dt};
}

// Numbers uniform in (-x, x) with x^4 = 9 / k: a product's elements have variance 1, and grow no further than
// fp16 reaches when hundreds of launches accumulate. splitmix64 (Steele, Lea & Flood 2014).
static int make_pattern(struct tuner *t) {
    enum dtype dt = (enum dtype)t->key.dt;
    float scale = (float)sqrt(3.0 / sqrt((double)t->key.k));
    t->pattern_bytes = PATTERN_NUMBERS * dtype_size(dt);
    t->pattern = malloc(t->pattern_bytes);
    if (!t->pattern) return -1;
    for (size_t i = 0; i < PATTERN_NUMBERS; i++) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        dtype_store(dt, t->pattern, i, scale * (float)((double)(z >> 11) * 0x1p-52 - 1.0));
    }
    return 0;
}

// The pattern over and over: once from the host, then each copy twice as long as the one before. out is where
// the device's elements begin.
static int fill(struct tuner *t, char *out, size_t bytes) {
    size_t done = bytes < t->pattern_bytes ? bytes : t->pattern_bytes;
    int rc = cuda_check(t->s, cudaMemcpyAsync(out, t->pattern, done, cudaMemcpyHostToDevice, t->s->stream),
                        "filling");
    while (rc == 0 && done < bytes) {
        size_t more = done < bytes - done ? done : bytes - done;
        rc = cuda_check(t->s, cudaMemcpyAsync(out + done, out, more, cudaMemcpyDeviceToDevice, t->s->stream),
                        "filling");
        done += more;
    }
    return rc;
}

// ---------------------------------------------------------------- memory

// NULL: there is not so much.
static void *take(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes) == cudaSuccess) return p;
    cudaGetLastError();
    return NULL;
}

// Where what a product writes begins: c, or aux or the bias gradient before it.
static size_t first_result(const struct tuner *t) {
    return t->key.epilogue == EPILOGUE_GELU        ? t->each.aux
           : t->key.epilogue == EPILOGUE_BIAS_GRAD ? t->each.bias
                                                   : t->each.c;
}

static int take_memory(struct tuner *t) {
    struct cudaDeviceProp p;
    if (cuda_check(t->s, cudaGetDeviceProperties(&p, t->d->index), "asking the device")) return -1;
    t->each = operands_of(&t->key);
    size_t wanted = 3 * (size_t)p.l2CacheSize / t->each.bytes + 1;
    t->sets = wanted < SETS_MAX ? (int)wanted : SETS_MAX;
    t->result_bytes = t->each.bytes - first_result(t);
    t->workspace = cuda_workspace(t->s, MATMUL_WORKSPACE_BYTES);
    if (!t->workspace || make_pattern(t)) return -1;
    t->results = take(2 * t->result_bytes);
    while (t->results && t->sets > 0 && !(t->pool = take((size_t)t->sets * t->each.bytes))) t->sets /= 2;
    if (!t->pool) {
        device_fail(&t->d->head,
                    "measuring the product (m %lld, n %lld, k %lld): no %zu MiB of device memory for its "
                    "operands; use a smaller batch",
                    (long long)t->key.m, (long long)t->key.n, (long long)t->key.k,
                    (t->each.bytes + 2 * t->result_bytes) >> 20);
        return -1;
    }
    t->out->sets = t->sets;
    for (int i = 0; i < t->sets; i++)
        if (fill(t, t->pool + (size_t)i * t->each.bytes, t->each.bytes)) return -1;
    return cuda_check(t->s, cudaEventCreate(&t->start), "cudaEventCreate") ||
                   cuda_check(t->s, cudaEventCreate(&t->end), "cudaEventCreate")
               ? -1
               : 0;
}

static void give_back(struct tuner *t) {
    if (t->start) cudaEventDestroy(t->start);
    if (t->end) cudaEventDestroy(t->end);
    if (t->pool) cuda_check(t->s, cudaFree(t->pool), "cudaFree");
    if (t->results) cuda_check(t->s, cudaFree(t->results), "cudaFree");
    free(t->pattern);
}

// ---------------------------------------------------------------- one candidate

static cublasStatus_t launch(struct tuner *t, const struct candidate *c, int set) {
    struct matmul_args args = args_of(t, set);
    return matmul_plan_run(t->d, t->plan, &args, &c->algo, t->workspace, c->workspace_bytes, t->s->stream);
}

// The results of a product lie at the end of its set.
static char *written(const struct tuner *t) { return t->pool + t->each.bytes - t->result_bytes; }

// Runs the candidate on the first set as it was filled, and keeps what it wrote in copy 0 or 1 (-1: nowhere).
static int run_once(struct tuner *t, const struct candidate *c, int copy, bool *refused) {
    if (fill(t, t->pool, t->each.bytes)) return -1;
    *refused = launch(t, c, 0) != CUBLAS_STATUS_SUCCESS;
    if (*refused || copy < 0) return 0;
    return cuda_check(t->s,
                      cudaMemcpyAsync(t->results + (size_t)copy * t->result_bytes, written(t),
                                      t->result_bytes, cudaMemcpyDeviceToDevice, t->s->stream),
                      "keeping a result");
}

// Compares the first set with copy 0 or 1, elements from `from` bytes on. All blocks added up.
static int compare(struct tuner *t, int copy, size_t from, int64_t n, struct cuda_difference *out) {
    struct cuda_difference parts[CUDA_COMPARE_BLOCKS];
    struct cuda_compare_args a = {.out = t->workspace,
                                  .x = written(t) + from,
                                  .reference = t->results + (size_t)copy * t->result_bytes + from,
                                  .n = n,
                                  .dt = (enum dtype)t->key.dt};
    int blocks = cuda_compare_blocks(n);
    if (cuda_compare(&t->s->ctx, &a)) {
        device_fail(&t->d->head, "comparing two results: %s", t->s->ctx.why);
        return -1;
    }
    if (cuda_check(t->s,
                   cudaMemcpyAsync(parts, a.out, (size_t)blocks * sizeof *parts, cudaMemcpyDeviceToHost,
                                   t->s->stream),
                   "comparing two results") ||
        cuda_check(t->s, cudaStreamSynchronize(t->s->stream), "comparing two results"))
        return -1;
    for (int i = 0; i < blocks; i++) {
        out->unequal += parts[i].unequal;
        out->difference_squared += parts[i].difference_squared;
        out->reference_squared += parts[i].reference_squared;
    }
    return 0;
}

// Rounding to the storage type, and fp32 sums of k terms in any order: the norm of the difference against
// that of the result.
static double tolerance(const struct product_key *k) {
    double store = k->dt == DT_BF16 ? 0x1p-8 : k->dt == DT_F16 ? 0x1p-11 : 0x1p-24;
    return 2 * store + 8 * sqrt((double)k->k) * 0x1p-24;
}

enum verdict { GOOD, UNSTABLE, WRONG, FAILED, BROKEN };

static enum verdict judge(struct tuner *t, const struct candidate *c, bool first) {
    bool refused;
    struct cuda_difference again = {0}, other[2] = {{0}};
    size_t begin = t->each.bytes - t->result_bytes;
    if (run_once(t, c, first ? 0 : 1, &refused)) return BROKEN;
    if (refused || run_once(t, c, -1, &refused)) return refused ? FAILED : BROKEN;
    // The results that a product writes before c, and the space between the two, are compared as one run of elements.
    int64_t before = t->key.epilogue == EPILOGUE_GELU ? t->each.aux_count : t->each.bias_count;
    int64_t all = (int64_t)(t->result_bytes / dtype_size((enum dtype)t->key.dt));
    if (compare(t, first ? 0 : 1, 0, all, &again)) return BROKEN;
    if (compare(t, 0, t->each.c - begin, t->each.c_count, &other[0])) return BROKEN;
    if (begin < t->each.c && compare(t, 0, 0, before, &other[1])) return BROKEN;
    if (again.unequal > 0) return UNSTABLE;
    for (int i = 0; i < 2; i++)
        if (!(sqrt(other[i].difference_squared) <= tolerance(&t->key) * sqrt(other[i].reference_squared)))
            return WRONG;
    return GOOD;
}

// ---------------------------------------------------------------- all of them

// The plan's own algorithm comes first: when no choice was given it is the library's first one.
static int ask(struct tuner *t) {
    cublasLtMatmulHeuristicResult_t found[PRODUCT_CANDIDATES];
    int count;
    cublasStatus_t e = matmul_plan_ask(t->d, t->plan, found, PRODUCT_CANDIDATES, &count);
    if (e || count == 0) {
        device_fail(&t->d->head, "cuBLASLt names no algorithm: %s", cublasLtGetStatusString(e));
        return -1;
    }
    t->out->candidates = count;
    for (int i = 0; i < count; i++) {
        struct candidate *c = &t->candidates[t->count];
        *c = (struct candidate){found[i].algo, found[i].workspaceSize, i, {0}};
        bool usable = !found[i].state && !matmul_algo_refused(&c->algo, c->workspace_bytes);
        enum verdict v = usable ? judge(t, c, i == 0) : FAILED;
        if (v == BROKEN) return -1;
        t->out->unstable += v == UNSTABLE;
        t->out->wrong += v == WRONG;
        t->out->failed += v == FAILED;
        // The first is timed in any case: it is what the others are compared with.
        if (i == 0 && v == FAILED) {
            device_fail(&t->d->head, "the library's first algorithm does not run");
            return -1;
        }
        if (i == 0) t->out->none = v != GOOD;
        t->count += i == 0 || v == GOOD;
    }
    return 0;
}

static int measure(struct tuner *t, struct candidate *c, int launches, double *seconds) {
    float ms = 0;
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    if (cuda_check(t->s, cudaEventRecord(t->start, t->s->stream), "measuring")) return -1;
    for (int i = 0; i < launches && !e; i++) e = launch(t, c, t->turn++ % t->sets);
    if (e)
        device_fail(&t->d->head, "cuBLASLt refuses what it has done before: %s", cublasLtGetStatusString(e));
    if (e || cuda_check(t->s, cudaEventRecord(t->end, t->s->stream), "measuring") ||
        cuda_check(t->s, cudaEventSynchronize(t->end), "measuring") ||
        cuda_check(t->s, cudaEventElapsedTime(&ms, t->start, t->end), "measuring"))
        return -1;
    *seconds = (double)ms * 1e-3 / launches;
    return 0;
}

static int time_all(struct tuner *t) {
    double once = 0;
    if (measure(t, &t->candidates[0], 1, &once) || measure(t, &t->candidates[0], 2, &once)) return -1;
    double fit = once > 0 ? ceil(MEASUREMENT_MS * 1e-3 / once) : LAUNCHES_MAX;
    int launches = fit < LAUNCHES_MAX ? (int)fit : LAUNCHES_MAX;
    for (int r = 0; r < t->rounds; r++)
        for (int i = 0; i < t->count; i++) {
            struct candidate *c = &t->candidates[(r + i) % t->count];
            if (measure(t, c, launches, &c->seconds[r])) return -1;
        }
    return 0;
}

// t->out->none: the first heuristic does not repeat, or computes no numbers; then any other that is there
// wins.
static void choose(struct tuner *t) {
    struct product_timing *o = t->out;
    const struct candidate *best = o->none ? NULL : &t->candidates[0];
    o->first_s = median(t->candidates[0].seconds, t->rounds);
    o->best_s = o->first_s * (1 - GAIN_MIN);
    for (int i = 1; i < t->count; i++) {
        double s = median(t->candidates[i].seconds, t->rounds);
        if (best && s >= o->best_s) continue;
        best = &t->candidates[i];
        o->best_s = s;
    }
    o->none = !best;
    if (!best) return;
    o->rank = best->rank;
    if (o->rank == 0) o->best_s = o->first_s;
    memcpy(&o->algo, &best->algo, sizeof o->algo);
}

static int tune(void *arg) {
    struct tuner *t = arg;
    pthread_mutex_lock(&t->d->matmul_lock);
    t->plan = matmul_plan_find(t->d, &t->key);
    int rc = -1;
    if (!t->plan || t->plan->source == PRODUCT_ABSENT)
        device_fail(&t->d->head, "the product to measure is none of this device's");
    else
        rc = take_memory(t) || ask(t) || time_all(t) ? -1 : 0;
    pthread_mutex_unlock(&t->d->matmul_lock);
    if (rc == 0) choose(t);
    give_back(t);
    return rc;
}

int cuda_tune_product(struct stream *s, const struct product_key *key, int rounds,
                      struct product_timing *out) {
    struct tuner *t = calloc(1, sizeof *t);
    if (!t) {
        device_fail(s->dev, "no memory for measuring a product");
        return -1;
    }
    *t = (struct tuner){.s = (struct cuda_stream *)s,
                        .d = (struct cuda_device *)s->dev,
                        .key = *key,
                        .rounds = rounds,
                        .out = out};
    memset(out, 0, sizeof *out);
    queue_submit(s, "tune", tune, t);
    int rc = queue_sync(s);
    free(t);
    return rc;
}
