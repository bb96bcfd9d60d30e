// The permitted actions of functions on the stream that runs them, on the host backends.
#include "kernels/backend_impl.h"
#include "tests/kernels/inside_cases.h"

static struct device *inside_open(void) {
    struct device *d = NULL;
    assert_int_equal(dev_open(backend_find("cpu", NULL), &(struct device_options){.label = "rank 1"}, &d), 0);
    assert_true(dev_host_memory(d));
    return d;
}

static void inside_close(struct device **d) { dev_close(d); }

// A device keeps each remark once, in order, and says when it has no room for more.
static void test_notes(void **state) {
    (void)state;
    enum dev_note_kind kind;
    struct device *d = inside_open();
    assert_int_equal(dev_notes(d), 0);
    device_note(d, DEV_NOTE_WARNING, "product of %d rows", 3);
    device_note(d, DEV_NOTE_FACT, "heads of %s", "64");
    device_note(d, DEV_NOTE_WARNING, "product of %d rows", 3);
    assert_int_equal(dev_notes(d), 2);
    assert_string_equal(dev_note(d, 0, &kind), "product of 3 rows");
    assert_int_equal(kind, DEV_NOTE_WARNING);
    assert_string_equal(dev_note(d, 1, &kind), "heads of 64");
    assert_int_equal(kind, DEV_NOTE_FACT);
    const char *first = dev_note(d, 0, NULL);
    for (int i = 0; i < 2 * DEV_NOTES_MAX; i++) device_note(d, DEV_NOTE_FACT, "number %d", i);
    assert_int_equal(dev_notes(d), DEV_NOTES_MAX);
    assert_ptr_equal(dev_note(d, 0, NULL), first);
    assert_string_equal(dev_note(d, DEV_NOTES_MAX - 2, NULL), "number 60");
    assert_string_equal(dev_note(d, DEV_NOTES_MAX - 1, NULL), "more remarks are left out");
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest notes_test[] = {cmocka_unit_test(test_notes)};
    int failed = cmocka_run_group_tests(inside_tests, NULL, NULL);
    return failed + cmocka_run_group_tests(notes_test, NULL, NULL);
}
