// One rank of `starring bench collective`: times each primitive at each size and checks its results.
//
// Timing     As in nccl-tests: after a warm-up and a barrier, `iterations` calls and one wait, on the host's clock,
//            divided by their number; the mean over the ranks. In place, a reduction sums its own results again: the
//            values grow, the time stays the same.
// Checking   Separately from the timing, on fresh data: the receive buffer is filled with other bits, the primitive
//            runs once, and every element that a rank received is compared, to the bit, with the expected one. Device
//            memory is filled and read by copies.
// Threads    The rank's own. All ranks run it with the same options.
#ifndef STARRING_DECENTRAL_BENCH_BENCH_RANK_H
#define STARRING_DECENTRAL_BENCH_BENCH_RANK_H

#include "decentral/bench/bench_cases.h"

enum bench_place { OUT_OF_PLACE, IN_PLACE, BENCH_PLACES };

struct bench_figure {
    bool measured;
    double seconds;  // of one call
    int64_t wrong;   // elements, of all ranks
};

struct bench_row {
    struct bench_shape shape;
    struct bench_figure figure[BENCH_PLACES];
    const char *by;  // `method` of the collective that ran; NULL: none ran
};
// Bytes per second; 0 if nothing moves.
double bench_algorithm_rate(const struct bench_row *r, enum bench_place place);
double bench_bus_rate(const struct bench_row *r, enum bench_place place);

struct bench_rank_options {
    bool wanted[COLLECTIVE_PRIMITIVES];
    size_t min_bytes, max_bytes, factor;  // sizes: min, min * factor, .. up to max; factor at least 2
    int iterations, warmup;
    enum dtype dt;  // no reductions of uint8
    enum reduce_mode mode;
    enum reduction reduction;
    bool ones;  // times nothing: all_reduce of one number 1 per rank, and each rank prints the result
    double deadline_s;
    void (*on_row)(void *ctx, const struct bench_row *row);  // or NULL
    void *ctx;
};

// Returns 0, or -1 after logging: an operation failed or memory was missing. *wrong receives the number of wrong
// elements in all rows and ranks.
int bench_rank_run(const struct bench_rank_options *o, const struct collective_source *source,
                   struct device *dev, int64_t *wrong);

#endif
