// Compares a run's memory with what is left, before it is allocated. It compares the needs (memory_need.h) with
// what this machine and its GPUs have left (memory_limits.h, cudaMemGetInfo). A run that does not fit ends here
// with both numbers, the limit that it exceeds and what would fit instead. Otherwise the system's out-of-memory
// killer would end it.
//
// Threads    The caller's, before any other is started.
// Blocking   Opens each GPU that it queries, and closes it.
#ifndef STARRING_SHARED_PREDICT_MEMORY_CHECK_H
#define STARRING_SHARED_PREDICT_MEMORY_CHECK_H

#include <stdio.h>

#include "shared/predict/memory_limits.h"
#include "shared/predict/memory_need.h"

struct cJSON;

// The memory that this machine and its GPUs have left.
struct memory_left {
    bool host_known;
    struct memory_limit host;
    int gpus;
    struct memory_limit gpu[MEMORY_GPUS_MAX];  // free_bytes < 0: unknown
    struct memory_limit device;                // of each worker, as configured; free_bytes < 0: no limit
};
// Reads what is left below root ("": this machine) and on the first `gpus` devices of c.
void memory_left_read(const char *root, const struct config *c, int gpus, struct memory_left *out);

// Returns whether the limit is known and is less than the sum of predicted and allowed bytes.
bool memory_exceeds(const struct memory_sum *wanted, const struct memory_limit *limit);

// Returns the first limit that the need exceeds, and the bytes that it wants of that memory. limit NULL: it fits, as far as
// the limits are known. Pure.
struct memory_excess {
    const struct memory_limit *limit;
    struct memory_sum wanted;
};
struct memory_excess memory_compare(const struct memory_need *need, const struct memory_left *room);

// For a caller that knows its needs. Returns 0 if they fit, or if memory.check is "off" (after a warning if they do
// not fit). Returns -1 after logging what does not fit. what: named in the message, "the run" or "sampling".
int memory_check(const struct config *c, const struct memory_need *need, const char *what);

// Checks a run's ranks on this machine, and logs what would fit instead. Returns as memory_check.
int memory_check_run(const struct job *j, const struct memory_ranks *part);

// The comparison for --dry-run. memory_check_put adds it to doc as "here"; memory_check_print prints it as lines,
// below a heading of the caller.
int memory_check_put(struct cJSON *doc, const struct job *j, const struct memory_ranks *part);
void memory_check_print(FILE *f, const struct cJSON *doc);

#endif
