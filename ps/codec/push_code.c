#include "ps/codec/push_code.h"

#include "ps/shard_sizes.h"

int push_bytes_of_units(const struct config *c, const struct layout *l, size_t *bytes) {
    struct shard_cut cut;
    if (shard_cut_of(c, l, &cut) != 0) return -1;
    for (int u = 0; u < l->count; u++) {
        struct size_class of[3];
        shard_sizes_of_unit(&cut, l->units[u].n_pad, of);
        bytes[u] = 0;
        for (int i = 0; i < 3; i++)
            if (of[i].keys > 0)
                bytes[u] += (size_t)of[i].keys * push_bytes(&c->ps.code, c->dtype, of[i].elements);
    }
    return 0;
}
