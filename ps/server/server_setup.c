// Birth, death and questions of a shard's core.
#include <stdlib.h>
#include <string.h>

#include "ps/server/server_state.h"
#include "shared/core/error.h"

static void key_init(struct server_core *c, struct server_key *k, int key) {
    unsigned long workers = (unsigned long)c->o.rule.workers;
    k->key = key;
    k->part = &c->o.map->parts[key];
    k->unit = &c->o.layout->units[k->part->unit];
    k->n = k->part->end - k->part->begin;
    k->buf = c->o.buffers[key];
    k->held = xcalloc(workers, sizeof *k->held);
    k->pushed = xcalloc(workers, sizeof *k->pushed);
    k->staleness = xcalloc(workers, sizeof *k->staleness);
    k->pulls = xcalloc(workers, sizeof *k->pulls);
}

struct server_core *server_core_create(const struct server_core_options *o) {
    struct server_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->index = xcalloc((unsigned long)o->map->count + 1, sizeof *c->index);
    c->keys = xcalloc((unsigned long)o->map->shard_keys[o->shard] + 1, sizeof *c->keys);
    c->incarnation = xcalloc((unsigned long)o->rule.workers, sizeof *c->incarnation);
    for (int key = 0; key < o->map->count; key++) {
        c->index[key] = -1;
        if (o->map->parts[key].shard != o->shard) continue;
        c->index[key] = c->count;
        key_init(c, &c->keys[c->count++], key);
    }
    return c;
}

void server_core_destroy(struct server_core **core) {
    struct server_core *c = *core;
    if (!c) return;
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        for (int w = 0; w < c->o.rule.workers; w++) ps_frame_release(k->held[w]);
        free(k->held);
        free(k->pushed);
        free(k->staleness);
        free(k->pulls);
    }
    free(c->keys);
    free(c->index);
    free(c->incarnation);
    free(c);
    *core = NULL;
}

void server_core_set_job(struct server_core *c, uint64_t job) { c->o.job = job; }

const char *server_core_error(const struct server_core *c) { return c->error; }

void server_core_totals(const struct server_core *c, struct server_totals *out) { *out = c->totals; }

int64_t server_core_version(const struct server_core *c, int key) {
    int i = key >= 0 && key < c->o.map->count ? c->index[key] : -1;
    return i < 0 ? -1 : c->keys[i].version;
}
