// What a function may do on the stream that runs it (kernels/backend.h, Inside), and page-locked memory:
// cases for every backend. The includer defines inside_open() and inside_close().
#ifndef STARRING_TESTS_KERNELS_INSIDE_CASES_H
#define STARRING_TESTS_KERNELS_INSIDE_CASES_H

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/kernels/kernel_test.h"

static struct device *inside_open(void);
static void inside_close(struct device **d);

#define INSIDE_N 64

struct inside {
    struct device *d;
    struct stream *s, *other;
    struct event *before, *done;
    float *a, *b, *c, *host;  // host: MEM_HOST
    void (*act)(struct inside *x);
    int rc_sync;
    bool host_fn;  // run by stream_host instead of stream_submit
};

static void inside_begin(struct inside *x) {
    x->d = inside_open();
    x->s = stream_create(x->d, "one");
    x->other = stream_create(x->d, "two");
    x->before = event_create(x->d);
    x->done = event_create(x->d);
    float **all[] = {&x->a, &x->b, &x->c};
    for (int i = 0; i < 3; i++) *all[i] = dev_alloc(x->d, MEM_ACTIVATION, INSIDE_N * sizeof(float));
    x->host = dev_alloc(x->d, MEM_HOST, INSIDE_N * sizeof(float));
    for (int i = 0; i < INSIDE_N; i++) x->host[i] = (float)(i + 1);
}

static void inside_end(struct inside *x) {
    stream_destroy(&x->s);
    stream_destroy(&x->other);
    event_destroy(&x->before);
    event_destroy(&x->done);
    float *all[] = {x->a, x->b, x->c};
    for (int i = 0; i < 3; i++) dev_free(x->d, MEM_ACTIVATION, all[i], INSIDE_N * sizeof(float));
    dev_free(x->d, MEM_HOST, x->host, INSIDE_N * sizeof(float));
    inside_close(&x->d);
}

static int inside_act(void *arg) {
    struct inside *x = arg;
    x->act(x);
    return 0;
}

static void inside_enqueue(struct inside *x, void (*act)(struct inside *x)) {
    x->act = act;
    (x->host_fn ? stream_host : stream_submit)(x->s, "inside", inside_act, x);
}

static int inside_wait_gate(void *gate) {
    while (sem_wait(gate) != 0) continue;
    return 0;
}

static int inside_fails(void *arg) {
    (void)arg;
    return 1;
}

static void inside_double(struct inside *x) {
    dev_copy(x->s, x->b, x->a, INSIDE_N * sizeof(float));
    op_add(x->s, &(struct add_args){.y = x->b, .a = x->a, .b = x->b, .n = INSIDE_N, .dt = DT_F32});
    event_record(x->done, x->s);
}

// The copy enqueued behind the function must not come before what the function asked for, and who waits
// for the event recorded inside sees its work.
static void inside_order(bool host_fn) {
    struct inside x = {.host_fn = host_fn};
    float got[INSIDE_N], later[INSIDE_N];
    inside_begin(&x);
    dev_copy(x.s, x.a, x.host, INSIDE_N * sizeof(float));
    inside_enqueue(&x, inside_double);
    op_add(x.s, &(struct add_args){.y = x.c, .a = x.b, .b = x.a, .n = INSIDE_N, .dt = DT_F32});
    dev_copy(x.s, later, x.c, sizeof later);
    assert_int_equal(stream_sync(x.s), 0);
    stream_wait_event(x.other, x.done);
    dev_copy(x.other, got, x.b, sizeof got);
    assert_int_equal(stream_sync(x.other), 0);
    for (int i = 0; i < INSIDE_N; i++) {
        assert_true(got[i] == 2.0f * (float)(i + 1));
        assert_true(later[i] == 3.0f * (float)(i + 1));
    }
    inside_end(&x);
}

static void test_inside_order(void **state) {
    (void)state;
    inside_order(false);
    inside_order(true);
}

static void inside_copy_after(struct inside *x) {
    stream_wait_event(x->s, x->before);
    dev_copy(x->s, x->b, x->a, INSIDE_N * sizeof(float));
    x->rc_sync = stream_sync(x->s);
}

static void test_inside_waits_and_syncs(void **state) {
    (void)state;
    struct inside x = {.rc_sync = 7};
    float got[INSIDE_N];
    sem_t gate;
    sem_init(&gate, 0, 0);
    inside_begin(&x);
    stream_host(x.other, "gate", inside_wait_gate, &gate);
    dev_copy(x.other, x.a, x.host, INSIDE_N * sizeof(float));
    event_record(x.before, x.other);
    inside_enqueue(&x, inside_copy_after);
    dev_copy(x.s, got, x.b, sizeof got);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);  // long enough for a copy that does not wait
    sem_post(&gate);
    assert_int_equal(stream_sync(x.s), 0);
    assert_int_equal(x.rc_sync, 0);
    for (int i = 0; i < INSIDE_N; i++) assert_true(got[i] == (float)(i + 1));
    inside_end(&x);
    sem_destroy(&gate);
}

// A failure inside fails the function's own slot, though the function returns 0, and what is recorded
// afterwards never counts as passed.
static void inside_fail_then_record(struct inside *x) {
    stream_wait_event(x->s, x->before);
    dev_copy(x->s, x->b, x->a, INSIDE_N * sizeof(float));
    event_record(x->done, x->s);
    x->rc_sync = stream_sync(x->s);
}

static void test_inside_failure(void **state) {
    (void)state;
    struct inside x = {0};
    inside_begin(&x);
    stream_host(x.other, "fails", inside_fails, NULL);
    event_record(x.before, x.other);
    inside_enqueue(&x, inside_fail_then_record);
    assert_int_equal(stream_sync(x.s), -1);
    assert_int_equal(x.rc_sync, -1);
    assert_int_equal(event_sync(x.done), -1);
    assert_non_null(strstr(dev_error(x.d), "fails"));
    inside_end(&x);
}

static void test_pinned_is_counted_apart(void **state) {
    (void)state;
    struct inside x = {0};
    struct mem_usage u;
    inside_begin(&x);
    dev_usage(x.d, &u);
    assert_int_equal(u.current_bytes[MEM_HOST], dev_round(INSIDE_N * sizeof(float)));
    assert_int_equal(u.current_bytes[MEM_ACTIVATION], 3 * dev_round(INSIDE_N * sizeof(float)));
    assert_string_equal(mem_class_name(MEM_HOST), "pinned");
    assert_int_equal(dev_reach(x.d, x.d), 0);
    assert_true(backend_devices(dev_backend(x.d)) >= 1);
    inside_end(&x);
}

static const struct CMUnitTest inside_tests[] = {
    cmocka_unit_test(test_inside_order),
    cmocka_unit_test(test_inside_waits_and_syncs),
    cmocka_unit_test(test_inside_failure),
    cmocka_unit_test(test_pinned_is_counted_apart),
};

#endif
