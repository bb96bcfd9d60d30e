// The codes of gradients in plain loops, from their definition (kernels/codec.h), for the trainer that a star must
// equal: what a worker's pushes say of its gradients, partition by partition, and what it keeps for later.
#ifndef STARRING_TESTS_PS_CODEC_PLAIN_CODES_H
#define STARRING_TESTS_PS_CODEC_PLAIN_CODES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"
#include "ps/job/shard_map.h"
#include "shared/core/error.h"

static inline void plain_onebit(const float *x, float *said) {
    double lane[32] = {0};
    for (int i = 0; i < 256; i++) lane[i % 32] += (double)x[i] * (double)x[i];
    for (int half = 16; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    float scale = (float)sqrt(lane[0] / 256);
    for (int i = 0; i < 256; i++) said[i] = x[i] >= 0 ? scale : -scale;
}

static inline void plain_int8(const float *x, float *said) {
    float most = 0;
    for (int i = 0; i < 256; i++)
        if (fabsf(x[i]) > most || !isfinite(x[i])) most = isfinite(x[i]) ? fabsf(x[i]) : INFINITY;
    float step = most / 127;
    for (int i = 0; i < 256; i++) {
        float q = step > 0 ? nearbyintf(x[i] / step) : 0;
        said[i] = step * (isinf(step) ? 0 : q > 127 ? 127 : q < -127 ? -127 : q);
    }
}

// An element is named if fewer than `kept` come before it.
static inline void plain_topk(const float *x, int64_t n, double share, float *said) {
    int64_t kept = (int64_t)ceil(share * (double)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < n; j++)
            before += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
        said[i] = before < (kept ? kept : 1) ? x[i] : 0;
    }
}

// said (n) of a unit whose keys are the map's; x (n).
static inline void plain_codes(const struct code_format *f, const struct shard_map *m, int u, const float *x,
                               float *said) {
    for (int key = m->first[u]; key < m->first[u + 1]; key++) {
        int64_t begin = m->parts[key].begin, end = m->parts[key].end;
        if (f->kind == CODE_TOPK) plain_topk(x + begin, end - begin, f->share, said + begin);
        for (int64_t b = begin; b < end && f->kind == CODE_ONEBIT; b += 256) plain_onebit(x + b, said + b);
        for (int64_t b = begin; b < end && f->kind == CODE_INT8; b += 256) plain_int8(x + b, said + b);
    }
}

// One worker's gradients of a step, and what its codes have not said so far.
struct plain_worker {
    float *error, *x, *said;  // (n_pad) of a unit each
};

static inline void plain_worker_init(struct plain_worker *p, int64_t n) {
    *p = (struct plain_worker){xcalloc((unsigned long)n, 4), xcalloc((unsigned long)n, 4),
                               xcalloc((unsigned long)n, 4)};
}

static inline void plain_worker_free(struct plain_worker *p) {
    free(p->error);
    free(p->x);
    free(p->said);
}

// total (n) of dtype: the sum of what `workers` workers say of their gradients inputs[w], rounded once.
static inline void plain_sum(struct plain_worker *of, int workers, int64_t n, void *const *inputs,
                             const struct code_format *f, const struct shard_map *m, int u, enum dtype dt,
                             void *total) {
    for (int w = 0; w < workers; w++) {
        for (int64_t i = 0; i < n; i++) of[w].x[i] = of[w].error[i] + dtype_load(dt, inputs[w], (size_t)i);
        plain_codes(f, m, u, of[w].x, of[w].said);
    }
    for (int64_t i = 0; i < n; i++) {
        float sum = of[0].said[i];
        for (int w = 1; w < workers; w++) sum += of[w].said[i];
        dtype_store(dt, total, (size_t)i, sum);
    }
}

// The step was no skip.
static inline void plain_keep(struct plain_worker *of, int workers, int64_t n) {
    for (int w = 0; w < workers; w++)
        for (int64_t i = 0; i < n; i++) of[w].error[i] = of[w].x[i] - of[w].said[i];
}

#endif
