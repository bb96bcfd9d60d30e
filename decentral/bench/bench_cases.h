// The cases of `starring bench collective`: the primitives, the shapes of their buffers, the inputs and the expected
// results. Pure: no communication, no device.
//
// Inputs are functions of (seed, rank, element), so each rank can compute what every rank sends and what it must
// receive itself, to the bit.
//
// Bus bandwidth is as in nccl-tests (doc/PERFORMANCE.md): algorithm bandwidth = size / time, times a factor that makes
// it comparable to the rate of the slowest link, for any number of ranks N:
//     all_reduce                                              2 (N-1) / N
//     all_gather, reduce_scatter, all_to_all, scatter, gather   (N-1) / N
//     broadcast, reduce, send_recv                            1
// size is the larger of a rank's send buffer and receive buffer.
#ifndef STARRING_DECENTRAL_BENCH_BENCH_CASES_H
#define STARRING_DECENTRAL_BENCH_BENCH_CASES_H

#include "decentral/collective/collective_plan.h"

// The bench has a row per primitive, except COLLECTIVE_RECV: the row of COLLECTIVE_SEND sends to the next rank and
// receives from the previous one.
static inline bool bench_has(enum collective_primitive p) { return p != COLLECTIVE_RECV; }
const char *bench_name(enum collective_primitive p);
bool bench_in_place(enum collective_primitive p);      // the primitive can run in place
bool bench_out_of_place(enum collective_primitive p);  // it can run out of place
double bench_bus_factor(enum collective_primitive p, int ranks);

// Calls with blocks of count elements; a root is rank 0.
struct bench_shape {
    enum collective_primitive what;
    int ranks;
    enum dtype dt;
    size_t count;
    enum reduction reduction;
};
// Returns the shape whose larger buffer has `bytes` bytes, rounded down to whole blocks, at least one element. Its
// reduction is the sum.
struct bench_shape bench_shape_of(enum collective_primitive what, int ranks, enum dtype dt, size_t bytes);
size_t bench_shape_bytes(const struct bench_shape *s);  // of the larger buffer
// Returns a rank's call, without stream and buffers.
struct collective_call bench_call(const struct bench_shape *s, enum collective_primitive what, int rank);
// Elements that a rank sends, and receives; 0: none (reduce: only the root receives).
size_t bench_send_count(const struct bench_shape *s, int rank);
size_t bench_recv_count(const struct bench_shape *s, int rank);

// The values that are sent. exact: small integers, whose sum is the same in any order, in 16 bits too (for reductions
// in a library's own order); for products +-1 and +-2. Else: values of many magnitudes, whose sum depends on the order.
// For a logical or most values are zero.
struct bench_data {
    uint64_t seed;
    bool exact;
};
// Writes elements [offset, offset + n) of the data that `rank` sends.
void bench_input(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset, size_t n,
                 void *out);
// Writes elements [offset, offset + n) of the data that `rank` must receive; reductions as OP_REDUCE defines them, in
// rank order. scratch (ranks, n): for reductions.
void bench_expected(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset,
                    size_t n, void *out, void *scratch);
// Returns how many of n elements differ in any bit.
int64_t bench_wrong(const void *got, const void *want, size_t n, enum dtype dt);

#endif
