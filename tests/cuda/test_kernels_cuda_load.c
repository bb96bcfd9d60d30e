// Asking for CUDA where it cannot be had: each reason has its own sentence, and says what to do. And the
// parts of the CUDA backend that need no device: the mapping of row-major products to cuBLASLt's terms.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "kernels/backend.h"
#include "kernels/cuda/host/matmul_layout.h"
#include "kernels/cuda_so.h"

// ---------------------------------------------------------------- loading

static bool driver_is_there(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver != NULL;
}

static void assert_says(const char *why, const char *what) {
    assert_non_null(why);
    if (!strstr(why, what)) fail_msg("\"%s\" does not say \"%s\"", why, what);
}

// A file of its own, so that it is there and is no object.
static void make_file(char *path, size_t path_bytes, const char *text) {
    snprintf(path, path_bytes, "%s/starring_cuda_load_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_not_built(void **state) {
    (void)state;
    const char *why = NULL;
    unsetenv("STARRING_CUDA_SO");
    if (access("/proc/self/exe", R_OK) != 0) skip();
    const struct backend *b = backend_find("cuda", &why);
    // Where the object lies beside this test there is another answer, told apart below.
    if (b) {
        assert_string_equal(b->name, "cuda");
        return;
    }
    assert_says(why, "CUDA");
    assert_says(why, "--device cpu");
}

static void test_named_object_missing(void **state) {
    (void)state;
    const char *why = NULL;
    setenv("STARRING_CUDA_SO", "/nowhere/libstarring_cuda.so", 1);
    assert_null(backend_find("cuda", &why));
    assert_says(why, "STARRING_CUDA_SO");
    assert_says(why, "/nowhere/libstarring_cuda.so");
    assert_says(why, "make");
    assert_null(strstr(why, "driver"));
}

// The loader would map what is not there: an object is as whole as its headers say, or it is refused.
static void test_object_cut_short(void **state) {
    (void)state;
    static const off_t lengths[] = {20, 4000, 20000};
    static char bytes[20000];
    char path[256];
    int self = open("/proc/self/exe", O_RDONLY);
    assert_int_equal(read(self, bytes, sizeof bytes), (ssize_t)sizeof bytes);
    close(self);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const char *why = NULL;
        make_file(path, sizeof path, "");
        int fd = open(path, O_WRONLY);
        assert_int_equal(write(fd, bytes, (size_t)lengths[i]), (ssize_t)lengths[i]);
        close(fd);
        setenv("STARRING_CUDA_SO", path, 1);
        assert_null(backend_find("cuda", &why));
        unlink(path);
        assert_says(why, path);
        assert_says(why, "cut short");
        assert_says(why, "make");
    }
}

static void test_no_driver_comes_before_the_object(void **state) {
    (void)state;
    char path[256];
    const char *why = NULL;
    if (driver_is_there()) skip();
    make_file(path, sizeof path, "no object");
    setenv("STARRING_CUDA_SO", path, 1);
    assert_null(backend_find("cuda", &why));
    unlink(path);
    assert_says(why, "driver is missing");
    assert_says(why, "libcuda.so.1");
    assert_says(why, "--device cpu");
}

static void test_not_an_object(void **state) {
    (void)state;
    char path[256];
    const char *why = NULL;
    if (!driver_is_there()) skip();
    make_file(path, sizeof path, "no object");
    setenv("STARRING_CUDA_SO", path, 1);
    assert_null(backend_find("cuda", &why));
    unlink(path);
    assert_says(why, path);
    assert_says(why, "cannot be loaded");
}

static void test_reasons_may_be_ignored(void **state) {
    (void)state;
    setenv("STARRING_CUDA_SO", "/nowhere/libstarring_cuda.so", 1);
    assert_null(backend_find("cuda", NULL));
    assert_null(backend_find("tpu", NULL));
}

static void test_texts_of_other_names(void **state) {
    (void)state;
    const char *why = NULL;
    assert_null(backend_find("tpu", &why));
    assert_says(why, "cpu, cuda and ref");
}

// The real object, where the build made it: it must load, and tell what is missing instead of failing in
// CUDA.
static void test_real_object(void **state) {
    (void)state;
    char path[4096], why_driver[512] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n <= 0) skip();
    path[n] = 0;
    *strrchr(path, '/') = 0;  // build/tests
    strcat(path, "/../" CUDA_SO_FILE);
    if (access(path, R_OK) != 0) skip();
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) skip();  // its libraries are not here
    const struct cuda_so *so = dlsym(object, CUDA_SO_SYMBOL);
    assert_non_null(so);
    assert_int_equal(so->abi, CUDA_SO_ABI);
    assert_string_equal(so->backend->name, "cuda");
    assert_null(dlsym(object, "cuda_op_adamw"));  // one symbol is shown
    if (!driver_is_there()) {
        struct device *d = NULL;
        assert_int_equal(so->probe(why_driver, sizeof why_driver), -1);
        assert_says(why_driver, "driver");
        int kept = dup(2), nowhere = open("/dev/null", O_WRONLY);  // open() says why on stderr
        dup2(nowhere, 2);
        int rc = dev_open(so->backend, &(struct device_options){.label = "rank 0"}, &d);
        dup2(kept, 2);
        close(kept);
        close(nowhere);
        assert_int_equal(rc, -1);
        assert_null(d);
    }
    setenv("STARRING_CUDA_SO", path, 1);
    const char *why = NULL;
    const struct backend *b = backend_find("cuda", &why);
    if (!driver_is_there()) {
        assert_null(b);
        assert_says(why, "driver is missing");
    }
}

// ---------------------------------------------------------------- products

// Column-major, with leading dimensions, as cuBLASLt does it: d(rows of a, columns of b) = op(a) op(b).
static void library_product(const struct matmul_layout *l, const float *a, const float *b, float *d) {
    int64_t m = (int64_t)l->d.rows, n = (int64_t)l->d.columns;
    int64_t k = (int64_t)(l->a.transpose ? l->a.rows : l->a.columns);
    assert_int_equal(l->d.rows, l->a.transpose ? l->a.columns : l->a.rows);
    assert_int_equal(l->d.columns, l->b.transpose ? l->b.rows : l->b.columns);
    assert_int_equal(k, l->b.transpose ? l->b.columns : l->b.rows);
    assert_true(l->a.ld >= (int64_t)l->a.rows && l->b.ld >= (int64_t)l->b.rows &&
                l->d.ld >= (int64_t)l->d.rows);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += (l->a.transpose ? a[p + i * l->a.ld] : a[i + p * l->a.ld]) *
                       (l->b.transpose ? b[j + p * l->b.ld] : b[p + j * l->b.ld]);
            d[i + j * l->d.ld] = sum;
        }
}

static void test_layouts(void **state) {
    (void)state;
    enum { M = 3, N = 5, K = 4, LD = 7, ROWS = 5 };
    for (int combination = 0; combination < 8; combination++) {
        bool gaps = combination & 4;
        float a[ROWS * LD], b[ROWS * LD], got[ROWS * LD] = {0}, want[ROWS * LD] = {0};
        const char *why = NULL;
        for (int i = 0; i < ROWS * LD; i++) a[i] = (float)(i * 7 % 11 - 5);
        for (int i = 0; i < ROWS * LD; i++) b[i] = (float)(i * 5 % 13 - 6);
        struct matmul_args m = {.c = want, .a = a, .b = b, .m = M, .n = N, .k = K, .dt = DT_F32};
        m.trans_a = combination & 1;
        m.trans_b = combination & 2;
        m.lda = gaps ? LD : 0;
        m.ldb = gaps ? LD - 1 : 0;
        m.ldc = gaps ? LD - 1 : 0;
        assert_int_equal(ref_ops[OP_MATMUL](1, &m, &why), 0);
        struct matmul_layout l = matmul_layout_of(&m);
        library_product(&l, b, a, got);  // the library's A is our b
        for (int i = 0; i < ROWS * LD; i++) assert_true(got[i] == want[i]);
    }
}

static void test_alignments(void **state) {
    (void)state;
    char *base = (char *)(uintptr_t)4096;
    assert_int_equal(matmul_alignment(base), 16);
    assert_int_equal(matmul_alignment(base + 256), 16);
    assert_int_equal(matmul_alignment(base + 8), 8);
    assert_int_equal(matmul_alignment(base + 12), 4);
    assert_int_equal(matmul_alignment(base + 2), 2);
    assert_int_equal(matmul_alignment(base + 17), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_built),
        cmocka_unit_test(test_named_object_missing),
        cmocka_unit_test(test_object_cut_short),
        cmocka_unit_test(test_no_driver_comes_before_the_object),
        cmocka_unit_test(test_not_an_object),
        cmocka_unit_test(test_reasons_may_be_ignored),
        cmocka_unit_test(test_texts_of_other_names),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_real_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
