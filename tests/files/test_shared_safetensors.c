// safetensors files: conversions, complete files or none, and refusals of inconsistent headers.
#include "tests/files/st_helper.h"

#include "shared/hf/safetensors.h"

static void expect_refused(const char *path, const char *part) {
    error_clear();
    error_quiet(1);
    assert_null(st_open(path));
    error_quiet(0);
    if (!strstr(error_last(), part) || !strstr(error_last(), path))
        fail_msg("\"%s\" should name %s and say \"%s\"", error_last(), path, part);
}

static void test_read_and_convert(void **state) {
    struct dir *d = *state;
    const float f[6] = {0.5f, -1.25f, 3e-8f, 65504.0f, -0.0f, 1e30f};
    const uint16_t b[3] = {0x3f80, 0xc000, 0x7f80}, h[2] = {0x3c00, 0x0001};
    const double g[2] = {1.0 / 3.0, -2.0};
    const int64_t k[2] = {7, -9};
    const struct st_entry entries[] = {{"f", DT_F32, 2, {2, 3}}, {"b", DT_BF16, 1, {3}},
                                       {"h", DT_F16, 1, {2}},    {"g", DT_F64, 1, {2}},
                                       {"k", DT_I64, 1, {2}},    {"z", DT_F32, 2, {0, 5}}};
    char *error = NULL;
    struct st_written written;
    struct st_writer *w = st_writer_begin(d->file, entries, 6, NEW_FILE_ON_DISK, &error);
    assert_non_null(w);
    assert_int_equal(st_writer_append(w, f, sizeof f), 0);
    assert_int_equal(st_writer_append(w, b, sizeof b), 0);
    assert_int_equal(st_writer_append(w, h, sizeof h), 0);
    assert_int_equal(st_writer_append(w, g, sizeof g), 0);
    assert_int_not_equal(access(d->file, F_OK), 0);  // not there before it is whole
    assert_int_equal(st_writer_append(w, k, sizeof k), 0);
    assert_int_equal(st_writer_end(&w, &written, &error), 0);
    assert_null(w);
    struct st_file *s = st_open(d->file);
    assert_non_null(s);
    assert_true(written.xxh64 == st_hash(s));
    assert_int_equal(st_count(s), 6);
    assert_null(st_find(s, "missing"));
    const struct st_tensor *t = st_find(s, "f");
    float x[6];
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(st_to_f32(t, 0, 6, x), 0);
    assert_memory_equal(x, f, sizeof f);
    assert_int_equal(st_to_f32(st_find(s, "b"), 0, 3, x), 0);
    assert_true(x[0] == 1.0f && x[1] == -2.0f && x[2] > 3e38f);
    assert_int_equal(st_to_f32(st_find(s, "h"), 1, 1, x), 0);
    assert_true(x[0] == 5.9604644775390625e-8f);
    assert_memory_equal(st_find(s, "g")->data, g, sizeof g);
    assert_int_equal(st_to_f32(st_find(s, "g"), 0, 1, x), 0);
    assert_true(x[0] == (float)(1.0 / 3.0));
    assert_memory_equal(st_find(s, "k")->data, k, sizeof k);
    assert_int_equal(st_to_f32(st_find(s, "k"), 0, 2, x), -1);
    assert_int_equal(st_find(s, "z")->numel, 0);
    st_close(&s);
    size_t n;
    char *bytes = get_file(d->file, &n);
    assert_int_equal(bytes[0] % 8, 0);  // the data begin aligned
    free(bytes);
}

static void test_writer_refuses(void **state) {
    struct dir *d = *state;
    const struct st_entry one = {"x", DT_F32, 1, {2}};
    const float data[4] = {1, 2, 3, 4};
    char *error = NULL;
    struct st_writer *w = st_writer_begin(d->file, &one, 1, NEW_FILE_ON_DISK, &error);
    assert_int_equal(st_writer_append(w, data, 4), 0);
    assert_int_equal(st_writer_append(w, data, 8), -1);  // four bytes are left
    assert_non_null(strstr(st_writer_error(w), "more data than its header announced"));
    assert_int_equal(st_writer_end(&w, NULL, &error), -1);
    assert_non_null(strstr(error, "more data than its header announced"));
    assert_int_not_equal(access(d->file, F_OK), 0);
    free(error);
    error = NULL;
    w = st_writer_begin(d->file, &one, 1, NEW_FILE_ON_DISK, &error);
    assert_int_equal(st_writer_append(w, data, 4), 0);
    assert_int_equal(st_writer_end(&w, NULL, &error), -1);
    assert_non_null(strstr(error, "4 bytes of data are still missing"));
    assert_int_not_equal(access(d->file, F_OK), 0);
    free(error);
    error = NULL;
    w = st_writer_begin(d->file, &one, 1, NEW_FILE_ON_DISK, &error);
    st_writer_discard(&w);
    assert_null(st_writer_begin("/dev/null/dir/x", &one, 1, NEW_FILE_ON_DISK, &error));
    assert_non_null(strstr(error, "/dev/null/dir/x: cannot create"));
    free(error);
}

static void test_lying_headers(void **state) {
    const char *p = ((struct dir *)*state)->file;
    put_file(p, "", 0);
    expect_refused(p, "no safetensors");
    put_file(p, "\x10\0\0\0\0\0\0", 7);
    expect_refused(p, "no safetensors");
    put_file(p, "\x10\0\0\0\0\0\0\0{}", 10);
    expect_refused(p, "header has 16 bytes");
    put_file(p, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    expect_refused(p, "18446744073709551615");
    static const struct {
        const char *header, *part;
    } lies[] = {
        {"", "JSON"},
        {"[]", "JSON"},
        {"{\"a\":", "JSON"},
        {"{} x", "JSON"},
        {"{\"a\":3}", "a"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "a: no dtype"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", "F33"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "a: no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e99],\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,8]}}",
         "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952,2],\"data_offsets\":[0,8]}}", "a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", "dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "span"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "last 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "4 bytes before it"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "overlaps"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "twice"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        put_header(p, lies[i].header, 8);
        expect_refused(p, lies[i].part);
    }
    put_header(p, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", 8);
    struct st_file *good = st_open(p);
    assert_non_null(good);
    st_close(&good);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DIR(test_read_and_convert),
        IN_DIR(test_writer_refuses),
        IN_DIR(test_lying_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
