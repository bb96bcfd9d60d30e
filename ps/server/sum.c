#include "ps/server/sum.h"

#include <assert.h>
#include <string.h>

#define CHUNK_ELEMENTS 2048  // 8 KiB of floats on the stack

static void cast_now(void *out, enum dtype to, const void *in, enum dtype from, int64_t n) {
    const char *why = "";
    struct cast_args c = {.out = out, .in = in, .n = n, .from = from, .to = to};
    int rc = cpu_ops[OP_CAST](1, &c, &why);
    assert(rc == 0);
    (void)rc;
}

void sum_add(const struct sum_args *a) {
    if (a->first) {
        cast_now(a->acc, DT_F32, a->grad, a->dtype, a->n);
        return;
    }
    float x[CHUNK_ELEMENTS];
    const char *in = a->grad;
    for (int64_t i = 0; i < a->n; i += CHUNK_ELEMENTS) {
        int64_t n = a->n - i < CHUNK_ELEMENTS ? a->n - i : CHUNK_ELEMENTS;
        float *acc = a->acc + i;
        cast_now(x, DT_F32, in + (size_t)i * dtype_size(a->dtype), a->dtype, n);
        for (int64_t j = 0; j < n; j++) acc[j] += x[j];
    }
}

// Walking upwards, element i is stored at or below where it was read: no unread float is overwritten.
void sum_round(void *buffer, int64_t n, enum dtype dtype) {
    if (dtype == DT_F32) return;
    uint16_t x[CHUNK_ELEMENTS];
    char *out = buffer;
    const float *in = buffer;
    for (int64_t i = 0; i < n; i += CHUNK_ELEMENTS) {
        int64_t m = n - i < CHUNK_ELEMENTS ? n - i : CHUNK_ELEMENTS;
        cast_now(x, dtype, in + i, DT_F32, m);
        memcpy(out + (size_t)i * sizeof *x, x, (size_t)m * sizeof *x);
    }
}
