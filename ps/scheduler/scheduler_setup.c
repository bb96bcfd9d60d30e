// Birth, death and questions of the scheduler's core.
#include <stdlib.h>

#include "ps/scheduler/scheduler_state.h"
#include "shared/core/error.h"

bool scheduler_core_done(const struct scheduler_core *c) { return c->done; }
const char *scheduler_core_error(const struct scheduler_core *c) { return c->error; }
int scheduler_core_members(const struct scheduler_core *c) { return c->members; }

bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers) {
    *workers = *servers = 0;
    for (int i = 0; i < c->workers + c->servers; i++)
        if (!c->m[i].present) (*(i < c->workers ? workers : servers))++;
    return !c->started;
}

struct scheduler_core *scheduler_core_create(const struct scheduler_core_options *o) {
    struct scheduler_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->rule = consistency_of(o->config);
    c->workers = o->config->workers;
    c->servers = o->map->servers;
    c->shards = o->map->shards;
    c->members = c->workers + c->servers + c->shards;
    for (int i = 0; i < c->shards; i++) c->full_shards += o->map->shard_keys[i] > 0;
    unsigned long n = (unsigned long)c->workers;
    c->m = xcalloc((unsigned long)c->members, sizeof *c->m);
    c->round.reported = xcalloc(n, sizeof(bool));
    c->round.summed = xcalloc((unsigned long)c->shards, sizeof(bool));
    c->round.loss = xcalloc(n, sizeof(double));
    c->gather.have = xcalloc(n, sizeof(bool));
    c->gather.values = xcalloc(n * WIRE_VALUES_MAX, sizeof(double));
    return c;
}

void scheduler_core_destroy(struct scheduler_core **core) {
    struct scheduler_core *c = *core;
    if (!c) return;
    for (int i = 0; i < c->members; i++) free(c->m[i].endpoints);
    free(c->m);
    free(c->round.reported);
    free(c->round.summed);
    free(c->round.loss);
    free(c->gather.have);
    free(c->gather.values);
    free(c);
    *core = NULL;
}
