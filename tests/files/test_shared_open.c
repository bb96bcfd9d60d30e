// Opening what users name: regular files alone, never a wait, never without end (shared/files).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/data/data.h"
#include "shared/hf/safetensors.h"
#include "tests/fixture.h"

struct folder {
    char path[64];
    char *pipe, *file;
};

static int make(void **state) {
    struct folder *d = calloc(1, sizeof *d);
    assert_int_equal(fixture_folder(d->path, "open"), 0);
    d->pipe = xasprintf("%s/pipe", d->path);
    d->file = xasprintf("%s/file", d->path);
    assert_int_equal(mkfifo(d->pipe, 0600), 0);
    assert_int_equal(fixture_put(d->file, "12345", 5), 0);
    alarm(20);  // an open that waits ends the test
    *state = d;
    return 0;
}

static int clear(void **state) {
    struct folder *d = *state;
    alarm(0);
    int rc = fixture_remove(d->path);
    free(d->pipe);
    free(d->file);
    free(d);
    return rc;
}

static void test_regular_files_alone(void **state) {
    const struct folder *d = *state;
    char why[FILE_WHY_MAX];
    const struct {
        const char *path, *word;
    } cases[] = {{d->pipe, "is a pipe"},
                 {"/dev/zero", "is a device"},
                 {"/tmp", "is a directory"},
                 {"/tmp/starring/none", "No such file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(file_open(cases[i].path, NULL, why), -1);
        assert_non_null(strstr(why, cases[i].word));
        assert_null(file_open_stream(cases[i].path, why));
    }
    int64_t bytes = 0;
    int fd = file_open(d->file, &bytes, why);
    assert_true(fd >= 0);
    assert_int_equal(bytes, 5);
    close(fd);
    struct log_file log;
    assert_int_equal(log_file_open(&log, d->pipe, NULL, NULL), -1);
}

static void test_whole_files_have_a_limit(void **state) {
    const struct folder *d = *state;
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(d->file, 5, &n, why);
    assert_non_null(text);
    assert_int_equal(n, 5);
    assert_string_equal(text, "12345");
    free(text);
    assert_null(file_read_whole(d->file, 4, &n, why));
    assert_non_null(strstr(why, "at most 4 bytes"));
    text = file_read_whole("/proc/self/status", 1 << 20, &n, why);  // its size says 0
    assert_non_null(text);
    assert_true(n > 100 && text[n] == 0);
    free(text);
    assert_null(file_read_whole("/proc/self/status", 50, &n, why));
    assert_non_null(strstr(why, "at most 50 bytes"));
}

// A path for which a reader of pipes would wait.
static void test_readers_refuse_pipes(void **state) {
    const struct folder *d = *state;
    struct data_options o = {.path = d->pipe, .vocab = 256};
    error_quiet(1);
    assert_null(data_open(&o));
    assert_non_null(strstr(error_last(), "is a pipe"));
    assert_null(st_open(d->pipe));
    assert_non_null(strstr(error_last(), "is a pipe"));
    error_quiet(0);
}

static void test_name_map(void **state) {
    (void)state;
    struct name_map m = {0};
    char names[1000][8];
    bool added;
    for (int i = 0; i < 1000; i++) {
        snprintf(names[i], sizeof names[i], "n%d", i);
        assert_int_equal(name_map_get(&m, names[i]), -1);
        assert_int_equal(name_map_put(&m, names[i], i, &added), i);
        assert_true(added);
    }
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(name_map_put(&m, names[i], -5, &added), i);
        assert_false(added);
        assert_int_equal(name_map_get(&m, names[i]), i);
    }
    assert_int_equal(m.count, 1000);
    name_map_free(&m);
}

// A child reads a mapped file whose pages are gone. Its exit status, and what it said.
static int read_cut(const char *path, bool mapped_by_us, char *said, size_t room) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct mapped_file m;
        char why[FILE_WHY_MAX];
        dup2(ends[1], STDERR_FILENO);
        signal(SIGBUS, SIG_DFL);
        error_set_label("worker 7");
        if (mapped_file_open(&m, "data ", path, why) || truncate(path, 0)) _exit(99);
        const volatile char *at = m.base;
        // A mapping of another owner is not for this handler: its entry is gone, the pages stay unreadable.
        if (!mapped_by_us) {
            struct mapped_file copy = m;
            copy.bytes = 0;  // keeps the mapping
            mapped_file_close(&copy);
        }
        _exit(at[0] ? 98 : 97);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < room && (got = read(ends[0], said + n, room - 1 - n)) > 0;) n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_cut_short(void **state) {
    const struct folder *d = *state;
    char said[2048];
    int status = read_cut(d->file, true, said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_RUN_FAILED);
    assert_non_null(strstr(said, "[worker 7] data "));
    assert_non_null(strstr(said, d->file));
    assert_non_null(strstr(said, "cut short"));
    FILE *f = fopen(d->file, "w");
    fputs("12345", f);
    fclose(f);
    status = read_cut(d->file, false, said, sizeof said);
    assert_null(strstr(said, "cut short"));
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN_FAILED);
}

// The previous file stays under the name until the new one is complete; a file that is not wanted, or does not fit,
// leaves nothing.
static void test_a_new_file_is_whole_or_not_there(void **state) {
    struct folder *d = *state;
    char *part = xasprintf("%s.part", d->file), text[8] = "";
    struct new_file n;
    for (int whole = 0; whole < 2; whole++) {
        assert_true(new_file_begin(&n, d->file, false));
        fputs("678", n.file);
        fflush(n.file);
        assert_int_equal(access(part, F_OK), 0);
        assert_int_equal(new_file_end(&n, whole), whole - 1);
        assert_int_equal(access(part, F_OK), -1);
        FILE *f = fopen(d->file, "r");
        assert_non_null(f);
        assert_non_null(fgets(text, sizeof text, f));
        fclose(f);
        assert_string_equal(text, whole ? "678" : "12345");
    }
    free(part);
    // Several processes at once: each has a name of its own until then.
    assert_true(new_file_begin(&n, d->file, true));
    part = xasprintf("%s.part%d", d->file, (int)getpid());
    assert_string_equal(n.part, part);
    assert_int_equal(new_file_end(&n, true), 0);
    free(part);
    part = xasprintf("%s/nowhere/file", d->path);
    assert_false(new_file_begin(&n, part, false));
    assert_int_equal(new_file_end(&n, true), -1);
    assert_int_equal(errno, ENOENT);
    free(part);
    // The disk is full, which only closing tells.
    struct rlimit was, none = {0, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    none.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    bool begun = new_file_begin(&n, d->file, false);
    if (begun) fputs("9", n.file);
    int rc = new_file_end(&n, true), why = errno;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(begun);
    assert_int_equal(rc, -1);
    assert_int_equal(why, EFBIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_regular_files_alone, make, clear),
        cmocka_unit_test_setup_teardown(test_whole_files_have_a_limit, make, clear),
        cmocka_unit_test_setup_teardown(test_readers_refuse_pipes, make, clear),
        cmocka_unit_test(test_name_map),
        cmocka_unit_test_setup_teardown(test_cut_short, make, clear),
        cmocka_unit_test_setup_teardown(test_a_new_file_is_whole_or_not_there, make, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
