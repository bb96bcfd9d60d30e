// The frame of all benches of `starring bench`. Each bench is a row with its name, its help and its function. Also:
// parsing of command-line values, and series of measurements with medians and quantiles.
#ifndef STARRING_SHARED_BENCH_BENCH_H
#define STARRING_SHARED_BENCH_BENCH_H

#include "kernels/backend.h"
#include "shared/config/cli.h"

struct topology_table;

struct bench_program {
    const char *about;                  // its line in the list of benches
    const struct cli_command *command;  // named "bench NAME"
    // Returns the exit status. EXIT_USAGE: the request is wrong, after logging.
    int (*run)(const struct topology_table *t, const struct cli_args *a);
};
extern const struct bench_program bench_step, bench_kernels, bench_adam, bench_checkpoint, bench_offload;

// `starring bench`: argv holds the words after it. Runs the named bench, or lists all. Returns the exit status.
int bench_command(const struct bench_program *const *all, int count, const struct topology_table *t, int argc,
                  char **argv);

// Returns "step | kernels | ..", which the caller frees.
char *bench_names(const struct bench_program *const *all, int count);

// ---------------------------------------------------------------- the command line
// Returns the index of the option's value in words, 0 if the option is not given; -1 after naming the option and the
// words.
int bench_word(const struct cli_args *a, const char *option, const char *const *words, int count);
// --device auto (a GPU if there is one), cpu or cuda. Returns NULL after logging.
const struct backend *bench_backend(const struct cli_args *a);
// --dtype fp32, bf16 or fp16; `otherwise` if it is not given. Returns 0, or -1 after logging.
int bench_dtype(const struct cli_args *a, enum dtype otherwise, enum dtype *out);

// ---------------------------------------------------------------- measurements
#define BENCH_ROUNDS_MOST 99
struct bench_series {
    double *values;  // (capacity)
    int count, capacity;
};
void bench_series_add(struct bench_series *s, double value);
void bench_series_free(struct bench_series *s);
// Returns the smallest value that at least share * count values do not exceed (nearest rank); 0 for an empty series.
double bench_series_quantile(const struct bench_series *s, double share);
double bench_series_median(const struct bench_series *s);  // for an even count the mean of the middle two
// (largest - smallest) / median: the uncertainty of one value.
double bench_series_spread(const struct bench_series *s);
// The median over the rounds of a / b, both from the same round: a slow round affects both and cancels out.
double bench_series_ratio(const struct bench_series *a, const struct bench_series *b);

// a / b; 0 if b is 0.
static inline double bench_ratio(double a, double b) { return b > 0 ? a / b : 0; }
static inline const char *bench_plural(long count) { return count == 1 ? "" : "s"; }

// Returns text: "ext4", "tmpfs", .., or "0x.." for an unknown file system of dir.
#define FILE_SYSTEM_BYTES 24
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]);

#endif
