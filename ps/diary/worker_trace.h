// What a worker's communication thread writes down for --trace: gradients that it hands to the transport, weights
// that it takes.
#ifndef STARRING_PS_DIARY_WORKER_TRACE_H
#define STARRING_PS_DIARY_WORKER_TRACE_H

#include "ps/diary/diary.h"
#include "ps/net/login.h"
#include "ps/shard_map.h"

enum worker_part { WORKER_IDLE, WORKER_PROTOCOL, WORKER_PUSH, WORKER_PULL, WORKER_PARTS };

// NULL where the run leaves no trace.
struct diary *worker_diary(const struct ps_role_options *role);
// A message of this worker to or from a shard: the thread turns to it if it carries a gradient or weights of a step.
void worker_trace_message(struct diary *d, int rank, const struct wire_header *h);

struct worker_trace {
    const struct ps_role_options *role;
    const struct shard_map *map;
    int rank;
    const struct ps_clock *clock;
    struct diary *diary;
};
// The thread's last word: leaves DIR/ranks/trace-worker-RANK.json. 0, or -1 after logging.
int worker_trace_write(const struct worker_trace *t);

#endif
