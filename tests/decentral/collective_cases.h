// The eleven primitives against what a plain loop over all ranks' inputs gives: the same cases for every
// implementation, run by each rank on its own thread or process. Inputs are functions of (rank, element), so
// each rank knows what the others sent. Cases return 0, or -1 after printing what differed (cmocka's own
// assertions may only be used on the main thread). Where the stream's device has memory of its own, each
// operation works on copies of the buffers there, made and taken back on the same stream.
#ifndef STARRING_TESTS_DECENTRAL_COLLECTIVE_CASES_H
#define STARRING_TESTS_DECENTRAL_COLLECTIVE_CASES_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/collective.h"
#include "shared/core/numbers.h"

#define CASES_MAX_RANKS 5

struct case_env {
    struct collective *c;
    struct stream *s;
    struct wire_count *wire;
    bool native;    // sums may come in another order: only what is exact in any order is compared
    bool library;   // the engine has one, which sums int64
    uint64_t salt;  // of the operation
    enum reduction reduction;
    char *in, *out, *want;
    char *device_in, *device_out;  // NULL: in and out themselves
    size_t bytes;                  // of each buffer
};

// Where an operation finds what lies at p of in or out.
static inline void *case_at(const struct case_env *e, const void *p) {
    const char *at = p;
    if (!p || !e->device_in) return (void *)(uintptr_t)p;
    return at >= e->out && at < e->out + e->bytes ? e->device_out + (at - e->out)
                                                  : e->device_in + (at - e->in);
}

// Element i from random bits: values of many magnitudes, whose sum depends on the order of adding, or
// small integers, whose sum does not. No infinities go in (they may come out of a sum).
static inline void case_store(enum dtype dt, void *p, size_t i, uint64_t bits, bool small_integers) {
    double d = ldexp((double)((int)(bits % 2001) - 1000), (int)(bits >> 32) % 16 - 10);
    if (small_integers) d = (double)((int)(bits % 17) - 8);
    int64_t v = (int64_t)(bits >> 8) - (INT64_C(1) << 54);
    if (dt == DT_F64)
        memcpy((char *)p + 8 * i, &d, 8);
    else if (dt == DT_I64)
        memcpy((char *)p + 8 * i, &v, 8);
    else if (dt == DT_U8)
        ((uint8_t *)p)[i] = (uint8_t)bits;
    else
        dtype_store(dt, p, i, (float)d);
}

// The n elements that rank `rank` sends in this operation.
static inline void case_input(const struct case_env *e, int rank, void *p, size_t n, enum dtype dt) {
    for (size_t i = 0; i < n; i++) {
        struct philox_out r = philox(e->salt, (uint64_t)rank, i);
        case_store(dt, p, i, (uint64_t)r.v[0] << 32 | r.v[1], e->native);
        if (e->reduction == REDUCTION_LOR && r.v[2] % (unsigned)e->c->size)  // most are zero
            memset((char *)p + i * dtype_size(dt), 0, dtype_size(dt));
    }
}

static inline void case_reduction(const struct case_env *e, enum collective_primitive p, const void *send,
                                  void *recv, size_t n, enum dtype dt, int root) {
    collective_enqueue(e->c, &(struct collective_call){.primitive = p,
                                                       .stream = e->s,
                                                       .send = send,
                                                       .recv = recv,
                                                       .count = n,
                                                       .dt = dt,
                                                       .root = root,
                                                       .reduction = e->reduction});
}

// p = the sum in rank order of everyone's first n elements of `per_rank`; offset in elements.
static inline void case_sum(const struct case_env *e, void *p, size_t offset, size_t n, size_t per_rank,
                            enum dtype dt) {
    void *all[CASES_MAX_RANKS];
    const void *from[CASES_MAX_RANKS];
    const char *why;
    for (int r = 0; r < e->c->size; r++) {
        all[r] = calloc(per_rank + 1, 8);
        case_input(e, r, all[r], per_rank, dt);
        from[r] = (char *)all[r] + offset * dtype_size(dt);
    }
    struct reduce_args a = {
        .out = p, .inputs = from, .count = e->c->size, .n = (int64_t)n, .dt = dt, .how = e->reduction};
    if (n) ref_ops[OP_REDUCE](1, &a, &why);
    for (int r = 0; r < e->c->size; r++) free(all[r]);
}

// Arrive at different times: now and then a rank is late.
static inline void case_begin(struct case_env *e) {
    e->salt++;
    if (philox(77, e->salt, (uint64_t)e->c->rank).v[0] % 8 == 0)
        usleep(philox(78, e->salt, (uint64_t)e->c->rank).v[0] % 2000);
    memset(e->out, 0xab, e->bytes);
    memset(e->want, 0xab, e->bytes);
}

static inline void case_read_wire(const struct case_env *e, uint64_t v[4]) {
    v[0] = atomic_load(&e->wire->payload_sent);
    v[1] = atomic_load(&e->wire->payload_received);
    v[2] = atomic_load(&e->wire->control_sent);
    v[3] = atomic_load(&e->wire->control_received);
}

// Before the operation, when in and out hold what it starts with.
static inline void case_wire(const struct case_env *e, uint64_t v[4]) {
    case_read_wire(e, v);
    if (!e->device_in) return;
    dev_copy(e->s, e->device_in, e->in, e->bytes);
    dev_copy(e->s, e->device_out, e->out, e->bytes);
}

// After the operation: out must equal want over all of the buffer, and the bytes counted what is expected.
static inline int case_end(struct case_env *e, const char *what, size_t count, enum dtype dt,
                           const uint64_t before[4], size_t sent, size_t received) {
    uint64_t after[4];
    case_read_wire(e, after);
    int apart = e->c->control ? 2 : 0;
    if (memcmp(e->out, e->want, e->bytes) != 0) {
        size_t i = 0;
        while (e->out[i] == e->want[i]) i++;
        fprintf(stderr, "rank %d of %d: %s of %zu %s: byte %zu differs\n", e->c->rank, e->c->size, what,
                count, dtype_name(dt), i);
        return -1;
    }
    if (after[apart] - before[apart] != sent || after[apart + 1] - before[apart + 1] != received ||
        after[2 - apart] != before[2 - apart] || after[3 - apart] != before[3 - apart]) {
        fprintf(stderr, "rank %d of %d: %s of %zu %s: counted %llu out, %llu in; expected %zu, %zu\n",
                e->c->rank, e->c->size, what, count, dtype_name(dt),
                (unsigned long long)(after[apart] - before[apart]),
                (unsigned long long)(after[apart + 1] - before[apart + 1]), sent, received);
        return -1;
    }
    return 0;
}

static inline int case_sync(struct case_env *e, const char *what) {
    if (e->device_in) dev_copy(e->s, e->out, e->device_out, e->bytes);
    if (stream_sync(e->s) == 0) return 0;
    fprintf(stderr, "rank %d: %s failed: %s\n", e->c->rank, what, collective_error(e->c));
    return -1;
}

// ---------------------------------------------------------------- moves

static inline int case_rooted(struct case_env *e, size_t n, enum dtype dt, int root) {
    int N = e->c->size, rank = e->c->rank;
    size_t b = n * dtype_size(dt), others = (size_t)(N - 1) * b;
    uint64_t w[4];
    case_begin(e);
    if (rank == root) case_input(e, root, e->out, n, dt);
    case_input(e, root, e->want, n, dt);
    case_wire(e, w);
    collective_broadcast(e->c, e->s, case_at(e, e->out), n, dt, root);
    if (case_sync(e, "broadcast") ||
        case_end(e, "broadcast", n, dt, w, rank == root ? others : 0, rank == root ? 0 : b))
        return -1;

    case_begin(e);
    case_input(e, root, e->in, n * (size_t)N, dt);
    memcpy(e->want, e->in + (size_t)rank * b, b);
    case_wire(e, w);
    collective_scatter(e->c, e->s, case_at(e, rank == root ? e->in : NULL), case_at(e, e->out), n, dt, root);
    if (case_sync(e, "scatter") ||
        case_end(e, "scatter", n, dt, w, rank == root ? others : 0, rank == root ? 0 : b))
        return -1;

    case_begin(e);
    case_input(e, rank, e->in, n, dt);
    for (int r = 0; r < N && rank == root; r++) case_input(e, r, e->want + (size_t)r * b, n, dt);
    case_wire(e, w);
    collective_gather(e->c, e->s, case_at(e, e->in), case_at(e, rank == root ? e->out : NULL), n, dt, root);
    if (case_sync(e, "gather")) return -1;
    return case_end(e, "gather", n, dt, w, rank == root ? 0 : b, rank == root ? others : 0);
}

static inline int case_all_gather(struct case_env *e, size_t n, enum dtype dt, bool in_place) {
    int N = e->c->size, rank = e->c->rank;
    size_t b = n * dtype_size(dt), others = (size_t)(N - 1) * b;
    uint64_t w[4];
    case_begin(e);
    char *send = in_place ? e->out + (size_t)rank * b : e->in;
    case_input(e, rank, send, n, dt);
    for (int r = 0; r < N; r++) case_input(e, r, e->want + (size_t)r * b, n, dt);
    case_wire(e, w);
    collective_all_gather(e->c, e->s, case_at(e, send), case_at(e, e->out), n, dt);
    return case_sync(e, "all_gather") ? -1 : case_end(e, "all_gather", n, dt, w, others, others);
}

static inline int case_all_to_all(struct case_env *e, size_t n, enum dtype dt) {
    int N = e->c->size, rank = e->c->rank;
    size_t b = n * dtype_size(dt), others = (size_t)(N - 1) * b;
    uint64_t w[4];
    char *all = malloc((size_t)N * b + 1);
    case_begin(e);
    case_input(e, rank, e->in, n * (size_t)N, dt);
    for (int r = 0; r < N; r++) {
        case_input(e, r, all, n * (size_t)N, dt);
        memcpy(e->want + (size_t)r * b, all + (size_t)rank * b, b);
    }
    free(all);
    case_wire(e, w);
    collective_all_to_all(e->c, e->s, case_at(e, e->in), case_at(e, e->out), n, dt);
    return case_sync(e, "all_to_all") ? -1 : case_end(e, "all_to_all", n, dt, w, others, others);
}

// Around the ring: even ranks send first.
static inline int case_send_recv(struct case_env *e, size_t n, enum dtype dt) {
    int N = e->c->size, rank = e->c->rank, to = (rank + 1) % N, from = (rank + N - 1) % N;
    size_t b = n * dtype_size(dt);
    uint64_t w[4];
    if (N == 1) return 0;
    collective_barrier(e->c, e->s);  // nobody's counters move while they are read
    if (case_sync(e, "barrier")) return -1;
    case_begin(e);
    case_input(e, rank, e->in, n, dt);
    case_input(e, from, e->want, n, dt);
    case_wire(e, w);
    collective_barrier(e->c, e->s);
    if (rank % 2 == 0) collective_send(e->c, e->s, case_at(e, e->in), n, dt, to);
    collective_recv(e->c, e->s, case_at(e, e->out), n, dt, from);
    if (rank % 2 == 1) collective_send(e->c, e->s, case_at(e, e->in), n, dt, to);
    return case_sync(e, "send and recv") ? -1 : case_end(e, "send and recv", n, dt, w, b, b);
}

// ---------------------------------------------------------------- sums

static inline int case_reduce(struct case_env *e, size_t n, enum dtype dt, int root, bool in_place) {
    int N = e->c->size, rank = e->c->rank;
    size_t b = n * dtype_size(dt);
    uint64_t w[4];
    case_begin(e);
    char *send = in_place && rank == root ? e->out : e->in;
    case_input(e, rank, send, n, dt);
    if (rank == root) case_sum(e, e->want, 0, n, n, dt);
    case_wire(e, w);
    case_reduction(e, COLLECTIVE_REDUCE, case_at(e, send), case_at(e, rank == root ? e->out : NULL), n, dt,
                   root);
    if (case_sync(e, "reduce")) return -1;
    return case_end(e, "reduce", n, dt, w, rank == root ? 0 : b, rank == root ? (size_t)(N - 1) * b : 0);
}

static inline int case_all_reduce(struct case_env *e, size_t n, enum dtype dt, bool in_place) {
    size_t N = (size_t)e->c->size, rank = (size_t)e->c->rank, esz = dtype_size(dt);
    size_t piece = n / N * (rank + 1) + n % N * (rank + 1) / N - (n / N * rank + n % N * rank / N);
    size_t moved = (n - piece + (N - 1) * piece) * esz;
    bool lor = e->reduction == REDUCTION_LOR, nccl = !strcmp(e->c->ops->name, "nccl");
    if ((e->native && !lor) || (e->library && dt == DT_I64 && !(lor && nccl)))
        moved = 2 * (N - 1) * n * esz / N;
    uint64_t w[4];
    case_begin(e);
    char *send = in_place ? e->out : e->in;
    case_input(e, (int)rank, send, n, dt);
    case_sum(e, e->want, 0, n, n, dt);
    case_wire(e, w);
    case_reduction(e, COLLECTIVE_ALL_REDUCE, case_at(e, send), case_at(e, e->out), n, dt, 0);
    return case_sync(e, "all_reduce") ? -1 : case_end(e, "all_reduce", n, dt, w, moved, moved);
}

static inline int case_reduce_scatter(struct case_env *e, size_t n, enum dtype dt, bool in_place) {
    size_t N = (size_t)e->c->size, rank = (size_t)e->c->rank, b = n * dtype_size(dt);
    uint64_t w[4];
    case_begin(e);
    char *send = in_place ? e->out : e->in, *recv = in_place ? e->out + rank * b : e->out;
    case_input(e, (int)rank, send, n * N, dt);
    if (in_place) memcpy(e->want, send, N * b);  // other ranks' pieces stay as they are
    case_sum(e, e->want + (recv - e->out), rank * n, n, n * N, dt);
    case_wire(e, w);
    case_reduction(e, COLLECTIVE_REDUCE_SCATTER, case_at(e, send), case_at(e, recv), n, dt, 0);
    if (case_sync(e, "reduce_scatter")) return -1;
    return case_end(e, "reduce_scatter", n, dt, w, (N - 1) * b, (N - 1) * b);
}

// Sums of all, and the other reductions of small buffers. An operation that NCCL lacks wants the staging that its native
// channels do not have.
static inline int cases_sums(struct case_env *e, size_t n, enum dtype dt) {
    int rc = 0, N = e->c->size, most = n > 256 ? 1 : REDUCTIONS;
    if (e->native && !strcmp(e->c->ops->name, "nccl")) most = n > 256 ? 1 : REDUCTION_LOR;
    for (int k = 0; k < 1 + most && !rc; k++) {
        bool in_place = k % 2;
        e->reduction = (enum reduction)(k > 0 ? k - 1 : 0);
        rc = case_reduce(e, n, dt, (int)(n % (size_t)N), in_place);
        if (!rc) rc = case_all_reduce(e, n, dt, in_place);
        if (!rc) rc = case_reduce_scatter(e, n, dt, in_place);
    }
    e->reduction = REDUCTION_SUM;
    return rc;
}

// All eleven, all types, odd and even counts up to max_count. The wire must be this collective's alone.
static inline int cases_run(struct collective *c, struct stream *s, size_t max_count, uint64_t seed) {
    static const size_t counts[] = {1, 3, 256, 1001, 40003, 700003};
    struct case_env e = {.c = c, .s = s, .wire = c->wire, .salt = seed, .native = c->mode == REDUCE_NATIVE};
    e.library = strcmp(c->ops->name, "local") && strcmp(c->ops->name, "shm") && strcmp(c->ops->name, "tcp") &&
                c->size > 1;
    e.bytes = (size_t)c->size * max_count * 8;
    e.in = malloc(e.bytes);
    e.out = malloc(e.bytes);
    e.want = malloc(e.bytes);
    struct device *d = stream_device(s);
    if (!dev_host_memory(d)) {
        e.device_in = dev_alloc(d, MEM_ACTIVATION, e.bytes);
        e.device_out = dev_alloc(d, MEM_ACTIVATION, e.bytes);
    }
    int rc = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !rc; k++) {
        if (counts[k] > max_count) break;
        for (enum dtype dt = 0; dt < DT_COUNT && !rc; dt++) {
            size_t n = counts[k];
            rc = case_rooted(&e, n, dt, (int)(k % (size_t)c->size));
            if (!rc) rc = case_all_gather(&e, n, dt, false);
            if (!rc) rc = case_all_gather(&e, n, dt, true);
            if (!rc) rc = case_all_to_all(&e, n, dt);
            if (!rc) rc = case_send_recv(&e, n, dt);
            bool half = dt == DT_BF16 || dt == DT_F16;
            if (!rc && dt != DT_U8 && !(e.native && half)) rc = cases_sums(&e, n, dt);
        }
    }
    if (rc) stream_sync(s);  // what has been enqueued may still use them
    dev_free(d, MEM_ACTIVATION, e.device_in, e.bytes);
    dev_free(d, MEM_ACTIVATION, e.device_out, e.bytes);
    free(e.in);
    free(e.out);
    free(e.want);
    return rc;
}

#endif
