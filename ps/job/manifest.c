#include "ps/job/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ps/job/consistency.h"
#include "shared/core/error.h"
#include "shared/state/identity.h"

// Programs that cut the same configuration into other partitions differ in this key.
static void put_map(struct identity *i, const struct layout *l, const struct config *c,
                    const struct shard_map *m) {
    const uint64_t of[] = {layout_hash(l, (int)c->dtype), shard_map_hash(m)};
    char text[64];
    snprintf(text, sizeof text, "%d keys, xxh64 %016llx", m->count,
             (unsigned long long)XXH64(of + 1, 8, of[0]));
    identity_put(i, "parameter_server.partitions", text);
}

struct manifest manifest_of_order(const struct config *c, const struct layout *l, const struct shard_map *m) {
    struct identity *i = identity_make(&(struct identity_source){.config = c, .layout = l});
    put_map(i, l, c, m);
    struct manifest out = {.hash = identity_hash(i, IDENTITY_TRAJECTORY | IDENTITY_ORDER)};
    char optimizer[96];
    c->optimizer.row->describe(optimizer, sizeof optimizer, &c->optimizer);
    snprintf(out.text, sizeof out.text,
             "%lld params, %d units, %s, %d workers, %d servers x %d threads, %d keys, ps:%s, %s, "
             "clip %g, scaler %s, seed %llu, batch %lld x %lld, %lld steps%s",
             (long long)l->params, l->count, dtype_name(c->dtype), c->workers, m->servers, m->threads,
             m->count, consistency_of(c).row->name, optimizer, (double)c->clip,
             c->scaler.enabled ? "on" : "off", (unsigned long long)c->seed, (long long)c->train_batch,
             (long long)c->seq, (long long)c->steps, c->medium == MEDIUM_SHM ? ", medium shm" : "");
    identity_destroy(&i);
    return out;
}

struct manifest manifest_make(const struct ps_role_options *o, const struct shard_map *m) {
    struct identity *i = identity_make(&(struct identity_source){o->config, o->layout, o->spec, o->data});
    put_map(i, o->layout, o->config, m);
    struct manifest out = {.hash = identity_hash(i, IDENTITY_TRAJECTORY | IDENTITY_RUN),
                           .identity = identity_text(i)};
    identity_destroy(&i);
    return out;
}

void manifest_release(struct manifest *m) {
    free(m->identity);
    m->identity = NULL;
}
