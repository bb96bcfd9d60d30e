#include "decentral/bench/bench_cases.h"

#include <math.h>
#include <string.h>

const struct bench_case bench_cases[BENCH_CASES] = {
    {.name = "broadcast", .op = COLLECTIVE_BROADCAST, .rooted = true, .in_place = true},
    {.name = "scatter",
     .op = COLLECTIVE_SCATTER,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .pieces = true,
     .factor = 1},
    {.name = "reduce",
     .op = COLLECTIVE_REDUCE,
     .rooted = true,
     .reduces = true,
     .out_of_place = true,
     .in_place = true},
    {.name = "all_reduce",
     .op = COLLECTIVE_ALL_REDUCE,
     .reduces = true,
     .out_of_place = true,
     .in_place = true,
     .factor = 2},
    {.name = "gather",
     .op = COLLECTIVE_GATHER,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .pieces = true,
     .factor = 1},
    {.name = "all_gather",
     .op = COLLECTIVE_ALL_GATHER,
     .out_of_place = true,
     .in_place = true,
     .pieces = true,
     .factor = 1},
    {.name = "reduce_scatter",
     .op = COLLECTIVE_REDUCE_SCATTER,
     .reduces = true,
     .out_of_place = true,
     .in_place = true,
     .pieces = true,
     .factor = 1},
    {.name = "all_to_all", .op = COLLECTIVE_ALL_TO_ALL, .out_of_place = true, .pieces = true, .factor = 1},
    {.name = "send_recv", .op = COLLECTIVE_SEND, .out_of_place = true},
    {.name = "barrier", .op = COLLECTIVE_BARRIER, .out_of_place = true},
};

const struct bench_case *bench_case_find(const char *name) {
    for (int i = 0; i < BENCH_CASES; i++)
        if (!strcmp(bench_cases[i].name, name)) return &bench_cases[i];
    return NULL;
}

// ---------------------------------------------------------------- shapes

struct bench_shape bench_shape_of(const struct bench_case *what, int ranks, enum dtype dt, size_t bytes) {
    struct bench_shape s = {.what = what, .ranks = ranks, .dt = dt};
    if (what->op == COLLECTIVE_BARRIER) return s;
    s.count = bytes / dtype_size(dt) / (what->pieces ? (size_t)ranks : 1);
    if (!s.count) s.count = 1;
    return s;
}

size_t bench_shape_bytes(const struct bench_shape *s) {
    return s->count * dtype_size(s->dt) * (s->what->pieces ? (size_t)s->ranks : 1);
}

size_t bench_send_count(const struct bench_shape *s, int rank) {
    switch (s->what->op) {
        case COLLECTIVE_SCATTER:
            return rank == 0 ? s->count * (size_t)s->ranks : 0;
        case COLLECTIVE_BROADCAST:
            return rank == 0 ? s->count : 0;
        case COLLECTIVE_REDUCE_SCATTER:
        case COLLECTIVE_ALL_TO_ALL:
            return s->count * (size_t)s->ranks;
        default:
            return s->count;
    }
}

size_t bench_recv_count(const struct bench_shape *s, int rank) {
    switch (s->what->op) {
        case COLLECTIVE_GATHER:
            return rank == 0 ? s->count * (size_t)s->ranks : 0;
        case COLLECTIVE_REDUCE:
            return rank == 0 ? s->count : 0;
        case COLLECTIVE_ALL_GATHER:
        case COLLECTIVE_ALL_TO_ALL:
            return s->count * (size_t)s->ranks;
        default:
            return s->count;
    }
}

double bench_bus_factor(const struct bench_case *what, int ranks) {
    return what->factor ? (double)what->factor * (double)(ranks - 1) / (double)ranks : 1.0;
}

// ---------------------------------------------------------------- what goes in

// Well mixed bits of a counter (SplitMix64, Steele et al. 2014): in the sizes of a bench Philox would take
// longer than what is measured.
static uint64_t bits_of(uint64_t seed, int rank, size_t i) {
    uint64_t x = ((seed * 4096 + (uint64_t)rank) << 40) + (uint64_t)i;
    x = x * 0x9e3779b97f4a7c15ULL + 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

// bf16 holds every integer up to 256: so far sums of all ranks may go.
static double small_integer(uint64_t bits, int ranks) {
    int64_t most = ranks > 32 ? 256 / ranks : 8;
    return (double)((int64_t)(bits >> 40) % (2 * most + 1) - most);
}

static double fraction(uint64_t bits, int exponent) {
    return ldexp((double)((int64_t)(bits >> 11) - (INT64_C(1) << 52)), exponent - 52);
}

// Below 2 in size. A fourth of the elements has a large number on one rank and its opposite on another: what
// comes between the two loses its low bits in the sum, what comes before or after does not. Without that no
// order of adding would show: the few bits of a 16-bit number add up exactly in fp32.
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
        double value =
            d->exact ? small_integer(bits, s->ranks) : any_magnitude(d->seed, s, rank, offset + i, bits);
        store(out, s->dt, i, value, bits);
    }
}

// ---------------------------------------------------------------- what must come out

size_t bench_scratch_bytes(const struct bench_shape *s, size_t n) {
    return s->what->reduces ? (size_t)s->ranks * n * dtype_size(s->dt) : 0;
}

static void expected_sum(const struct bench_data *d, const struct bench_shape *s, size_t offset, size_t n,
                         void *out, void *scratch) {
    const void *inputs[REDUCE_MAX];
    const char *why = NULL;
    for (int r = 0; r < s->ranks; r++) {
        char *one = (char *)scratch + (size_t)r * n * dtype_size(s->dt);
        bench_input(d, s, r, offset, n, one);
        inputs[r] = one;
    }
    struct reduce_args a = {.out = out, .inputs = inputs, .count = s->ranks, .n = (int64_t)n, .dt = s->dt};
    ref_ops[OP_REDUCE](1, &a, &why);
}

void bench_expected(const struct bench_data *d, const struct bench_shape *s, int rank, size_t offset,
                    size_t n, void *out, void *scratch) {
    size_t before = (size_t)rank * s->count;
    switch (s->what->op) {
        case COLLECTIVE_BROADCAST:
            bench_input(d, s, 0, offset, n, out);
            return;
        case COLLECTIVE_SCATTER:
            bench_input(d, s, 0, before + offset, n, out);
            return;
        case COLLECTIVE_REDUCE:
        case COLLECTIVE_ALL_REDUCE:
            expected_sum(d, s, offset, n, out, scratch);
            return;
        case COLLECTIVE_REDUCE_SCATTER:
            expected_sum(d, s, before + offset, n, out, scratch);
            return;
        case COLLECTIVE_SEND:
            bench_input(d, s, (rank + s->ranks - 1) % s->ranks, offset, n, out);
            return;
        default:
            break;
    }
    // Every rank's piece after the other.
    for (size_t done = 0; done < n;) {
        size_t from = (offset + done) / s->count, at = (offset + done) % s->count;
        size_t part = s->count - at < n - done ? s->count - at : n - done;
        bench_input(d, s, (int)from, (s->what->op == COLLECTIVE_ALL_TO_ALL ? before : 0) + at, part,
                    (char *)out + done * dtype_size(s->dt));
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
