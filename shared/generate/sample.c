#include "shared/generate/sample.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

// Separates these random numbers from those of batches and initial weights, which use the same seed.
#define SAMPLE_STREAM 0x73616d706c65ULL

struct candidate {
    float logit;
    int32_t id;
};

int32_t sample_argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return isinf(logits[best]) ? -1 : best;
}

static int highest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

int32_t sample_token(const float *logits, int32_t n, const struct sample_options *o, int64_t position) {
    int32_t best = sample_argmax(logits, n);
    if (best < 0 || o->temperature <= 0 || o->top_k == 1) return best;
    struct candidate *all = xcalloc((size_t)n, sizeof *all);
    double *weight = xcalloc((size_t)n, sizeof *weight), sum = 0;
    for (int32_t i = 0; i < n; i++) all[i] = (struct candidate){logits[i], i};
    int32_t count = n;
    if (o->top_k > 0 && o->top_k < n) {
        qsort(all, (size_t)n, sizeof *all, highest_first);
        count = o->top_k;
    }
    for (int32_t i = 0; i < count; i++)
        sum += weight[i] = exact_exp(((double)all[i].logit - (double)logits[best]) / o->temperature);
    struct philox_out r = philox(o->seed, (uint64_t)position, SAMPLE_STREAM);
    double uniform =
        (double)((((uint64_t)r.v[1] << 32) | r.v[0]) >> 11) * 0x1p-53;  // in [0, 1), 53 random bits
    double left = uniform * sum;
    int32_t chosen = best;
    for (int32_t i = 0; i < count; i++) {
        if (weight[i] <= 0) continue;
        chosen = all[i].id;  // rounding may leave left >= 0: then the last one with a weight
        left -= weight[i];
        if (left < 0) break;
    }
    free(all);
    free(weight);
    return chosen;
}
