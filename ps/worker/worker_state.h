// State that the hooks of a worker share: for worker.c, which has the hooks of weights and
// the life of the worker, and worker_step.c, which has the way from gradients to the end of the step. The main thread's.
#ifndef STARRING_PS_WORKER_WORKER_STATE_H
#define STARRING_PS_WORKER_WORKER_STATE_H

#include "ps/job/consistency.h"
#include "ps/sum/crew_meet.h"
#include "ps/worker/push_errors.h"
#include "ps/worker/worker_comm.h"

struct worker;

// A unit on its way from compute to the communication thread.
struct unit_task {
    struct worker *worker;
    int unit;
    struct push_info push;
    struct transfer_ids ids;
};

struct worker {
    struct topology t;  // first: hooks cast
    const struct config *c;
    struct consistency_rule rule;
    struct shard_map *map;
    struct arena arena;
    struct worker_buffers buffers;
    struct sharing sharing;
    struct crew_place crew;
    struct push_errors errors;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct comm *comm;
    struct unit_task *tasks;  // (units)
    int64_t step, updates;
    // Alone: the last batch taken, how long that was waited for (none: 0), and what a checkpoint says is done.
    struct {
        int64_t asked, asked_ns, batch, from_ns, to_ns;  // asked: the last step for which one was, and when
        uint64_t id;
        struct wire_header done;
    } take;
    struct step_deal deal;  // who belongs to the step in hand, where that changes; members 0: not known yet
    int micro, micro_count;
    bool watched;  // the timeline knows of all streams
    uint64_t load_round;
    bool *unit_loaded;  // (units) in this round
    int units_loaded;
    bool loaded;
    bool sum_started;          // alone: this step's first unit has zeroed the sum in buffers.words
    struct event *words_read;  // the host has its copy of buffers.words
    char checkpoint[WIRE_TEXT_MAX];
    uint64_t seal;  // of that
};

// The worker decides about its step alone.
static inline bool is_alone(const struct worker *w) { return w->rule.row->on_arrival; }

// Fields that the loop may read without a lock, after a wait.
struct published worker_refresh(struct worker *w);
// comm_wait, as the record of this worker's time has it: the host stands still for transfer id (0: for none).
int worker_await(struct worker *w, enum comm_event event, int u, uint64_t id, const char *what);
// The unit's gradient leaves once what compute has been given so far has run.
void worker_push_unit(struct worker *w, int u, enum phase phase);  // phase: of compute, behind the hand-over
// As the loop computes it: gradients may go out before the loop asks for the step.
float worker_lr(const struct worker *w);
void worker_ask_batch(struct worker *w, int64_t step);  // of the budget, unless it has been asked for
int worker_step(struct topology *t, const struct step_input *in, struct step_stats *out);  // the hook

#endif
