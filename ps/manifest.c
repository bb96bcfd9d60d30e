#include "ps/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ps/consistency.h"
#include "shared/state/identity.h"

static uint64_t mix(uint64_t h, const void *p, size_t bytes) { return XXH64(p, bytes, h); }
static uint64_t mix_int(uint64_t h, int64_t v) { return mix(h, &v, sizeof v); }
static uint64_t mix_real(uint64_t h, double v) { return mix(h, &v, sizeof v); }

struct manifest manifest_of_order(const struct config *c, const struct layout *l, const struct shard_map *m) {
    const struct schedule_config *s = &c->schedule;
    uint64_t h = layout_hash(l, (int)c->dtype);
    h = mix_int(h, (int64_t)shard_map_hash(m));
    const int64_t ints[] = {s->cycle_first,
                            s->cycle_second,
                            s->first_stairs,
                            s->second_stairs,
                            s->decay_step,
                            s->range_step,
                            s->range_staircase,
                            s->cycle_momentum,
                            c->variant,
                            c->bound,
                            c->workers,
                            m->servers,
                            m->threads,
                            s->type,
                            s->warmup,
                            s->warmup_steps,
                            s->total_steps,
                            c->scaler.enabled,
                            (int64_t)c->dtype,
                            (int64_t)c->seed,
                            c->train_batch,
                            c->seq,
                            c->steps};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) h = mix_int(h, ints[i]);
    const double reals[] = {c->clip,          s->min_lr,       s->max_lr,       s->warmup_min_ratio,
                            s->cos_min_ratio, s->cycle_min_lr, s->cycle_max_lr, s->range_min_lr,
                            s->decay_lr_rate, s->min_mom,      s->max_mom,      s->decay_mom_rate,
                            s->range_rate};
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

// Programs that cut the same configuration into other partitions do not get past this key.
static void put_map(struct identity *i, const struct layout *l, const struct config *c,
                    const struct shard_map *m) {
    char text[64];
    uint64_t h = mix_int(layout_hash(l, (int)c->dtype), (int64_t)shard_map_hash(m));
    snprintf(text, sizeof text, "%d keys, xxh64 %016llx", m->count, (unsigned long long)h);
    identity_put(i, "parameter_server.partitions", text);
}

struct manifest manifest_make(const struct ps_role_options *o, const struct shard_map *m) {
    struct identity *i = identity_make(&(struct identity_source){o->config, o->layout, o->spec, o->data});
    struct manifest words = manifest_of_order(o->config, o->layout, m), out;
    put_map(i, o->layout, o->config, m);
    out = (struct manifest){.hash = identity_hash(i, IDENTITY_TRAJECTORY | IDENTITY_RUN),
                            .identity = identity_text(i)};
    snprintf(out.text, sizeof out.text, "%s; %.200s", identity_get(i, "program"), words.text);
    identity_destroy(&i);
    return out;
}

void manifest_release(struct manifest *m) {
    free(m->identity);
    m->identity = NULL;
}

char *manifest_difference(struct manifest_side a, struct manifest_side b) {
    struct identity *of_a = identity_parse(a.identity), *of_b = identity_parse(b.identity);
    if (!of_a) of_a = identity_from_json(NULL);
    if (!of_b) of_b = identity_from_json(NULL);
    char *text =
        identity_disagreement((struct identity_side){a.name, of_a}, (struct identity_side){b.name, of_b});
    identity_destroy(&of_a);
    identity_destroy(&of_b);
    return text;
}
