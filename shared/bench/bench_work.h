// Tools of the benches: a device with its stream, buffers with random contents, and operations timed alternately with
// a yardstick.
//
// Timing   On a host device a measurement is one operation and one sync. On a GPU it is as many launches in a row as
//          take 10 ms, then one sync, by the host's clock. Launching and waking up take tens of microseconds: less
//          than one percent, for yardstick and operation. An operation that is shorter than its launch (decide) is
//          measured by its launch time.
// Threads  One thread.
#ifndef STARRING_SHARED_BENCH_BENCH_WORK_H
#define STARRING_SHARED_BENCH_BENCH_WORK_H

#include "kernels/cpu/peak.h"
#include "shared/bench/bench.h"
#include "shared/core/arena.h"
#include "shared/train/train.h"

#define BENCH_SHAPE_MAX 48

// dev_copy as an operation: bytes are read and written.
#define BENCH_OP_COPY OP_COUNT
struct bench_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

// One operation and its measured times.
struct bench_work {
    enum op op;                              // or BENCH_OP_COPY
    char shape[BENCH_SHAPE_MAX];             // printed: "R=4096 C=768"
    struct op_work work;                     // of one launch
    bool tiny;                               // too little data for a meaningful rate
    int launches;                            // of one measurement
    double seconds[BENCH_ROUNDS_MOST];       // one launch
    double yard_seconds[BENCH_ROUNDS_MOST];  // the yardstick, just before
    double peak_seconds[BENCH_ROUNDS_MOST];  // for FLOP on a host: the peak, just before
    size_t args_bytes;
    _Alignas(16) unsigned char args[OP_ARGS_MAX_BYTES];
};

struct bench_device {
    struct device *dev;
    struct stream *s;
    struct arena arena;
    bool gpu;                   // the device has its own memory
    struct device_facts facts;  // of a GPU
    int threads, rounds;
    enum dtype dt;
    struct bench_work copy, product;  // the yardsticks; product only where requested
    struct cpu_peak peak;             // on a host
};

// One process that trains by itself, for benches of whole steps: configuration, model, data, device and topology.
struct bench_rank {
    struct config *config;
    struct model_spec spec;
    struct layout *layout;
    struct token_source *data;
    bool ready;  // the user's options are valid
    struct device *dev;
    struct stream *compute;
    struct topology *topology;
    struct train_result result;
    _Atomic int stop;  // non-zero: training stops after the current step
};
// Loads the configuration and its model. The defaults of such a bench (gpt2-124m, 4 sequences of 256 tokens, bf16) are
// overridden by `own`, then by the given options. who: "bench step"; advice: what to do instead of naming a topology.
// Returns 0, or -1 after logging.
int bench_rank_load(struct bench_rank *r, const char *who, const struct topology_table *t,
                    const struct config_override *own, size_t count, const struct cli_args *a,
                    const char *advice);
// Opens the data, then the device of the configuration's backend. The topology comes last: bench_rank_join. Returns 0,
// or -1 after logging.
int bench_rank_open(struct bench_rank *r, const struct backend *backend);
// Checks that the rank and `more_bytes` of device memory fit, and creates its topology. Returns 0, or -1 after
// logging.
int bench_rank_join(struct bench_rank *r, size_t more_bytes);
struct job bench_rank_job(const struct bench_rank *r);
int bench_rank_train(struct bench_rank *r, const struct train_observer *observer);
void bench_rank_close(struct bench_rank *r);

// Reads --device, --threads, --dtype, --rounds and --set cuda.KEY=VALUE and opens the device. Returns 0, or -1 after
// logging.
int bench_open(struct bench_device *b, const struct cli_args *args);
void bench_close(struct bench_device *b);

// Fills p (n elements of type dt) in device memory with random numbers in scale * (-1, 1), or in (0, -scale) if scale
// is negative. Equal seeds give equal numbers. They are random because a GPU multiplies zeros and repeated values
// faster than real data. Blocks. Returns 0, or -1 after logging.
int bench_fill(struct stream *s, void *p, enum dtype dt, int64_t n, float scale, uint64_t seed);
// Returns n filled elements of type dt in device memory, or NULL after logging if there is no memory. The device's
// arena owns them.
void *bench_buffer(struct bench_device *b, enum dtype dt, int64_t n, float scale);

// Copies args into the work: at most OP_ARGS_MAX_BYTES.
void bench_work_set(struct bench_work *w, enum op op, const void *args, size_t args_bytes);
#define BENCH_SETTER(OP, name, args_t)                                                  \
    static inline void bench_set_##name(struct bench_work *w, const struct args_t *a) { \
        bench_work_set(w, OP, a, sizeof *a);                                            \
    }
OPERATIONS(BENCH_SETTER)
#undef BENCH_SETTER
// BENCH_SET(work, add, add_args, .y = ...): the operation with its arguments.
#define BENCH_SET(w, name, args_t, ...) bench_set_##name((w), &(struct args_t){__VA_ARGS__})
// Sets the yardstick to a copy of `bytes` from one new buffer to another.
int bench_set_copy(struct bench_device *b, int64_t bytes);
const char *bench_copy_text(const struct bench_device *b);  // describes how it copies, for output

// Runs the operation `launches` times. Returns the total seconds by the host's clock.
double bench_launches(struct stream *s, const struct bench_work *w, int launches);
// Times w in b->rounds rounds, each just after its yardstick. Earlier launches are not counted. Returns -1 when the
// device failed.
int bench_measure(struct bench_device *b, struct bench_work *w);

// Runs the peak (kernels/cpu/peak.h) once on the stream. Returns the seconds by the host's clock.
double bench_peak(struct stream *s, struct cpu_peak *p);
// Medians over the rounds, for operations that compute on a host: the peak's rate in FLOP per second, the operation's
// share of the peak in the same round, and the yardstick's share.
double bench_peak_rate(const struct bench_device *b, const struct bench_work *w);
double bench_share_of_peak(const struct bench_device *b, const struct bench_work *w);
double bench_yard_share_of_peak(const struct bench_device *b, const struct bench_work *w);

// The median of n values; sorts a copy. n is at most BENCH_ROUNDS_MOST.
double bench_median(const double *v, int n);
// Returns the median over the rounds of this operation's rate (FLOP per second if it has any, else bytes) divided by
// the yardstick's rate in the same round.
double bench_share(const struct bench_device *b, const struct bench_work *w);

#endif
