// The key of a job: what is taken for one, what children are handed, and what is made of it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/job_key.h"

#define SIXTY "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789ab"

static int clear(void **state) {
    (void)state;
    unsetenv(JOB_KEY_VARIABLE);
    return unsetenv("STARRING_JOB_SECRET");
}

static void refused(int rc, const char *words) {
    assert_int_equal(rc, -1);
    if (!strstr(error_last(), words)) fail_msg("%s: no \"%s\"", error_last(), words);
}

static void what_is_a_key(void **state) {
    (void)state;
    static const char *const wrong[] = {"short",        SIXTY "cde",    SIXTY "cdef0",   SIXTY "cdeg",
                                        SIXTY " cde",   SIXTY "cd:f",   "0x" SIXTY "cd", SIXTY "cde\n",
                                        SIXTY "cdef\r", " " SIXTY "cde"};
    struct job_key k, again;
    assert_int_equal(job_key_given(&k), 0);
    setenv(JOB_KEY_VARIABLE, "", 1);
    assert_int_equal(job_key_given(&k), 0);
    setenv(JOB_KEY_VARIABLE, SIXTY "cdef", 1);
    assert_int_equal(job_key_given(&k), 1);
    assert_memory_equal(k.bytes, "\x01\x23\x45\x67\x89\xab\xcd\xef", 8);
    setenv(JOB_KEY_VARIABLE, SIXTY "CDEF", 1);
    assert_int_equal(job_key_given(&again), 1);
    assert_memory_equal(&k, &again, sizeof k);
    error_quiet(QUIET_ALL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv(JOB_KEY_VARIABLE, wrong[i], 1);
        refused(job_key_given(&k), JOB_KEY_VARIABLE " is not 64 hexadecimal digits");
        refused(job_key_hand_down(), JOB_KEY_VARIABLE " is not 64 hexadecimal digits");
        if (strstr(error_last(), wrong[i])) fail_msg("the key is shown: %s", error_last());
    }
    clear(NULL);
    setenv("STARRING_JOB_SECRET", "of an earlier version, of 32 characters", 1);
    refused(job_key_given(&k), "STARRING_JOB_SECRET is no longer read");
    error_quiet(QUIET_NOT);
}

static void who_speaks_with_one(void **state) {
    (void)state;
    struct job_key k;
    error_quiet(QUIET_ALL);
    refused(job_key_open(false, &k), "export STARRING_JOB_KEY=$(starring keygen)");
    assert_non_null(strstr(error_last(), "--insecure"));
    assert_int_equal(job_key_open(true, &k), 0);
    setenv(JOB_KEY_VARIABLE, SIXTY "cdef", 1);
    assert_int_equal(job_key_open(false, &k), 1);
    refused(job_key_open(true, &k), "leave one of them out");
    error_quiet(QUIET_NOT);
}

static void children_have_it(void **state) {
    (void)state;
    struct job_key a, b;
    char text[JOB_KEY_TEXT];
    assert_int_equal(job_key_hand_down(), 0);
    assert_int_equal(job_key_given(&a), 1);
    job_key_text(&a, text);
    assert_string_equal(getenv(JOB_KEY_VARIABLE), text);
    assert_int_equal(job_key_hand_down(), 0);  // the one that was given stays
    assert_int_equal(job_key_given(&b), 1);
    assert_memory_equal(&a, &b, sizeof a);
    clear(NULL);
    assert_int_equal(job_key_hand_down(), 0);
    assert_int_equal(job_key_given(&b), 1);
    assert_memory_not_equal(&a, &b, sizeof a);
    job_key_forget(&b);
    assert_memory_equal(&b, &(struct job_key){{0}}, sizeof b);
}

// Each key has pairs of its own, the same in all processes; no part of them is the key, or a part of another.
static void what_is_made_of_it(void **state) {
    (void)state;
    struct job_key key[2] = {{{1}}, {{2}}};
    struct job_pairs pairs[2], again;
    const uint8_t *parts[10];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        job_pairs_of(&key[i], &pairs[i]);
        job_pairs_of(&key[i], &again);
        assert_memory_equal(&pairs[i], &again, sizeof again);
        parts[n++] = key[i].bytes;
        parts[n++] = pairs[i].listen_public;
        parts[n++] = pairs[i].listen_secret;
        parts[n++] = pairs[i].connect_public;
        parts[n++] = pairs[i].connect_secret;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_memory_not_equal(parts[i], parts[j], JOB_PAIR_BYTES);
}

static void tokens(void **state) {
    (void)state;
    char a[JOB_TOKEN_MAX], b[JOB_TOKEN_MAX];
    assert_int_equal(job_token_make(a) || job_token_make(b), 0);
    assert_int_equal(strlen(a), JOB_TOKEN_MAX - 1);
    assert_int_equal(strspn(a, "0123456789abcdef"), JOB_TOKEN_MAX - 1);
    assert_string_not_equal(a, b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_a_key, clear),
        cmocka_unit_test_setup(who_speaks_with_one, clear),
        cmocka_unit_test_setup(children_have_it, clear),
        cmocka_unit_test(what_is_made_of_it),
        cmocka_unit_test(tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
