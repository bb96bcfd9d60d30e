// The notes that a stream of the CUDA backend takes, on a faked runtime, dated by the host's clock; and which thread is
// at work.
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "tests/cuda/cuda_fake.h"

#include "kernels/backend.h"

#include "kernels/cuda/host/clock.c"
#include "kernels/cuda/host/device.c"
#include "kernels/cuda/host/mark.c"
#include "kernels/cuda/host/stream.c"
#include "kernels/cuda/host/workspace.c"

static int sleep_20ms(void *arg) {
    (void)arg;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return 0;
}

static int submit_20ms(void *arg, void *cuda_stream) {
    (void)cuda_stream;
    return sleep_20ms(arg);
}

// Whether a wait was seen. Two sleeps of another stream end about 20 ms behind the one that comes before the wait, if their
// threads get a core in time.
static bool spans_with_a_wait(void) {
    struct device *d = NULL;
    assert_int_equal(dev_open(starring_cuda_so.backend, &(struct device_options){.label = "rank 1"}, &d), 0);
    struct stream *s = stream_create(d, "compute"), *other = stream_create(d, "other");
    struct event *e = event_create(d);
    struct span got[16];
    uint64_t lost = 1;
    assert_int_equal(stream_log(s, 16, false), 0);
    assert_int_equal(stream_log(other, 16, true), 0);
    int64_t begin = now_ns();
    stream_phase(s, PHASE_FORWARD);
    starring_cuda_so.submit(s, "sleep", submit_20ms, NULL);
    stream_stamp(s, 7);
    stream_host(other, "sleep", sleep_20ms, NULL);
    stream_host(other, "sleep", sleep_20ms, NULL);
    stream_stamp(other, 11);
    event_record(e, other);
    stream_wait_tagged(s, e, 9);
    stream_phase(s, PHASE_BACKWARD);
    starring_cuda_so.submit(s, "sleep", submit_20ms, NULL);
    stream_stamp(s, 8);
    stream_stamp(s, 10);
    assert_int_equal(stream_sync(s), 0);
    assert_int_equal(stream_sync(other), 0);
    int64_t end = now_ns();
    size_t n = stream_take_log(s, got, 16, &lost), busy = 0, waits = 0, stamps = 0;
    assert_int_equal(lost, 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(got[i].begin >= begin && got[i].begin <= got[i].end && got[i].end <= end);
        if (got[i].kind == SPAN_BLOCKED) {
            assert_true(waits++ == 0 && got[i].id == 9 && busy == 1);
        } else if (got[i].kind == SPAN_STAMP) {
            static const uint64_t tags[] = {7, 8, 10};
            assert_true(stamps < 3 && got[i].id == tags[stamps++]);
        } else if (got[i].end - got[i].begin > 15000000) {
            assert_int_equal(got[i].phase, busy++ ? PHASE_BACKWARD : PHASE_FORWARD);
        }
    }
    assert_true(busy == 2 && stamps == 3);
    assert_int_equal(stream_take_log(s, got, 16, &lost), 0);
    assert_int_equal(stream_take_log(other, got, 16, &lost), 1);  // stamps alone
    assert_true(got[0].id == 11 && got[0].begin >= begin + 40000000);
    event_destroy(&e);
    stream_destroy(&s);
    stream_destroy(&other);
    dev_close(&d);
    assert_int_equal(atomic_load(&fake.live_events), 0);
    return waits == 1;
}

// Also the wait for a stream whose thread has not yet given its work to the device: the device stands idle meanwhile.
static void test_spans(void **state) {
    (void)state;
    for (int tries = 0; !spans_with_a_wait(); tries++) assert_true(tries < 100);
}

// ---------------------------------------------------------------- who is at work
struct others {
    struct device *d;
    struct stream *s;
    sem_t first, last;
    enum dev_work seen[2];
};

static int take(void *gate) {
    while (sem_wait(gate) != 0) continue;
    return 0;
}

static int wait_for_others(void *arg) {
    struct others *o = arg;
    stream_set_waiting(o->s, true);
    take(&o->last);
    stream_set_waiting(o->s, false);
    return 0;
}

// The host sleeps before a full queue, and then behind it.
static void *look_on(void *arg) {
    struct others *o = arg;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 10; k++) sleep_20ms(NULL);
        o->seen[i] = dev_at_work(o->d);
        sem_post(i ? &o->last : &o->first);
    }
    return NULL;
}

// A host that syncs with a full queue rests until the end of it.
static void test_a_host_that_waits_rests(void **state) {
    (void)state;
    struct others o = {0};
    struct device_options options = {.label = "rank 1", .watch_host = true};
    pthread_t thread;
    int from = 1, to = 0;
    assert_int_equal(dev_open(starring_cuda_so.backend, &options, &o.d), 0);
    assert_int_equal(dev_at_work(o.d), DEV_HOST_WORKS);
    o.s = stream_create(o.d, "comm");
    sem_init(&o.first, 0, 0);
    sem_init(&o.last, 0, 0);
    stream_host(o.s, "first", take, &o.first);
    stream_host(o.s, "last", wait_for_others, &o);
    for (int i = 2; i < QUEUE_SLOTS; i++) dev_copy(o.s, &to, &from, sizeof to);
    assert_int_equal(pthread_create(&thread, NULL, look_on, &o), 0);
    assert_int_equal(stream_sync(o.s), 0);
    pthread_join(thread, NULL);
    assert_int_equal(o.seen[0], DEV_COMPUTES);
    assert_int_equal(o.seen[1], DEV_IDLE);
    stream_destroy(&o.s);
    dev_close(&o.d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spans),
                                       cmocka_unit_test(test_a_host_that_waits_rests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
