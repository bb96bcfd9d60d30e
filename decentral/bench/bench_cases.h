// The cases of `starring bench collective`: the primitives, the shapes of their buffers, what goes in and what
// must come out. Pure: no communication, no device.
//
// Inputs are functions of (seed, rank, element), so that each rank knows what every other sent and what it
// must receive itself, to the bit.
//
// Bus bandwidth is nccl-tests' (doc/PERFORMANCE.md): algorithm bandwidth = size / time; times a factor that
// makes it comparable to the rate of the link that is the bottleneck, for any number of ranks N:
//     all_reduce                                              2 (N-1) / N
//     all_gather, reduce_scatter, all_to_all, scatter, gather   (N-1) / N
//     broadcast, reduce, send_recv                            1
// where size is the larger of the send and the receive buffer of a rank.
#ifndef STARRING_DECENTRAL_BENCH_BENCH_CASES_H
#define STARRING_DECENTRAL_BENCH_BENCH_CASES_H

#include "decentral/collective/collective_plan.h"

// The rows of the bench are the primitives but COLLECTIVE_RECV: COLLECTIVE_SEND stands for both, to the next
// rank and from the one before.
static inline bool bench_has(enum collective_primitive p) { return p != COLLECTIVE_RECV; }
const char *bench_name(enum collective_primitive p);
bool bench_in_place(enum collective_primitive p);      // there is such a call
bool bench_out_of_place(enum collective_primitive p);  // likewise
double bench_bus_factor(enum collective_primitive p, int ranks);

// Calls of count elements a block, root 0 where there is one.
struct bench_shape {
    enum collective_primitive what;
    int ranks;
    enum dtype dt;
    size_t count;
    enum reduction reduction;
};
// The shape whose larger buffer has so many bytes, rounded down to whole counts, at least one element. Sums.
struct bench_shape bench_shape_of(enum collective_primitive what, int ranks, enum dtype dt, size_t bytes);
size_t bench_shape_bytes(const struct bench_shape *s);  // the larger buffer's
// A rank's call, without stream and buffers.
struct collective_call bench_call(const struct bench_shape *s, enum collective_primitive what, int rank);
// Elements that a rank reads and writes; 0 where it does neither (reduce: the others receive nothing).
size_t bench_send_count(const struct bench_shape *s, int rank);
size_t bench_recv_count(const struct bench_shape *s, int rank);

// The values that are sent. exact: small integers, whose sum is the same in any order of adding and in 16 bits too (for
// reductions in a library's own order; of products 1 and 2); else values of many magnitudes, whose sum depends on the order.
// Of a logical or most are zero.
struct bench_data {
    uint64_t seed;
    bool exact;
};
// Elements [offset, offset + n) of what `rank` sends.
void bench_input(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset, size_t n,
                 void *out);
// Elements [offset, offset + n) of what `rank` must receive; reductions as OP_REDUCE defines them, in rank order.
// scratch, of reductions: n elements of every rank.
void bench_expected(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset,
                    size_t n, void *out, void *scratch);
// How many of n elements differ in any bit.
int64_t bench_wrong(const void *got, const void *want, size_t n, enum dtype dt);

#endif
