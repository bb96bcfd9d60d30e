// The secret that a scheduler started by hand leaves for members of its own user: who finds it, and what is refused.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps/trust/job_secret.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"

#define STRANGER 12345
#define ADDRESS  "tcp://127.0.0.1:54321"

static const uint8_t first[JOB_SECRET_BYTES] = "the secret of the first schedul",
                     second[JOB_SECRET_BYTES] = "another";

// XDG_RUNTIME_DIR is a directory of the test's own.
static int open_place(void **state) {
    char *dir = xstrdup("/tmp/test_ps_secret_file.XXXXXX");
    *state = mkdtemp(dir);
    error_quiet(1);
    umask(0);
    return *state && setenv("XDG_RUNTIME_DIR", dir, 1) == 0 ? 0 : -1;
}

static int close_place(void **state) {
    char *ours = xasprintf("%s/starring", (char *)*state);
    int rc = disk_remove_dir(ours, NULL) | disk_remove_dir(*state, NULL);
    free(ours);
    free(*state);
    return rc;
}

static void said(const char *word) {
    if (!strstr(error_last(), word)) fail_msg("\"%s\" is not in \"%s\"", word, error_last());
    error_clear();
}

static int find(uint8_t out[JOB_SECRET_BYTES]) {
    memset(out, 0, JOB_SECRET_BYTES);
    return secret_file_find(ADDRESS, out);
}

// It is found by the port, by whatever name the host goes; nothing is left behind.
static void test_left_and_found(void **state) {
    uint8_t out[JOB_SECRET_BYTES];
    struct stat about;
    assert_int_equal(find(out), 0);
    char *path = secret_file_leave(ADDRESS, first);
    assert_non_null(path);
    assert_ptr_equal(strstr(path, *state), path);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    char *slash = strrchr(path, '/');
    *slash = 0;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0700);
    *slash = '/';
    assert_int_equal(find(out), 1);
    assert_memory_equal(out, first, sizeof out);
    assert_int_equal(secret_file_find("tcp://localhost:54321", out), 1);
    assert_int_equal(secret_file_find("tcp://[::1]:54321", out), 1);
    assert_int_equal(secret_file_find("tcp://127.0.0.1:54320", out), 0);
    assert_int_equal(secret_file_find("tcp://127.0.0.1:*", out), 0);
    assert_int_equal(secret_file_find("tcp://127.0.0.1", out), 0);
    // The next scheduler at the port replaces it.
    char *again = secret_file_leave(ADDRESS, second);
    assert_string_equal(path, again);
    assert_int_equal(find(out), 1);
    assert_memory_equal(out, second, sizeof out);
    // What another scheduler has there stays.
    char *other = secret_file_leave("tcp://127.0.0.1:54322", first);
    secret_file_remove(&again);
    assert_null(again);
    assert_int_equal(find(out), 0);
    assert_int_equal(secret_file_find("tcp://127.0.0.1:54322", out), 1);
    secret_file_remove(&other);
    secret_file_remove(&again);
    free(path);
    char *ours = xasprintf("%s/starring", (char *)*state);
    assert_int_equal(access(ours, F_OK), -1);
    free(ours);
}

// Each bit that would let another read it, and a file that is not whole.
static void test_modes(void **state) {
    uint8_t out[JOB_SECRET_BYTES];
    char *path = secret_file_leave(ADDRESS, first), *dir = xasprintf("%s/starring", (char *)*state);
    for (unsigned bit = 1; bit <= 0040; bit *= 2) {
        assert_int_equal(chmod(path, 0600 | bit), 0);
        assert_int_equal(find(out), -1);
        said("others than its owner");
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chmod(dir, 0700 | bit), 0);
        assert_int_equal(find(out), -1);
        said("others than its owner");
        assert_null(secret_file_leave(ADDRESS, second));
        said("others than its owner");
        assert_int_equal(chmod(dir, 0700), 0);
    }
    assert_int_equal(find(out), 1);
    assert_memory_equal(out, first, sizeof out);
    assert_int_equal(truncate(path, 40), 0);
    assert_int_equal(find(out), -1);
    said("remove it");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(find(out), -1);
    said("remove it");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    assert_int_equal(find(out), -1);
    assert_int_equal(unlink(path), 0);
    free(dir);
    free(path);
}

// A directory, or a link, that somebody else put where ours would be.
static void test_taken(void **state) {
    uint8_t out[JOB_SECRET_BYTES];
    char *dir = xasprintf("%s/starring", (char *)*state);
    assert_int_equal(symlink("/tmp", dir), 0);
    assert_null(secret_file_leave(ADDRESS, first));
    said("link");
    assert_int_equal(find(out), -1);
    assert_int_equal(unlink(dir), 0);
    if (geteuid() == 0) {
        assert_int_equal(mkdir(dir, 0700), 0);
        assert_int_equal(chown(dir, STRANGER, STRANGER), 0);
        assert_null(secret_file_leave(ADDRESS, first));
        said("another user (12345)");
        assert_int_equal(find(out), -1);
        said("another user (12345)");
        assert_int_equal(chown(dir, 0, 0), 0);
    }
    free(dir);
}

// What sudo leaves in the environment is another user's place: it is not used, and nothing is put there.
static void test_place_of_another(void **state) {
    uint8_t out[JOB_SECRET_BYTES];
    if (geteuid() != 0) skip();
    char *dir = xasprintf("%s/starring", (char *)*state);
    assert_int_equal(chown(*state, STRANGER, STRANGER), 0);
    char *path = secret_file_leave(ADDRESS, first);
    assert_non_null(path);
    assert_null(strstr(path, *state));
    assert_int_equal(access(dir, F_OK), -1);
    assert_int_equal(find(out), 1);
    assert_memory_equal(out, first, sizeof out);
    secret_file_remove(&path);
    assert_int_equal(chown(*state, 0, 0), 0);
    free(dir);
}

// A process of another user finds no secret, whatever it is told of the place.
static void test_another_user(void **state) {
    if (geteuid() != 0) skip();
    char *path = secret_file_leave(ADDRESS, first);
    assert_non_null(path);
    assert_int_equal(chmod(*state, 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        uint8_t out[JOB_SECRET_BYTES];
        if (setgid(STRANGER) || setuid(STRANGER)) _exit(9);
        int rc = open(path, O_RDONLY) >= 0 ? 8 : secret_file_find(ADDRESS, out) == 1 ? 7 : 0;
        _exit(rc);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    secret_file_remove(&path);
}

// In a /tmp of its own. The line that fails, or 0.
#define DEMAND(x) \
    if (!(x)) return __LINE__
static int tmp_taken(const char *root) {
    uint8_t out[JOB_SECRET_BYTES];
    DEMAND(chroot(root) == 0 && chdir("/") == 0 && unsetenv("XDG_RUNTIME_DIR") == 0);
    DEMAND(mkdir("/tmp", 0777) == 0 && chmod("/tmp", 01777) == 0);
    // The plain name, and names like those that this user would make.
    static const char *const theirs[] = {"/tmp/starring-0", "/tmp/starring-0.abcdef"};
    for (int i = 0; i < 2; i++)
        DEMAND(mkdir(theirs[i], 0777) == 0 && chown(theirs[i], STRANGER, STRANGER) == 0);
    DEMAND(symlink("/tmp/starring-0", "/tmp/starring-0.aaaaaa") == 0);
    DEMAND(mkdir("/tmp/starring-01", 0700) == 0);
    DEMAND(find(out) == 0);
    char *path = secret_file_leave(ADDRESS, first);
    DEMAND(path && !strncmp(path, "/tmp/starring-0.", 16));
    DEMAND(find(out) == 1 && !memcmp(out, first, sizeof out));
    // The next scheduler of this user takes the same directory, and what it leaves is found beside.
    char *other = secret_file_leave("tcp://127.0.0.1:54322", second);
    DEMAND(other && strrchr(other, '/') - other == strrchr(path, '/') - path);
    DEMAND(!strncmp(other, path, (size_t)(strrchr(path, '/') - path)));
    secret_file_remove(&path);
    DEMAND(find(out) == 0 && secret_file_find("tcp://127.0.0.1:54322", out) == 1);
    secret_file_remove(&other);
    // The stranger lets go of the name: it is taken again, and both places are looked at.
    path = secret_file_leave(ADDRESS, first);
    DEMAND(path && rmdir("/tmp/starring-0") == 0);
    other = secret_file_leave("tcp://127.0.0.1:54322", second);
    DEMAND(other && !strncmp(other, "/tmp/starring-0/", 16));
    DEMAND(find(out) == 1 && secret_file_find("tcp://127.0.0.1:54322", out) == 1);
    secret_file_remove(&path);
    secret_file_remove(&other);
    return rmdir(theirs[1]) | unlink("/tmp/starring-0.aaaaaa") | rmdir("/tmp/starring-01") | rmdir("/tmp");
}

// Another user has taken /tmp/starring-UID: schedulers and members of this user meet all the same.
static void test_tmp_taken(void **state) {
    if (geteuid() != 0) skip();
    int line[2], said_line = -1;
    assert_int_equal(pipe(line), 0);
    pid_t child = fork();
    if (child == 0) {
        int failed = tmp_taken(*state);
        _exit(write(line[1], &failed, sizeof failed) == (ssize_t)sizeof failed ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read(line[0], &said_line, sizeof said_line), sizeof said_line);
    close(line[0]);
    close(line[1]);
    if (said_line) fail_msg("line %d", said_line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_left_and_found, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_modes, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_taken, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_place_of_another, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_another_user, open_place, close_place),
        cmocka_unit_test_setup_teardown(test_tmp_taken, open_place, close_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
