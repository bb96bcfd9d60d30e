// The members of a step, where workers may come and go (--elastic MIN:MAX), or a step goes on without those that are late
// (ps:backup:B, ps:quorum:Q): the scheduler's part. A pure state machine: no sockets, no clock but `now` (seconds).
//
//     live       has come, was taken into the job and not lost
//     member     of step t: live when step t-1 was closed, or taken in then. Samples are dealt to the members
//     complete   a member that has reported step t and all of whose gradients every shard has
//     set        of step t: its members that were complete when none was left that is neither complete nor lost, or when
//                `needs` of them were, and the grace was over
//
//     step t   open --each member complete or lost--> fixed: the set, ONE for all keys
//                   --sums over the set, decision---> closed: t+1 is open; its members are who is live, and who asked
//
// Backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous SGD", section 3; K-sync of Dutta et al. 2018, "Slow and
// Stale Gradients Can Win the Race", section 2, with K = N - B): the set is of exactly N - B workers. Of more that have come at
// the same moment those count that follow worker t mod N, so that no worker is favoured. A quorum (Decoupled DiLoCo, arXiv
// 2604.21428): Q workers, and whoever comes within the grace.
//
// A worker that is late stays a member: the scheduler tells it of each step's end like the others, and it goes through the
// steps that are over without computing them (ps/worker/worker.c). Samples dealt to it are gone, as those of a lost one.
//
// A run that is repeated has the set that was recorded, whoever comes first: its members wait for no other.
//
// A worker that is lost after the set was fixed, or complete when it was lost, counts. Of any other no gradient
// counts, for no key. Worker 0 is never lost here: its death is the job's.
//
// Data      Samples are numbered over the run, from 0. The members of a step take consecutive slices of `own` samples,
//           in worker order, from `dealt` on; then dealt grows by own for each member. Sample s is index s % (MAX own)
//           of step s / (MAX own)'s draw (shared/data/data.h): with all workers there that is the order without
//           --elastic. Samples dealt to a worker that is lost in that step are not dealt again. `samples` counts
//           those whose gradients have been applied, `unapplied` those of workers that were late for the same steps; the
//           learning rate follows both: of N workers with B late in each step it ends where the schedule does.
// Scale     Each gradient is that of the sum over its slice divided by MAX own. Over n of N = MAX workers the sum is
//           multiplied by N/n: the mean over those who contributed.
#ifndef STARRING_PS_AGREE_STEP_SET_H
#define STARRING_PS_AGREE_STEP_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/net/wire.h"
#include "shared/config/config.h"
#include "shared/core/train_state.h"

#define ELASTIC_WORKERS_MAX CONFIG_ELASTIC_MAX  // a set is a word

static inline uint64_t elastic_bit(int worker) { return UINT64_C(1) << worker; }
static inline uint64_t elastic_all(int workers) {
    return workers >= ELASTIC_WORKERS_MAX ? UINT64_MAX : elastic_bit(workers) - 1;
}
static inline int elastic_count(uint64_t set) { return __builtin_popcountll(set); }
// How many of the set come before this worker.
static inline int elastic_place(uint64_t set, int worker) {
    return elastic_count(set & (elastic_bit(worker) - 1));
}
// What a step's mean was to be over, and what its set has of it.
struct set_share {
    int workers, contributors;    // N; n of them
    int64_t mean_tokens, tokens;  // 0: nobody says; then each worker has as many
};
// Whether each worker has as many tokens: then the mean over the set is N/n of its sum, whatever is rounded.
static inline bool set_is_even(const struct set_share *s) {
    return (double)s->mean_tokens * s->contributors == (double)s->tokens * s->workers;
}
// By what the sum of the set's gradients is multiplied; 1: not at all.
static inline float set_scale(const struct set_share *s) {
    return (float)(set_is_even(s) ? (double)s->workers / (double)s->contributors
                                  : (double)s->mean_tokens / (double)s->tokens);
}

struct step_set_options {
    int workers, min;  // MAX and MIN; at most ELASTIC_WORKERS_MAX
    int needs;         // members whose part is enough: the set is fixed with so many; 0: all
    bool exact;        // no more than these
    double grace_s;    // for which others are waited for when there are enough
    // A replay: whether a worker's step counted: at least 0. NULL: none.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *ctx;
    int shards;   // that have keys
    int64_t own;  // samples of one worker in a step
    struct scaler_config scaler;
    struct train_state start;  // before the first step; the scaler as scaler_init says
};

struct step_set;
// All workers are members of the first step.
struct step_set *step_set_create(const struct step_set_options *o);
void step_set_destroy(struct step_set **s);

// The job goes on from a checkpoint with this state: before the first step is closed. Its step is the set's.
void step_set_begin(struct step_set *s, const struct train_state *state);

// ---- what happens to workers
// Whether the job can go on without this worker; nothing is changed.
bool step_set_bears(const struct step_set *s, int worker);
void step_set_lost(struct step_set *s, int worker);
// It has come (back) and wants to belong to the next step. It must not be a member of the open one.
void step_set_join(struct step_set *s, int worker);
uint64_t step_set_joining(const struct step_set *s);  // who asked, and is not taken in yet

// ---- the open step
void step_set_reported(struct step_set *s, int worker);
void step_set_arrived(struct step_set *s, int shard, uint64_t workers);
// Fixes the set if it is time. True once a step: the set has just been fixed.
bool step_set_fix(struct step_set *s, double now);
// Whether the step has enough, and waits for others until its grace is over.
bool step_set_graces(const struct step_set *s);
// The fixed set, or 0 before.
uint64_t step_set_fixed(const struct step_set *s);
uint64_t step_set_members(const struct step_set *s);
// The next one opens. admits: who asked belongs to it; else it waits on. A loss scale that is skipped at its
// minimum stays: the workers end the run there.
void step_set_close(struct step_set *s, bool skipped, bool admits);

// ---- state
uint64_t step_set_live(const struct step_set *s);
// Before the open step, as far as those that are closed tell: its number, and where its samples begin.
const struct train_state *step_set_state(const struct step_set *s);

// ---------------------------------------------------------------- openings
// A worker's part in the step that opens, which it is told with STEP_DONE of the step before it, or JOINED. Pure.
struct step_opening {
    uint64_t members;
    int contributors;  // of the step before; 0: none
    int64_t tokens;    // of these
    struct train_state state;
};

// Where worker `worker`'s slice begins, `own` samples a slice. The worker is a member.
static inline int64_t opening_first(const struct step_opening *d, int worker, int64_t own) {
    return d->state.dealt + own * elastic_place(d->members, worker);
}

// Fields mask and values of the header.
void opening_write(const struct step_opening *d, struct wire_header *h);
// The step is the header's. 0, or -1 where the header holds no opening.
int opening_read(const struct wire_header *h, struct step_opening *d);

#endif
