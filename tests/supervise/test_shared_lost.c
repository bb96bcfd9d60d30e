// A run of threads under --restart whose ranks give up one that does not come: it has died, as one that was killed, and is
// started again. This program is the run, too: the supervisor starts it as `train --life K ..`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/threads_hub.h"
#include "decentral/collective/threads_impl.h"
#include "kernels/backend.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"
#include "shared/supervise/supervise.h"

// Rank 1 leaves without a word.
static int work(void *ctx, struct threads_hub *hub, int rank) {
    struct collective_options o = {.deadline_s = 0.2};
    float x = 1, y;
    (void)ctx;
    if (rank == 1) return 0;
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, &o.dev))
        return -1;
    struct stream *s = stream_create(o.dev, "comm");
    struct collective *c = collective_threads_kind.create(hub, rank, 0, &o);
    collective_all_reduce(c, s, &x, &y, 1, DT_F32);
    return stream_sync(s);
}

// The run: in its first life it loses rank 1; where it finds the first one's mark all is well.
static int run(const char *mark) {
    int fd = open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0) return 0;
    close(fd);
    stop_run_restarts();
    return threads_hub_run(2, "--workers", work, NULL) ? EXIT_RUN_FAILED : 0;
}

// The status of a job with so many restarts.
static int job(int restarts) {
    char dir[] = "/tmp/starring-lost-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *mark = xasprintf("%s/mark", dir);
    int status =
        supervise(&(struct supervise_options){.restarts = restarts, .argc = 1, .argv = &mark, .dir = dir});
    unlink(mark);
    free(mark);
    rmdir(dir);
    return status;
}

static void a_rank_that_does_not_come_is_a_death(void **state) {
    (void)state;
    error_quiet(1);
    assert_int_equal(job(1), 0);
    assert_int_equal(job(0), EXIT_RUN_FAILED);
    assert_non_null(strstr(error_last(), "gave up a rank and ended"));
    error_quiet(0);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "train")) return run(argv[argc - 1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_does_not_come_is_a_death)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
