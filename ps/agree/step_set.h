// The members of a step, where workers may join and leave (--elastic MIN:MAX), or a step closes without stragglers
// (ps:backup:B, ps:quorum:Q): the scheduler's part. A pure state machine: no sockets, no clock but `now` (seconds).
//
//     live       was taken into the job and is not lost
//     member     of step t: live when step t-1 was closed, or taken in then. Samples are given to the members
//     complete   a member that has reported step t and whose gradients have all arrived at every shard
//     set        of step t: its complete members when each member is complete or lost, or when at least
//                `needs` of them are complete and the grace is over
//
//     step t   open --each member complete or lost--> fixed: the set, ONE for all keys
//                   --sums over the set, decision---> closed: t+1 is open; its members are the live and the joining
//
// Backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous SGD", section 3; K-sync of Dutta et al. 2018,
// "Slow and Stale Gradients Can Win the Race", section 2, with K = N - B): the set is exactly N - B workers. If more
// are complete at the same time, the first ones from worker t mod N on count: no worker is favoured. A quorum
// (Decoupled DiLoCo, arXiv 2604.21428): Q workers, and those that are complete within the grace.
//
// A straggler remains a member: it gets each step's STEP_DONE like the others, and it passes through the
// steps that are over without computing them (ps/worker/worker.c). Its samples are lost, as those of a lost
// worker.
//
// In a replayed run the set of a step is the recorded one; it is fixed when its workers are complete.
//
// A worker that was lost after the set was fixed, or was complete when it was lost, counts. No gradient of any other
// lost worker counts, for any key. Worker 0 is never lost here: its death ends the job.
//
// Data      Samples are numbered over the run, from 0. The members of a step take consecutive slices of `own` samples,
//           in worker order, from `handed_out` on, which then grows by own per member. Sample s is index s % (MAX own)
//           of step s / (MAX own)'s draw (shared/data/data.h): with all workers there that is the order without
//           --elastic. Samples of a worker that is lost in that step are not handed out again. `samples` counts
//           those whose gradients were applied, `unapplied` those of stragglers in the same steps. The
//           learning rate follows both: with B of N workers late in each step it ends where the schedule does.
// Scale     Each gradient is that of the sum over its slice divided by MAX own. With n of N = MAX workers the sum is
//           multiplied by N/n: the mean over the contributing workers.
#ifndef STARRING_PS_AGREE_STEP_SET_H
#define STARRING_PS_AGREE_STEP_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/net/wire.h"
#include "shared/config/config.h"
#include "shared/core/train_state.h"

#define ELASTIC_WORKERS_MAX CONFIG_ELASTIC_MAX  // a set is one uint64_t

static inline uint64_t elastic_bit(int worker) { return UINT64_C(1) << worker; }
static inline uint64_t elastic_all(int workers) {
    return workers >= ELASTIC_WORKERS_MAX ? UINT64_MAX : elastic_bit(workers) - 1;
}
static inline int elastic_count(uint64_t set) { return __builtin_popcountll(set); }
// The number of workers in the set that precede this worker.
static inline int elastic_index(uint64_t set, int worker) {
    return elastic_count(set & (elastic_bit(worker) - 1));
}
// The planned size of a step's mean, and the share that its set has.
struct set_share {
    int workers, contributors;    // N; n of them
    int64_t mean_tokens, tokens;  // 0: unknown; then each worker has the same number
};
// Whether each worker has the same number of tokens: then the mean over the set is N/n of its sum, whatever is rounded.
static inline bool set_is_even(const struct set_share *s) {
    return (double)s->mean_tokens * s->contributors == (double)s->tokens * s->workers;
}
// The factor of the sum of the set's gradients; 1: none.
static inline float set_scale(const struct set_share *s) {
    return (float)(set_is_even(s) ? (double)s->workers / (double)s->contributors
                                  : (double)s->mean_tokens / (double)s->tokens);
}

struct step_set_options {
    int workers, min;  // MAX and MIN; at most ELASTIC_WORKERS_MAX
    int needs;         // the set is fixed when so many members are complete; 0: all
    bool exact;        // the set has exactly `needs` workers, even if more are complete
    double grace_s;    // how long to wait for others when there are enough
    // A replay: returns a value >= 0 if the worker's gradient of this step counted, else -1. NULL: no replay.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *ctx;
    int shards;   // only shards that have keys
    int64_t own;  // samples of one worker in a step
    struct scaler_config scaler;
    struct train_state start;  // before the first step; the scaler as scaler_init sets it
};

struct step_set;
// All workers are members of the first step.
struct step_set *step_set_create(const struct step_set_options *o);
void step_set_destroy(struct step_set **s);

// The job resumes from a checkpoint with this state. Called before the first step is closed. state->step must be the number of
// the set's open step.
void step_set_begin(struct step_set *s, const struct train_state *state);

// ---- workers
// Whether the job can continue without this worker. Changes nothing.
bool step_set_can_lose(const struct step_set *s, int worker);
void step_set_lost(struct step_set *s, int worker);
// The worker joins (again) with the next step. It must not be a member of the open one.
void step_set_join(struct step_set *s, int worker);
// Returns the workers that have asked to join and do not belong to a step yet.
uint64_t step_set_joining(const struct step_set *s);

// ---- the open step
void step_set_reported(struct step_set *s, int worker);
void step_set_arrived(struct step_set *s, int shard, uint64_t workers);
// Fixes the set if it is time. Returns true once per step: the set has just been fixed.
bool step_set_fix(struct step_set *s, double now);
// Whether the step has enough gradients, and waits for others until its grace is over.
bool step_set_in_grace(const struct step_set *s);
// The fixed set; 0: not fixed yet.
uint64_t step_set_fixed(const struct step_set *s);
uint64_t step_set_members(const struct step_set *s);
// Opens the next step. admits: joining workers belong to it; else they wait. If a step is skipped at the minimum
// loss scale, the scale does not change: the workers end the run there.
void step_set_close(struct step_set *s, bool skipped, bool admits);

// ---- state
uint64_t step_set_live(const struct step_set *s);
// The state before the open step, from the closed ones: its number, and where its samples begin.
const struct train_state *step_set_state(const struct step_set *s);

// ---------------------------------------------------------------- openings
// A worker's share of the step that opens, which STEP_DONE of the step before it, or JOINED, carries. Pure.
struct step_opening {
    uint64_t members;
    int contributors;  // workers that contributed to the step before; 0: none
    int64_t tokens;    // tokens of these
    struct train_state state;
};

// The first sample of worker `worker`'s slice, `own` samples a slice. The worker is a member.
static inline int64_t opening_first(const struct step_opening *d, int worker, int64_t own) {
    return d->state.handed_out + own * elastic_index(d->members, worker);
}

// Writes the fields mask and values of the header.
void opening_write(const struct step_opening *d, struct wire_header *h);
// The step is the header's. Returns 0, or -1 if the header has no opening.
int opening_read(const struct wire_header *h, struct step_opening *d);

#endif
