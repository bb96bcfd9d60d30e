#include "ps/job/consistency.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define STALENESS_BINS (sizeof((struct staleness *)0)->count / sizeof(uint64_t))

// Update t commits when all workers have contributed to it, and step t+1 computes on it.
static void resolve_sync(struct consistency_rule *c) { c->needs = c->workers; }

// The updates are those of sync. Step t may be computed on any of the last 1 + S versions: a worker continues while up
// to S of its gradients wait for other workers'.
static void resolve_ssp(struct consistency_rule *c) {
    resolve_sync(c);
    c->delay = c->lead = c->argument;
}

static void resolve_async(struct consistency_rule *c) {
    c->needs = 1;
    c->delay = INT64_MAX;
}

// Messages about the order of pushes have one bit of a uint64_t per worker, which limits the number of workers.
static int check_ordered(const struct consistency_rule *c, const char *origin, const char *topology) {
    if (c->workers <= CONFIG_ELASTIC_MAX) return 0;
    return fail("%s: topology %s: the order of pushes is of at most %d workers: there are %d", origin,
                topology, CONFIG_ELASTIC_MAX, c->workers);
}

static int check_ssp(const struct consistency_rule *c, const char *origin, const char *topology) {
    if (c->argument <= CONFIG_DELAY_MAX) return 0;
    return fail("%s: topology %s: a worker keeps 1 + S gradients: S is at most %d", origin, topology,
                CONFIG_DELAY_MAX);
}

// Update t commits with the gradients of the first N-B workers whose pushes of step t are complete.
static void resolve_backup(struct consistency_rule *c) { c->needs = c->workers - c->argument; }

// Update t commits with the gradients that have arrived when there are Q and the grace is over.
static void resolve_quorum(struct consistency_rule *c) { c->needs = c->argument > 0 ? c->argument : 1; }

// A set of workers is one uint64_t, which limits their number.
static int check_sets(const struct consistency_rule *c, const char *origin, const char *topology) {
    if (!consistency_drops(*c) || c->workers <= CONFIG_ELASTIC_MAX) return 0;
    return fail("%s: topology %s: steps close without stragglers of at most %d workers: there are %d", origin,
                topology, CONFIG_ELASTIC_MAX, c->workers);
}

static int check_quorum(const struct consistency_rule *c, const char *origin, const char *topology) {
    if (c->argument >= 1 && c->argument <= c->workers) return check_sets(c, origin, topology);
    return fail("%s: topology %s: a step closes with Q of the %d workers: Q must be 1 to %d", origin,
                topology, c->workers, c->workers);
}

static int check_backup(const struct consistency_rule *c, const char *origin, const char *topology) {
    if (c->argument < c->workers) return check_sets(c, origin, topology);
    return fail("%s: topology %s: a step needs at least one of the %d workers: B must be below %d", origin,
                topology, c->workers, c->workers);
}

// ssp     bounded delay by clock (Ho et al. 2013; Li et al. 2014)
// ringleader  a table of gradients by worker (Maranjyan and Richtarik 2025, arXiv 2509.22860)
// backup  the first N-B workers; the other B are backup workers (Chen et al. 2016); K-sync with K = N-B (Dutta et al. 2018)
// quorum  Q workers, and those that arrive within the grace (Decoupled DiLoCo, arXiv 2604.21428)
static const struct consistency_row rows[] = {
    {.name = "sync",
     .policy = PUSH_IN_ORDER,
     .resolve = resolve_sync,
     .how = "A server waits for all workers, adds their gradients in worker order, and updates once."},
    {.name = "async",
     .policy = PUSH_ON_ARRIVAL,
     .on_arrival = true,
     .resolve = resolve_async,
     .how =
         "A server applies each gradient when it arrives. No worker waits, and a gradient is stale: it was computed on weights that "
         "lack the last updates of others.",
     .differs =
         "the servers apply each worker's gradient by itself, when it arrives: many small updates where the others make one, each "
         "computed on weights that have changed meanwhile. The order of arrival is a matter of timing, so two such runs differ "
         "as well"},
    {.name = "ringleader",
     .policy = PUSH_RINGLEADER,
     .on_arrival = true,
     .ordered = true,
     .resolve = resolve_async,
     .check = check_ordered,
     .how =
         "A server keeps a table with a sum of gradients for each worker. Each update uses the whole table: the mean per worker, then "
         "the mean over the workers. In a round each worker gets one update and one new model, and computes on with that model until "
         "its next; so a fast worker adds more gradients to its own mean, and has no more weight than a slow one.",
     .differs =
         "each update is a mean over a table of all workers' last gradients, which were computed on different weights. The order of "
         "arrival is a matter of timing, so two such runs differ as well"},
    {.name = "ssp",
     .policy = PUSH_IN_ORDER,
     .argument = "S",
     .means = "at most S updates behind",
     .delays = true,
     .resolve = resolve_ssp,
     .check = check_ssp,
     .how =
         "A server adds the gradients of all workers and updates once, but a worker may be up to S steps ahead of the slowest one: "
         "it computes on weights that lack the last updates.",
     .differs =
         "a worker may run ahead and compute on weights that lack the slowest worker's last updates. How far it is ahead is a matter "
         "of timing, so two such runs differ as well"},
    {.name = "backup",
     .policy = PUSH_IN_ORDER,
     .argument = "B",
     .means = "all but B workers: K-sync",
     .exact = true,
     .resolve = resolve_backup,
     .check = check_backup,
     .how =
         "A server updates with the gradients of the first N - B of N workers. The gradients of the others arrive too late, and are "
         "dropped.",
     .differs =
         "a step closes without its last workers, whose gradients are dropped. Which ones are late is a matter of timing, so two "
         "such runs differ as well"},
    {.name = "quorum",
     .policy = PUSH_IN_ORDER,
     .argument = "Q",
     .means = "at least Q workers",
     .graces = true,
     .resolve = resolve_quorum,
     .check = check_quorum,
     .how =
         "A server updates with the gradients that it has when Q workers' have arrived and a while of grace is over. The gradients of the "
         "others arrive too late, and are dropped.",
     .differs =
         "a step is over when enough workers' gradients have arrived, and those of the others are dropped. Which ones are late is a "
         "matter of timing, so two such runs differ as well"},
};
#define ROWS ((int)(sizeof rows / sizeof *rows))

const struct consistency_row *consistency_row(int index) {
    return index >= 0 && index < ROWS ? &rows[index] : NULL;
}

int consistency_parse(const char *text, int *argument) {
    size_t n = strcspn(text, ":"), digits = text[n] ? strspn(text + n + 1, "0123456789") : 0;
    bool number = digits > 0 && digits < 10 && !text[n + 1 + digits];
    for (int i = 0; i < ROWS; i++) {
        if (strlen(rows[i].name) != n || strncmp(rows[i].name, text, n)) continue;
        if (rows[i].argument ? !number : text[n]) return -1;
        *argument = number ? atoi(text + n + 1) : 0;
        return i;
    }
    return -1;
}

struct consistency_rule consistency_of(const struct config *config) {
    struct consistency_rule c = {
        .row = &rows[config->variant],
        .argument = config->bound,
        .workers = config->workers,
        .per_update = config->ps.pushes_per_update > 1 ? config->ps.pushes_per_update : 1};
    c.row->resolve(&c);
    c.oldest = c.lead > 0 && config->ps.read_oldest;
    c.keeps = c.oldest || (c.lead > 0 && config->ps.replay_arrivals);
    // If all workers belong to a step and nothing is decided about it, its outcome is only loss and norm, to be
    // printed.
    bool undecided =
        !c.row->on_arrival && c.needs == c.workers && !commit_round(config) && !ps_elastic(config);
    c.lag = c.lead > 0 ? c.lead : undecided;
    return c;
}

static uint64_t staleness_total(const struct staleness *s) {
    uint64_t n = 0;
    for (unsigned i = 0; i < STALENESS_BINS; i++) n += s->count[i];
    return n;
}

void staleness_count(struct staleness *s, uint64_t tau) {
    double n = (double)staleness_total(s);
    s->count[tau < STALENESS_BINS ? tau : STALENESS_BINS - 1]++;
    if (tau > s->max) s->max = tau;
    s->mean += ((double)tau - s->mean) / (n + 1.0);
}

void staleness_spread(struct staleness *s, uint64_t spread) {
    if (spread > s->spread_max) s->spread_max = spread;
    s->spread_mean += ((double)spread - s->spread_mean) / (double)++s->spreads;
}

void staleness_merge(struct staleness *into, const struct staleness *from) {
    double a = (double)staleness_total(into), b = (double)staleness_total(from);
    if (b == 0.0) return;
    into->mean = (into->mean * a + from->mean * b) / (a + b);
    for (unsigned i = 0; i < STALENESS_BINS; i++) into->count[i] += from->count[i];
    if (from->max > into->max) into->max = from->max;
}
