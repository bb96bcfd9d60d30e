// The frame of all benches of `starring bench`: each is a row, which gives its name, its help and what it runs; words of the command
// line; series of measurements, of which medians and quantiles are told.
#ifndef STARRING_SHARED_BENCH_BENCH_H
#define STARRING_SHARED_BENCH_BENCH_H

#include "kernels/backend.h"
#include "shared/config/cli.h"

struct topology_table;

struct bench_program {
    const char *about;                  // in the list of benches
    const struct cli_command *command;  // named "bench NAME"
    // Its exit status. EXIT_USAGE: what was asked for is wrong, after logging.
    int (*run)(const struct topology_table *t, const struct cli_args *a);
};
extern const struct bench_program bench_step, bench_kernels, bench_adam, bench_checkpoint, bench_offload;

// `starring bench`: argv holds what follows it. Runs the bench that is named, or lists them all. The exit status.
int bench_command(const struct bench_program *const *all, int count, const struct topology_table *t, int argc,
                  char **argv);

// "step | kernels | ..", the caller's.
char *bench_names(const struct bench_program *const *all, int count);

// ---------------------------------------------------------------- the command line
// The index of the option's value among the words, the first one's where it is not given; -1 after naming option and words.
int bench_word(const struct cli_args *a, const char *option, const char *const *words, int count);
// --device auto (a GPU where there is one), cpu or cuda. NULL after logging.
const struct backend *bench_backend(const struct cli_args *a);
// --dtype fp32, bf16 or fp16; `otherwise` where it is not given. 0, or -1 after logging.
int bench_dtype(const struct cli_args *a, enum dtype otherwise, enum dtype *out);

// ---------------------------------------------------------------- measurements
#define BENCH_ROUNDS_MOST 99
struct bench_series {
    double *values;  // (capacity)
    int count, capacity;
};
void bench_series_add(struct bench_series *s, double value);
void bench_series_free(struct bench_series *s);
// The smallest value that at least share * count values do not exceed (nearest rank); 0 where there are none.
double bench_series_quantile(const struct bench_series *s, double share);
double bench_series_median(const struct bench_series *s);  // of an even count the mean of the middle two
// (largest - smallest) / median: what one value may be off by.
double bench_series_spread(const struct bench_series *s);
// The median over the rounds of a / b, both of the same round: what slows a whole round cancels out.
double bench_series_ratio(const struct bench_series *a, const struct bench_series *b);

// a / b; 0 where there is no b.
static inline double bench_ratio(double a, double b) { return b > 0 ? a / b : 0; }
static inline const char *bench_plural(long count) { return count == 1 ? "" : "s"; }

// "ext4", "tmpfs", or "0x.." of the file system of dir. Returns text.
#define FILE_SYSTEM_BYTES 24
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]);

#endif
