// The training step of `bench step` in PyTorch, in a separate process that alternates with ours, eager and compiled.
//
//     bench_peer_check ... bench_peer_start -> bench_peer_round (ours waits) .. -> bench_peer_figures -> bench_peer_end
//
// Owner    The caller, until bench_peer_end, which ends the process.
// Threads  The thread that started it. This thread must have created the device's threads before: from start to end
//          Ctrl-C is blocked on this thread (shared/launch/launch.h), so one of those must receive it.
#ifndef STARRING_SHARED_BENCH_BENCH_PEER_H
#define STARRING_SHARED_BENCH_BENCH_PEER_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/json.h"
#include "shared/model/layout.h"

struct bench_peer;

// Returns the interpreter's path (malloc'd), given a path or a name in PATH. Returns NULL after logging: it cannot be
// run, or PyTorch has no step for this configuration.
char *bench_peer_check(const char *python, const struct config *c);
struct bench_peer_job {
    const struct config *config;
    const struct model_spec *spec;
    const struct layout *layout;
    int64_t side;  // side of the square product that the peer times after each step
    int launches;
};
// Starts the process and has it build the model. Returns NULL after logging, with the exit status in *status:
// EXIT_USAGE if the interpreter has no PyTorch, EXIT_RUN_FAILED if the models differ or memory is too small.
struct bench_peer *bench_peer_start(const char *path, const struct bench_peer_job *job, int *status);
// Times `steps` steps of each way, after `warmup` others in the first round. ours_s: seconds of one of our steps in
// this round. Returns 0, or -1 after logging.
int bench_peer_round(struct bench_peer *p, int steps, int warmup, double ours_s);
// Returns the figures. The way with the shorter median counts; the ratio is our tokens per second over its.
cJSON *bench_peer_figures(struct bench_peer *p, double tokens);
void bench_peer_end(struct bench_peer **p);

#endif
