// The step of a worker as a graph of tasks: what it computes and moves, in which order, and what each task waits for.
// Pure, without ranks and streams. Predictions of bytes are sums over it, and `train --dry-run --json` prints it for
// programs that predict time.
//
// Order       Tasks of one stream run one after the other, in the list's order; a task also waits for those that it
//             needs. So tasks on different streams overlap.
// Walk        step_tasks_walk goes through a step as the training loop does (shared/train/train.c): it calls the hooks
//             below where the loop calls those of struct topology.
// Micro-batches   A step may have 10^9 of them, and all between the first and the last are equal. So the list has the
//             tasks of at most three micro-batches, unless `expanded`; those of the second count `times` times.
//
//     compute  | forward u0 | forward u1 | .. | backward u1 | backward u0 |     | norm |        | decide | update u0 ..
//     reduce                                                | u1    | u0  |            | all ranks' norm |
#ifndef STARRING_SHARED_MODEL_STEP_TASKS_H
#define STARRING_SHARED_MODEL_STEP_TASKS_H

#include <stdio.h>

#include "shared/core/topology.h"
#include "shared/model/unit_schedule.h"

enum task_kind {
    TASK_FORWARD,
    TASK_BACKWARD,
    TASK_DELTA,   // local steps: the change of the weights in a round, which the topology takes as a gradient
    TASK_NORM,    // the norm of this rank's share of the gradient
    TASK_DECIDE,  // decides the clip factor, and whether the step is skipped
    TASK_UPDATE,
    TASK_MIX,  // gossip: the weighted mean of this rank's weights and its neighbours'
    TASK_ALL_GATHER,
    TASK_REDUCE_SCATTER,
    TASK_ALL_REDUCE,
    TASK_PUSH,
    TASK_PULL,
    TASK_EXCHANGE,  // with a neighbour
    TASK_DOWN,      // device to host
    TASK_UP,        // host to device
    TASK_READ,      // disk to host
    TASK_WRITE,     // host to disk
    TASK_KINDS
};

enum task_stream {
    ON_COMPUTE,
    ON_GATHER,
    ON_REDUCE,
    ON_PUSH,
    ON_PULL,
    ON_DECIDE,  // a decision that compute does not wait for
    ON_DOWN,  // this and the next four: offloaded state. Copies to the host, the host's updates, copies to the device, disk
    ON_HOST,
    ON_UP,
    ON_READ,
    ON_WRITE,
    TASK_STREAMS
};

// The ranks that take part in a transfer: all, those of this rank's group, or one of each group.
enum task_team { TEAM_NONE, TEAM_ALL, TEAM_WITHIN, TEAM_ACROSS };
enum task_pattern {
    PATTERN_NONE,
    PATTERN_ALL_TO_ALL,  // each member of the team sends a piece to each other member
    PATTERN_RING,  // a library's collective. The library chooses the algorithm; the bytes are those of a ring
    PATTERN_NEIGHBOURS,
    PATTERN_SERVERS,
    PATTERN_SCHEDULER,
    PATTERN_HOST
};

// Bytes that a rank sends and receives in a task; messages that it sends. across: the share to and from other groups.
struct task_moves {
    uint64_t sent, received, across_sent, across_received, messages, messages_across;
};

// A task of the previous step that a task waits for: the last one of this kind and unit (-1: of any unit).
struct task_previous {
    enum task_kind kind : 8;
    bool any;  // false: it waits for none
    int unit;
};

#define TASK_NEEDS 4

// A model may have thousands of units, and a list as many tasks: members are ordered by size, without padding.
struct step_task {
    enum task_kind kind : 8;
    enum task_stream stream : 8;
    enum task_team team : 8;
    enum task_pattern pattern : 8;
    bool round;    // local steps: the task runs only at the end of a round
    bool control;  // its bytes are control traffic, not payload: `moves` is 0
    uint8_t need_count;
    int unit, units;  // unit .. unit + units - 1; units 0: of no unit
    int micro;        // its micro-batch; -1: after all of them
    // neighbour: which of the ranks that this rank sends to in a step of gossip, from 0.
    int team_size, neighbour;
    struct task_previous previous;
    int needs[TASK_NEEDS];
    int64_t times;     // how many micro-batches it counts for
    int64_t elements;  // update, norm, mix, delta: elements that this rank computes
    uint64_t bytes;    // of the whole buffer, of which this rank moves a share
    struct task_moves moves;
};

// Returns the number, as a task's unit, of the frozen tensors of the model's unit u: after the trained units, as in the
// layout.
static inline int step_tasks_frozen(const struct layout *l, int u) { return l->count + u; }

struct step_tasks {
    // Set before the walk.
    int64_t micro_batches;  // A; 0: one
    int64_t every;          // H, local steps; 0: none
    bool expanded;          // list the tasks of every micro-batch, however many there are
    // The result.
    struct step_task *list;
    int count, room;
    // During the walk.
    int micro;
    int64_t times;
    bool round;
    int last[TASK_STREAMS];  // index of the last task; -1: none
    int waits[TASK_NEEDS];   // tasks that the next task on ON_COMPUTE needs
    uint8_t wait_count;
    struct task_previous wait_previous;
};

// The hooks add a topology's tasks to the walk.
struct step_hooks {
    // If not NULL, the rank has only slots for weights. `fetch` then adds the transfer of u's weights into its slot, which
    // may begin after the task `idle`, the slot's last use (-1: none in this step). again: this repeats an earlier
    // gather (unit_schedule_is_repeat). If NULL, the rank keeps all weights, and `acquire` calls step_tasks_wait for
    // what the first pass over u waits for.
    const struct unit_prefetch *slots;
    bool ahead;  // transfers start before the unit is in use
    void (*fetch)(void *ctx, struct step_tasks *t, int u, int idle, bool again);
    void (*acquire)(void *ctx, struct step_tasks *t, int u, enum pass pass);
    // As fetch, for the frozen tensors of the model's unit u, which have slots of their own. NULL: each rank keeps them.
    void (*fetch_frozen)(void *ctx, struct step_tasks *t, int u, int idle, bool again);
    // Called when u's gradient is complete. Returns the task after which its buffer is free; -1: it is free at once. The
    // result is used only if units share buffers (grad_slot).
    int (*grad_ready)(void *ctx, struct step_tasks *t, int u, bool last);
    bool shared_grads;
    void (*end)(void *ctx, struct step_tasks *t);
};

void step_tasks_walk(struct step_tasks *t, const struct layout *l, const struct step_hooks *h, void *ctx);
void step_tasks_free(struct step_tasks *t);

// For hooks. Adds a task, and returns a pointer that is valid until the next call. A task on ON_COMPUTE needs all tasks
// for which step_tasks_wait was called since the last task on ON_COMPUTE.
struct step_task *step_tasks_add(struct step_tasks *t, enum task_kind kind, enum task_stream stream);
void step_tasks_wait(struct step_tasks *t, int task);
void step_tasks_need(const struct step_tasks *t, struct step_task *of,
                     int task);  // `of` needs `task`; -1: does nothing
static inline void step_task_unit(struct step_task *s, int unit) { s->unit = unit, s->units = 1; }
static inline void step_task_after_previous(struct step_task *s, enum task_kind kind, int unit) {
    s->previous = (struct task_previous){.any = true, .kind = kind, .unit = unit};
}
static inline void step_tasks_wait_previous(struct step_tasks *t, enum task_kind kind, int unit) {
    if (t->micro <= 0 || t->round)
        t->wait_previous = (struct task_previous){.any = true, .kind = kind, .unit = unit};
}
// Adds the norm, the decision and the updates of a rank that updates all units itself.
void step_tasks_update_whole(struct step_tasks *t, const struct layout *l);

// Returns the sums over all tasks. Only counts of payload are set.
struct wire_prediction step_tasks_wire(const struct step_tasks *t);
// Adds to out (units) how many times tasks of this kind move each unit.
void step_tasks_count(const struct step_tasks *t, enum task_kind kind, int64_t *out);
#define STEP_TASKS_LISTED (1 << 18)  // the most tasks, or keys, of a document
// Prints a JSON array, one task per line.
void step_tasks_print(const struct step_tasks *t, FILE *f);

#endif
