// The order in which a shard applied the pushes of an asynchronous run, kept to be repeated: for each key the worker
// of each push, its batch of the job's budget, the version that it computed on, and its staleness. That is all that such a
// run depends on.
//
//     DIR/arrivals.SHARD, text    starring arrivals 2 shard 0 workers 2 steps 3 manifest 0123456789abcdef (words)
//                                 key 4: 0#0@0 1#1@0+1 0#2@1+1 0#3@3 1#4@2+2 0#5@4+1
//                                 end 1
//
// Of a run whose steps go on without the late (ps:backup:B, ps:quorum:Q) it is the set of each step: the workers whose gradients
// the key's update has, in worker order, the steps one behind the other. Batch b is worker b mod N's of step b / N.
//
// Of bounded delay with the freshest reads (ps:ssp:S) it is what each step was computed on, in any order of the workers: updates are
// made of all workers' gradients in their order, so nothing else is by chance. Batch b is as in sets, and no STALENESS is told.
//
// WORKER#BATCH@VERSION+STALENESS, +0 left out. A worker's pushes of a key come in the order of its steps. Each of the
// workers x steps batches is there once.
//
// Ownership   One of a shard's, used by its thread; read and written by the server's main thread.
// Errors      A file that does not fit the run, or is not whole, is refused: its name, the line and why.
#ifndef STARRING_PS_RECORD_ARRIVALS_H
#define STARRING_PS_RECORD_ARRIVALS_H

#include "ps/job/manifest.h"

struct arrival {
    int32_t worker;
    uint32_t version;    // computed on
    uint32_t staleness;  // versions between that one and this push
    int64_t batch;       // of the job's budget
};

struct arrivals_options {
    const struct shard_map *map;  // outlives it
    const struct manifest *manifest;
    int shard, workers;
    int64_t steps;
    bool sets;       // of steps, each of some workers
    bool reads;      // of steps of all workers: the versions that they are computed on
    int per_update;  // pushes whose mean is one update, at most; 0: 1
};

#define ARRIVALS_PUSHES_MAX INT32_MAX  // of a key: what the numbers of a file go to
#define ARRIVALS_KEY_BYTES  40         // of any key of the job, beside its pushes
// Host memory of so many pushes of one key, at its peak: recorded and put into words, or read and found again.
int64_t arrivals_bytes(int64_t pushes, bool replay);

struct arrivals;
struct arrivals *arrivals_create(const struct arrivals_options *o);
struct arrivals *arrivals_read(const struct arrivals_options *o, const char *dir);  // NULL after logging
int arrivals_write(const struct arrivals *a, const char *dir);                      // 0, or -1 after logging
void arrivals_destroy(struct arrivals **a);

void arrivals_note(struct arrivals *a, int key, const struct arrival *x);
// The i-th push of a key; a worker's push of a step (of what was read). NULL: there is none. The batch that all keys had from
// the worker's step; -1: none, or of a set: the worker
// is not in it.
const struct arrival *arrivals_at(const struct arrivals *a, int key, int64_t i);
int64_t arrivals_batch(const struct arrivals *a, int worker, int64_t step);
const struct arrival *arrivals_of(const struct arrivals *a, int key, int worker, int64_t step);

#endif
