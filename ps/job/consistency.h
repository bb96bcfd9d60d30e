// Consistency: when a worker's push becomes an update of the weights, and which weights it may compute on.
// A consistency is one row of consistency.c. The cores ask the questions below and know no row
// by name.
//
//     version   updates applied to a key
//     clock     steps: of a key those that are over, of a worker those that it has pushed
//     delay     by how much a worker's clock is ahead of the key's, or the version that it computed on
//               behind the newest
//
// Everything here is a pure function of counts.
#ifndef STARRING_PS_JOB_CONSISTENCY_H
#define STARRING_PS_JOB_CONSISTENCY_H

#include "shared/config/config.h"
#include "shared/core/topology.h"

struct consistency_rule;

struct consistency_row {
    const char *name;      // ps:NAME, or ps:NAME:NUMBER where there is an argument
    const char *argument;  // what texts call the number ("S"); NULL: the name takes none
    // Each push is an update of its own, applied on arrival; its worker alone decides whether to clip or skip
    // it, and nobody waits for a global end of step. Otherwise the pushes of a step are summed in worker
    // order and the scheduler decides for all workers.
    bool on_arrival;
    bool exact;       // of those that come too soon for a step only so many count as it needs
    bool graces;      // parameter_server.grace_ms is waited for others when it has enough
    bool delays;      // a step may be computed on weights of earlier ones: parameter_server.read says which
    const char *how;  // when servers update, in a sentence for people
    const char
        *differs;  // struct topology_words, where pushes are not all added in order before the next step
    // Sets needs, delay and lead from argument and workers.
    void (*resolve)(struct consistency_rule *c);
    // 0, or -1 after saying why the argument is impossible. origin: the key or flag that names it. NULL: every
    // argument is possible.
    int (*check)(const struct consistency_rule *c, const char *origin, const char *topology);
};

// The consistency of a job: a row and its numbers.
struct consistency_rule {
    const struct consistency_row *row;
    int argument;   // 0 where the row takes none
    int workers;    // N
    int needs;      // pushes that complete a step of a key
    int64_t delay;  // the largest one allowed
    int lead;  // steps that may be open beyond the oldest one that is: each core has a ring of 1 + lead of them
    bool oldest;  // weights are read as old as allowed, always
    bool keeps;   // `lead` earlier weights are kept of each key, for they are read as these, or as recorded
    int lag;      // steps whose outcome a worker need not have heard when it begins one; no less than lead
};

// Row number `index`; NULL behind the last one.
const struct consistency_row *consistency_row(int index);
// The number of the row that `text` names ("sync", "ssp:3") and the number behind the name; -1: no such row.
int consistency_parse(const char *text, int *argument);
struct consistency_rule consistency_of(const struct config *c);

// Whether a step with this many pushes is complete: a key may commit it, the scheduler may close it.
static inline bool consistency_completes(const struct consistency_rule *c, int pushes) {
    return pushes >= c->needs;
}
// Whether a worker may read, push or go on to its next step with this delay.
static inline bool consistency_allows(const struct consistency_rule *c, int64_t delay) {
    return delay <= c->delay;
}
// Whether a step may go on without the gradients of workers that are alive: which ones count, the scheduler fixes step by
// step (ps/agree/step_set.h). Their pushes come too late, and are dropped.
static inline bool consistency_drops(const struct consistency_rule *c) {
    return !c->row->on_arrival && c->needs < c->workers;
}
// Whether chance says which weights a step is computed on: they may be recorded (ps/record/arrivals.h).
static inline bool consistency_reads_vary(const struct consistency_rule *c) {
    return c->lead > 0 && !c->oldest;
}
// Whether a key's weights stay as they are until every worker has pushed the key, which it does behind its last
// use of them: then many may read one copy.
static inline bool consistency_freezes(const struct consistency_rule *c) {
    return !c->row->on_arrival && c->needs == c->workers && c->delay == 0;
}

// Whether clip factor and skip must be known before a gradient may be applied: the commit round.
#define PS_UNSKIPPED \
    "a key is updated when its gradients have come, so one that is not finite ends the run, where a ring skips the step"
static inline bool commit_round(const struct config *c) { return c->clip > 0.0f || c->dtype == DT_F16; }

// Whether a worker keeps two units' weights and gradients at a time (ps/worker/resident_units.h).
static inline bool ps_by_units(const struct config *c) { return c->ps.resident == PS_RESIDENT_UNITS; }
// Whether a worker's weights may have to wait for other workers' pushes there: those that push no more are told of.
static inline bool arrivals_wait(const struct config *c) { return c->ps.max_lead > 0; }

// Whether workers may come and go (ps/agree/step_set.h).
static inline bool ps_elastic(const struct config *c) { return c->recovery.elastic_max > 0; }

static inline bool ps_drops(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    return consistency_drops(&rule);
}
static inline bool ps_reads_vary(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    return consistency_reads_vary(&rule);
}
// Whether it is decided step by step which workers' gradients count: some may be lost, or late.
static inline bool ps_in_part(const struct config *c) { return ps_elastic(c) || ps_drops(c); }

// Counts one push's staleness (versions). mean is exact while the total stays below 2^53.
void staleness_count(struct staleness *s, uint64_t tau);
// Counts one step's spread of versions.
void staleness_spread(struct staleness *s, uint64_t spread);
void staleness_merge(struct staleness *into, const struct staleness *from);

#endif
