// The settings of a star that exclude each other, and why: one table of pairs.

#include <stdio.h>

#include "ps/job/consistency.h"
#include "ps/job/push_code.h"
#include "ps/net/medium.h"
#include "ps/star.h"
#include "shared/core/error.h"

// The settings that a configuration may ask for, one row each: its name here, the condition under which the
// configuration asks for it, and its printed name. The first rows follow from the topology: pushes are applied on
// arrival (async) or in steps (all others); workers run ahead (ssp) or at their own pace (both); steps close without
// stragglers (backup, quorum); weights change while workers read them.
#define SETTINGS(S)                                                                           \
    S(ON_ARRIVAL, alone, topology)                                                            \
    S(ORDERED, rule.row->ordered, topology)                                                   \
    S(IN_STEPS, !alone, topology)                                                             \
    S(AHEAD, rule.lead > 0, topology)                                                         \
    S(OWN_PACE, rule.delay > 0, topology)                                                     \
    S(DROPS, drops, topology)                                                                 \
    S(CHANGES, !consistency_freezes(rule), topology)                                          \
    S(ONE_VERSION, !rule.row->delays, topology)                                               \
    S(ENOUGH_IS_ALL, !rule.row->graces || rule.needs == c->workers, topology)                 \
    S(ONE_RESULT, !alone && !drops && !consistency_reads_vary(rule), topology)                \
    S(LOCAL_STEPS, local, "local_steps.steps")                                                \
    S(LOCAL_ASYNC, (local && alone), "local_steps.steps")                                     \
    S(UNITS, ps_by_units(c), "--resident units")                                              \
    S(BESIDE, ps_beside(c), "--servers-on workers")                                           \
    S(CODES, ps_codes(c), "parameter_server.compression")                                     \
    S(CODES_DECIDED, ps_codes(c) && commit_round(c), "parameter_server.compression")          \
    S(GROUPS, c->reduce_group != GROUP_NONE, "reduce_group")                                  \
    S(ELASTIC, ps_elastic(c), "--elastic")                                                    \
    S(OLDEST, p->read_oldest, "parameter_server.read oldest")                                 \
    S(ORDER, p->record_arrivals || p->replay_arrivals,                                        \
      p->record_arrivals ? "--record-arrivals" : "--replay-arrivals")                         \
    S(LOG, p->log_updates, "--log-updates")                                                   \
    S(NO_OVERLAP, c->no_overlap, "zero_optimization.overlap_comm false")                      \
    S(SUMS_16, sums_16, "data_types.grad_accum_dtype")                                        \
    S(RESTART, v->restart > 0, "--restart")                                                   \
    S(RESUME, v->resume != NULL, "--resume")                                                  \
    S(RESUME_STATE, v->resume && !v->resume_weights_only, "--resume")                         \
    S(CHECKPOINTS, v->checkpoint_every > 0, "--checkpoint-every")                             \
    S(EVALUATIONS, c->eval_every > 0, "eval_every")                                           \
    S(MAX_LEAD, p->max_lead > 0, "parameter_server.max_lead")                                 \
    S(SUMS, p->pushes_per_update > 1, "parameter_server.pushes_per_update")                   \
    S(FRESH, p->max_staleness >= 0, "parameter_server.max_staleness")                         \
    S(DAMPING, p->age_damping, "parameter_server.age_damping")                                \
    S(COMPENSATION, p->delay_compensation > 0, "parameter_server.delay_compensation")         \
    S(NO_COMPENSATION, !(p->delay_compensation > 0), "parameter_server.delay_compensation 0") \
    S(DECAY, p->delay_decay > 0, "parameter_server.delay_compensation_decay")                 \
    S(GRACE, p->grace_ms > 0, "parameter_server.grace_ms")                                    \
    S(CYCLE, c->optimizer.cycle.type != SCHEDULE_NONE, "scheduler.params.cycle_momentum")     \
    S(FP16, c->dtype == DT_F16, "--dtype fp16")
#define AS_NAME(name, is, words)  name,
#define AS_ASKED(name, is, words) {is, words},

enum setting { SETTINGS(AS_NAME) };

struct asked {
    bool is;
    const char *words;
};

static const char either[] = "leave out one of the two", out[] = "leave it out", sync_[] = "use ps:sync",
                  async_[] = "leave it out, or use ps:async", rounds[] = "workers have no common rounds",
                  places[] = "workers are at different steps of their rounds",
                  in_table[] = "an update is a mean over a table of all workers' gradients",
                  one_by_one[] = "pushes are not applied one by one on arrival",
                  by_itself[] = "each gradient is handled by itself, and codes are added to a sum directly",
                  again[] = "weights that are read again for the backward pass may have changed",
                  squares[] = "no checkpoint has the mean squares of gradients",
                  whole[] = "the order of arrivals would not cover the whole run",
                  builds[] = "a push may be dropped, and its worker's next code relies on it";

static const struct pair {
    enum setting one, other;
    const char *why, *advice;
} pairs[] = {
    {LOCAL_STEPS, AHEAD, rounds, "use ps:sync or ps:async"},
    {LOCAL_STEPS, DROPS, rounds, "use ps:sync or ps:async"},
    {LOCAL_STEPS, ORDERED, rounds, "use ps:sync or ps:async"},
    {LOCAL_ASYNC, CHECKPOINTS, places, either},
    {LOCAL_ASYNC, RESUME, places, either},
    {LOCAL_ASYNC, EVALUATIONS, "a version of ps:async is a round, not a step",
     "leave eval_every out: the last weights are evaluated"},
    {LOCAL_STEPS, RESTART, "messages about a death would name rounds, not steps",
     "leave --restart out, and use --resume"},
    {LOCAL_STEPS, ELASTIC, "workers that join and leave have no weights of their own", either},
    {LOCAL_STEPS, ORDER, "an order of arrivals lists steps, not rounds", either},
    {LOCAL_STEPS, CODES, "a code's error belongs to one gradient, not to a round", either},
    {LOCAL_STEPS, UNITS, "a worker does not keep the weights of all units", either},
    {BESIDE, ELASTIC, "workers join and leave, and servers stay", either},
    {UNITS, CHANGES, again, sync_},
    {UNITS, ELASTIC, again, either},
    {UNITS, CODES, "the errors of codes are kept for all units", either},
    {UNITS, GROUPS, "groups add the gradients of a whole step", either},
    {UNITS, LOG, "a line describes the push of a step, not of a micro-batch", either},
    {UNITS, NO_OVERLAP, "nothing moves while a worker computes, and units have to move then", either},
    {UNITS, SUMS_16, "micro-batches are added in 16 bits, and servers add in fp32", either},
    {GROUPS, ON_ARRIVAL, "each push is an update of its own, nothing is summed", out},
    {GROUPS, DROPS, "each step decides which workers' gradients are in its sum", out},
    {GROUPS, ELASTIC, "the workers of a sum change", either},
    {CODES, ELASTIC, builds, either},
    {CODES, DROPS, builds, out},
    {CODES, FRESH, builds, either},
    {CODES, GROUPS, "gradients are added and rounded within a group, and a code is of one worker's gradient",
     either},
    {CODES, SUMS, by_itself, either},
    {CODES, COMPENSATION, by_itself, either},
    {CODES_DECIDED, AHEAD,
     "workers learn too late whether a step is skipped, and a skipped step must not change the errors of codes",
     "set gradient_clipping to 0 and use no fp16, or use ps:sync"},
    {NO_OVERLAP, AHEAD, "gradients move while a worker computes", "leave it out, or use ps:sync"},
    {ELASTIC, OWN_PACE, "workers are at different steps, and each is waited for",
     "use ps:sync, ps:backup:B or ps:quorum:Q, or restart after deaths with --restart N"},
    {ELASTIC, ORDER, "workers cannot join and leave", either},
    {OLDEST, ONE_VERSION, "there is no choice of versions to compute on", "use ps:ssp:S, or leave it out"},
    {OLDEST, ORDER, "there is nothing to record: every run gives the same result", either},
    {GRACE, ENOUGH_IS_ALL, "no step waits once it has enough gradients",
     "leave it out, or use ps:quorum:Q with Q below the number of workers"},
    {MAX_LEAD, ORDERED, "the table bounds a gradient's age, to 2N - 2 updates", async_},
    {SUMS, ORDERED, in_table, async_},
    {FRESH, ORDERED, "the table bounds a gradient's age, to 2N - 2 updates", async_},
    {DAMPING, ORDERED, in_table, async_},
    {COMPENSATION, ORDERED, in_table, async_},
    {ORDERED, FP16, "a mean over the table may be beyond the range of fp16", "use --dtype bf16"},
    {MAX_LEAD, IN_STEPS, one_by_one, async_},
    {SUMS, IN_STEPS, one_by_one, async_},
    {FRESH, IN_STEPS, one_by_one, async_},
    {DAMPING, IN_STEPS, one_by_one, async_},
    {DECAY, IN_STEPS, one_by_one, async_},
    {COMPENSATION, IN_STEPS, one_by_one, async_},
    {DECAY, NO_COMPENSATION, "there is no lambda that the decay could scale", "give one"},
    {DECAY, CHECKPOINTS, squares, either},
    {DECAY, RESUME_STATE, squares, either},
    {COMPENSATION, FP16,
     "a compensated gradient may be beyond the range of fp16, and no worker would see that",
     "use --dtype bf16"},
    {CYCLE, ON_ARRIVAL, "beta1 would change with each push", "set it to false, or use ps:sync"},
    {ORDER, RESUME, whole, either},
    {ORDER, RESTART, whole, either},
    {ORDER, ONE_RESULT, "the results do not depend on the order of arrival", "use ps:async"},
};

int star_pairs_check(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    const struct ps_config *p = &c->ps;
    const struct recovery_config *v = &c->recovery;
    bool alone = rule.row->on_arrival, drops = consistency_drops(rule), local = c->local_steps.steps > 0;
    bool sums_16 = c->accumulation > 1 && c->dtype != DT_F32 && !config_sums_in_fp32(c);
    char topology[96];
    snprintf(topology, sizeof topology, "--topology %s", c->topology);
    const struct asked of[] = {SETTINGS(AS_ASKED)};
    for (const struct pair *x = pairs; x < pairs + sizeof pairs / sizeof *pairs; x++)
        if (of[x->one].is && of[x->other].is)
            return fail("%s: with %s %s: %s", of[x->one].words, of[x->other].words, x->why, x->advice);
    return 0;
}
