// What stands in for CUDA's headers where they are missing (tests/emulation/headers, decentral/nccl/nccl_abi.h)
// says the same as the installed ones: constants, sizes, places of fields, signatures. A header that is not
// installed is skipped.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/emulation/header_facts.h"

#define ROOM 160

static void compare(enum header which, const char *name) {
    struct fact ours[ROOM], installed[ROOM];
    size_t count = facts_ours(which, ours, ROOM), there = facts_installed(which, installed, ROOM);
    assert_in_range(count, 1, ROOM);
    for (size_t i = 0; i < count; i++)
        if (strstr(ours[i].name, "()") && ours[i].value != 1)
            fail_msg("our own %s is not what header_facts.c says", ours[i].name);
    if (there == 0) {
        printf("%s is not installed: nothing to compare with\n", name);
        skip();
    }
    assert_int_equal(there, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(ours[i].name, installed[i].name);
        if (ours[i].value != installed[i].value)
            fail_msg("%s: %lld declared by us, %lld in the installed %s", ours[i].name, ours[i].value,
                     installed[i].value, name);
    }
}

static void test_runtime(void **state) {
    (void)state;
    compare(HEADER_RUNTIME, "cuda_runtime_api.h");
}
static void test_cublaslt(void **state) {
    (void)state;
    compare(HEADER_CUBLASLT, "cublasLt.h");
}
static void test_cudnn(void **state) {
    (void)state;
    compare(HEADER_CUDNN, "cudnn.h");
}
static void test_nccl(void **state) {
    (void)state;
    compare(HEADER_NCCL, "nccl.h");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runtime), cmocka_unit_test(test_cublaslt),
                                       cmocka_unit_test(test_cudnn), cmocka_unit_test(test_nccl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
