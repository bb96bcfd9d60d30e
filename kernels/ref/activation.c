// GELU and SwiGLU in double, and a sum of two buffers.
#include <math.h>

#include "kernels/ref/ref.h"

static const double gelu_c = 0.79788456080286535588;  // sqrt(2/pi)

void ref_gelu_fwd(const struct gelu_args *a) {
    for (int64_t i = 0; i < a->n; i++) {
        double x = dtype_load(a->dt, a->x, i);
        dtype_store(a->dt, a->y, i, (float)(0.5 * x * (1.0 + tanh(gelu_c * (x + 0.044715 * x * x * x)))));
    }
}

void ref_gelu_bwd(const struct gelu_args *a) {
    for (int64_t i = 0; i < a->n; i++) {
        double x = dtype_load(a->dt, a->x, i), dy = dtype_load(a->dt, a->dy, i);
        double t = tanh(gelu_c * (x + 0.044715 * x * x * x));
        double slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * gelu_c * (1.0 + 3.0 * 0.044715 * x * x);
        dtype_store(a->dt, a->y, i, (float)(dy * slope));
    }
}

void ref_swiglu_fwd(const struct swiglu_args *a) {
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t i = 0; i < a->width; i++) {
            double g = dtype_load(a->dt, a->gate_up, r * 2 * a->width + i);
            double u = dtype_load(a->dt, a->gate_up, r * 2 * a->width + a->width + i);
            dtype_store(a->dt, a->y, r * a->width + i, (float)(g / (1.0 + exp(-g)) * u));
        }
    }
}

void ref_swiglu_bwd(const struct swiglu_args *a) {
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t i = 0; i < a->width; i++) {
            int64_t gate = r * 2 * a->width + i, up = gate + a->width;
            double g = dtype_load(a->dt, a->gate_up, gate), u = dtype_load(a->dt, a->gate_up, up);
            double dy = dtype_load(a->dt, a->dy, r * a->width + i), s = 1.0 / (1.0 + exp(-g));
            dtype_store(a->dt, a->y, gate, (float)(dy * u * s * (1.0 + g * (1.0 - s))));
            dtype_store(a->dt, a->y, up, (float)(dy * g * s));
        }
    }
}

void ref_add(const struct add_args *s) {
    for (int64_t i = 0; i < s->n; i++)
        dtype_store(s->dt, s->y, i, dtype_load(s->dt, s->a, i) + dtype_load(s->dt, s->b, i));
}
