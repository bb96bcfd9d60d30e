// The names of topologies, and what follows from the chosen one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"

char *config_variants(const struct topology_row *row, const char *between) {
    struct topology_variant v;
    char *text = xstrdup("");
    for (int i = 0; row->variant(i, &v); i++) {
        char *longer = xasprintf("%s%s%s", text, *text ? between : "", v.name);
        free(text);
        text = longer;
    }
    return text;
}

// The variants of all rows.
static char *all_variants(const struct topology_table *t) {
    char *text = xstrdup("");
    for (int r = 0; t->row[r]; r++) {
        char *names = config_variants(t->row[r], ", ");
        char *longer = xasprintf("%s%s%s", text, *text && *names ? ", " : "", names);
        free(names);
        free(text);
        text = longer;
    }
    return text;
}

int config_parse_topology(struct config *c, const char *text) {
    for (int i = 0; c->topologies->row[i]; i++) {
        const struct topology_row *row = c->topologies->row[i];
        int bound = 0, variant = row->parse(text, &bound);
        if (variant < 0) continue;
        c->row = row;
        c->variant = variant;
        c->bound = bound;
        if (c->topology == text) return 0;
        free(c->topology);
        c->topology = xstrdup(text);
        return 0;
    }
    char *possible = all_variants(c->topologies);
    fail("topology \"%s\": possible are %s", text, possible);
    free(possible);
    return -1;
}

int config_ranks(const struct config *c, const char *role) {
    for (const struct topology_role *r = c->row->roles; r->name; r++)
        if (!strcmp(r->name, role)) return *(const int *)((const char *)c + r->count);
    return 0;
}

// Chooses the topology by name. Without a name it is the stage's, if a stage is given or there is more than one
// worker, else the first row's.
static int choose(struct reading *r, const char *origin) {
    struct config *c = &r->d->c;
    int stage = r->d->stage;
    struct topology_variant v;
    const struct topology_row *staged = NULL;  // whose variant zero_optimization.stage gives
    for (int i = 0; c->topologies->row[i] && !staged; i++)
        if (c->topologies->row[i]->takes_stage) staged = c->topologies->row[i];
    bool given = staged && config_state(r, "zero_optimization.stage") == KEY_GIVEN;
    bool takes = staged && (given || c->workers > 1);
    if (!c->topology && (takes ? staged : c->topologies->row[0])->variant(takes ? stage : 0, &v))
        c->topology = xstrdup(v.name);
    if (config_parse_topology(c, c->topology)) return -1;
    if (given && c->row != staged)
        warn("%s: topology %s does not use the section zero_optimization", origin, c->topology);
    else if (given && c->variant != stage)
        warn("%s: topology %s wins over zero_optimization.stage %d", origin, c->topology, stage);
    return 0;
}

// Bundles are of the ring; of weights, of the stages that gather them behind the update.
static void resolve_bucket(struct reading *r, const char *path, int64_t *elements, bool used) {
    if (!used && config_state(r, path) == KEY_GIVEN && *elements)
        config_note(r, &(struct note){.topic = NOTE_TUNING, .path = path});
    if (!used) *elements = 0;
}

int config_elastic(const char *text, int *min, int *max) {
    const char *behind = text_count(text, min);
    behind = behind && *behind == ':' ? text_count(behind + 1, max) : NULL;
    return behind && !*behind && *min >= 1 && *max >= *min ? 0 : -1;
}

int config_resolve_topology(struct reading *r) {
    struct config *c = &r->d->c;
    char from[128], key_from[128];
    const char *origin = config_origin(r, "topology", from);
    if (choose(r, origin)) return -1;
    const struct topology_row *row = c->row;
    int least, most = 0;
    bool elastic = c->recovery.elastic && config_elastic(c->recovery.elastic, &least, &most) == 0;
    if (config_state(r, "workers") != KEY_GIVEN) c->workers = elastic ? most : row->default_workers;
    if (row->max_workers && c->workers > row->max_workers) {
        info("%s: topology %s is one worker: workers %d -> %d", origin, c->topology, c->workers,
             row->max_workers);
        c->workers = row->max_workers;
    }
    if (!config_ranks(c, "server") &&
        !strcmp(config_origin(r, "parameter_server.servers", key_from), "--servers"))
        return fail("--servers: topology %s has no servers: leave it out, or use ps:sync", c->topology);
    bool beside = config_ranks(c, "server") && !strcmp(c->ps.servers_on, "workers");
    if (beside && config_state(r, "parameter_server.servers") == KEY_GIVEN && c->ps.servers != c->workers)
        return config_refuse(
            r, "parameter_server.servers",
            " %d: parameter_server.servers_on \"workers\" (--servers-on) puts one beside each of the %d workers: leave it out",
            c->ps.servers, c->workers);
    if (beside) c->ps.servers = c->workers;
    c->ps.beside = beside;
    if (!row->collectives && c->collective != RING_AUTO &&
        !strcmp(config_origin(r, "ring.collective", key_from), "--collective"))
        return fail("--collective: topology %s has no collectives: leave it out, or use zero:0", c->topology);
    resolve_bucket(r, "zero_optimization.reduce_bucket_size", &c->reduce_elements, row->takes_stage);
    resolve_bucket(r, "zero_optimization.allgather_bucket_size", &c->gather_elements,
                   row->takes_stage && (c->variant == 1 || c->variant == 2));
    if (!row->takes_stage && c->no_sync)
        return config_refuse(
            r, "ring.no_sync",
            ": topology %s reduces no gradients between ranks that hold shards of them; it is of zero:2 and zero:3",
            c->topology);
    return row->check_name ? row->check_name(c, origin) : 0;
}
