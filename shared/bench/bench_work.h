// Tools of the benches: a device with its stream and its yardsticks, buffers with random contents, and the time that an
// operation takes.
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

#define BENCH_SHAPE_MAX 48

// dev_copy as an operation: bytes are read and written.
#define BENCH_OP_COPY OP_COUNT
struct bench_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

// One operation.
struct bench_work {
    enum op op;                   // or BENCH_OP_COPY
    char shape[BENCH_SHAPE_MAX];  // printed: "R=4096 C=768"
    struct op_work work;          // of one launch
    bool tiny;                    // too little data for a meaningful rate
    size_t args_bytes;
    _Alignas(16) unsigned char args[OP_ARGS_MAX_BYTES];
};

struct bench_device {
    struct device *dev;
    struct stream *s;
    struct arena arena;
    bool gpu;                   // the device has its own memory
    struct device_facts facts;  // of a GPU
    int threads;
    enum dtype dt;
    struct bench_work copy, product;  // the yardsticks; product only where requested
    struct cpu_peak peak;             // on a host
};

// Returns n elements of type dt in device memory, filled with random numbers in scale * (-1, 1), or in (0, -scale) if
// scale is negative; NULL after logging. They are random because a GPU multiplies zeros and repeated values faster than
// real data. The device's arena owns them. Blocks.
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
// Returns how many launches make a measurement, after a first launch that is not counted.
int bench_launch_count(const struct bench_device *b, const struct bench_work *w);

// Adds "device", the facts of a GPU, and for the table "#device" and "#device_work", a line each.
void bench_put_device(cJSON *document, const struct device_facts *f);

// Runs the peak (kernels/cpu/peak.h) once on the stream. Returns the seconds by the host's clock.
double bench_peak(struct stream *s, struct cpu_peak *p);

#endif
