#include "ps/manifest.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "ps/consistency.h"

static uint64_t mix(uint64_t h, const void *p, size_t bytes) { return XXH64(p, bytes, h); }
static uint64_t mix_int(uint64_t h, int64_t v) { return mix(h, &v, sizeof v); }
static uint64_t mix_real(uint64_t h, double v) { return mix(h, &v, sizeof v); }

struct manifest manifest_make(const struct config *c, const struct layout *l, const struct shard_map *m) {
    const struct schedule_config *s = &c->schedule;
    uint64_t h = layout_hash(l, (int)c->dtype);
    h = mix_int(h, (int64_t)shard_map_hash(m));
    const int64_t ints[] = {
        c->variant,        c->bound,         c->workers,      m->servers,     m->threads,
        s->type,           s->warmup,        s->warmup_steps, s->total_steps, c->scaler.enabled,
        (int64_t)c->dtype, (int64_t)c->seed, c->train_batch,  c->seq,         c->steps};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) h = mix_int(h, ints[i]);
    const double reals[] = {c->clip, s->min_lr, s->max_lr, s->warmup_min_ratio, s->cos_min_ratio};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) h = mix_real(h, reals[i]);
    // tcp and auto go together: what one side does not offer the other does not take. Who demands shm does not.
    if (c->medium == MEDIUM_SHM) h = mix_int(h, MEDIUM_SHM);
    struct manifest out = {.hash = optimizer_hash(&c->optimizer, h)};
    char optimizer[96];
    c->optimizer.row->describe(optimizer, sizeof optimizer, &c->optimizer);
    snprintf(out.text, sizeof out.text,
             "%lld params, %d units, %s, %d workers, %d servers x %d threads, %d keys, ps:%s, %s, "
             "clip %g, scaler %s, seed %llu, batch %lld x %lld, %lld steps%s",
             (long long)l->params, l->count, dtype_name(c->dtype), c->workers, m->servers, m->threads,
             m->count, consistency_of(c).row->name, optimizer, (double)c->clip,
             c->scaler.enabled ? "on" : "off", (unsigned long long)c->seed, (long long)c->train_batch,
             (long long)c->seq, (long long)c->steps, c->medium == MEDIUM_SHM ? ", medium shm" : "");
    return out;
}
