// The training step of `bench step` in PyTorch, in a process that lives beside ours: it takes turns with it, eager and compiled.
//
//     bench_peer_check ... bench_peer_start -> bench_peer_round (ours stands still) .. -> bench_peer_figures -> bench_peer_end
//
// Owner    The caller, until bench_peer_end, which ends the process.
// Threads  The thread that has started it, which must have started those of the device before: Ctrl-C is to reach one of them,
//          since from start to end it is blocked on this one (shared/launch/launch.h).
#ifndef STARRING_SHARED_BENCH_BENCH_PEER_H
#define STARRING_SHARED_BENCH_BENCH_PEER_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/json.h"
#include "shared/model/layout.h"

struct bench_peer;

// The interpreter's path (malloc'd), of a path or a name in PATH; NULL after logging why it cannot be run, or that PyTorch has
// no such step as this configuration's.
char *bench_peer_check(const char *python, const struct config *c);
struct bench_peer_job {
    const struct config *config;
    const struct model_spec *spec;
    const struct layout *layout;
    int64_t side;  // of the square product that it times behind each step, so often
    int launches;
};
// Starts it and has it build the model. NULL after logging, with the exit status in *status: EXIT_USAGE where the interpreter has
// no PyTorch, EXIT_RUN_FAILED where the model came out as another one, or had no room.
struct bench_peer *bench_peer_start(const char *path, const struct bench_peer_job *job, int *status);
// Times so many steps of each way, in the first round after `warmup` others. ours_s: of a step of ours in this round. 0, or -1
// after logging.
int bench_peer_round(struct bench_peer *p, int steps, int warmup, double ours_s);
// What was measured. Of both ways the one whose median is the shorter counts; the ratio is ours over it, of tokens per second.
cJSON *bench_peer_figures(struct bench_peer *p, double tokens);
void bench_peer_print(const cJSON *figures,
                      double product);  // product: flops per second of ours of that size
void bench_peer_end(struct bench_peer **p);

#endif
