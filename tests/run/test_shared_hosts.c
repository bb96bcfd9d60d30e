// --hosts and --hostfile: names, slots and ranks, and what is refused in them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/launch/hosts.h"

static void is(const struct hosts *h, int i, const char *login, const char *name, int slots, int first) {
    assert_true(i < h->count);
    assert_string_equal(h->host[i].login, login);
    assert_string_equal(h->host[i].name, name);
    assert_int_equal(h->host[i].slots, slots);
    assert_int_equal(h->host[i].first, first);
}

static void test_list(void **state) {
    (void)state;
    struct hosts h;
    assert_int_equal(hosts_parse(&h, "h1:2,me@h2.example.org,[fe80::1%eth0]:3,u@[::1]"), 0);
    assert_int_equal(h.count, 4);
    assert_int_equal(h.ranks, 7);
    is(&h, 0, "h1", "h1", 2, 0);
    is(&h, 1, "me@h2.example.org", "h2.example.org", 1, 2);
    is(&h, 2, "fe80::1%eth0", "fe80::1%eth0", 3, 3);
    is(&h, 3, "u@::1", "::1", 1, 6);
    hosts_free(&h);
}

static int read_text(struct hosts *h, const char *text) {
    char path[] = "/tmp/starring-hosts-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    int rc = hosts_read(h, path);
    unlink(path);
    return rc;
}

static void test_file(void **state) {
    (void)state;
    struct hosts h;
    assert_int_equal(read_text(&h, "# two\n\nh1 slots=2  # fast\n  h2\tslots=3 max_slots=4\r\nu@h3"), 0);
    assert_int_equal(h.count, 3);
    assert_int_equal(h.ranks, 6);
    is(&h, 0, "h1", "h1", 2, 0);
    is(&h, 1, "h2", "h2", 3, 2);
    is(&h, 2, "u@h3", "h3", 1, 5);
    hosts_free(&h);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *list, *says;
    } lists[] = {{"", "\"\" is not the name"},
                 {"a,,b", "\"\" is not the name"},
                 {"a:0", "0 slots"},
                 {"a:x", "x slots"},
                 {"a:", "slots"},
                 {"a:65536,b", "all together 65536"},
                 {"a:2x", "2x slots"},
                 {"-oProxyCommand=x", "is not the name of a host"},
                 {"a b", "is not the name of a host"},
                 {"a;b", "is not the name of a host"},
                 {"u@", "is not the name of a host"},
                 {"@h", "is not the name of a host"},
                 {"fe80::1", "brackets, [fe80::1]"},
                 {"[]", "is not the name of a host"},
                 {"a,b,a", "a comes twice"}};
    static const struct {
        const char *text, *says;
    } files[] = {{"# none\n", "no line of it names a host"},
                 {"a slots=2\nb slot=2\n", ", line 2: \"slot=2\""},
                 {"a\na slots=2\n", ", line 2: a comes twice"},
                 {"a slots=\n", ", line 1: a:  slots"}};
    struct hosts h;
    error_quiet(QUIET_ALL);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(hosts_parse(&h, lists[i].list), -1);
        if (!strstr(error_last(), lists[i].says)) fail_msg("%s: %s", lists[i].list, error_last());
        hosts_free(&h);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(read_text(&h, files[i].text), -1);
        if (!strstr(error_last(), files[i].says)) fail_msg("%s: %s", files[i].text, error_last());
        hosts_free(&h);
    }
    assert_int_equal(hosts_read(&h, "/nowhere/hosts"), -1);
    assert_non_null(strstr(error_last(), "/nowhere/hosts: No such file"));
    error_quiet(QUIET_NOT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
