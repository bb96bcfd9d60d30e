// The emulated NCCL: results, streams, the states of a communicator that does not block, and what goes wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "decentral/nccl/nccl_abi.h"
#include "tests/emulation/driver/driver.h"

#define RANKS 3
#define N     5
#define must_be(call, what) \
    if ((call) != (what)) abort_rank(#call, __LINE__)

// A failure inside of a rank's thread: cmocka's own would jump out of another thread's stack.
static void abort_rank(const char *what, int line) {
    fprintf(stderr, "line %d: %s\n", line, what);
    abort();
}

struct rank {
    ncclUniqueId id;
    int rank, device;
    ncclComm_t comm;
    cudaStream_t stream;
    float *buf, *out;  // (RANKS * N) on the device
    float seen[RANKS * N];
    void (*run)(struct rank *r);
    pthread_t thread;
};

// Asks until it is no longer in progress.
static ncclResult_t settled(ncclComm_t c, ncclResult_t r) {
    for (int i = 0; r == ncclInProgress && i < 20000; i++) {
        usleep(100);
        must_be(ncclCommGetAsyncError(c, &r), ncclSuccess);
    }
    return r;
}

static void come(struct rank *r) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    must_be(cudaSetDevice(r->device), cudaSuccess);
    must_be(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), cudaSuccess);
    must_be(cudaMalloc((void **)&r->buf, RANKS * N * sizeof(float)), cudaSuccess);
    must_be(cudaMalloc((void **)&r->out, RANKS * N * sizeof(float)), cudaSuccess);
    float values[RANKS * N];
    for (int i = 0; i < RANKS * N; i++) values[i] = (float)(100 * r->rank + i);
    must_be(cudaMemcpyAsync(r->buf, values, sizeof values, cudaMemcpyDefault, r->stream), cudaSuccess);
    must_be(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config), ncclInProgress);
}

static void leave(struct rank *r) {
    must_be(cudaStreamSynchronize(r->stream), cudaSuccess);
    must_be(settled(r->comm, ncclCommFinalize(r->comm)), ncclSuccess);
    must_be(ncclCommDestroy(r->comm), ncclSuccess);
}

static void end(struct rank *r) {
    cudaFree(r->buf);
    cudaFree(r->out);
    cudaStreamDestroy(r->stream);
}

static void look(struct rank *r, const float *at, size_t count) {
    must_be(cudaMemcpyAsync(r->seen, at, count * sizeof *at, cudaMemcpyDefault, r->stream), cudaSuccess);
}

static void *rank_main(void *arg) {
    struct rank *r = arg;
    come(r);
    r->run(r);
    end(r);
    return NULL;
}

// Each rank a thread; all of them on device 0 when told.
static void run_ranks(struct rank *ranks, void (*run)(struct rank *r), int devices) {
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.id = id, .rank = i, .device = i % devices, .run = run};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(ranks[i].thread, NULL);
}

// ---------------------------------------------------------------- what is computed

static void reduce_all(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    ncclResult_t e = ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
    must_be(settled(r->comm, e), ncclSuccess);
    look(r, r->out, N);
    leave(r);
}

static void gather(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    float *own = r->out + r->rank * N;  // in place
    must_be(cudaMemcpyAsync(own, r->buf, N * sizeof *own, cudaMemcpyDefault, r->stream), cudaSuccess);
    must_be(settled(r->comm, ncclAllGather(own, r->out, N, ncclFloat32, r->comm, r->stream)), ncclSuccess);
    look(r, r->out, RANKS * N);
    leave(r);
}

static void scatter_sums(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    ncclResult_t e =
        ncclReduceScatter(r->buf, r->buf + r->rank * N, N, ncclFloat32, ncclSum, r->comm, r->stream);
    must_be(settled(r->comm, e), ncclSuccess);
    look(r, r->buf + r->rank * N, N);
    leave(r);
}

static void broadcast_and_reduce(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    must_be(settled(r->comm, ncclBroadcast(r->buf, r->buf, N, ncclFloat32, 1, r->comm, r->stream)),
            ncclSuccess);
    ncclResult_t e = ncclReduce(r->buf, r->out, N, ncclFloat32, ncclSum, 2, r->comm, r->stream);
    must_be(settled(r->comm, e), ncclSuccess);
    look(r, r->rank == 2 ? r->out : r->buf, N);
    leave(r);
}

// Round the ring, in one group: to the next, from the one before.
static void pass_on(struct rank *r) {
    int next = (r->rank + 1) % RANKS, before = (r->rank + RANKS - 1) % RANKS;
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    must_be(ncclGroupStart(), ncclSuccess);
    must_be(ncclSend(r->buf, N, ncclFloat32, next, r->comm, r->stream), ncclSuccess);
    must_be(ncclRecv(r->out, N, ncclFloat32, before, r->comm, r->stream), ncclSuccess);
    must_be(settled(r->comm, ncclGroupEnd()), ncclSuccess);
    look(r, r->out, N);
    leave(r);
}

static void operations_give_what_they_should(void **state) {
    (void)state;
    struct rank r[RANKS];
    run_ranks(r, reduce_all, RANKS);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < N; k++) assert_true(r[i].seen[k] == (float)(300 + 3 * k));
    run_ranks(r, gather, RANKS);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < RANKS * N; k++) assert_true(r[i].seen[k] == (float)(k / N * 100 + k % N));
    run_ranks(r, scatter_sums, RANKS);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < N; k++) assert_true(r[i].seen[k] == (float)(300 + 3 * (i * N + k)));
    run_ranks(r, broadcast_and_reduce, RANKS);
    for (int k = 0; k < N; k++) {
        assert_true(r[0].seen[k] == (float)(100 + k));
        assert_true(r[2].seen[k] == (float)(3 * (100 + k)));
    }
    run_ranks(r, pass_on, RANKS);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < N; k++) assert_true(r[i].seen[k] == (float)((i + RANKS - 1) % RANKS * 100 + k));
}

// ---------------------------------------------------------------- states

static void call_too_early(struct rank *r) {
    must_be(ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream), ncclInvalidUsage);
    must_be(ncclCommAbort(r->comm), ncclSuccess);
}

// Rank 0 asks only once after its call, and then calls again.
static void call_in_between(struct rank *r) {
    ncclResult_t e = settled(r->comm, ncclInProgress);
    must_be(e, ncclSuccess);
    e = ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
    if (r->rank == 0)
        must_be(ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream), ncclInvalidUsage);
    must_be(settled(r->comm, e), ncclSuccess);
    leave(r);
}

static void calls_while_in_progress_are_refused(void **state) {
    (void)state;
    struct rank r[RANKS] = {0};
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    r[0] = (struct rank){.id = id, .run = call_too_early};
    rank_main(&r[0]);  // alone: the others never come
    run_ranks(r, call_in_between, RANKS);
}

// The stream is held until the others have come, and only that stream.
static void last_comes_late(struct rank *r) {
    cudaStream_t other;
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    if (r->rank == 2) usleep(30000);
    ncclResult_t e = ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
    must_be(settled(r->comm, e), ncclSuccess);
    cudaEvent_t after;
    must_be(cudaEventCreate(&after), cudaSuccess);
    must_be(cudaEventRecord(after, r->stream), cudaSuccess);
    if (r->rank == 0) must_be(cudaEventQuery(after), cudaErrorNotReady);
    must_be(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    must_be(cudaMemsetAsync(r->buf + N, 0, 4, other), cudaSuccess);
    must_be(cudaStreamSynchronize(other), cudaSuccess);
    if (r->rank == 0) must_be(cudaEventQuery(after), cudaErrorNotReady);
    leave(r);
    must_be(cudaStreamDestroy(other), cudaSuccess);
    must_be(cudaEventDestroy(after), cudaSuccess);
}

static void streams_wait_for_the_last(void **state) {
    (void)state;
    struct rank r[RANKS];
    run_ranks(r, last_comes_late, RANKS);
}

// ---------------------------------------------------------------- what goes wrong

// Rank 2 does not come; the others let go of their streams by aborting.
static void one_does_not_come(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    if (r->rank != 2) {
        ncclResult_t e = ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
        must_be(settled(r->comm, e), ncclSuccess);
        must_be(ncclCommFinalize(r->comm), ncclInProgress);
        must_be(ncclCommGetAsyncError(r->comm, &e), ncclSuccess);
        must_be(e, ncclInProgress);
    }
    must_be(ncclCommAbort(r->comm), ncclSuccess);
    must_be(cudaStreamSynchronize(r->stream), cudaSuccess);
}

static void call_different_things(struct rank *r) {
    ncclResult_t e;
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    e = r->rank == 0 ? ncclAllGather(r->buf, r->out, N, ncclFloat32, r->comm, r->stream)
                     : ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
    e = settled(r->comm, e);
    for (int i = 0; i < 20000 && e == ncclSuccess; i++) {
        usleep(100);
        must_be(ncclCommGetAsyncError(r->comm, &e), ncclSuccess);
    }
    must_be(e, ncclInvalidUsage);
    must_be(strstr(ncclGetLastError(r->comm), "all-gather") != NULL, true);
    must_be(ncclCommAbort(r->comm), ncclSuccess);
    must_be(cudaStreamSynchronize(r->stream), cudaSuccess);
}

static void share_one_device(struct rank *r) {
    must_be(settled(r->comm, ncclInProgress), ncclInvalidUsage);
    must_be(ncclCommAbort(r->comm), ncclSuccess);
}

static void use_memory_of_the_host(struct rank *r) {
    float host[N] = {0};
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    must_be(ncclAllReduce(host, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream), ncclInvalidArgument);
    must_be(ncclCommAbort(r->comm), ncclSuccess);
}

// The messages about them are not shown.
static void errors_are_told_and_aborts_let_go(void **state) {
    (void)state;
    struct rank r[RANKS];
    int kept = dup(2);
    run_ranks(r, one_does_not_come, RANKS);
    if (!freopen("/dev/null", "w", stderr)) abort();
    run_ranks(r, call_different_things, RANKS);
    run_ranks(r, use_memory_of_the_host, RANKS);
    run_ranks(r, share_one_device, 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    run_ranks(r, share_one_device, 1);
    setenv("EMULATED_NCCL_VERSION", "23000", 1);
    run_ranks(r, reduce_all, 1);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    assert_true(r[0].seen[1] == 303.0f);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsetenv("EMULATED_NCCL_VERSION");
}

// ---------------------------------------------------------------- two communicators of a rank

static ncclUniqueId second_id;
static pthread_barrier_t all_here;

struct pair {
    ncclComm_t comm;
    cudaStream_t stream;
};

static struct pair come_again(struct rank *r) {
    struct pair p;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    must_be(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking), cudaSuccess);
    pthread_barrier_wait(&all_here);
    must_be(settled(r->comm, ncclInProgress), ncclSuccess);
    must_be(ncclCommInitRankConfig(&p.comm, RANKS, second_id, r->rank, &config), ncclInProgress);
    must_be(settled(p.comm, ncclInProgress), ncclSuccess);
    return p;
}

static void leave_both(struct rank *r, struct pair *p) {
    pthread_barrier_wait(&all_here);
    must_be(ncclCommAbort(r->comm), ncclSuccess);
    must_be(ncclCommAbort(p->comm), ncclSuccess);
    must_be(cudaStreamSynchronize(r->stream), cudaSuccess);
    must_be(cudaStreamSynchronize(p->stream), cudaSuccess);
    must_be(cudaStreamDestroy(p->stream), cudaSuccess);
}

// seen[0]: whether one of the two communicators has been told of an error within a while.
static void in_order(struct rank *r, bool swapped) {
    struct pair p = come_again(r), first = {r->comm, r->stream};
    ncclResult_t e = ncclSuccess, asked = ncclSuccess;
    struct pair order[2] = {swapped ? p : first, swapped ? first : p};
    for (int i = 0; i < 2; i++) {
        ncclResult_t called =
            ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, order[i].comm, order[i].stream);
        settled(order[i].comm, called);
    }
    pthread_barrier_wait(&all_here);
    for (int i = 0; i < 400 && e == ncclSuccess && asked == ncclSuccess; i++) {
        usleep(250);
        must_be(ncclCommGetAsyncError(r->comm, &e), ncclSuccess);
        must_be(ncclCommGetAsyncError(p.comm, &asked), ncclSuccess);
    }
    r->seen[0] = e != ncclSuccess || asked != ncclSuccess;
    leave_both(r, &p);
}

static void alike(struct rank *r) { in_order(r, false); }
static void crosswise(struct rank *r) { in_order(r, r->rank == 1); }

// As two threads of a rank would: the second calls before the first has been answered.
static void at_once(struct rank *r) {
    struct pair p = come_again(r);
    ncclResult_t e = ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, r->comm, r->stream);
    must_be(e, ncclInProgress);
    must_be(ncclAllReduce(r->buf, r->out, N, ncclFloat32, ncclSum, p.comm, p.stream), ncclInvalidUsage);
    leave_both(r, &p);
}

// Whether some rank was told of an error.
static bool run_pairs(void (*run)(struct rank *r)) {
    struct rank r[RANKS];
    bool wrong = false;
    assert_int_equal(ncclGetUniqueId(&second_id), ncclSuccess);
    pthread_barrier_init(&all_here, NULL, RANKS);
    run_ranks(r, run, RANKS);
    pthread_barrier_destroy(&all_here);
    for (int i = 0; i < RANKS; i++) wrong = wrong || r[i].seen[0] != 0;
    return wrong;
}

static void another_order_is_told(void **state) {
    (void)state;
    setenv("EMULATED_NCCL_VERSION", "22600", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    assert_false(run_pairs(alike));
    assert_true(run_pairs(crosswise));
    run_pairs(at_once);
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    unsetenv("EMULATED_NCCL_VERSION");
}

int main(int argc, char **argv) {
    (void)argc;
    // The driver reads its environment when the program is loaded.
    if (!getenv("EMULATED_CUDA_DELAY_US")) {
        setenv("EMULATED_CUDA_DEVICES", "3", 1);
        setenv("EMULATED_CUDA_DELAY_US", "300", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_order_is_told),
        cmocka_unit_test(operations_give_what_they_should),
        cmocka_unit_test(calls_while_in_progress_are_refused),
        cmocka_unit_test(streams_wait_for_the_last),
        cmocka_unit_test(errors_are_told_and_aborts_let_go),
    };
    return cmocka_run_group_tests_name("emulation: NCCL", tests, NULL, NULL);
}
