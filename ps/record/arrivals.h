// The order in which a shard applied the pushes of an asynchronous run, recorded for a replay. For each key it has the
// worker of each push, its batch of the job's budget, the version that it was computed on, and its staleness. Such a
// run depends on nothing else.
//
//     DIR/arrivals.SHARD, text    starring arrivals 2 shard 0 workers 2 steps 3 manifest 0123456789abcdef (words)
//                                 key 4: 0#0@0 1#1@0+1 0#2@1+1 0#3@3 1#4@2+2 0#5@4+1
//                                 end 1
//
// If steps close without stragglers (ps:backup:B, ps:quorum:Q) the record is the set of each step: the workers whose
// gradients are in the key's update, in worker order, one step after the other. Batch b is worker b mod N's of step b /
// N.
//
// For bounded delay with the freshest reads (ps:ssp:S) the record has the version that each step was computed on, the
// workers in any order. Updates are made of all workers' gradients in worker order, so nothing else varies. Batch b is
// as in sets, and STALENESS is left out.
//
// WORKER#BATCH@VERSION+STALENESS, +0 left out. A worker's pushes of a key are in the order of its steps. Each of the
// workers x steps batches is there once.
//
// Ownership   One per shard, used by its thread; the server's main thread reads and writes the files.
// Errors      A file that does not fit the run, or is incomplete, is refused: its name, the line and why.
#ifndef STARRING_PS_RECORD_ARRIVALS_H
#define STARRING_PS_RECORD_ARRIVALS_H

#include "ps/job/manifest.h"

struct arrival {
    int32_t worker;
    uint32_t version;    // the version that the gradient was computed on
    uint32_t staleness;  // versions between that one and the version it is applied to
    int64_t batch;       // the batch of the job's budget
};

struct arrivals_options {
    const struct shard_map *map;  // outlives it
    const struct manifest *manifest;
    int shard, workers;
    int64_t steps;
    bool sets;       // the record is the set of workers of each step
    bool reads;      // the record is the versions that the steps of all workers are computed on
    int per_update;  // at most so many pushes are averaged in one update; 0: 1
};

struct arrivals_options arrivals_options_of(const struct config *c, const struct shard_map *map,
                                            const struct manifest *order, int shard);

#define ARRIVALS_PUSHES_MAX INT32_MAX  // of a key: the largest number in a file
#define ARRIVALS_KEY_BYTES  40         // of any key of the job, in addition to its pushes
// Host memory of so many pushes of one key, at its peak: recording and writing them, or reading and indexing them.
int64_t arrivals_bytes(int64_t pushes, bool replay);

struct arrivals;
struct arrivals *arrivals_create(const struct arrivals_options *o);
// Returns NULL after logging.
struct arrivals *arrivals_read(const struct arrivals_options *o, const char *dir);
int arrivals_write(const struct arrivals *a, const char *dir);  // Returns 0, or -1 after logging.
void arrivals_destroy(struct arrivals **a);

void arrivals_note(struct arrivals *a, int key, const struct arrival *x);
// at: the i-th push of a key. of: a worker's push of a step, only after arrivals_read. NULL: none. batch: the batch
// that all keys had from the worker's step; -1: none, or with sets: the worker is not in the set.
const struct arrival *arrivals_at(const struct arrivals *a, int key, int64_t i);
int64_t arrivals_batch(const struct arrivals *a, int worker, int64_t step);
const struct arrival *arrivals_of(const struct arrivals *a, int key, int worker, int64_t step);

#endif
