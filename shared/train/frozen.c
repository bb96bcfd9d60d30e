#include "shared/train/frozen.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"

struct frozen {
    const struct layout *layout;
    struct device *dev;
    enum dtype dtype;
    struct arena arena;
    void **unit;  // (units of the model) the frozen elements of each
};

static void carve(struct arena *a, const struct layout *l, enum dtype dt, void **unit) {
    for (int u = 0; l->model && u < l->model->count; u++) {
        void *at = arena_take(a, MEM_PARAMETER, (size_t)layout_frozen(l, u) * dtype_size(dt));
        if (unit) unit[u] = at;
    }
}

void frozen_predict(const struct layout *l, enum dtype dt, size_t bytes[MEM_CLASSES]) {
    struct arena a;
    arena_init(&a, NULL);
    carve(&a, l, dt, NULL);
    for (int c = 0; c < MEM_CLASSES; c++) bytes[c] += a.bytes[c];
}

bool shards_frozen(const struct config *c) {
    size_t copies;
    return c->row->shards_frozen && c->row->shards_frozen(c, "worker", &copies);
}

size_t frozen_formula(const struct config *c, const struct layout *l) {
    size_t copies = (size_t)c->workers;
    if (c->row->shards_frozen) c->row->shards_frozen(c, "worker", &copies);
    return (size_t)l->frozen * dtype_size(c->dtype) * copies / (size_t)c->workers;
}

struct frozen *frozen_create(struct device *dev, const struct layout *l, enum dtype dt, bool *failed) {
    *failed = false;
    if (!l->model) return NULL;
    struct frozen *f = xcalloc(1, sizeof *f);
    *f = (struct frozen){.layout = l, .dev = dev, .dtype = dt};
    f->unit = xcalloc((unsigned long)l->model->count, sizeof *f->unit);
    arena_init(&f->arena, dev);
    carve(&f->arena, l, dt, f->unit);
    if (!f->arena.failed) return f;
    *failed = true;
    frozen_destroy(&f);
    return NULL;
}

void frozen_destroy(struct frozen **at) {
    struct frozen *f = *at;
    if (!f) return;
    arena_release(&f->arena);
    free(f->unit);
    free(f);
    *at = NULL;
}

int frozen_load(struct frozen *f, struct stream *s, int u, const float *values) {
    size_t n = (size_t)layout_frozen(f->layout, u), size = dtype_size(f->dtype);
    void *rounded = xcalloc(n ? n : 1, size);
    for (size_t i = 0; i < n; i++) dtype_store(f->dtype, rounded, i, values[i]);
    dev_copy(s, f->unit[u], rounded, n * size);
    int rc = stream_sync(s);
    free(rounded);
    return rc ? fail("loading unit %s: %s", f->layout->model->units[u].name, dev_error(f->dev)) : 0;
}

const void *frozen_unit(const struct frozen *f, int u) { return f ? f->unit[u] : NULL; }
