// The workers whose pushes make an update together, where it takes K of different workers that wait for it: the first K that have a
// gradient ready (parameter_server.distinct_workers; ps/server/push_together.c). Pure.
//
// A worker asks for its next batch when it pushes its gradient of the last one (TAKE, ps/agree/budget.h): that is its turn.
//
//     turns of K workers                           --> a set
//     turns of fewer, and nobody else computes     --> a set of these: the others have no batch left, or leave
#ifndef STARRING_PS_SCHEDULER_TURNS_H
#define STARRING_PS_SCHEDULER_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turns {
    int workers, per_update;
    uint64_t waiting;  // workers whose gradients are ready, and in no set yet
    uint64_t over;     // workers that compute no more
    int64_t sets;      // so many have been made
};

// The worker's gradient is ready; it computes no more. It may be both.
void turns_ready(struct turns *t, int worker);
void turns_over(struct turns *t, int worker);
// The next set, number *update = 0, 1, ..; 0: there is none now.
uint64_t turns_next(struct turns *t, int64_t *update);

#endif
