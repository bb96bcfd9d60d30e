// The CUDA backend's host side - queue, events, failure, times, trace, probing - on a runtime that is faked,
// so that it runs without a GPU. The sources themselves are compiled in here.
#include <semaphore.h>
#include <stdio.h>

#include "tests/cuda/cuda_fake.h"
#include "tests/kernels/kernel_test.h"

#include "kernels/cuda/host/clock.c"
#include "kernels/cuda/host/device.c"
#include "kernels/cuda/host/mark.c"
#include "kernels/cuda/host/stream.c"
#include "kernels/cuda/host/workspace.c"

static struct device *open_fake(bool trace) {
    struct device *d = NULL;
    assert_int_equal(
        dev_open(starring_cuda_so.backend, &(struct device_options){.label = "rank 1", .trace = trace}, &d),
        0);
    return d;
}

static void close_fake(struct device **d) {
    dev_close(d);
    assert_int_equal(atomic_load(&fake.live_events), 0);
    assert_int_equal(atomic_load(&fake.live_streams), 0);
    assert_int_equal(atomic_load(&fake.live_buffers), 0);
    assert_int_equal(atomic_load(&fake.waits_on_nothing), 0);
}

static void give_way(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }
static int wait_gate(void *gate) {
    while (sem_wait(gate) != 0) continue;
    return 0;
}
static int always_fails(void *p) {
    (void)p;
    return 5;
}

// ---------------------------------------------------------------- what is there

static void test_probe(void **state) {
    (void)state;
    char why[512];
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), 0);
    fake.count = 0;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "no GPU"));
    fake.count_error = cudaErrorNoDevice;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "no GPU"));
    fake.count_error = cudaErrorInsufficientDriver;
    fake.driver_version = 12020;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "too old"));
    assert_non_null(strstr(why, "12.2"));
    assert_non_null(strstr(why, "13.0"));
    fake.driver_version = 0;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "missing"));
    fake.count_error = cudaErrorSystemNotReady;
    fake.driver_version = 13000;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "does not start"));
    fake.count_error = cudaSuccess;
    fake.count = 1;
    fake.sm_major = 7;
    assert_int_equal(starring_cuda_so.probe(why, sizeof why), -1);
    assert_non_null(strstr(why, "7.0"));
    fake.sm_major = 9;
}

static void test_open_refuses(void **state) {
    (void)state;
    struct device *d = NULL;
    FILE *kept = stderr;
    stderr = fopen("/dev/null", "w");
    assert_int_equal(dev_open(starring_cuda_so.backend, &(struct device_options){.index = 3}, &d), -1);
    assert_null(d);
    fclose(stderr);
    stderr = kept;
    assert_int_equal(atomic_load(&fake.live_streams), 0);
}

static void test_facts_and_memory(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct device_facts f;
    assert_int_equal(dev_facts(d, &f), 0);
    assert_string_equal(f.name, "a fake");
    assert_int_equal(f.sm_version, 90);
    assert_int_equal(f.cudnn_version, 0);
    assert_non_null(strstr(f.cudnn_missing, "libcudnn"));
    assert_int_equal(f.memory_bytes, 2000);
    assert_int_equal(f.used_bytes, 1000);
    assert_int_equal(f.workspace_bytes, 0);
    fake.malloc_limit_bytes = 4096;
    assert_null(dev_alloc(d, MEM_PARAMETER, 8192));
    assert_string_equal(dev_error(d), "");  // the caller's to report
    fake.malloc_limit_bytes = 0;
    unsigned char *p = dev_alloc(d, MEM_PARAMETER, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    struct mem_usage u;
    dev_usage(d, &u);
    assert_int_equal(u.current_bytes[MEM_PARAMETER], 1024);
    dev_free(d, MEM_PARAMETER, p, 1000);
    close_fake(&d);
}

// A stream has everything that it needs from its creation on: nothing is created while collectives run.
static void test_created_once(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *s = stream_create(d, "compute"), *t = stream_create(d, "copy");
    struct event *e[4];
    int from = 1, to = 0;
    for (int i = 0; i < 4; i++) e[i] = event_create(d);
    int events = atomic_load(&fake.live_events), buffers = atomic_load(&fake.live_buffers);
    fake_hold(true);
    for (int i = 0; i < 400; i++) {
        event_record(e[i % 4], s);
        stream_wait_event(t, e[(i + 1) % 4]);
        stream_phase(t, i % 2 ? PHASE_FORWARD : PHASE_BACKWARD);
        op_fill_zero(t, &(struct fill_zero_args){.out = &to, .bytes = sizeof to});
    }
    dev_copy(s, &to, &from, sizeof to);
    fake_hold(false);
    assert_int_equal(stream_sync(s) | stream_sync(t), 0);
    assert_int_equal(atomic_load(&fake.live_events), events);
    assert_int_equal(atomic_load(&fake.live_buffers), buffers);
    for (int i = 0; i < 4; i++) event_destroy(&e[i]);
    stream_destroy(&s);
    stream_destroy(&t);
    close_fake(&d);
}

// ---------------------------------------------------------------- operations and order

static void test_operations_run(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *s = stream_create(d, "compute");
    float *x = dev_alloc(d, MEM_ACTIVATION, 64 * sizeof *x),
          *y = dev_alloc(d, MEM_ACTIVATION, 64 * sizeof *y);
    float host[64];
    struct device_facts m;
    for (int i = 0; i < 64; i++) host[i] = (float)i;
    dev_copy(s, x, host, sizeof host);
    op_add(s, &(struct add_args){.y = y, .a = x, .b = x, .n = 64, .dt = DT_F32});
    dev_copy(s, host, y, sizeof host);
    assert_int_equal(stream_sync(s), 0);
    for (int i = 0; i < 64; i++) assert_true(host[i] == (float)(2 * i));
    assert_int_equal(dev_facts(d, &m), 0);
    assert_int_equal(m.workspace_bytes, CUDA_WORKSPACE_BYTES);
    stream_destroy(&s);
    assert_int_equal(dev_facts(d, &m), 0);
    assert_int_equal(m.workspace_bytes, 0);
    dev_free(d, MEM_ACTIVATION, x, 64 * sizeof *x);
    dev_free(d, MEM_ACTIVATION, y, 64 * sizeof *y);
    close_fake(&d);
}

struct seen {
    atomic_int *next;
    int place;
};
static int note_place(void *arg) {
    struct seen *x = arg;
    x->place = atomic_fetch_add(x->next, 1);
    return 0;
}

// A wait is given to the device only after the record it waits for: held back here on the host.
static void test_wait_before_record_is_given(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    sem_t gate;
    sem_init(&gate, 0, 0);
    atomic_int next = 0;
    struct seen first = {&next, -1}, second = {&next, -1};
    stream_host(a, "gate", wait_gate, &gate);
    stream_host(a, "first", note_place, &first);
    event_record(e, a);
    stream_wait_event(b, e);
    stream_host(b, "second", note_place, &second);
    give_way();
    assert_int_equal(event_passed(e), 0);
    sem_post(&gate);
    assert_int_equal(stream_sync(b), 0);
    assert_int_equal(first.place, 0);
    assert_int_equal(second.place, 1);
    assert_int_equal(event_passed(e), 1);
    stream_destroy(&a);
    stream_destroy(&b);
    event_destroy(&e);
    sem_destroy(&gate);
    close_fake(&d);
}

static void test_unrecorded_and_rerecorded(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    sem_t gate;
    sem_init(&gate, 0, 0);
    stream_wait_event(b, e);
    assert_int_equal(event_sync(e), 0);
    assert_int_equal(event_passed(e), 1);
    assert_int_equal(stream_sync(b), 0);
    event_record(e, a);
    stream_wait_event(b, e);  // for the first record
    stream_host(a, "gate", wait_gate, &gate);
    event_record(e, a);
    assert_int_equal(stream_sync(b), 0);  // would hang if it waited for the second
    stream_wait_event(b, e);
    event_destroy(&e);  // the wait that is queued goes on
    sem_post(&gate);
    assert_int_equal(stream_sync(b), 0);
    stream_destroy(&a);
    stream_destroy(&b);
    sem_destroy(&gate);
    close_fake(&d);
}

// Two streams whose host functions need each other: they would hang on one shared callback thread.
struct pair {
    sem_t mine, *other;
};
static int meet(void *arg) {
    struct pair *p = arg;
    sem_post(p->other);
    while (sem_wait(&p->mine) != 0) continue;
    return 0;
}
static void test_host_functions_may_wait_for_each_other(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct pair x, y;
    sem_init(&x.mine, 0, 0);
    sem_init(&y.mine, 0, 0);
    x.other = &y.mine;
    y.other = &x.mine;
    stream_host(a, "meet", meet, &x);
    stream_host(b, "meet", meet, &y);
    assert_int_equal(stream_sync(a), 0);
    assert_int_equal(stream_sync(b), 0);
    stream_destroy(&a);
    stream_destroy(&b);
    sem_destroy(&x.mine);
    sem_destroy(&y.mine);
    close_fake(&d);
}

static int count_submit(void *arg, void *cuda_stream) {
    assert_non_null(cuda_stream);
    ++*(int *)arg;
    return 0;
}
static int refuse_submit(void *arg, void *cuda_stream) {
    (void)arg;
    (void)cuda_stream;
    return -1;
}

// While the device is at work nothing but a host function waits for it.
static void test_enqueuing_does_not_wait(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    int from = 7, to = 0, submitted = 0;
    assert_int_equal(stream_sync(a), 0);
    fake_hold(true);
    int syncs = atomic_load(&fake.device_syncs);
    for (int i = 0; i < 3000; i++) dev_copy(a, &to, &from, sizeof to);  // more than the ring holds
    starring_cuda_so.submit(a, "submit", count_submit, &submitted);
    event_record(e, a);
    stream_wait_event(b, e);
    dev_copy(b, &to, &from, sizeof to);
    while (queue_state((struct queue *)b, 2) == 0) give_way();
    assert_int_equal(atomic_load(&fake.device_syncs), syncs);
    assert_int_equal(event_passed(e), 0);
    fake_hold(false);
    assert_int_equal(stream_sync(b), 0);
    assert_int_equal(submitted, 1);
    stream_destroy(&a);
    stream_destroy(&b);
    event_destroy(&e);
    close_fake(&d);
}

// ---------------------------------------------------------------- failure

static void test_failure_is_sticky_and_travels(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *before = event_create(d), *after = event_create(d);
    int ran = 0;
    event_record(before, a);
    stream_host(a, "breaks", always_fails, NULL);
    starring_cuda_so.submit(a, "not run", count_submit, &ran);
    event_record(after, a);
    assert_int_equal(stream_sync(a), -1);
    assert_int_equal(ran, 0);
    assert_non_null(strstr(dev_error(d), "[rank 1] stream a: breaks failed"));
    assert_int_equal(event_sync(before), 0);
    assert_int_equal(event_sync(after), -1);
    assert_int_equal(event_passed(after), -1);
    assert_int_equal(stream_sync(b), 0);
    stream_wait_event(b, after);
    assert_int_equal(stream_sync(b), -1);
    stream_destroy(&a);
    stream_destroy(&b);
    event_destroy(&before);
    event_destroy(&after);
    close_fake(&d);
}

static void test_errors_name_the_operation(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *s = stream_create(d, "compute");
    int from = 1, to = 0;
    fake.next_copy_error = cudaErrorIllegalAddress;
    dev_copy(s, &to, &from, sizeof to);
    assert_int_equal(stream_sync(s), -1);
    assert_non_null(strstr(dev_error(d), "stream compute: copy: illegal address"));
    stream_destroy(&s);
    close_fake(&d);
    d = open_fake(false);
    s = stream_create(d, "compute");
    starring_cuda_so.submit(s, "all_gather", refuse_submit, NULL);
    assert_int_equal(stream_sync(s), -1);
    assert_non_null(strstr(dev_error(d), "all_gather failed"));
    stream_destroy(&s);
    close_fake(&d);
    d = open_fake(false);
    fake.malloc_limit_bytes = 4096;
    assert_null(stream_create(d, "compute"));
    fake.malloc_limit_bytes = 0;
    assert_non_null(strstr(dev_error(d), "workspace"));
    close_fake(&d);
}

// The effect of an aborted communicator: work that is already on the device, and everything that waits for it,
// has failed.
static void test_failed_from_outside(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    int ran = 0;
    fake_hold(true);
    starring_cuda_so.submit(a, "collective", count_submit, &ran);
    event_record(e, a);
    stream_wait_event(b, e);
    while (queue_state((struct queue *)b, 1) == 0) give_way();
    (starring_cuda_so.fail)(a, "a peer did not come");
    fake_hold(false);
    assert_int_equal(event_sync(e), -1);
    assert_int_equal(stream_sync(a), -1);
    assert_int_equal(stream_sync(b), -1);
    assert_non_null(strstr(dev_error(d), "stream a: a peer did not come"));
    stream_destroy(&a);
    stream_destroy(&b);
    event_destroy(&e);
    close_fake(&d);
}

// ---------------------------------------------------------------- times and trace

static int sleep_20ms(void *p) {
    (void)p;
    give_way();
    return 0;
}
static int submit_20ms(void *p, void *cuda_stream) {
    (void)cuda_stream;
    return sleep_20ms(p);
}

static void test_phases(void **state) {
    (void)state;
    struct device *d = open_fake(false);
    struct stream *s = stream_create(d, "compute");
    struct stream_times t;
    stream_phase(s, PHASE_COMM);
    stream_host(s, "sleep", sleep_20ms, NULL);
    stream_phase(s, PHASE_BACKWARD);
    starring_cuda_so.submit(s, "sleep", submit_20ms, NULL);
    stream_phase(s, PHASE_OPTIMIZER);
    assert_int_equal(stream_sync(s), 0);
    give_way();  // idle time belongs to nobody
    assert_int_equal(stream_sync(s), 0);
    stream_get_times(s, &t);
    assert_true(t.busy_s[PHASE_COMM] >= 0.019);
    assert_true(t.busy_s[PHASE_BACKWARD] >= 0.019);
    assert_true(t.busy_s[PHASE_OPTIMIZER] == 0 && t.busy_s[PHASE_FORWARD] == 0);
    stream_destroy(&s);
    close_fake(&d);
}

static void test_trace(void **state) {
    (void)state;
    struct device *d = open_fake(true);
    struct stream *a = stream_create(d, "com\"pute"), *b = stream_create(d, "copy");
    struct event *e = event_create(d);
    int from = 1, to = 0;
    for (int i = 0; i < 1500; i++)
        dev_copy(a, &to, &from, sizeof to);  // three times around the ring of spans
    stream_host(a, "host", sleep_20ms, NULL);
    event_record(e, a);
    stream_wait_event(b, e);
    dev_copy(b, &to, &from, sizeof to);
    assert_int_equal(stream_sync(a), 0);
    assert_int_equal(stream_sync(b), 0);
    int copies = 0, hosts = 0, waits = 0;
    const char *stream;
    const struct spans *all;
    for (int k = 0; (all = dev_spans(d, k, &stream)); k++) {
        int64_t last_end = 0;
        assert_int_equal(all->lost, 0);
        for (size_t i = 0; i < spans_count(all); i++) {
            const struct span *s = spans_at(all, i);
            copies += strcmp(s->name, "copy") == 0;
            hosts += strcmp(s->name, "host") == 0;
            waits += strcmp(s->name, "wait") == 0;
            assert_true(span_length(s) >= 0);
            if (strcmp(s->name, "copy") != 0) continue;
            assert_true(s->begin >= last_end - 1000);  // in order, as the stream ran them
            last_end = s->end;
        }
    }
    assert_int_equal(copies, 1501);
    assert_int_equal(hosts, 1);
    assert_int_equal(waits, 1);
    stream_destroy(&a);
    stream_destroy(&b);
    event_destroy(&e);
    close_fake(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_facts_and_memory),
        cmocka_unit_test(test_operations_run),
        cmocka_unit_test(test_wait_before_record_is_given),
        cmocka_unit_test(test_unrecorded_and_rerecorded),
        cmocka_unit_test(test_host_functions_may_wait_for_each_other),
        cmocka_unit_test(test_enqueuing_does_not_wait),
        cmocka_unit_test(test_failure_is_sticky_and_travels),
        cmocka_unit_test(test_created_once),
        cmocka_unit_test(test_errors_name_the_operation),
        cmocka_unit_test(test_failed_from_outside),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
