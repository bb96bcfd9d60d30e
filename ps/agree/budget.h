// One budget of batches for all workers, where they run ahead of each other: each takes the next one when it has computed
// its last, so that a fast worker takes more, and the run ends when the budget is used. The scheduler's; pure: no sockets,
// no clock.
//
//     TAKE (step s of worker w)
//         s asked before   --> the same batch again
//         else             --> of what a checkpoint lacks, the lowest; else the next one   --> TAKEN (batch)
//         none is left     --> TAKEN (FINAL, and how many were handed out: not all if somebody was asked to leave)
//
// A worker has two batches open at most (BATCHES_OPEN): the one that it computes on, and the one before until it is acknowledged.
// A job that goes on from a checkpoint: its workers say in their first TAKE which batches are done.
#ifndef STARRING_PS_AGREE_BUDGET_H
#define STARRING_PS_AGREE_BUDGET_H

#include "ps/job/batches.h"
#include "ps/net/wire.h"

struct budget_options {
    int workers;
    int64_t total;  // batches
    // A replay: which batch worker's `step` had; -1: none. NULL: as they come.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *ctx;
};

struct budget;
struct budget *budget_create(const struct budget_options *o);
void budget_destroy(struct budget **b);

// A TAKE. Returns whether it is answered, with the TAKEN *out: not where the worker has had an answer to a later one.
bool budget_take(struct budget *b, int worker, const struct wire_header *h, struct wire_header *out);
bool budget_knows(const struct budget *b, int worker);  // it has asked
void budget_stop(struct budget *b);                     // nothing is handed out any more
int64_t budget_taken(const struct budget *b);           // batches handed out, and those done before

// The batches that a checkpoint says are done, in the fields version, count and values of a worker's first TAKE: all below version, and
// of those from there on the ones whose bits are set, as far as they reach: what is beyond is done again, and dropped.
#define BUDGET_BITS 52  // of a value
void budget_write_done(struct wire_header *h, int64_t low);
void budget_set_done(struct wire_header *h, int64_t batch);

#endif
