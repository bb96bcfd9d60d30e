#include <stdlib.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/state/weights_hash.h"

struct weights_hash {
    XXH64_state_t *state;
};

struct weights_hash *weights_hash_create(void) {
    struct weights_hash *h = xcalloc(1, sizeof *h);
    h->state = XXH64_createState();
    XXH64_reset(h->state, 0);
    return h;
}

void weights_hash_unit(struct weights_hash *h, const struct layout *l, int u, const void *weights,
                       enum dtype dt) {
    const struct unit *unit = &l->units[u];
    size_t size = dtype_size(dt);
    for (int i = 0; i < unit->count; i++) {
        const struct tensor *t = &unit->tensors[i];
        XXH64_update(h->state, (const char *)weights + (size_t)t->offset * size, (size_t)t->numel * size);
    }
}

uint64_t weights_hash_finish(struct weights_hash **h) {
    uint64_t out = XXH64_digest((*h)->state);
    XXH64_freeState((*h)->state);
    free(*h);
    *h = NULL;
    return out;
}
