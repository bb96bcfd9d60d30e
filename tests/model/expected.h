// PyTorch's results (tests/data/vectors), as numbers.
#ifndef STARRING_TESTS_MODEL_EXPECTED_H
#define STARRING_TESTS_MODEL_EXPECTED_H

#include <string.h>

#include "shared/hf/safetensors.h"

// Elements [first, first + count) as double, exact. 0, or -1 for another type than F32, F16, BF16, F64 and I64.
static inline int st_to_f64(const struct st_tensor *t, int64_t first, int64_t count, double *out) {
    if (t->dtype < 0 || t->dtype == DT_U8) return -1;
    for (int64_t i = 0; i < count; i++) {
        const char *p = (const char *)t->data + (size_t)(first + i) * dtype_size((enum dtype)t->dtype);
        if (t->dtype == DT_F64) {
            memcpy(&out[i], p, sizeof *out);
        } else if (t->dtype == DT_I64) {
            int64_t x;
            memcpy(&x, p, sizeof x);
            out[i] = (double)x;
        } else {
            float x;
            st_to_f32(t, first + i, 1, &x);
            out[i] = (double)x;
        }
    }
    return 0;
}

#endif
