#include "shared/generate/weights.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/hf/hf_dir.h"

static void carve(struct arena *a, const struct layout *l, enum dtype dt, struct unit_view *units) {
    for (int u = 0; u < l->count; u++) {
        void *p = arena_take(a, MEM_PARAMETER, (size_t)l->units[u].n_pad * dtype_size(dt));
        if (units) units[u] = (struct unit_view){.weights = p};
    }
}

void weights_predict(const struct layout *l, enum dtype dt, size_t bytes[MEM_CLASSES]) {
    struct arena a;
    arena_init(&a, NULL);
    carve(&a, l, dt, NULL);
    for (int c = 0; c < MEM_CLASSES; c++) bytes[c] = a.bytes[c];
}

static void round_values(void *out, const float *values, int64_t n, enum dtype dt) {
    for (int64_t i = 0; i < n; i++) dtype_store(dt, out, (size_t)i, values[i]);
}

int weights_load(struct weights *w, const struct weights_options *o, struct hf_reader *from) {
    const struct layout *l = o->layout;
    enum dtype dt = o->dtype;
    int64_t largest = 0;
    *w = (struct weights){.layout = l, .units = xcalloc((size_t)l->count, sizeof *w->units)};
    arena_init(&w->arena, o->dev);
    carve(&w->arena, l, dt, w->units);
    if (w->arena.failed) return -1;
    for (int u = 0; u < l->count; u++)
        if (l->units[u].n_pad > largest) largest = l->units[u].n_pad;
    float *values = xcalloc((size_t)largest, sizeof *values);
    void *rounded = dt == DT_F32 ? values : xcalloc((size_t)largest, dtype_size(dt));
    int rc = 0;
    for (int u = 0; u < l->count && rc == 0; u++) {
        int64_t n = l->units[u].n_pad;
        if ((rc = hf_read_unit(from, u, values))) break;
        if (dt != DT_F32) round_values(rounded, values, n, dt);
        dev_copy(o->stream, (void *)w->units[u].weights, rounded, (size_t)n * dtype_size(dt));
        if (stream_sync(o->stream)) rc = fail("loading unit %s: %s", l->units[u].name, dev_error(o->dev));
    }
    if (rounded != values) free(rounded);
    free(values);
    return rc;
}

void weights_release(struct weights *w) {
    if (w->arena.dev) arena_release(&w->arena);
    free(w->units);
    *w = (struct weights){0};
}
