#include "ps/worker/worker_core_state.h"

#include <stdio.h>

// The least that the unit's keys have of a field.
#define LEAST(field, type, most)                                        \
    type worker_core_##field(const struct worker_core *c, int u) {      \
        const int *first = c->o.map->first;                             \
        type least = most;                                              \
        for (int key = first[u]; key < first[u + 1]; key++)             \
            if (c->keys[key].field < least) least = c->keys[key].field; \
        return least;                                                   \
    }
LEAST(landed, int64_t, INT64_MAX)
LEAST(version, int64_t, INT64_MAX)
LEAST(fills, uint64_t, UINT64_MAX)

const struct unit_times *worker_core_times(const struct worker_core *c, int u) { return &c->units[u].times; }
const struct ps_clock *worker_core_clock(const struct worker_core *c) { return &c->clock; }

int worker_core_busy(const struct worker_core *c, int u) {
    const int *first = c->o.map->first;
    int busy = 0;
    for (int key = first[u]; key < first[u + 1]; key++)
        busy += c->keys[key].sending != SEND_IDLE || atomic_load(&c->keys[key].inflight) > 0;
    return busy;
}

const struct worker_status *worker_core_status(const struct worker_core *c) { return &c->status; }
bool worker_core_hurry(const struct worker_core *c) { return c->awaiting > 0; }
bool worker_core_transferring(const struct worker_core *c) { return c->sending > 0 || c->status.pulling > 0; }

const char *worker_core_error(const struct worker_core *c) { return c->error; }
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size) {
    const int *first = c->o.map->first;
    snprintf(out, size, "unit %s", c->o.layout->units[u].name);
    for (int key = first[u]; key < first[u + 1]; key++) {
        const struct worker_key *k = &c->keys[key];
        if (!k->pulling && k->sending == SEND_IDLE) continue;
        snprintf(out, size, "unit %s, key %d of server %d (%s, %s)", c->o.layout->units[u].name, key,
                 k->part->shard / c->o.map->threads,
                 k->sending == SEND_IDLE    ? "push acknowledged"
                 : k->sending == SEND_GIVEN ? "gradient handed to the group's leader of the key"
                 : k->sending == SEND_QUEUED && c->awaiting ? "push waits for the group's other workers"
                 : k->sending == SEND_QUEUED                ? "push waits for credits"
                 : k->sending == SEND_HELD                  ? "push held until earlier workers have pushed"
                                                            : "push not acknowledged",
                 k->pulling ? "pull not answered" : "no pull open");
        return;
    }
}
