#include "ps/worker/push_errors.h"

#include "ps/job/push_code.h"

// The factor by which the loss scale has grown since the errors were kept.
static float factor_of(const struct push_errors *e, float loss_scale) {
    return e->scale > 0 && loss_scale > 0 ? loss_scale / e->scale : 1.0f;
}

void push_errors_encode(const struct push_errors *e, struct stream *s, int u, int64_t step,
                        float loss_scale) {
    if (e->code.kind == CODE_NONE) return;
    int at = worker_buffer(e->buffers, u, step);
    char *out = e->buffers->pushes[at];
    for (int key = e->map->first[u]; key < e->map->first[u + 1]; key++) {
        const struct partition *p = &e->map->parts[key];
        const char *grad = e->buffers->grads[at];
        op_code_encode(s, &(struct code_encode_args){.out = out,
                                                     .error = e->buffers->errors[u] + p->begin,
                                                     .grad = grad + (size_t)p->begin * dtype_size(e->dtype),
                                                     .n = p->end - p->begin,
                                                     .format = e->code,
                                                     .factor = factor_of(e, loss_scale),
                                                     .dt = e->dtype});
        out += code_bytes(&e->code, p->end - p->begin);
    }
}

void push_errors_keep(struct push_errors *e, struct stream *s, int64_t step, float loss_scale) {
    if (e->code.kind == CODE_NONE) return;
    for (int u = 0; u < e->layout->count; u++) {
        int at = worker_buffer(e->buffers, u, step);
        const char *code = e->buffers->pushes[at];
        op_code_error(s, &(struct code_error_args){.error = e->buffers->errors[u],
                                                   .grad = e->buffers->grads[at],
                                                   .n = e->layout->units[u].n_pad,
                                                   .factor = factor_of(e, loss_scale),
                                                   .dt = e->dtype});
        for (int key = e->map->first[u]; key < e->map->first[u + 1]; key++) {
            const struct partition *p = &e->map->parts[key];
            op_code_add(s, &(struct code_add_args){.out = e->buffers->errors[u] + p->begin,
                                                   .code = code,
                                                   .n = p->end - p->begin,
                                                   .format = e->code,
                                                   .use = CODE_MINUS});
            code += code_bytes(&e->code, p->end - p->begin);
        }
    }
    e->scale = loss_scale;
}
