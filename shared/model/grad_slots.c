#include "shared/model/grad_slots.h"

int64_t grad_slot_elements(const struct layout *l, int slot) {
    int64_t most = 0;
    for (int u = 0; u < l->count; u++)
        if (grad_slot(l, u) == slot && l->units[u].n_pad > most) most = l->units[u].n_pad;
    return most;
}

static bool same_shape(const struct unit *a, const struct unit *b) {
    if (a->count != b->count || a->n_pad != b->n_pad) return false;
    for (int i = 0; i < a->count; i++)
        if (a->tensors[i].offset != b->tensors[i].offset || a->tensors[i].numel != b->tensors[i].numel)
            return false;
    return true;
}

int grad_shape(const struct layout *l, int u) {
    int v = 0;
    while (!same_shape(&l->units[u], &l->units[v])) v++;
    return v;
}

void grad_zero_gaps(struct stream *s, const struct unit *u, void *grad, enum dtype dt) {
    int64_t at = 0;
    for (int i = 0; i <= u->count; i++) {
        int64_t next = i < u->count ? u->tensors[i].offset : u->n_pad;
        int64_t bytes = (next - at) * (int64_t)dtype_size(dt);
        if (bytes > 0)
            op_fill_zero(s, &(struct fill_zero_args){.out = (char *)grad + (size_t)at * dtype_size(dt),
                                                     .bytes = bytes});
        if (i < u->count) at = next + u->tensors[i].numel;
    }
}
