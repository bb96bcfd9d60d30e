// The permitted actions of functions on the stream that runs them, in the CUDA backend's host side on a faked
// runtime; which devices reach each other; page-locked memory of others.
#include <stdio.h>

#include "tests/cuda/cuda_fake.h"
#include "tests/kernels/inside_cases.h"

#include "kernels/cuda/host/clock.c"
#include "kernels/cuda/host/device.c"
#include "kernels/cuda/host/mark.c"
#include "kernels/cuda/host/stream.c"
#include "kernels/cuda/host/workspace.c"

static struct device *inside_open(void) {
    struct device *d = NULL;
    assert_int_equal(dev_open(starring_cuda_so.backend, &(struct device_options){.label = "rank 1"}, &d), 0);
    assert_false(dev_host_memory(d));
    return d;
}

static void inside_close(struct device **d) {
    dev_close(d);
    assert_int_equal(atomic_load(&fake.live_events), 0);
    assert_int_equal(atomic_load(&fake.live_buffers), 0);
    assert_int_equal(atomic_load(&fake.waits_on_nothing), 0);
}

// A function of stream_submit does not wait for the device; a function of stream_host does.
static int note(void *arg) {
    atomic_store((atomic_int *)arg, 1);
    return 0;
}

static void test_submit_does_not_wait(void **state) {
    (void)state;
    struct device *d = inside_open();
    struct stream *s = stream_create(d, "one"), *other = stream_create(d, "two");
    atomic_int submitted = 0, hosted = 0;
    fake_hold(true);
    stream_submit(s, "note", note, &submitted);
    stream_host(other, "note", note, &hosted);
    while (!atomic_load(&submitted)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(atomic_load(&hosted), 0);
    fake_hold(false);
    assert_int_equal(stream_sync(other), 0);
    assert_int_equal(atomic_load(&hosted), 1);
    stream_destroy(&s);
    stream_destroy(&other);
    inside_close(&d);
}

static void test_reach(void **state) {
    (void)state;
    struct device *a = NULL, *b = NULL;
    fake.count = 2;
    assert_int_equal(dev_open(starring_cuda_so.backend, &(struct device_options){.index = 0}, &a), 0);
    assert_int_equal(dev_open(starring_cuda_so.backend, &(struct device_options){.index = 1}, &b), 0);
    assert_int_equal(backend_devices(starring_cuda_so.backend), 2);
    assert_int_equal(dev_reach(a, b), -1);
    fake.peers = true;
    assert_int_equal(dev_reach(a, b), 0);
    assert_string_equal(dev_error(a), "");
    inside_close(&a);
    inside_close(&b);
    fake.count = 1;
}

// Page-locked memory of the caller's own: counted while it is registered; a refusal has a reason and breaks nothing.
static void test_host_register(void **state) {
    (void)state;
    static char pages[8192] __attribute__((aligned(4096)));
    const char *why = "";
    struct mem_usage use;
    struct device *d = inside_open();
    fake.no_register = true;
    assert_int_equal(dev_host_register(d, pages, sizeof pages, &why), -1);
    assert_string_equal(why, "an error");
    assert_string_equal(dev_error(d), "");
    dev_usage(d, &use);
    assert_int_equal(use.peak_bytes[MEM_HOST], 0);
    fake.no_register = false;
    assert_int_equal(dev_host_register(d, pages, sizeof pages, &why), 0);
    assert_ptr_equal(fake.registered, pages);
    dev_usage(d, &use);
    assert_int_equal(use.current_bytes[MEM_HOST], sizeof pages);
    dev_host_unregister(d, pages, sizeof pages);
    assert_null(fake.registered);
    dev_usage(d, &use);
    assert_int_equal(use.current_bytes[MEM_HOST], 0);
    assert_int_equal(use.peak_bytes[MEM_HOST], sizeof pages);
    dev_host_unregister(d, pages, 0);
    assert_non_null(strstr(dev_error(d), "cudaHostUnregister"));
    inside_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_does_not_wait),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_host_register),
    };
    return cmocka_run_group_tests(inside_tests, NULL, NULL) + cmocka_run_group_tests(tests, NULL, NULL);
}
