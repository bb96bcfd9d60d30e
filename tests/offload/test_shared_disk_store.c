// The file that holds what memory does not: ranges in stream order, both ways of moving bytes, and what happens when the
// disk is full, cut short or broken (shared/offload).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/offload/disk_store.h"

#define UNIT  ((size_t)11 * DISK_ALIGN)
#define UNITS 7

struct room {
    char dir[64];
    struct device *dev;
    struct stream *reads, *computes, *writes;
    char *memory;  // (2, UNIT) aligned
};

static int make(void **state) {
    struct room *r = calloc(1, sizeof *r);
    struct device_options o = {.label = "rank 3"};
    const char *why;
    // Not /tmp: it may be memory.
    strcpy(r->dir, "/var/tmp/starring-offload-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    assert_int_equal(dev_open(backend_find("cpu", &why), &o, &r->dev), 0);
    r->reads = stream_create(r->dev, "read");
    r->computes = stream_create(r->dev, "compute");
    r->writes = stream_create(r->dev, "write");
    r->memory = aligned_alloc(DISK_ALIGN, 2 * UNIT);
    memset(r->memory, 0, 2 * UNIT);
    alarm(120);  // nothing hangs
    *state = r;
    return 0;
}

static int clear(void **state) {
    struct room *r = *state;
    alarm(0);
    stream_destroy(&r->reads);
    stream_destroy(&r->computes);
    stream_destroy(&r->writes);
    dev_close(&r->dev);
    assert_int_equal(rmdir(r->dir), 0);  // there is nothing in it, ever
    free(r->memory);
    free(r);
    return 0;
}

static struct disk_store *store_of(const struct room *r, enum disk_engine engine, size_t block, int depth) {
    struct disk_store *s = NULL;
    struct disk_store_options o = {.dir = r->dir,
                                   .key = "some.nvme_path",
                                   .label = "rank 3",
                                   .bytes = UNITS * UNIT,
                                   .block_bytes = block,
                                   .depth = depth,
                                   .engine = engine};
    assert_int_equal(disk_store_create(&s, &o), 0);
    return s;
}

// The descriptor of the one store that is open.
static int descriptor(const struct room *r) {
    DIR *d = opendir("/proc/self/fd");
    int found = -1;
    for (struct dirent *e; (e = readdir(d));) {
        char link[300], to[512];
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(link, to, sizeof to - 1);
        if (n <= 0) continue;
        to[n] = 0;
        if (strstr(to, r->dir) && strstr(to, "(deleted)")) found = atoi(e->d_name);
    }
    closedir(d);
    assert_true(found >= 0);
    return found;
}

static struct disk_range unit(int u) { return (struct disk_range){(size_t)u * UNIT, UNIT, "unit"}; }

static void fill(char *p, int u, int round) {
    for (size_t i = 0; i < UNIT; i++) p[i] = (char)((size_t)u * 131 + i * 7 + i / 251 + (size_t)round);
}

// ---------------------------------------------------------------- reading and writing
static const struct {
    enum disk_engine engine;
    size_t block;
    int depth;
} ways[] = {{DISK_ENGINE_URING, 0, 0},
            {DISK_ENGINE_URING, DISK_ALIGN, 3},
            {DISK_ENGINE_URING, 4 * DISK_ALIGN, 1},
            {DISK_ENGINE_THREADS, 0, 0},
            {DISK_ENGINE_THREADS, DISK_ALIGN, 3}};
#define WAYS (sizeof ways / sizeof *ways)

static void test_what_is_written_is_read(void **state) {
    const struct room *r = *state;
    for (size_t w = 0; w < WAYS; w++) {
        struct disk_store *s = store_of(r, ways[w].engine, ways[w].block, ways[w].depth);
        struct disk_count count;
        assert_int_equal(disk_store_engine(s), ways[w].engine);
        // Zeros before anything is written.
        memset(r->memory, 1, UNIT);
        assert_int_equal(disk_store_load(s, r->memory, unit(3)), 0);
        for (size_t i = 0; i < UNIT; i++) assert_int_equal(r->memory[i], 0);
        for (int u = UNITS - 1; u >= 0; u--) {
            fill(r->memory, u, 0);
            disk_store_write(s, r->writes, r->memory, unit(u));
            assert_int_equal(stream_sync(r->writes), 0);
        }
        for (int u = 0; u < UNITS; u++) {
            fill(r->memory + UNIT, u, 0);
            disk_store_read(s, r->reads, r->memory, unit(u));
            assert_int_equal(stream_sync(r->reads), 0);
            assert_memory_equal(r->memory, r->memory + UNIT, UNIT);
        }
        disk_store_count(s, &count);
        assert_int_equal(count.written_bytes, UNITS * UNIT);
        assert_int_equal(count.read_bytes, (UNITS + 1) * UNIT);
        disk_store_destroy(&s);
        assert_null(s);
    }
}

static int add_one(void *arg) {
    for (size_t i = 0; i < UNIT; i++) ((char *)arg)[i]++;
    return 0;
}

// Read, update, write, over two buffers and three streams, ordered by events alone.
static void test_pipeline(void **state) {
    const struct room *r = *state;
    struct event *full[2], *changed[2], *empty[2];
    for (int i = 0; i < 2; i++) {
        full[i] = event_create(r->dev);
        changed[i] = event_create(r->dev);
        empty[i] = event_create(r->dev);
    }
    for (size_t w = 0; w < WAYS; w++) {
        struct disk_store *s = store_of(r, ways[w].engine, ways[w].block, ways[w].depth);
        for (int u = 0; u < UNITS; u++) {
            fill(r->memory, u, 0);
            assert_int_equal(disk_store_save(s, r->memory, unit(u)), 0);
        }
        for (int round = 0; round < 3; round++) {
            for (int u = 0; u < UNITS; u++) {
                int i = (round * UNITS + u) % 2;
                char *slot = r->memory + (size_t)i * UNIT;
                stream_wait_event(r->reads, empty[i]);
                // The round before has written it: its last write is behind this slot's or the other's.
                if (u < 2) stream_wait_event(r->reads, empty[!i]);
                disk_store_read(s, r->reads, slot, unit(u));
                event_record(full[i], r->reads);
                stream_wait_event(r->computes, full[i]);
                stream_host(r->computes, "add", add_one, slot);
                event_record(changed[i], r->computes);
                stream_wait_event(r->writes, changed[i]);
                disk_store_write(s, r->writes, slot, unit(u));
                event_record(empty[i], r->writes);
            }
        }
        assert_int_equal(stream_sync(r->writes), 0);
        for (int u = 0; u < UNITS; u++) {
            fill(r->memory + UNIT, u, 3);
            assert_int_equal(disk_store_load(s, r->memory, unit(u)), 0);
            assert_memory_equal(r->memory, r->memory + UNIT, UNIT);
        }
        disk_store_destroy(&s);
    }
    for (int i = 0; i < 2; i++) {
        event_destroy(&full[i]);
        event_destroy(&changed[i]);
        event_destroy(&empty[i]);
    }
}

static void test_plan(void **state) {
    (void)state;
    size_t used = 0;
    assert_int_equal(disk_take(&used, 1), 0);
    assert_int_equal(disk_take(&used, DISK_ALIGN), DISK_ALIGN);
    assert_int_equal(disk_take(&used, DISK_ALIGN + 1), 2 * DISK_ALIGN);
    assert_int_equal(used, 4 * DISK_ALIGN);
}

// ---------------------------------------------------------------- the file
static void test_the_file_is_nobody_elses(void **state) {
    const struct room *r = *state;
    struct disk_store *s = store_of(r, DISK_ENGINE_AUTO, 0, 0);
    struct stat st;
    int fd = descriptor(r), entries = 0;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    assert_int_equal(st.st_size, UNITS * UNIT);
    assert_true((size_t)st.st_blocks * 512 >= UNITS * UNIT);  // its room is taken
    assert_int_equal(!!(fcntl(fd, F_GETFL) & O_DIRECT), disk_store_direct(s));
    DIR *d = opendir(r->dir);
    while (readdir(d)) entries++;
    closedir(d);
    assert_int_equal(entries, 2);  // . and ..
    disk_store_destroy(&s);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void test_the_directory_is_made(void **state) {
    const struct room *r = *state;
    struct disk_store *s = NULL;
    char *below = xasprintf("%s/swap", r->dir), *far = xasprintf("%s/no/swap", r->dir);
    struct disk_store_options o = {.dir = below, .bytes = 1};
    assert_int_equal(disk_store_create(&s, &o), 0);
    disk_store_destroy(&s);
    o.dir = far;
    o.key = "some.nvme_path";
    assert_int_equal(disk_store_create(&s, &o), -1);
    assert_non_null(strstr(error_last(), far));
    assert_non_null(strstr(error_last(), "mount the disk, or name another directory with some.nvme_path"));
    assert_int_equal(rmdir(below), 0);
    free(below);
    free(far);
}

static void test_a_full_disk_is_found_first(void **state) {
    const struct room *r = *state;
    struct disk_store *s = NULL;
    struct disk_store_options o = {.dir = r->dir, .key = "some.nvme_path", .bytes = (size_t)1 << 60};
    assert_int_equal(disk_store_create(&s, &o), -1);
    assert_null(s);
    assert_non_null(strstr(error_last(), r->dir));
    assert_non_null(strstr(error_last(), "(1152921504606846976 bytes)"));
    assert_non_null(strstr(error_last(), "are free there"));
    assert_non_null(strstr(error_last(), "some.nvme_path"));
}

// ---------------------------------------------------------------- what fails
// The store's file becomes another one behind its back: a descriptor that answers as a broken disk does.
static void becomes(const struct room *r, const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(dup2(fd, descriptor(r)) >= 0);
    close(fd);
}

static int count_up(void *arg) {
    ++*(int *)arg;
    return 0;
}

static void test_trouble(void **state) {
    static const struct {
        const char *file;  // NULL: cut in the middle of the range
        bool write;
        const char *words;
    } cases[] = {
        {NULL, false, "it ends at 90112, another program has truncated it"},
        {NULL, true,
         "it ends at 90112, another program has truncated it"},  // and is not made whole with zeros
        {"/dev/null", false, "it ends at 45056"},
        {"/dev/full", true,
         "No space left on device: make room there or name another directory with some.nvme_path"},
        {"/proc/self/mem", false, "Input/output error: the kernel's log (dmesg) says more"},
        {"/dev/zero", true, NULL},  // takes everything: not an error of ours
    };
    const struct room *top = *state;
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        size_t c = i / 2;
        struct room r = *top;
        int ran = 0;
        struct disk_store *s = store_of(&r, i % 2 ? DISK_ENGINE_THREADS : DISK_ENGINE_URING, DISK_ALIGN, 4);
        struct stream *stream = stream_create(r.dev, "disk");
        error_clear();
        if (cases[c].file)
            becomes(&r, cases[c].file, cases[c].write ? O_WRONLY : O_RDONLY);
        else
            assert_int_equal(ftruncate(descriptor(&r), 90112), 0);
        struct disk_range range = {45056, 16 * DISK_ALIGN, "unit 2, masters"};
        assert_true(range.bytes <= 2 * UNIT);
        if (cases[c].write)
            disk_store_write(s, stream, r.memory, range);
        else
            disk_store_read(s, stream, r.memory, range);
        stream_host(stream, "behind", count_up, &ran);
        assert_int_equal(stream_sync(stream), cases[c].words ? -1 : 0);
        assert_int_equal(ran, cases[c].words ? 0 : 1);  // nothing runs on what was not read
        int rc = cases[c].write ? disk_store_save(s, r.memory, range) : disk_store_load(s, r.memory, range);
        assert_int_equal(rc, cases[c].words ? -1 : 0);
        if (cases[c].words) {
            assert_non_null(strstr(error_last(), cases[c].words));
            assert_non_null(strstr(error_last(), "offload to disk: unit 2, masters: "));
            assert_non_null(
                strstr(error_last(), "65536 bytes at 45056 of the file in /var/tmp/starring-offload-"));
            assert_non_null(strstr(error_last(), "--resume latest"));
        }
        stream_destroy(&stream);
        disk_store_destroy(&s);
    }
}

// ---------------------------------------------------------------- a kernel that forbids io_uring
static void forbid_uring(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(77);
}

static int child_without_uring(const struct room *r) {
    struct disk_store *s = NULL;
    struct disk_store_options o = {.dir = r->dir, .bytes = UNITS * UNIT};
    forbid_uring();
    if (disk_store_create(&s, &o)) return 1;
    if (disk_store_engine(s) != DISK_ENGINE_THREADS) return 2;
    if (!disk_store_remark(s) ||
        !strstr(disk_store_remark(s), "io_uring is not to be had (Operation not permitted)"))
        return 3;
    fill(r->memory, 1, 0);
    if (disk_store_save(s, r->memory, unit(1)) || disk_store_load(s, r->memory + UNIT, unit(1))) return 4;
    if (memcmp(r->memory, r->memory + UNIT, UNIT) != 0) return 5;
    disk_store_destroy(&s);
    o.engine = DISK_ENGINE_URING;
    return disk_store_create(&s, &o) == -1 ? 0 : 6;
}

// The thread sanitizer follows no threads of a process that was forked beside others.
#ifdef __SANITIZE_THREAD__
#define NO_THREADS_AFTER_FORK() skip()
#else
#define NO_THREADS_AFTER_FORK() (void)0
#endif

static void test_without_io_uring(void **state) {
    const struct room *r = *state;
    int status;
    NO_THREADS_AFTER_FORK();
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) _exit(child_without_uring(r));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

// ---------------------------------------------------------------- a kernel that takes no more
#define PIECE DISK_ALIGN

// A pipe stands for the disk. Three reads are under way when the kernel begins to forbid io_uring_enter: the first one ends
// then, the others a while later.
struct late {
    int to;
    _Atomic int refused;  // seccomp has no say here
};

static void *forbid_and_answer(void *arg) {
    struct late *l = arg;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    static char answer[2 * PIECE] = {1};
    usleep(200000);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) l->refused = 1;
    if (write(l->to, answer, PIECE) != PIECE) _exit(4);
    usleep(300000);
    answer[0] = answer[PIECE] = 2;
    if (write(l->to, answer, 2 * PIECE) != 2 * PIECE) _exit(5);
    return NULL;
}

static int child_with_less_and_less(const struct room *r) {
    struct disk_store *s = store_of(r, DISK_ENGINE_URING, PIECE, 3);
    int ends[2];
    pthread_t thread;
    error_quiet(QUIET_ALL);
    if (pipe2(ends, O_CLOEXEC) || dup2(ends[0], descriptor(r)) < 0) return 1;
    struct late l = {.to = ends[1]};
    if (pthread_create(&thread, NULL, forbid_and_answer, &l)) return 2;
    int rc = disk_store_load(s, r->memory, (struct disk_range){0, 8 * PIECE, "unit 1"});
    memset(r->memory, 7, 8 * PIECE);  // it is the caller's again
    pthread_join(thread, NULL);
    usleep(100000);
    if (l.refused) return 77;
    if (rc != -1 || !strstr(error_last(), "Operation not permitted")) return 3;
    for (size_t i = 0; i < 8 * PIECE; i++)
        if (r->memory[i] != 7) return 6;
    return 0;
}

// A failed call returns when nothing is in flight any more.
static void test_nothing_comes_behind_an_error(void **state) {
    const struct room *r = *state;
    int status;
    NO_THREADS_AFTER_FORK();
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) _exit(child_with_less_and_less(r));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_written_is_read, make, clear),
        cmocka_unit_test_setup_teardown(test_pipeline, make, clear),
        cmocka_unit_test(test_plan),
        cmocka_unit_test_setup_teardown(test_the_file_is_nobody_elses, make, clear),
        cmocka_unit_test_setup_teardown(test_the_directory_is_made, make, clear),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_found_first, make, clear),
        cmocka_unit_test_setup_teardown(test_trouble, make, clear),
        cmocka_unit_test_setup_teardown(test_without_io_uring, make, clear),
        cmocka_unit_test_setup_teardown(test_nothing_comes_behind_an_error, make, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
