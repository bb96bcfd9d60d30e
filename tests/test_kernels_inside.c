// What functions may do on the stream that runs them, on the host backends.
#include "tests/inside_cases.h"

static struct device *inside_open(void) {
    struct device *d = NULL;
    assert_int_equal(dev_open(backend_find("cpu", NULL), &(struct device_options){.label = "rank 1"}, &d), 0);
    assert_true(dev_host_memory(d));
    return d;
}

static void inside_close(struct device **d) { dev_close(d); }

int main(void) { return cmocka_run_group_tests(inside_tests, NULL, NULL); }
