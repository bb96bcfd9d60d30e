#include "decentral/bench/bench_cases.h"

#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- shapes
const char *bench_name(enum collective_primitive p) {
    return p == COLLECTIVE_SEND ? "send_recv" : collective_name(p);
}

bool bench_in_place(enum collective_primitive p) {
    const struct collective_row *r = &collective_rows[p];
    bool together = r->senders == HOLDER_ALL || r->senders == HOLDER_ROOT;
    return together && !(r->n_sent && r->n_received);
}

bool bench_out_of_place(enum collective_primitive p) { return !collective_in_one_buffer(p); }

// Returns the blocks of the larger buffer.
static size_t blocks(enum collective_primitive p, int ranks) {
    return collective_rows[p].n_sent || collective_rows[p].n_received ? (size_t)ranks : 1;
}

double bench_bus_factor(enum collective_primitive p, int ranks) {
    int twice = collective_rows[p].result == RESULT_SUMMED_IN_PIECES ? 2 : 1;
    return twice == 1 && blocks(p, 2) == 1 ? 1.0 : (double)twice * (double)(ranks - 1) / (double)ranks;
}

struct bench_shape bench_shape_of(enum collective_primitive what, int ranks, enum dtype dt, size_t bytes) {
    struct bench_shape s = {.what = what, .ranks = ranks, .dt = dt};
    if (what == COLLECTIVE_BARRIER) return s;
    s.count = bytes / dtype_size(dt) / blocks(what, ranks);
    if (!s.count) s.count = 1;
    return s;
}

size_t bench_shape_bytes(const struct bench_shape *s) {
    return s->count * dtype_size(s->dt) * blocks(s->what, s->ranks);
}

struct collective_call bench_call(const struct bench_shape *s, enum collective_primitive what, int rank) {
    struct collective_call c = {.primitive = what, .count = s->count, .dt = s->dt, .reduction = s->reduction};
    if (what == COLLECTIVE_SEND) c.peer = (rank + 1) % s->ranks;
    if (what == COLLECTIVE_RECV) c.peer = (rank + s->ranks - 1) % s->ranks;
    return c;
}

// Returns the call with which a rank receives.
static struct collective_call receiving(const struct bench_shape *s, int rank) {
    return bench_call(s, s->what == COLLECTIVE_SEND ? COLLECTIVE_RECV : s->what, rank);
}

size_t bench_send_count(const struct bench_shape *s, int rank) {
    struct collective_call c = bench_call(s, s->what, rank);
    return collective_plan_of(&c, rank, s->ranks).send_blocks * s->count;
}

size_t bench_recv_count(const struct bench_shape *s, int rank) {
    struct collective_call c = receiving(s, rank);
    if (collective_in_one_buffer(s->what)) return s->count;
    return collective_plan_of(&c, rank, s->ranks).recv_blocks * s->count;
}

// ---------------------------------------------------------------- inputs
// Mixes a counter to random bits (SplitMix64, Steele et al. 2014). At a bench's sizes Philox would take longer than the
// collective.
static uint64_t bits_of(uint64_t seed, int rank, size_t i) {
    uint64_t x = ((seed * 4096 + (uint64_t)rank) << 40) + (uint64_t)i;
    x = x * 0x9e3779b97f4a7c15ULL + 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

// bf16 holds every integer up to 256, so sums over all ranks stay within that.
static double small_integer(uint64_t bits, int ranks) {
    int64_t most = ranks > 32 ? 256 / ranks : 8;
    return (double)((int64_t)(bits >> 40) % (2 * most + 1) - most);
}

// Products of these are exact: powers of two in fp16's range.
static double small_factor(uint64_t bits, int ranks) {
    double size = ranks <= 15 && bits >> 41 & 1 ? 2.0 : 1.0;
    return bits >> 40 & 1 ? -size : size;
}

static double fraction(uint64_t bits, int exponent) {
    return ldexp((double)((int64_t)(bits >> 11) - (INT64_C(1) << 52)), exponent - 52);
}

// Values are below 2 in magnitude. A quarter of the elements has a large number on one rank and its negative on
// another. Numbers that are added between the two lose their low bits; numbers before or after do not. Without such
// pairs all orders of adding would give the same result: sums of the few bits of 16-bit numbers are exact in fp32.
static double any_magnitude(uint64_t seed, const struct bench_shape *s, int rank, size_t i, uint64_t bits) {
    uint64_t h = bits_of(seed, 4095, i);
    uint64_t ranks = (uint64_t)s->ranks;
    if (ranks < 3 || h % 4) return fraction(bits, (int)(bits % 8) - 6);
    uint64_t first = (h >> 8) % ranks, second = (first + 1 + (h >> 20) % (ranks - 1)) % ranks;
    double large = (double)(8 + (h >> 40) % 8) * 2048.0;
    if ((uint64_t)rank == first) return large;
    return (uint64_t)rank == second ? -large : fraction(bits, -3);
}

static void store(void *p, enum dtype dt, size_t i, double value, uint64_t bits) {
    int64_t whole = (int64_t)(bits >> 16);
    switch (dt) {
        case DT_F64:
            memcpy((char *)p + 8 * i, &value, 8);
            break;
        case DT_I64:
            memcpy((char *)p + 8 * i, &whole, 8);
            break;
        case DT_U8:
            ((uint8_t *)p)[i] = (uint8_t)(bits >> 32);
            break;
        default:
            dtype_store(dt, p, i, (float)value);
    }
}

void bench_input(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset, size_t n,
                 void *out) {
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = bits_of(d->seed, rank, offset + i);
        bool none = s->reduction == REDUCTION_LOR && bits % (uint64_t)s->ranks;
        double value = none                             ? 0.0
                       : !d->exact                      ? any_magnitude(d->seed, s, rank, offset + i, bits)
                       : s->reduction == REDUCTION_PROD ? small_factor(bits, s->ranks)
                                                        : small_integer(bits, s->ranks);
        store(out, s->dt, i, value, none ? 0 : bits);
    }
}

// ---------------------------------------------------------------- expected results
static void expected_sum(const struct bench_data *d, const struct bench_shape *s, size_t offset, size_t n,
                         void *out, void *scratch) {
    const void *inputs[REDUCE_MAX];
    const char *why = NULL;
    for (int r = 0; r < s->ranks; r++) {
        char *one = (char *)scratch + (size_t)r * n * dtype_size(s->dt);
        bench_input(d, s, r, offset, n, one);
        inputs[r] = one;
    }
    struct reduce_args a = {
        .out = out, .inputs = inputs, .count = s->ranks, .n = (int64_t)n, .dt = s->dt, .how = s->reduction};
    ref_ops[OP_REDUCE](1, &a, &why);
}

void bench_expected(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset,
                    size_t n, void *out, void *scratch) {
    struct collective_call c = receiving(s, rank);
    struct collective_plan p = collective_plan_of(&c, rank, s->ranks);
    size_t before = p.row->n_sent ? (size_t)rank * s->count : 0;  // the block for this rank
    if (collective_reduces(s->what)) {
        expected_sum(d, s, before + offset, n, out, scratch);
        return;
    }
    for (int r = 0; r < s->ranks && !p.row->n_received; r++)
        if (collective_sends(&p, r)) bench_input(d, s, r, before + offset, n, out);
    for (size_t done = 0; done < n && p.row->n_received;) {  // the ranks' blocks in order
        size_t from = (offset + done) / s->count, at = (offset + done) % s->count;
        size_t part = s->count - at < n - done ? s->count - at : n - done;
        bench_input(d, s, (int)from, before + at, part, (char *)out + done * dtype_size(s->dt));
        done += part;
    }
}

int64_t bench_wrong(const void *got, const void *want, size_t n, enum dtype dt) {
    size_t e = dtype_size(dt);
    int64_t wrong = 0;
    if (!memcmp(got, want, n * e)) return 0;
    for (size_t i = 0; i < n; i++)
        wrong += memcmp((const char *)got + i * e, (const char *)want + i * e, e) != 0;
    return wrong;
}
