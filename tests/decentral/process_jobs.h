// The behaviour of ranks that are processes, over whatever engine connects them (Open MPI, tcp), and their failures. Each
// job is run by
// every rank; 0, or -1 after printing what differed.
#ifndef STARRING_TESTS_DECENTRAL_PROCESS_JOBS_H
#define STARRING_TESTS_DECENTRAL_PROCESS_JOBS_H

#include <signal.h>
#include <stdatomic.h>

#include "shared/core/error.h"
#include "tests/decentral/collective_cases.h"
#include "tests/decentral/time_cases.h"
#include "tests/decentral/zero_cases.h"
#include "tests/emulated.h"

#define DONE "rank outcome as expected"

// The state of a job's rank.
struct process_rank {
    const struct collective_kind *kind;
    bool library;      // that has sums of its own, which the engine can be told to take
    const char *dead;  // the error about rank 1 that has ended says so
    void *world;
    int rank, size;
    struct device *dev;
    struct stream *s;
    struct wire_count wire;
};

static inline struct collective *open_channel(struct process_rank *r, int channel,
                                              struct collective_options o) {
    o.wire = &r->wire;
    return r->kind->create(r->world, r->rank, channel, &o);
}

// ---------------------------------------------------------------- jobs, run by every rank; 0 or -1

// Small staging, so that reductions go in several chunks.
static inline int job_cases(struct process_rank *r) {
    char staging[4 * 4096];
    int rc = 0;
    for (int i = 0; i < 1 + r->library && !rc; i++) {
        struct collective_options o = {.deadline_s = 60, .mode = i == 1 ? REDUCE_NATIVE : REDUCE_ORDERED};
        o.staging = staging;
        o.staging_bytes = sizeof staging;
        struct collective *c = open_channel(r, i, o);
        if (!c) return -1;
        rc = cases_run(c, r->s, 40003, (uint64_t)i);
        stream_sync(r->s);
        collective_destroy(&c);
    }
    return rc;
}

static inline int expect_failure(struct collective *c, struct stream *s, const char *part) {
    if (stream_sync(s) == 0) return -1;
    if (strstr(collective_error(c), part)) return 0;
    fprintf(stderr, "\"%s\" does not mention \"%s\"\n", collective_error(c), part);
    return -1;
}

// Buffers on an (emulated) GPU, host staging for a fraction of a block.
static inline int job_staged(struct process_rank *r) {
    const char *why = "";
    struct device *gpu = NULL;
    const struct backend *cuda = backend_find("cuda", &why);
    if (!cuda || dev_open(cuda, &(struct device_options){.label = "rank"}, &gpu) != 0) return -1;
    struct stream *s = stream_create(gpu, "comm");
    size_t bytes = 2 * (size_t)r->size * 1024;
    int rc = 0;
    for (int i = 0; i < 1 + r->library && !rc; i++) {
        struct collective_options o = {.deadline_s = 60, .mode = i == 1 ? REDUCE_NATIVE : REDUCE_ORDERED};
        o.host_staging = dev_alloc(gpu, MEM_HOST, bytes);
        o.host_staging_bytes = bytes;
        struct collective *c = open_channel(r, i, o);
        if (!c) return -1;
        rc = cases_run(c, s, 1001, (uint64_t)i);
        stream_sync(s);
        collective_destroy(&c);
        dev_free(gpu, MEM_HOST, o.host_staging, bytes);
    }
    struct collective *bare = open_channel(r, 2, (struct collective_options){.deadline_s = 60});
    float x = 0;
    collective_broadcast(bare, s, &x, 1, DT_F32, 0);
    if (!rc) rc = expect_failure(bare, s, "without host staging");
    stream_destroy(&s);
    collective_destroy(&bare);
    dev_close(&gpu);
    return rc;
}

// A refused call is refused on each rank separately: the world stays whole.
static inline int refused(struct process_rank *r, struct collective_options o, const char *why) {
    uint16_t x[8] = {0};
    o.deadline_s = 60;
    struct collective *c = open_channel(r, 0, o);
    collective_all_reduce(c, r->s, x, x, 8, DT_BF16);
    int rc = expect_failure(c, r->s, why);
    stream_destroy(&r->s);
    collective_destroy(&c);
    return rc;
}

static inline int job_native_16bit_is_refused(struct process_rank *r) {
    char staging[4096];
    struct collective_options o = {
        .mode = REDUCE_NATIVE, .staging = staging, .staging_bytes = sizeof staging};
    return refused(r, o, "no bf16 natively");
}

// The needs of the norm: an ordered channel without staging sums int64, counted by the formula of a ring, also when
// the sum wraps around.
static inline int job_exact(struct process_rank *r) {
    int64_t x[EXACT_SUM_WORDS], size = r->size;
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 60, .control = true});
    for (int i = 0; i < EXACT_SUM_WORDS; i++) x[i] = i ? INT64_C(1) << (i + 20) : INT64_MAX / 2;
    collective_all_reduce(c, r->s, x, x, EXACT_SUM_WORDS, DT_I64);
    int rc = stream_sync(r->s);
    for (int i = 0; i < EXACT_SUM_WORDS; i++) {
        uint64_t one = i ? UINT64_C(1) << (i + 20) : INT64_MAX / 2;
        if ((uint64_t)x[i] != one * (uint64_t)size) rc = -1;
    }
    size_t formula = 2 * (size_t)(size - 1) * sizeof x / (size_t)size;
    if (atomic_load(&r->wire.control_sent) != formula || atomic_load(&r->wire.control_received) != formula ||
        atomic_load(&r->wire.payload_sent))
        rc = -1;
    float y = 0;  // whose order matters
    if (r->library) collective_all_reduce(c, r->s, &y, &y, 1, DT_F32);
    if (!rc && r->library) rc = expect_failure(c, r->s, "without staging");
    stream_destroy(&r->s);
    collective_destroy(&c);
    return rc;
}

static inline int job_no_staging_is_refused(struct process_rank *r) {
    return refused(r, (struct collective_options){0}, "without staging");
}

// Rank 1 stays away until the others have had their deadline.
static inline int job_missing(struct process_rank *r) {
    float x = 0, y[3];
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank == 1 ? 30 : 1, .dev = r->dev});
    if (r->rank == 1) {
        collective_barrier(c, r->s);
        usleep(2000000);
        return expect_failure(c, r->s, "aborted: all_gather on channel 0: rank 1 did not come");
    }
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, "did not come");
}

static inline int job_mismatch(struct process_rank *r) {
    float x[8] = {0};
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 2, .dev = r->dev});
    collective_broadcast(c, r->s, x, r->rank == 1 ? 7 : 6, DT_F32, 0);
    if (r->rank == 1) return expect_failure(c, r->s, "rank 0 sent 24 bytes where rank 1 expects 28");
    (void)stream_sync(r->s);  // x must outlive the message
    return 0;
}

static inline int job_abort(struct process_rank *r) {
    float x = 0, y[3];
    struct collective *c = open_channel(r, 0, (struct collective_options){0});  // no deadline
    if (r->rank == 2) {
        usleep(50000);
        collective_abort(c, "rank 2 gives up");
        collective_barrier(c, r->s);
        return expect_failure(c, r->s, "rank 2 gives up");
    }
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, "aborted: rank 2 gives up");
}

// Rank 1 is gone without a word. It has heard the others behind the barrier: what it said there has left.
static inline int job_dead(struct process_rank *r) {
    float x = 0, y[3];
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 1});
    collective_barrier(c, r->s);
    collective_gather(c, r->s, &x, y, 1, DT_F32, 1);
    if (stream_sync(r->s) != 0) return -1;
    if (r->rank == 1) _exit(7);
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, r->dead);
}

static inline int compute(void *seconds) {
    for (double until = now_seconds() + *(double *)seconds; now_seconds() < until;) continue;
    return 0;
}

// Slow is not dead. Rank 1 computes for several deadlines, rank 2 waits for it, and rank 0 for both.
static inline int job_slow(struct process_rank *r) {
    double seconds = 5;
    int rc = 0;
    for (int native = 0; native < 1 + r->library && !rc; native++) {
        float x[3] = {1, 2, 3}, y[3] = {0};
        char staging[4096];
        struct collective_options o = {.deadline_s = 2,
                                       .dev = r->dev,
                                       .mode = native ? REDUCE_NATIVE : REDUCE_ORDERED,
                                       .staging = staging,
                                       .staging_bytes = sizeof staging};
        struct collective *c = open_channel(r, native, o);
        if (r->rank == 1) stream_host(r->s, "compute", compute, &seconds);
        if (r->rank == 1) collective_send(c, r->s, x, 3, DT_F32, 2);
        if (r->rank == 2) collective_recv(c, r->s, y, 3, DT_F32, 1);
        collective_all_reduce(c, r->s, x, x, 3, DT_F32);
        rc = stream_sync(r->s);
        if (rc) fprintf(stderr, "%s\n", collective_error(c));
        if (x[2] != 9 || (r->rank == 2 && y[2] != 3)) rc = -1;
        collective_destroy(&c);
    }
    return rc;
}

// Rank 1 stands for several deadlines in a file, as it were: on its way to its device, and beside it.
static inline int job_beside(struct process_rank *r) {
    float x = r->rank == 1;
    struct collective *c[2];
    for (int i = 0; i < 2; i++) {
        if (r->rank == 1) usleep(4000000);
        c[i] = open_channel(r, i, (struct collective_options){.deadline_s = 1.5, .dev = r->dev});
        if (!c[i]) return -1;
    }
    if (r->rank == 1) usleep(4000000);
    collective_broadcast(c[1], r->s, &x, 1, DT_F32, 1);
    int rc = stream_sync(r->s) || x != 1 ? -1 : 0;
    if (rc) fprintf(stderr, "%s\n", collective_error(c[1]));
    for (int i = 0; i < 2; i++) collective_destroy(&c[i]);
    return rc;
}

// One that is stopped is an error that names it, though another computes on.
static inline int job_stopped(struct process_rank *r) {
    double seconds = 20, start = now_seconds();
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank == 2 ? 0 : 2, .dev = r->dev});
    if (r->rank == 1) usleep(300000);  // what it said when the ranks met has left
    if (r->rank == 1) raise(SIGSTOP);
    if (r->rank == 2) stream_host(r->s, "compute", compute, &seconds);
    collective_barrier(c, r->s);
    if (r->rank == 0) {
        int rc = expect_failure(c, r->s, "rank 1 did not come within 2 s and sends no heartbeat");
        return now_seconds() - start < seconds ? rc : -1;
    }
    const char *why;
    while (!(why = collective_aborted(c)) && now_seconds() - start < 120) usleep(10000);
    return why && strstr(why, "rank 1 did not come") ? 0 : -1;
}

// No rank computes: calls that differ, each waiting for the other, end at the deadline.
static inline int job_differ(struct process_rank *r) {
    float x[3] = {0}, y[3];
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank ? 3600 : 1.5, .dev = r->dev});
    if (r->rank == 1)
        collective_recv(c, r->s, x, 1, DT_F32, 2);
    else
        collective_all_gather(c, r->s, x, y, 1, DT_F32);
    if (stream_sync(r->s) == 0) return -1;
    const char *why = collective_error(c);
    return strstr(why, "did not come within 1.5 s") && !strstr(why, "sign of life") ? 0 : -1;
}

// All stages against the scalar reference.
static inline int zero_stages(struct process_rank *r, int group) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    int rc = 0;
    for (int stage = 0; stage < 4 && !rc; stage++) {
        struct zero_case c = {.world = r->size,
                              .stage = stage,
                              .dtype = types[stage % 3],
                              .tied = stage % 2 == 1,
                              .steps = 5,
                              .micro = 1,
                              .group = group};
        struct zero_reference *ref = zero_reference_create(&c);
        struct collective_source src = {r->kind, r->world, r->rank, r->size, false};
        rc = zero_case_rank(&c, ref, &src);
        zero_reference_destroy(&ref);
    }
    return rc;
}

static inline int job_zero(struct process_rank *r) { return zero_stages(r, 0); }
static inline int job_groups(struct process_rank *r) { return zero_stages(r, 2); }

// A rank that is late is waited for, a slow link is exposed, in all stages; each rank learns from the others when they were
// ready.
static inline int job_time(struct process_rank *r) {
    struct layout *layout = zero_case_layout(r->size, false);
    struct collective_source src = {r->kind, r->world, r->rank, r->size, false};
    int rc = 0;
    for (int i = 0; i < 2 * ZERO_STAGES && !rc; i++) {
        struct time_case c = {.stage = i / 2, .slow_link = i % 2};
        rc = time_case_rank(&c, &src, layout);
    }
    layout_destroy(&layout);
    return rc;
}

#endif
