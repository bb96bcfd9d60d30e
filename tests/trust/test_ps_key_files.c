// Files of keys and the allow list: what is written is read again, and what is not as it was written, or not meant for
// its reader, is refused by name.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps/trust/key_files.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const struct trust_owner scheduler = {PS_SCHEDULER, 0}, server = {PS_SERVER, 0},
                                worker = {PS_WORKER, 3};

static int open_place(void **state) {
    char *dir = xstrdup("/tmp/test_ps_key_files.XXXXXX");
    *state = mkdtemp(dir);
    error_quiet(1);
    return *state ? 0 : -1;
}

static int close_place(void **state) {
    int rc = disk_remove_dir(*state, NULL);
    free(*state);
    return rc;
}

// The last error has each of the words that '|' divides.
static void said(const char *words) {
    char *list = xstrdup(words), *rest = NULL;
    for (char *word = strtok_r(list, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(error_last(), word)) fail_msg("\"%s\" is not in \"%s\"", word, error_last());
    free(list);
    error_clear();
}

static char *text_of(const char *path) {
    char *text = xcalloc(1, 4096);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, 4095, f) > 0);
    fclose(f);
    return text;
}

static void put(const char *path, const char *text, size_t bytes) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

// ---------------------------------------------------------------- text
// RFC 32's own example, twice over in the middle of a key of zeros and ones.
static void test_z85(void **state) {
    (void)state;
    static const uint8_t hello[] = {0x86, 0x4f, 0xd2, 0x6f, 0xb5, 0x59, 0xf7, 0x5b};
    uint8_t key[32], back[32];
    char text[Z85_KEY_CHARS + 1];
    memset(key, 0, 8);
    memcpy(key + 8, hello, 8);
    memcpy(key + 16, hello, 8);
    memset(key + 24, 255, 8);
    z85_key_text(key, text);
    assert_string_equal(text, "0000000000HelloWorldHelloWorld%nSc0%nSc0");
    assert_int_equal(z85_key_read(text, back), 0);
    assert_memory_equal(key, back, 32);
    static const char *const wrong[] = {"",
                                        "0000000000HelloWorldHelloWorld%nSc0%nSc",
                                        "0000000000HelloWorldHelloWorld%nSc0%nSc00",
                                        "0000000000HelloWorldHelloWorld%nSc0%nSc1",  // 2^32
                                        "0000000000HelloWorldHelloWorld%nSc0%nS 0",
                                        "0000000000HelloWorldHelloWorld%nSc0%nS\"0"};
    for (size_t i = 0; i < COUNT(wrong); i++) assert_int_equal(z85_key_read(wrong[i], back), -1);
}

static void test_names(void **state) {
    (void)state;
    char name[TRUST_NAME_MAX];
    struct trust_owner o;
    static const char *const good[] = {"scheduler", "server 0", "worker 0", "worker 65535", "server 17"};
    static const char *const wrong[] = {
        "",          "scheduler 0",    "worker",  "worker ",  "worker -1", "worker 65536", "worker 03",
        "worker 1 ", "worker 1000000", "shard 0", "Worker 0", "workers 0", "worker  0",    "server +1"};
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(trust_owner_read(good[i], &o), 0);
        assert_string_equal(trust_owner_name(o, name), good[i]);
    }
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (trust_owner_read(wrong[i], &o) == 0) fail_msg("\"%s\" was read", wrong[i]);
}

// ---------------------------------------------------------------- a role's file
static void test_written_and_read(void **state) {
    const char *dir = *state;
    const struct trust_owner all[] = {scheduler, server, worker};
    static const char *const names[] = {"scheduler.key", "server-0.key", "worker-3.key"};
    struct trust_pair pair, back, other;
    struct stat about;
    umask(0);
    for (size_t i = 0; i < COUNT(all); i++) {
        char *path = trust_key_path(dir, all[i]);
        assert_string_equal(strrchr(path, '/') + 1, names[i]);
        assert_int_equal(trust_pair_make(&pair), 0);
        assert_int_equal(trust_key_write(dir, all[i], &pair), 0);
        assert_int_equal(stat(path, &about), 0);
        assert_int_equal(about.st_mode & 07777, 0600);
        assert_int_equal(trust_key_read(dir, all[i], &back), 0);
        assert_memory_equal(&pair, &back, sizeof pair);
        // Nobody loses a key by starting keygen again.
        assert_int_equal(trust_pair_make(&other), 0);
        assert_int_equal(trust_key_write(dir, all[i], &other), -1);
        said("is there already|replaces no key");
        assert_int_equal(trust_key_read(dir, all[i], &back), 0);
        assert_memory_equal(&pair, &back, sizeof pair);
        free(path);
    }
}

// Every mode that lets another than the owner read, write or run the file is refused; the pair is wiped.
static void test_modes(void **state) {
    const char *dir = *state;
    static const struct trust_pair nothing;
    struct trust_pair pair, back;
    assert_int_equal(trust_pair_make(&pair), 0);
    assert_int_equal(trust_key_write(dir, worker, &pair), 0);
    char *path = trust_key_path(dir, worker);
    for (unsigned bit = 1; bit <= 0040; bit *= 2) {
        assert_int_equal(chmod(path, 0600 | bit), 0);
        assert_int_equal(trust_key_read(dir, worker, &back), -1);
        said("worker-3.key|others than its owner|chmod 600");
        assert_memory_equal(&back, &nothing, sizeof back);
    }
    assert_int_equal(chmod(path, 0400), 0);
    assert_int_equal(trust_key_read(dir, worker, &back), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(trust_key_read(dir, worker, &back), -1);
        said("worker-3.key|another user (12345)");
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(trust_key_read(dir, worker, &back), -1);
    said("worker-3.key|not a plain file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(trust_key_read(dir, worker, &back), -1);
    said("worker-3.key|No such file|starring keygen");
    free(path);
}

// Each prefix of a file, each changed byte, and what somebody wrote behind it.
static void test_damaged(void **state) {
    const char *dir = *state;
    struct trust_pair pair, back;
    assert_int_equal(trust_pair_make(&pair), 0);
    assert_int_equal(trust_key_write(dir, worker, &pair), 0);
    char *path = trust_key_path(dir, worker), *text = text_of(path);
    size_t bytes = strlen(text);
    for (size_t n = 0; n < bytes; n++) {
        put(path, text, n);
        if (trust_key_read(dir, worker, &back) == 0)
            fail_msg("the first %zu of %zu bytes were read", n, bytes);
        said("worker-3.key");
    }
    for (size_t i = 0; i < bytes; i++) {
        char kept = text[i];
        text[i] = kept == '1' ? '2' : '1';
        put(path, text, bytes);
        int rc = trust_key_read(dir, worker, &back);
        // X25519 ignores the lowest bits of a secret and its highest: such a key is the same key.
        bool same = rc == 0 && memcmp(back.public_key, pair.public_key, TRUST_KEY_BYTES) == 0;
        if (rc == 0 && !same) fail_msg("a file with byte %zu changed was read", i);
        error_clear();
        text[i] = kept;
    }
    char *longer = xasprintf("%s\n", text), *other = xasprintf("starring key 2\n%s", strchr(text, '\n') + 1);
    put(path, longer, bytes + 1);
    assert_int_equal(trust_key_read(dir, worker, &back), -1);
    said("worker-3.key|damaged");
    put(path, other, strlen(other));
    assert_int_equal(trust_key_read(dir, worker, &back), -1);
    said("worker-3.key|starring key 2|version 1");
    put(path, text, bytes);
    assert_int_equal(truncate(path, 1 << 20), 0);
    assert_int_equal(trust_key_read(dir, worker, &back), -1);
    said("worker-3.key|1048576 bytes");
    free(other);
    free(longer);
    free(text);
    free(path);
}

// A file under another's name, and two halves of different pairs.
static void test_of_another(void **state) {
    const char *dir = *state;
    struct trust_pair pair, two, back;
    assert_int_equal(trust_pair_make(&pair) | trust_pair_make(&two), 0);
    assert_int_equal(trust_key_write(dir, worker, &pair), 0);
    char *from = trust_key_path(dir, worker), *to = trust_key_path(dir, (struct trust_owner){PS_WORKER, 0});
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(trust_key_read(dir, (struct trust_owner){PS_WORKER, 0}, &back), -1);
    said("worker-0.key|the key of worker 3, not of worker 0");
    memcpy(two.public_key, pair.public_key, TRUST_KEY_BYTES);
    assert_int_equal(trust_key_write(dir, server, &two), 0);
    assert_int_equal(trust_key_read(dir, server, &back), -1);
    said("server-0.key|do not belong together");
    free(from);
    free(to);
}

// One key needs no --rank; of several nobody guesses.
static void test_only(void **state) {
    const char *dir = *state;
    struct trust_pair pair;
    assert_int_equal(trust_pair_make(&pair), 0);
    assert_int_equal(trust_key_only(dir, PS_WORKER), -1);
    said("no key of a worker|worker-R.key|public.keys");
    assert_int_equal(trust_key_write(dir, server, &pair), 0);
    assert_int_equal(trust_key_write(dir, worker, &pair), 0);
    char *decoy = xasprintf("%s/worker-1.key.old", dir);
    put(decoy, "x", 1);
    assert_int_equal(trust_key_only(dir, PS_WORKER), 3);
    assert_int_equal(trust_key_only(dir, PS_SERVER), 0);
    assert_int_equal(trust_key_write(dir, (struct trust_owner){PS_WORKER, 12}, &pair), 0);
    assert_int_equal(trust_key_only(dir, PS_WORKER), -1);
    said("2 workers|--rank R");
    assert_int_equal(trust_key_only("/nowhere/at/all", PS_WORKER), -1);
    said("/nowhere/at/all|No such file");
    free(decoy);
}

// ---------------------------------------------------------------- the allow list
static void test_list(void **state) {
    const char *dir = *state;
    enum { SERVERS = 3, WORKERS = 300 };
    struct allow_list *a = allow_list_create();
    struct trust_owner o;
    uint8_t key[TRUST_KEY_BYTES] = {0};
    assert_int_equal(allow_list_add(a, scheduler, key), 0);
    for (int i = 0; i < SERVERS + WORKERS; i++) {
        o = i < SERVERS ? (struct trust_owner){PS_SERVER, i} : (struct trust_owner){PS_WORKER, i - SERVERS};
        key[i % TRUST_KEY_BYTES]++;
        assert_int_equal(allow_list_add(a, o, key), 0);
        assert_int_equal(allow_list_add(a, (struct trust_owner){PS_WORKER, 4000}, key),
                         -1);  // the key is somebody's
    }
    uint8_t other[TRUST_KEY_BYTES] = {9, 9, 9, 9};
    assert_int_equal(allow_list_add(a, o, other), -1);  // the role has one
    assert_false(allow_list_owner(a, other, &o));
    assert_int_equal(allow_list_write(a, dir), 0);
    assert_int_equal(allow_list_write(a, dir), -1);
    said("public.keys is there already");
    struct allow_list *b = allow_list_read(dir);
    assert_non_null(b);
    assert_int_equal(allow_list_count(b, PS_SERVER), SERVERS);
    assert_int_equal(allow_list_count(b, PS_WORKER), WORKERS);
    assert_int_equal(allow_list_count(b, PS_SCHEDULER), 1);
    for (int i = 0; i < WORKERS; i++) {
        const struct trust_owner w = {PS_WORKER, i};
        const uint8_t *was = allow_list_key(a, w), *is = allow_list_key(b, w);
        assert_memory_equal(was, is, TRUST_KEY_BYTES);
        assert_true(allow_list_owner(b, is, &o) && trust_owner_same(o, w));
    }
    assert_null(allow_list_key(b, (struct trust_owner){PS_WORKER, WORKERS}));
    assert_false(allow_list_owner(b, other, &o));
    allow_list_destroy(&a);
    allow_list_destroy(&b);
    assert_null(b);
}

#define KEY_A "0000000000HelloWorldHelloWorld%nSc0%nSc0"
#define KEY_B "0000000000HelloWorldHelloWorld%nSc0%nSb0"

static void test_list_damaged(void **state) {
    const char *dir = *state;
    char *path = xasprintf("%s/public.keys", dir);
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "not the public keys"},
        {"starring key 1\n", "not the public keys"},
        {"starring public keys 2\nscheduler " KEY_A "\n", "starring public keys 2|version 1"},
        {"starring public keys 1\n", "scheduler's key is not in it"},
        {"starring public keys 1\nworker 0 " KEY_A "\n", "scheduler's key is not in it"},
        {"starring public keys 1\nscheduler " KEY_A "\nworker 0 " KEY_B, ":3: the file ends within a line"},
        {"starring public keys 1\nscheduler " KEY_A "\nworker 0 " KEY_A "\n", ":3: worker 0|twice"},
        {"starring public keys 1\nscheduler " KEY_A "\nscheduler " KEY_B "\n", ":3: scheduler|twice"},
        {"starring public keys 1\nscheduler " KEY_A "\nworker " KEY_B "\n", ":3: expected ROLE RANK KEY"},
        {"starring public keys 1\nscheduler " KEY_A "\nworker -1 " KEY_B "\n", ":3: expected ROLE RANK KEY"},
        {"starring public keys 1\nscheduler " KEY_A "\nworker 0 " KEY_B "0\n", ":3: expected ROLE RANK KEY"},
        {"starring public keys 1\nscheduler " KEY_A "\n\n", ":3: expected ROLE RANK KEY"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        put(path, cases[i].text, strlen(cases[i].text));
        assert_null(allow_list_read(dir));
        said("public.keys");
        assert_null(allow_list_read(dir));
        said(cases[i].words);
    }
    static const char with_zero[] = "starring public keys 1\nscheduler " KEY_A "\n\0worker 0 " KEY_B "\n";
    put(path, with_zero, sizeof with_zero - 1);
    assert_null(allow_list_read(dir));
    said("not the public keys");
    const char *good = "starring public keys 1\nscheduler " KEY_A "\nworker 0 " KEY_B "\n";
    put(path, good, strlen(good));
    // Others may read it, and not write it.
    for (unsigned mode = 0602; mode <= 0620; mode += 0620 - 0602) {
        assert_int_equal(chmod(path, mode), 0);
        assert_null(allow_list_read(dir));
        said("public.keys|who may join|chmod go-w");
    }
    assert_int_equal(chmod(path, 0644), 0);
    struct allow_list *a = allow_list_read(dir);
    assert_non_null(a);
    allow_list_destroy(&a);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_z85),
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_written_and_read, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_modes, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_damaged, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_of_another, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_only, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_list, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_list_damaged, open_place, close_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
