// What bench kernels and bench adam share: a device with its stream, buffers of fixed contents, and
// operations timed in turn with a yardstick.
#ifndef STARRING_SHARED_RUN_BENCH_WORK_H
#define STARRING_SHARED_RUN_BENCH_WORK_H

#include "shared/core/arena.h"

#define BENCH_ROUNDS_MAX 99
#define BENCH_ARGS_MAX   160  // bytes: the largest struct of arguments fits

// One operation and what it was measured to take.
struct bench_work {
    enum op op;
    const char *shape;    // for people: "R=4096 C=768"; constant
    double bytes, flops;  // read and written, computed; by the operation's definition, each tensor once
    double seconds[BENCH_ROUNDS_MAX];
    double yard_seconds[BENCH_ROUNDS_MAX];  // the yardstick, just before
    size_t args_bytes;
    unsigned char args[BENCH_ARGS_MAX];
};

struct bench_device {
    struct device *dev;
    struct stream *s;
    struct arena arena;
    int threads, rounds;
    enum dtype dt;
    struct bench_work copy, product;  // the yardsticks; product only where asked for
};

struct cli_args;
// Reads --threads, --dtype and --rounds and opens the cpu device. 0, or -1 after logging.
int bench_open(struct bench_device *b, const struct cli_args *args);
void bench_close(struct bench_device *b);

// n elements of type dt in device memory: fixed numbers in scale * (-1, 1), or (0, scale) when scale is
// given negative. NULL after logging when there is no memory. Owned by the device's arena.
void *bench_buffer(struct bench_device *b, enum dtype dt, int64_t n, float scale);

// Copies args into the work.
void bench_work_set(struct bench_work *w, enum op op, const void *args, size_t args_bytes);
#define BENCH_SET(w, OP, type, ...) \
    bench_work_set((w), (OP), &(struct type){__VA_ARGS__}, sizeof(struct type))
// Makes a copy of `bytes` from one new buffer to another the yardstick.
int bench_set_copy(struct bench_device *b, int64_t bytes);

// Runs the operation once; seconds on the host's clock.
double bench_once(struct bench_device *b, const struct bench_work *w);
// Times w in b->rounds rounds, each just after its yardstick, after one round that is not counted.
// -1 when the device failed.
int bench_measure(struct bench_device *b, struct bench_work *w);

double bench_median(const double *v, int n);
// Median over the rounds of this operation's rate (bytes, or flops where it has any, per second) as a
// share of the yardstick's rate in the same round.
double bench_share(const struct bench_device *b, const struct bench_work *w);

#endif
