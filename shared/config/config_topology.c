// The names of topologies, and what depends on the chosen one.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"

#define TOPOLOGY_WORD 64  // the most characters of a name that are compared

char *config_variants(const struct topology_row *row, const char *between) {
    struct topology_variant v;
    char *text = xstrdup("");
    for (int i = 0; row->variant(i, &v); i++) text_add(&text, "%s%s", *text ? between : "", v.name);
    return text;
}

char *config_topologies(const struct topology_table *t, bool meanings) {
    struct topology_variant v;
    char *text = xstrdup("");
    for (int r = 0; t->row[r]; r++)
        for (int i = 0; t->row[r]->variant(i, &v); i++) {
            text_add(&text, "%s%s", *text ? ", " : "", v.name);
            if (meanings && v.means) text_add(&text, " (%s)", v.means);
        }
    return text;
}

// ---------------------------------------------------------------- the nearest name
// Keeps lower-case letters and digits, without the word stage: "ZeRO-3" and "zero stage 3" become "zero3".
static void squeeze(char out[TOPOLOGY_WORD], const char *text) {
    size_t n = 0;
    for (; *text && n + 1 < TOPOLOGY_WORD; text++)
        if (isalnum((unsigned char)*text)) out[n++] = (char)tolower((unsigned char)*text);
    out[n] = 0;
    char *stage = strstr(out, "stage");
    if (stage && stage[5]) memmove(stage, stage + 5, strlen(stage + 5) + 1);
}

struct nearest {
    // The text that the user typed, and the same without the number at its end.
    char word[TOPOLOGY_WORD], stem[TOPOLOGY_WORD];
    const char *number;            // that number; "": none, or several ("ps:ssp:2:3")
    char name[2 * TOPOLOGY_WORD];  // the nearest name; "": no name is similar
    const char *means;
    size_t distance;
};

// Makes `name` the nearest name if the edit distance between `as` and the word (the stem, for a name with a number)
// is at most `most`. The last of several variants at equal distance wins: zero:3 for zero:4.
static void consider(struct nearest *n, const char *name, const char *as, const char *means, size_t most) {
    const char *letter = strrchr(name, ':');
    bool takes = letter && isupper((unsigned char)letter[1]);
    size_t d = edit_distance(takes ? n->stem : n->word, as);
    if (d > most || d > n->distance || (*n->name && means && d == n->distance)) return;
    n->distance = d;
    n->means = means;
    if (takes && *n->number)
        snprintf(n->name, sizeof n->name, "%.*s%s", (int)(letter + 1 - name), name, n->number);
    else
        snprintf(n->name, sizeof n->name, "%s%s%s", name, takes ? " with a number for " : "",
                 takes ? letter + 1 : "");
}

// Returns " did you mean NAME (MEANS)?", or "" (malloc'd).
static char *did_you_mean(const struct topology_table *t, const char *text) {
    struct nearest n = {.distance = TOPOLOGY_WORD};
    squeeze(n.word, text);
    size_t length = strlen(n.word), stem = length;
    while (stem > 0 && isdigit((unsigned char)n.word[stem - 1])) stem--;
    memcpy(n.stem, n.word, stem);
    n.number = strstr(text, n.word + stem) ? n.word + stem : "";
    for (int r = 0; t->row[r]; r++) {
        struct topology_variant v;
        for (int i = 0; t->row[r]->variant(i, &v); i++) {
            char as[TOPOLOGY_WORD], *letter = strrchr(v.name, ':');
            squeeze(as, v.name);
            if (letter && isupper((unsigned char)letter[1])) as[strlen(as) - 1] = 0;
            consider(&n, v.name, as, NULL, length ? length / 3 : 0);
        }
    }
    for (int r = 0; t->row[r]; r++)
        for (const struct topology_alias *w = t->row[r]->words; w && w->word; w++)
            consider(&n, w->name, w->word, w->means ? w->means : "", length / 5);
    if (!*n.name) return xstrdup("");
    bool means = n.means && *n.means;
    return xasprintf(" did you mean %s%s%s%s?", n.name, means ? " (" : "", means ? n.means : "",
                     means ? ")" : "");
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
    char *possible = config_topologies(c->topologies, false), *near = did_you_mean(c->topologies, text);
    fail("topology \"%.60s\":%s possible are %s", text, near, possible);
    free(near);
    free(possible);
    return -1;
}

int config_ranks(const struct config *c, const char *role) {
    for (const struct topology_role *r = c->row->roles; r->name; r++)
        if (!strcmp(r->name, role)) return *(const int *)((const char *)c + r->count);
    return 0;
}

// Chooses the topology by its name. Without a name: if zero_optimization.stage or more than one worker is given, the
// topology of that stage; otherwise the first row.
static int choose(struct reading *r, const char *origin) {
    struct config *c = &r->d->c;
    int stage = r->d->stage;
    struct topology_variant v;
    const struct topology_row *staged = NULL;  // the row whose variant is zero_optimization.stage
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

// Only the ring joins units in one message (bundles); it joins weights only in stages that gather them after the update.
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
            " %d: parameter_server.servers_on \"workers\" (--servers-on) puts one server next to each of the %d workers: leave it out",
            c->ps.servers, c->workers);
    if (beside) c->ps.servers = c->workers;
    c->ps.servers_on_workers = beside;
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

int config_check_launch(const struct config *c) {
    const struct topology_row *row = c->row;
    if (!(row->launches >> c->launch & 1))
        return fail("--launch %s: %s", launch_rows[c->launch].name, row->launch_advice);
    if (!row->collectives && c->reduce_native)
        return fail(
            "--topology %s: \"reduce\": \"native\" is the ring's; the star's "
            "servers and a single process always sum in worker order",
            c->topology);
    if (!row->takes_groups && c->reduce_group)
        return fail("--topology %s: its sums have no groups: leave reduce_group out", c->topology);
    if (c->reduce_group > 0 && c->workers % c->reduce_group)
        return fail("reduce_group %lld: --workers %d are not groups of %lld; give a number that divides them",
                    (long long)c->reduce_group, c->workers, (long long)c->reduce_group);
    if (!row->takes_delay && c->local_delay)
        return fail(
            "--topology %s: local.delay %d is of --topology local; a star delays weights with ps:ssp:%d: leave local.delay out",
            c->topology, c->local_delay, c->local_delay);
    return row->check ? row->check(c) : 0;
}
