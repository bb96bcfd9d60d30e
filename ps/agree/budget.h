// One budget of batches for all workers, where they run ahead of each other. Each worker takes the next batch when it
// has computed its last, so a fast worker takes more, and the run ends when the budget is used. The scheduler owns it.
// Pure: no sockets, no clock.
//
//     TAKE (step s of worker w)
//         s asked before   --> the same batch again
//         else             --> the lowest batch that a checkpoint lacks; else the next one    --> TAKEN (batch)
//         none is left     --> TAKEN (FINAL, and how many were handed out: not all if some worker was asked to leave)
//
// A worker has at most two batches open (BATCHES_OPEN): the one that it computes on, and the one before until it is
// acknowledged. In a job that resumes from a checkpoint the workers' first TAKE names the batches that are done.
#ifndef STARRING_PS_AGREE_BUDGET_H
#define STARRING_PS_AGREE_BUDGET_H

#include "ps/job/batches.h"
#include "ps/net/wire.h"

struct budget_options {
    int workers;
    int64_t total;  // batches
    // A replay: the batch of worker's `step`; -1: none. NULL: in order of the requests.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *ctx;
};

struct budget;
struct budget *budget_create(const struct budget_options *o);
void budget_destroy(struct budget **b);

// Takes a TAKE. Returns whether it is answered, with TAKEN in *out: not if the worker has had an answer to a later one.
bool budget_take(struct budget *b, int worker, const struct wire_header *h, struct wire_header *out);
bool budget_has_asked(const struct budget *b, int worker);  // Whether the worker has sent a TAKE.
void budget_stop(struct budget *b);                         // From now on no batch is handed out.
// Returns the batches handed out, including those that the checkpoint has.
int64_t budget_taken(const struct budget *b);

// The batches that a checkpoint records as done, in the fields version, count and values of a worker's first TAKE.
// These are all batches below version, and from version on those whose bits are set. Done batches beyond the last bit
// are computed again, and dropped.
#define BUDGET_BITS 52  // usable bits of one value
void budget_write_done(struct wire_header *h, int64_t low);
void budget_set_done(struct wire_header *h, int64_t batch);

#endif
