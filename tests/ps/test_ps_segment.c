// Shared memory between processes: what is written on one side is read on the other, and whatever is not the
// segment that was named is refused with a reason.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/segment.h"

#define DATA 20000

struct parts {
    long long pid;
    int fd;
    unsigned long long bytes;
    uint64_t cookie;
    char boot[64];
};

static struct parts taken_apart(const struct segment *s) {
    char name[SEGMENT_NAME_MAX];
    struct parts p;
    segment_name(s, name);
    assert_int_equal(
        sscanf(name, "%lld %d %llu %" SCNx64 " %63s", &p.pid, &p.fd, &p.bytes, &p.cookie, p.boot), 5);
    return p;
}

static void refused(const struct parts *p, const char *because) {
    char name[256], why[SEGMENT_WHY_MAX] = "";
    struct segment s;
    snprintf(name, sizeof name, "%lld %d %llu %016" PRIx64 " %s", p->pid, p->fd, p->bytes, p->cookie,
             p->boot);
    assert_int_equal(segment_open(&s, name, SEGMENT_READ, why), -1);
    assert_null(s.base);
    assert_int_equal(s.fd, -1);
    if (!strstr(why, because)) fail_msg("\"%s\" refused with \"%s\", not with \"%s\"", name, why, because);
}

static struct segment made(void) {
    struct segment s;
    assert_int_equal(segment_create(&s, SEGMENT_HEAD + DATA), 0);
    assert_int_equal(s.bytes, segment_pages(SEGMENT_HEAD + DATA));
    return s;
}

// Another process writes through its mapping; a third mapping, of one page at a chosen place, shows it too.
static void test_shared(void **state) {
    (void)state;
    struct segment s = made(), peer;
    char name[SEGMENT_NAME_MAX], why[SEGMENT_WHY_MAX];
    int status;
    segment_name(&s, name);
    for (size_t i = SEGMENT_HEAD; i < s.bytes; i++) assert_int_equal(s.base[i], 0);
    pid_t child = fork();
    if (child == 0) {
        int rc = segment_open(&peer, name, SEGMENT_WRITE, why);
        if (rc == 0) memset(peer.base + 2 * SEGMENT_HEAD, 7, 100);
        _exit(rc == 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(s.base[2 * SEGMENT_HEAD + 99], 7);
    assert_int_equal(segment_open(&peer, name, SEGMENT_READ, why), 0);
    char *at = mmap(NULL, SEGMENT_HEAD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(segment_map_at(&peer, at, 2 * SEGMENT_HEAD, SEGMENT_HEAD), 0);
    assert_int_equal(at[99], 7);
    assert_int_equal(at[100], 0);
    // The mapping outlives its owner.
    segment_close(&s);
    assert_null(s.base);
    assert_int_equal(peer.base[2 * SEGMENT_HEAD], 7);
    segment_close(&peer);
    assert_int_equal(at[99], 7);
    munmap(at, SEGMENT_HEAD);
}

static void test_refused(void **state) {
    (void)state;
    struct segment s = made();
    struct parts p = taken_apart(&s), x = p;
    x.cookie ^= 1;
    refused(&x, "another cookie");
    x = p, x.bytes += SEGMENT_HEAD;  // as if it had been cut
    refused(&x, "another size");
    x = p, x.bytes -= SEGMENT_HEAD;
    refused(&x, "another size");
    x = p, x.bytes = 17;
    refused(&x, "not one");
    x = p, x.boot[0] = x.boot[0] == 'a' ? 'b' : 'a';
    refused(&x, "different machines");
    x = p, x.fd = 2;  // something else that is open
    refused(&x, "cannot be reached");
    x = p, x.pid = 0;
    refused(&x, "not one");
    // A segment cannot be cut under those who read it.
    assert_int_equal(ftruncate(s.fd, 4096), -1);
    segment_close(&s);
    refused(&p, "cannot be reached");
}

// The same descriptor number of another process, and a process that has ended.
static void test_strangers(void **state) {
    (void)state;
    struct segment s = made();
    struct parts p = taken_apart(&s);
    int ready[2], end[2];
    assert_int_equal(pipe(ready) | pipe(end), 0);
    pid_t child = fork();
    if (child == 0) {
        struct segment own;
        char c = 0;
        close(s.fd);
        int rc = segment_create(&own, SEGMENT_HEAD + DATA);  // takes the number that is free
        if (write(ready[1], &own.fd, sizeof own.fd) < 0 || read(end[0], &c, 1) < 0) rc = 1;
        _exit(rc);
    }
    struct parts stranger = p;
    stranger.pid = child;
    assert_int_equal(read(ready[0], &stranger.fd, sizeof stranger.fd), sizeof stranger.fd);
    refused(&stranger, "another cookie");
    assert_int_equal(write(end[1], "", 1), 1);
    waitpid(child, NULL, 0);
    refused(&stranger, "cannot be reached");
    segment_close(&s);
}

static void test_bounds(void **state) {
    (void)state;
    struct segment s = made();
    assert_true(segment_holds(&s, SEGMENT_HEAD, s.bytes - SEGMENT_HEAD));
    assert_false(segment_holds(&s, 0, 8));
    assert_false(segment_holds(&s, SEGMENT_HEAD, s.bytes));
    assert_false(segment_holds(&s, s.bytes + 1, 0));
    assert_false(segment_holds(&s, SEGMENT_HEAD, UINT64_MAX));
    segment_close(&s);
    segment_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
