// Consistency: when a worker's push becomes an update of the weights, and which weights it may compute on.
// A consistency is one row of consistency.c. The cores ask the functions below, and test no row
// by name.
//
//     version   updates applied to a key
//     clock     steps: of a key the committed ones, of a worker those that it has pushed
//     delay     how far a worker's clock is ahead of the key's, or how much older than the newest the version is
//               that it computed on
//
// Everything here is a pure function of counts.
#ifndef STARRING_PS_JOB_CONSISTENCY_H
#define STARRING_PS_JOB_CONSISTENCY_H

#include "shared/config/config.h"
#include "shared/core/topology.h"

struct consistency_rule;

// The push policies: how a key's pushes become updates. Policy NAME is the file ps/server/push_NAME.c, with the table
// push_NAME (ps/server/push_policy.h).
#define PUSH_POLICIES(P)                                                                                     \
    P(PUSH_IN_ORDER, in_order) /* a step's pushes are summed in worker order; all workers belong to it */    \
    P(PUSH_SET, set)           /* the same, but the scheduler fixes the set of workers of each step */       \
    P(PUSH_UNITS, units)       /* in_order of each micro-batch: workers that keep two units at a time */     \
    P(PUSH_ON_ARRIVAL, on_arrival) /* each push is applied on arrival, as an update or as a part of a sum */ \
    P(PUSH_REPLAYED, replayed)     /* as on_arrival, in the recorded order */                                \
    P(PUSH_RINGLEADER, ringleader) /* a table with a row per worker; all keys take pushes in one order */
#define PUSH_POLICY_ENUM(value, name) value,
enum push_policy_name { PUSH_NONE, PUSH_POLICIES(PUSH_POLICY_ENUM) };

struct consistency_row {
    const char *name;              // ps:NAME, or ps:NAME:NUMBER if it takes an argument
    const char *argument;          // the number's name in texts ("S"); NULL: no argument
    const char *means;             // meaning of the number, for the help
    enum push_policy_name policy;  // a setting may replace it (ps/server/push_policy.h)
    // Each push is an update of its own, applied on arrival. Its worker decides by itself whether to clip or skip
    // it, and no worker waits for a global end of step. Otherwise the pushes of a step are summed in worker
    // order and the scheduler decides for all workers.
    bool on_arrival;
    // On arrival: all keys take the pushes in one order, which the scheduler fixes. A push is the next in order when it
    // has arrived at every shard. Else each key has an order of its own.
    bool ordered;
    bool exact;   // if more pushes arrive in time for a step than it needs, only as many count
    bool graces;  // once a step has enough, it waits parameter_server.grace_ms for others
    bool delays;  // a step may be computed on weights of earlier steps: parameter_server.read decides which
    const char *how;  // when servers update, in a printed sentence
    // As in struct topology_texts. NULL: all pushes are added in order before the next step.
    const char *differs;
    // Sets needs, delay and lead from argument and workers.
    void (*resolve)(struct consistency_rule *c);
    // Returns 0, or -1 after logging why the argument is impossible. origin: the key or flag that names it. NULL: every
    // argument is possible.
    int (*check)(const struct consistency_rule *c, const char *origin, const char *topology);
};

// The consistency of a job: a row and its numbers.
struct consistency_rule {
    const struct consistency_row *row;
    int argument;    // 0 if the row takes none
    int workers;     // N
    int needs;       // pushes that complete a step of a key
    int per_update;  // the mean of so many pushes is one update; row->resolve may set it
    int64_t delay;   // the largest delay that is allowed
    int lead;  // steps that may be open in addition to the oldest: each core has a ring of 1 + lead of them
    bool oldest;  // always read the oldest weights that are allowed
    bool keeps;   // `lead` earlier weights are kept of each key, for `oldest` or for a replay
    int lag;      // a worker may begin a step without the outcome of so many; at least lead
};

// Row number `index`; NULL after the last one.
const struct consistency_row *consistency_row(int index);
// Returns the number of the row that `text` names ("sync", "ssp:3"), *argument receives the number after the name; -1:
// no such row.
int consistency_parse(const char *text, int *argument);
struct consistency_rule consistency_of(const struct config *c);

// Whether a step with this many pushes is complete: a key may commit it, the scheduler may close it.
static inline bool consistency_completes(struct consistency_rule c, int pushes) { return pushes >= c.needs; }
// Whether a server accepts a push that is so many steps ahead of its key, or was computed on weights so many versions old.
static inline bool consistency_allows(struct consistency_rule c, int64_t delay) { return delay <= c.delay; }
// Whether a step may close without the gradients of workers that are alive. The scheduler fixes step by step which ones
// count (ps/agree/step_set.h). Late pushes are dropped.
static inline bool consistency_drops(struct consistency_rule c) {
    return !c.row->on_arrival && c.needs < c.workers;
}
// Whether a worker learns only from its next weights how old its gradient was, and whether any update has it.
static inline bool consistency_ages_late(struct consistency_rule c) {
    return c.row->ordered || consistency_drops(c);
}
// Whether timing decides which weights a step is computed on: they may be recorded (ps/record/arrivals.h).
static inline bool consistency_reads_vary(struct consistency_rule c) { return c.lead > 0 && !c.oldest; }
// Whether a key's weights do not change until every worker has pushed the key, which it does after its last
// use of them: then many workers may read one copy.
static inline bool consistency_freezes(struct consistency_rule c) {
    return !c.row->on_arrival && c.needs == c.workers && c.delay == 0;
}

// Whether the updates are those of sync, bit for bit.
static inline bool consistency_is_sync(struct consistency_rule c) {
    return consistency_freezes(c) && c.row->policy == PUSH_IN_ORDER;
}

// Whether clip factor and skip must be known before a gradient may be applied: the commit round.
#define PS_UNSKIPPED \
    "a key is updated when its gradients have arrived, so one that is not finite ends the run, where a ring skips the step"
static inline bool commit_round(const struct config *c) { return c->clip > 0.0f || c->dtype == DT_F16; }

// Whether a worker keeps two units' weights and gradients at a time (ps/worker/unit_slots.h).
static inline bool ps_by_units(const struct config *c) { return c->ps.resident == PS_RESIDENT_UNITS; }
// Whether a worker's weights may have to wait for other workers' pushes: servers must know which workers no longer
// push.
static inline bool arrivals_wait(const struct config *c) { return c->ps.max_lead > 0; }

// Whether workers may join and leave (ps/agree/step_set.h).
static inline bool ps_elastic(const struct config *c) { return c->recovery.elastic_max > 0; }

// Whether the set of workers is decided for each step: some may be lost, or late.
static inline bool ps_in_part(const struct config *c) {
    return ps_elastic(c) || consistency_drops(consistency_of(c));
}

// Counts one push's staleness (versions). mean is exact while the total is below 2^53.
void staleness_count(struct staleness *s, uint64_t tau);
// Counts one step's spread of versions.
void staleness_spread(struct staleness *s, uint64_t spread);
void staleness_merge(struct staleness *into, const struct staleness *from);

#endif
