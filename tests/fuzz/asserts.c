// The simulation's asserts are cmocka's. Under the fuzzer no test is running that they could end: they are findings.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fuzz/fuzz.h"

void _assert_true(const LargestIntegralType result, const char *const expression, const char *const file,
                  const int line) {
    if (!result) fuzz_found(file, line, "%s", expression);
}

void _assert_int_equal(const LargestIntegralType a, const LargestIntegralType b, const char *const file,
                       const int line) {
    if (a != b) fuzz_found(file, line, "%lld is not %lld", (long long)a, (long long)b);
}

void _assert_memory_equal(const void *const a, const void *const b, const size_t size, const char *const file,
                          const int line) {
    if (memcmp(a, b, size) != 0) fuzz_found(file, line, "%zu bytes of memory differ", size);
}

void _fail(const char *const file, const int line) { fuzz_found(file, line, "fail()"); }

void print_error(const char *const format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}
