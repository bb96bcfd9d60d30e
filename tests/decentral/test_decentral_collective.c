// Collectives of a hub: every primitive for 1 to 5 ranks with shuffled arrivals, the order of sums, and what happens when
// ranks disagree, do not come, or give up. Each case with ranks that are threads, and with ranks that share nothing but the
// hub's memory, as processes do, which here are threads too.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "decentral/collective/hub_impl.h"
#include "decentral/ranks.h"
#include "kernels/backend.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"
#include "tests/decentral/collective_cases.h"
#include "tests/decentral/meets.h"

static bool processes;  // of the tests that run now
static bool forbidden;  // to read the memory of other processes

// One rank of a test, on a thread of its own with a device and two streams.
struct rank_thread {
    int rank, size;
    struct hub *hub;
    // For processes: each has a hub of its own on the memory.
    void *memory;
    _Atomic int *port;
    struct rank_liveness *lives;
    struct rendezvous *meet;
    double deadline_s;
    int (*body)(struct rank_thread *t);
    pthread_barrier_t *start;  // of all ranks
    struct device *dev;
    struct stream *s[2];
    struct collective *c[2];  // channels 0 and 1 on streams 0 and 1; 1 counts as control
    struct wire_count wire[2];
    char error[600];  // of channel 0, after body
    int rc;
    pthread_t thread;
};

static void *rank_main(void *arg) {
    struct rank_thread *t = arg;
    error_quiet(1);
    dev_open(backend_find("cpu", &(const char *){NULL}),
             &(struct device_options){.threads = 1, .watch_host = true}, &t->dev);
    const struct collective_kind *kind = processes ? &collective_shm_kind : &collective_threads_kind;
    if (processes) {
        t->lives = rank_liveness_open(t->rank, t->size);
        t->hub = hub_join(t->memory, t->rank, t->size, t->lives);
        t->meet = meets(t->rank, t->size, t->deadline_s, t->port);
        if (t->meet) rank_liveness_set_rendezvous(t->lives, t->meet);
    }
    for (int i = 0; i < 2; i++) {
        struct collective_options o = {
            .control = i == 1, .wire = &t->wire[i], .deadline_s = t->deadline_s, .dev = t->dev};
        t->s[i] = stream_create(t->dev, "comm");
        t->c[i] = kind->create(t->hub, t->rank, i, &o);
    }
    pthread_barrier_wait(t->start);
    t->rc = t->body(t);
    for (int i = 0; i < 2; i++) {
        stream_destroy(&t->s[i]);
        if (i == 0) snprintf(t->error, sizeof t->error, "%s", collective_error(t->c[0]));
        collective_destroy(&t->c[i]);
    }
    dev_close(&t->dev);
    if (processes) {
        rendezvous_close(&t->meet);
        hub_destroy(&t->hub);
        rank_liveness_close(&t->lives);
    }
    return NULL;
}

static void run_ranks(struct rank_thread *t, int size, double deadline_s, int (*body)(struct rank_thread *)) {
    struct hub *hub = processes ? NULL : hub_create(size);
    size_t bytes = hub_bytes(size);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    _Atomic int port = 0;
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)size);
    memset(t, 0, (size_t)size * sizeof *t);
    for (int i = 0; i < size; i++) {
        t[i].rank = i;
        t[i].size = size;
        t[i].hub = hub;
        t[i].memory = memory;
        t[i].port = &port;
        t[i].deadline_s = deadline_s;
        t[i].body = body;
        t[i].start = &start;
        assert_int_equal(pthread_create(&t[i].thread, NULL, rank_main, &t[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(t[i].thread, NULL);
    pthread_barrier_destroy(&start);
    hub_destroy(&hub);
    assert_null(hub);
    munmap(memory, bytes);
}

// ---------------------------------------------------------------- results

// Blocks that a window holds, and, of processes, such as take several or are read from their owner's memory.
static int body_cases(struct rank_thread *t) {
    int rc = cases_run(t->c[0], t->s[0], 1001, 1);
    if (!rc && processes) rc = t->size <= 3 ? cases_run(t->c[0], t->s[0], 200003, 2) : 0;
    if (!rc && processes && ((struct collective_hub *)t->c[0])->teams[HUB_ALL].direct == forbidden) rc = -2;
    if (rc) hub_abort(t->hub, "a rank's case failed");
    return rc;
}

static void test_all_primitives(void **state) {
    (void)state;
    struct rank_thread t[CASES_MAX_RANKS];
    for (int size = 1; size <= CASES_MAX_RANKS; size++) {
        run_ranks(t, size, 60, body_cases);
        for (int i = 0; i < size; i++) assert_int_equal(t[i].rc, 0);
    }
}

// A kernel, or a container, that lets nobody read another process's memory.
static void test_all_primitives_through_windows(void **state) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    int status = 0;
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rank_thread t[3];
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            _exit(77);
        forbidden = true;
        for (int size = 2; size <= 3; size++) {
            run_ranks(t, size, 60, body_cases);
            for (int i = 0; i < size; i++)
                if (t[i].rc) _exit(1);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int body_control(struct rank_thread *t) {
    int rc = cases_run(t->c[1], t->s[1], 3, 2);
    if (rc) hub_abort(t->hub, "a rank's case failed");
    return rc;
}

static void test_control_bytes_are_counted_apart(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 60, body_control);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].rc, 0);
        assert_int_equal(atomic_load(&t[i].wire[1].payload_sent), 0);
        assert_true(atomic_load(&t[i].wire[1].control_sent) > 0);
    }
}

// 1 + 2^-24 + .. in rank order differs from any order that adds the small ones first.
static int body_order(struct rank_thread *t) {
    float x = t->rank == 0 ? 1.0f : 0x1p-24f, sum = 0;
    collective_all_reduce(t->c[0], t->s[0], &x, &sum, 1, DT_F32);
    if (stream_sync(t->s[0]) != 0) return -1;
    return sum == 1.0f ? 0 : -1;
}

static void test_sums_are_in_rank_order(void **state) {
    (void)state;
    struct rank_thread t[4];
    run_ranks(t, 4, 60, body_order);
    for (int i = 0; i < 4; i++) assert_int_equal(t[i].rc, 0);
}

// Many operations in flight on two channels at once: records are reused, channels do not mix.
#define DEEP 700
static int body_deep(struct rank_thread *t) {
    int64_t *x = calloc(2 * DEEP, sizeof *x);
    int bad = 0;
    for (int i = 0; i < 2 * DEEP; i++) x[i] = i + t->rank;
    for (int i = 0; i < 2 * DEEP; i++) {
        struct collective *c = t->c[i % 2];
        collective_all_reduce(c, t->s[i % 2], &x[i], &x[i], 1, DT_I64);
    }
    bad |= stream_sync(t->s[0]) | stream_sync(t->s[1]);
    for (int i = 0; i < 2 * DEEP; i++) bad |= x[i] != (int64_t)i * t->size + t->size * (t->size - 1) / 2;
    free(x);
    return bad ? -1 : 0;
}

static void test_many_in_flight_on_two_channels(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 60, body_deep);
    for (int i = 0; i < 3; i++) assert_int_equal(t[i].rc, 0);
}

// ---------------------------------------------------------------- errors

static void assert_mentions(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not mention \"%s\"", text, part);
}

static int body_mismatch_op(struct rank_thread *t) {
    float x[8] = {0}, y[8];
    if (t->rank == 2)
        collective_reduce_scatter(t->c[0], t->s[0], x, y, 2, DT_F32);
    else
        collective_all_gather(t->c[0], t->s[0], x, y, 2, DT_F32);
    return stream_sync(t->s[0]);
}

static int body_mismatch_count(struct rank_thread *t) {
    float x[8] = {0};
    collective_broadcast(t->c[0], t->s[0], x, t->rank == 1 ? 7 : 8, DT_F32, 0);
    return stream_sync(t->s[0]);
}

static int body_mismatch_type(struct rank_thread *t) {
    float x[8] = {0}, y[8];
    collective_all_reduce(t->c[0], t->s[0], x, y, 2, t->rank == 1 ? DT_BF16 : DT_F16);
    return stream_sync(t->s[0]);
}

static int body_mismatch_reduction(struct rank_thread *t) {
    float x[2] = {0}, y[2];
    struct collective_call c = {.primitive = COLLECTIVE_ALL_REDUCE,
                                .stream = t->s[0],
                                .send = x,
                                .recv = y,
                                .count = 2,
                                .dt = DT_F32};
    if (t->rank == 2) c.reduction = REDUCTION_MAX;
    collective_enqueue(t->c[0], &c);
    return stream_sync(t->s[0]);
}

static int body_mismatch_mail(struct rank_thread *t) {
    float x[8] = {0};
    if (t->rank == 0) collective_send(t->c[0], t->s[0], x, 5, DT_F32, 1);
    if (t->rank == 1) collective_recv(t->c[0], t->s[0], x, 6, DT_F32, 0);
    return t->rank < 2 ? stream_sync(t->s[0]) : -1;
}

static void test_differing_calls_are_named(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 60, body_mismatch_op);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "rank 0 called all_gather of 2 fp32");
        assert_mentions(t[i].error, "rank 2 called reduce_scatter of 2 fp32");
    }
    run_ranks(t, 3, 60, body_mismatch_count);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "rank 0 called broadcast of 8");
        assert_mentions(t[i].error, "rank 1 called broadcast of 7");
    }
    run_ranks(t, 3, 60, body_mismatch_type);
    for (int i = 0; i < 3; i++) assert_mentions(t[i].error, "rank 1 called all_reduce of 2 bf16");
    run_ranks(t, 3, 60, body_mismatch_reduction);
    for (int i = 0; i < 3; i++)
        assert_mentions(t[i].error, "rank 2 called all_reduce of 2 fp32 as its operation 1 by max");
    run_ranks(t, 3, 60, body_mismatch_mail);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "rank 0 sends 5 fp32, but rank 1 receives 6 fp32");
    }
}

static int body_missing(struct rank_thread *t) {
    float x = 0, y;
    if (t->rank == 1) return -1;
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    return stream_sync(t->s[0]);
}

static int body_missing_sender(struct rank_thread *t) {
    float x = 0;
    if (t->rank == 1) collective_recv(t->c[0], t->s[0], &x, 1, DT_F32, 0);
    if (t->rank == 2) collective_send(t->c[0], t->s[0], &x, 1, DT_F32, 0);
    return t->rank == 0 ? -1 : stream_sync(t->s[0]);
}

static void test_a_missing_rank_is_named_by_the_deadline(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 1, body_missing);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "all_reduce");
        assert_mentions(t[i].error, "rank 1 did not come");
    }
    run_ranks(t, 3, 1, body_missing_sender);
    assert_mentions(t[1].error, "rank 0 did not come");
    assert_mentions(t[2].error, "rank 0 did not come");
}

// Rank 1 stands beside its device for three deadlines, in a file as it were, and then hangs: it waits for an exchange with
// rank 2 that rank 2 is not in. The first is waited for, the second is not.
static int body_beside(struct rank_thread *t) {
    float x = 1, y = 0;
    if (t->rank == 1) usleep(3000000);
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    if (stream_sync(t->s[0]) || y != 3) return -2;
    if (t->rank == 1) collective_recv(t->c[1], t->s[1], &x, 1, DT_F32, 2);
    if (t->rank == 1 && stream_sync(t->s[1]) == 0) return -3;
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    return stream_sync(t->s[0]);
}

static void test_who_is_beside_its_device_is_waited_for(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 1, body_beside);
    for (int i = 0; i < 3; i++) assert_int_equal(t[i].rc, -1);
    assert_mentions(t[0].error, "did not come within 1 s");
}

// A receiver waits for its sender likewise.
static int body_beside_mail(struct rank_thread *t) {
    float x = (float)t->rank;
    if (t->rank == 1) usleep(3000000);
    if (t->rank == 1) collective_send(t->c[0], t->s[0], &x, 1, DT_F32, 0);
    if (t->rank == 0) collective_recv(t->c[0], t->s[0], &x, 1, DT_F32, 1);
    return stream_sync(t->s[0]) == 0 && x == 1 ? 0 : -1;
}

static void test_a_sender_beside_its_device_is_waited_for(void **state) {
    (void)state;
    struct rank_thread t[2];
    run_ranks(t, 2, 1, body_beside_mail);
    for (int i = 0; i < 2; i++) assert_int_equal(t[i].rc, 0);
}

// Rank 1 works for longer than the deadline and then rests, as one does whose threads wait for a core: so it is seen at 5/4 of
// the deadline, once. It has a quarter more to come in.
static int rest(void *arg) {
    stream_set_waiting(arg, true);
    usleep(400000);
    stream_set_waiting(arg, false);
    return 0;
}

static int body_rests(struct rank_thread *t) {
    float x = 1, y = 0;
    if (t->rank == 1) {
        usleep(2300000);
        stream_host(t->s[1], "rest", rest, t->s[1]);
        if (stream_sync(t->s[1])) return -2;
    }
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    return stream_sync(t->s[0]) == 0 && y == 2 ? 0 : -1;
}

static void test_who_worked_a_moment_ago_is_waited_for(void **state) {
    (void)state;
    struct rank_thread t[2];
    run_ranks(t, 2, 2, body_rests);
    for (int i = 0; i < 2; i++) assert_int_equal(t[i].rc, 0);
}

// On its way to its first collective a rank reads files, too. A rank that ends without one is missing.
static int work_late(void *ctx, struct hub *hub, int rank) {
    struct rank_thread *t = (struct rank_thread *)ctx + rank;
    struct collective_options o = {.deadline_s = 1};
    float x = 1, y = 0;
    error_quiet(1);
    if (rank == 1) usleep(3000000);
    if (rank == 1 && t->size == 1) return 0;
    dev_open(backend_find("cpu", &(const char *){NULL}),
             &(struct device_options){.threads = 1, .watch_host = true}, &o.dev);
    struct stream *s = stream_create(o.dev, "comm");
    struct collective *c = collective_threads_kind.create(hub, rank, 0, &o);
    collective_all_reduce(c, s, &x, &y, 1, DT_F32);
    int rc = stream_sync(s) == 0 && y == 2 ? 0 : (fail)("%s", collective_error(c));
    stream_destroy(&s);
    collective_destroy(&c);
    dev_close(&o.dev);
    return rc;
}

static void test_who_is_on_the_way_is_waited_for(void **state) {
    (void)state;
    struct rank_thread t[2] = {{.rank = 0}};
    assert_int_equal(hub_run(2, "--workers", work_late, t), 0);
    error_quiet(1);
    t[1].size = 1;
    assert_int_equal(hub_run(2, "--workers", work_late, t), -1);
    error_quiet(0);
    assert_mentions(error_last(), "rank 1 did not come within 1 s");
}

// Rank 1 comes after 0.6 s that it sleeps in small pieces, so that it has not come when a process wakes that stood still.
static int body_late(struct rank_thread *t) {
    float x = 1, y = 0;
    for (int i = 0; i < 60 && t->rank == 1; i++) usleep(10000);
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    return stream_sync(t->s[0]) == 0 && y == 2 ? 0 : -1;
}

static void *stand_still(void *arg) {
    (void)arg;
    usleep(200000);
    kill(getpid(), SIGSTOP);
    return NULL;
}

// Ctrl-Z for longer than the deadline while a rank waits.
static void test_a_process_that_stood_still_goes_on(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rank_thread t[2];
        pthread_t stop;
        if (pthread_create(&stop, NULL, stand_still, NULL)) _exit(2);
        run_ranks(t, 2, 4, body_late);
        pthread_join(stop, NULL);
        _exit(t[0].rc || t[1].rc);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    sleep(5);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

// Rank 0 gives up while the others wait without a deadline, some of them on the other channel.
static int body_abort(struct rank_thread *t) {
    float x = 0, y;
    int i = t->rank % 2;
    if (t->rank == 0) {
        usleep(20000);
        collective_abort(t->c[0], "rank 0 ran out of patience");
        return -1;
    }
    collective_all_reduce(t->c[i], t->s[i], &x, &y, 1, DT_F32);
    int rc = stream_sync(t->s[i]);
    collective_barrier(t->c[0], t->s[0]);  // later operations fail at once
    return rc | stream_sync(t->s[0]);
}

static void test_abort_ends_every_wait(void **state) {
    (void)state;
    struct rank_thread t[4];
    run_ranks(t, 4, 0, body_abort);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "rank 0 ran out of patience");
    }
}

static int body_sum_of_bytes(struct rank_thread *t) {
    uint8_t x[4] = {0}, y[4];
    collective_all_reduce(t->c[0], t->s[0], x, y, 4, DT_U8);
    return stream_sync(t->s[0]);
}

static void test_sums_without_arithmetic_are_refused(void **state) {
    (void)state;
    struct rank_thread t[2];
    run_ranks(t, 2, 60, body_sum_of_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t[i].rc, -1);
        assert_mentions(t[i].error, "uint8");
    }
}

static void test_impossible_hubs_are_refused(void **state) {
    (void)state;
    error_quiet(1);
    assert_null(hub_create(0));
    assert_null(hub_create(REDUCE_MAX + 1));
    struct hub *h = hub_create(2);
    struct collective_options o = {0};
    assert_null(collective_threads_kind.create(h, 2, 0, &o));
    assert_null(collective_threads_kind.create(h, 0, COLLECTIVE_CHANNELS, &o));
    assert_mentions(error_last(), "4 channels");
    hub_destroy(&h);
    error_quiet(0);
}

// Where NCCL is installed is not this test's to know: the cases do not depend on it.
static void test_auto_is_what_the_machine_can(void **state) {
    (void)state;
    static const struct {
        struct ring_machine m;
        enum ring_collective asked, want;
    } cases[] = {
        {{.host = RING_THREADS, .ranks_here = 4}, RING_AUTO, RING_THREADS},
        {{.host = RING_MPI, .ranks_here = 4}, RING_AUTO, RING_MPI},
        {{.host = RING_MPI, .ranks_here = 1}, RING_AUTO, RING_MPI},
        {{.host = RING_THREADS, .cuda = true, .ranks_here = 2, .gpus = 1}, RING_AUTO, RING_THREADS},
        {{.host = RING_THREADS, .cuda = true, .ranks_here = 9, .gpus = 8}, RING_AUTO, RING_THREADS},
        {{.host = RING_THREADS, .cuda = true, .ranks_here = 1, .gpus = 8}, RING_AUTO, RING_THREADS},
        {{.cuda = true, .host = RING_MPI, .ranks_here = 2, .gpus = 1}, RING_AUTO, RING_MPI},
        {{.host = RING_THREADS, .cuda = true, .ranks_here = 64, .gpus = 0}, RING_AUTO, RING_NCCL},
        {{.cuda = true, .host = RING_MPI, .ranks_here = 1, .gpus = 0}, RING_AUTO, RING_NCCL},
        {{.host = RING_THREADS, .cuda = true, .ranks_here = 2, .gpus = 1}, RING_NCCL, RING_NCCL},
        {{.host = RING_MPI, .ranks_here = 2}, RING_THREADS, RING_THREADS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ring_collective_resolve(cases[i].asked, &cases[i].m), cases[i].want);
}

static int body_abort_is_seen(struct rank_thread *t) {
    if (collective_aborted(t->c[0])) return -1;
    pthread_barrier_wait(t->start);
    if (t->rank == 0) collective_abort(t->c[1], "rank 0 has left");
    pthread_barrier_wait(t->start);
    const char *why = collective_aborted(t->c[0]);
    return why && strcmp(why, "rank 0 has left") == 0 ? 0 : -1;
}

static void test_an_abort_can_be_asked_for(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 60, body_abort_is_seen);
    for (int i = 0; i < 3; i++) assert_int_equal(t[i].rc, 0);
}

// A rank that is gone without a word, of processes: nothing says at the meeting that it lives.
static int body_silent(struct rank_thread *t) {
    float x = 1, y = 0;
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    if (stream_sync(t->s[0]) || y != (float)t->size) return -2;
    if (t->rank == 1) {
        rendezvous_close(&t->meet);
        usleep(4000000);
        return -1;
    }
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    return stream_sync(t->s[0]);
}

static void test_a_silent_process_is_named(void **state) {
    (void)state;
    struct rank_thread t[3];
    run_ranks(t, 3, 1, body_silent);
    for (int i = 0; i < 3; i++) assert_int_equal(t[i].rc, -1);
    assert_mentions(t[0].error, "rank 1 did not come within 1 s and sends no heartbeat");
}

static int works(void *ctx) {
    (void)ctx;
    return DEV_HOST_WORKS;
}

static bool is_rank_2(const void *ctx, int rank) {
    (void)ctx;
    return rank == 2;
}

// Rank 1 shares no memory with rank 2, and waits for it. A rank that reports work is waited for, and while the rendezvous, rank
// 0's, itself is stopped no other rank counts as silent. A rank that has left counts as missing.
static void test_a_meeting_that_stands_still_makes_nobody_silent(void **state) {
    (void)state;
    _Atomic int *port = mmap(NULL, sizeof *port, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t ranks[3] = {0};
    for (int i = 0; i < 3; i += 2) {
        if ((ranks[i] = fork())) continue;
        struct rendezvous *meet = meets(i, 3, 0.6, port);
        rendezvous_set_activity(meet, works, NULL);
        for (;;) pause();
    }
    struct rendezvous *meet = meets(1, 3, 0.6, port);
    struct rank_liveness *l = rank_liveness_open(1, 3);
    rank_liveness_set_rendezvous(l, meet);
    rank_liveness_set_waiting(l, true);
    struct liveness_wait w = {
        .what = "recv", .since_s = now_seconds(), .deadline_s = 0.6, .missing = is_rank_2};
    char why[256];
    for (int at = 0; at < 500; at++, usleep(10000)) {
        if (rank_liveness_wait_failed(l, &w, why, sizeof why)) fail_msg("%d: %s", at, why);
        if (at == 200) kill(ranks[0], SIGSTOP);
        if (at == 400) kill(ranks[0], SIGCONT);
    }
    kill(ranks[2], SIGSTOP);
    while (!rank_liveness_wait_failed(l, &w, why, sizeof why)) usleep(10000);
    assert_string_equal(why, "rank 2 did not come within 0.6 s and sends no heartbeat");
    w.missing = NULL;
    kill(ranks[0], SIGSTOP);
    w.since_s = now_seconds();
    while (!rank_liveness_wait_failed(l, &w, why, sizeof why)) usleep(10000);
    assert_string_equal(why, "rank 0 did not come within 0.6 s and sends no heartbeat");
    for (int i = 0; i < 3; i += 2) kill(ranks[i], SIGKILL), waitpid(ranks[i], NULL, 0);
    rendezvous_close(&meet);
    rank_liveness_close(&l);
    munmap(port, sizeof *port);
}

// Rank 0 of two that share memory waits for rank 1, whose signs of life are the test's.
struct pair {
    struct rendezvous *meet;
    struct rank_liveness *lives;
    struct end_reason end;
    _Atomic uint16_t signs[2];
};

static void open_pair(struct pair *p) {
    _Atomic int port = 0;
    *p = (struct pair){.meet = meets(0, 1, 0.6, &port), .lives = rank_liveness_open(0, 2)};
    assert_non_null(p->meet);
    p->signs[1] = meet_heartbeat(0, DEV_HOST_WORKS);
    rank_liveness_set_rendezvous(p->lives, p->meet);
    rank_liveness_share(p->lives, &p->end, p->signs);
    rank_liveness_set_waiting(p->lives, true);
}

static void close_pair(struct pair *p) {
    rendezvous_close(&p->meet);
    rank_liveness_close(&p->lives);
}

// All processes stop at one time, for several deadlines, and go on. The one that waits is the first to look again.
static void test_a_job_that_stands_still_loses_nobody(void **state) {
    (void)state;
    struct pair p;
    char why[256];
    open_pair(&p);
    struct liveness_wait w = {.what = "recv", .since_s = now_seconds(), .deadline_s = 0.6};
    for (int stop = 0; stop < 3; stop++) {
        for (double until_s = now_seconds() + 0.9; now_seconds() < until_s; usleep(10000)) {
            p.signs[1] = meet_heartbeat(p.signs[1], DEV_HOST_WORKS);
            if (rank_liveness_wait_failed(p.lives, &w, why, sizeof why))
                fail_msg("before stop %d: %s", stop, why);
        }
        usleep(1800000);
        if (rank_liveness_wait_failed(p.lives, &w, why, sizeof why)) fail_msg("after stop %d: %s", stop, why);
    }
    close_pair(&p);
}

// Rank 1 was at work when it gave its last sign of life, long before anybody looked: it is silent, and not slow.
static void test_a_sign_of_long_ago_is_none(void **state) {
    (void)state;
    struct pair p;
    char why[256], said[4096] = "";
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    open_pair(&p);
    dup2(fileno(file), STDERR_FILENO);
    struct liveness_wait w = {.what = "recv", .since_s = now_seconds(), .deadline_s = 0.6};
    while (!rank_liveness_wait_failed(p.lives, &w, why, sizeof why)) usleep(10000);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_true(pread(fileno(file), said, sizeof said - 1, 0) >= 0);
    assert_string_equal(why, "rank 1 did not come within 0.6 s and sends no heartbeat");
    assert_string_equal(said, "");
    fclose(file);
    close_pair(&p);
}

// Rank 0 reads the memory of rank 1, whose process has ended in between, or where rank 1 has none.
static struct rank_thread *reader;
static int read_peer(void *arg) {
    struct collective_hub *t = (struct collective_hub *)reader->c[0];
    char to[8];
    return hub_read(t, COLLECTIVE_ALL_GATHER, 1, to, arg, sizeof to);
}

static int body_reads(struct rank_thread *t) {
    float x = 1, y = 0;
    collective_all_reduce(t->c[0], t->s[0], &x, &y, 1, DT_F32);
    if (stream_sync(t->s[0]) || t->rank == 1) return -1;
    pid_t child = t->deadline_s > 0 ? fork() : 0;
    if (t->deadline_s > 0 && child == 0) _exit(0);
    if (child && waitpid(child, NULL, 0) != child) return -2;
    if (child) t->hub->memory->ranks[1].pid = child;
    reader = t;
    stream_host(t->s[0], "read", read_peer, (void *)(uintptr_t)64);
    return stream_sync(t->s[0]);
}

static void test_a_peer_that_cannot_be_read_is_named(void **state) {
    (void)state;
    struct rank_thread t[2];
    run_ranks(t, 2, 0, body_reads);
    assert_int_equal(t[0].rc, -1);
    assert_mentions(t[0].error, "all_gather on channel 0: the memory of rank 1 cannot be read: Bad address");
    run_ranks(t, 2, 0.5, body_reads);
    assert_int_equal(t[0].rc, -1);
    assert_mentions(t[0].error, "all_gather on channel 0: rank 1 did not come within 0.5 s");
}

static void hear_why(void *ctx, const char *why) {
    (void)ctx;
    if (!strstr(why, "did not come within")) _exit(1);
}

// Where the run may be started again, who misses a rank says so and ends at once, with a status that says so; the others too, without a
// word.
static void test_a_lost_rank_is_a_death(void **state) {
    (void)state;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct rank_thread t[3];
        stop_run_restarts(hear_why, NULL);
        run_ranks(t, 3, 0.2, body_missing);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_RUN_LOST);
}

static int of_threads(void **state) {
    (void)state;
    processes = false;
    return 0;
}

static int of_processes(void **state) {
    (void)state;
    processes = true;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_primitives),
        cmocka_unit_test(test_control_bytes_are_counted_apart),
        cmocka_unit_test(test_sums_are_in_rank_order),
        cmocka_unit_test(test_many_in_flight_on_two_channels),
        cmocka_unit_test(test_differing_calls_are_named),
        cmocka_unit_test(test_a_missing_rank_is_named_by_the_deadline),
        cmocka_unit_test(test_who_worked_a_moment_ago_is_waited_for),
        cmocka_unit_test(test_who_is_beside_its_device_is_waited_for),
        cmocka_unit_test(test_a_sender_beside_its_device_is_waited_for),
        cmocka_unit_test(test_a_process_that_stood_still_goes_on),
        cmocka_unit_test(test_abort_ends_every_wait),
        cmocka_unit_test(test_sums_without_arithmetic_are_refused),
        cmocka_unit_test(test_an_abort_can_be_asked_for),
        cmocka_unit_test(test_a_lost_rank_is_a_death),
    };
    const struct CMUnitTest threads_alone[] = {
        cmocka_unit_test(test_who_is_on_the_way_is_waited_for),
        cmocka_unit_test(test_impossible_hubs_are_refused),
        cmocka_unit_test(test_auto_is_what_the_machine_can),
    };
    const struct CMUnitTest processes_alone[] = {
        cmocka_unit_test(test_a_silent_process_is_named),
        cmocka_unit_test(test_a_meeting_that_stands_still_makes_nobody_silent),
        cmocka_unit_test(test_a_job_that_stands_still_loses_nobody),
        cmocka_unit_test(test_a_sign_of_long_ago_is_none),
        cmocka_unit_test(test_all_primitives_through_windows),
        cmocka_unit_test(test_a_peer_that_cannot_be_read_is_named),
    };
    int failed = cmocka_run_group_tests_name("threads", tests, of_threads, NULL);
    failed += cmocka_run_group_tests_name("threads alone", threads_alone, of_threads, NULL);
    failed += cmocka_run_group_tests_name("processes", tests, of_processes, NULL);
    return failed + cmocka_run_group_tests_name("processes alone", processes_alone, of_processes, NULL);
}
