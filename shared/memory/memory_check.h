// Memory is compared before it is taken: what a run needs (memory_need.h) with what this machine and its GPUs
// have left (memory_limits.h, cudaMemGetInfo). A run that does not fit ends here with both figures, the limit
// it meets and what would fit instead, and not by the system's out-of-memory killer.
//
// Threads    The caller's, before any other is started.
// Blocking   Opens each GPU it asks, and closes it.
#ifndef STARRING_SHARED_MEMORY_MEMORY_CHECK_H
#define STARRING_SHARED_MEMORY_MEMORY_CHECK_H

#include <stdio.h>

#include "shared/memory/memory_need.h"

struct cJSON;

// For whoever knows its bytes itself. 0: it fits, or memory.check is "off" (warned about where it does not
// fit); -1 after saying what does not fit. what: "the run", "sampling".
int memory_check(const struct config *c, const struct memory_need *need, const char *what);

// A run's ranks on this machine; names what would fit instead. As memory_check.
int memory_check_run(const struct job *j, const struct memory_part *part);

// The comparison for --dry-run: added to doc as "here", and as lines for people.
int memory_check_put(struct cJSON *doc, const struct job *j, const struct memory_part *part);
void memory_check_print(FILE *f, const struct cJSON *doc);

#endif
