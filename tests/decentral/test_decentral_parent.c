// A rank that stands still in MPI_Init ends with whoever started it; one that has come through does not look any more.
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "decentral/mpi/mpi_parent.h"
#include "shared/core/error.h"

// A child that starts a rank and waits: the pipe's other end closes when the rank has ended. *rank: its pid.
static pid_t start(bool release, int *ended, pid_t *rank) {
    int pids[2], life[2];
    assert_int_equal(pipe(pids), 0);
    assert_int_equal(pipe(life), 0);
    pid_t parent = fork();
    if (parent == 0) {
        if (fork() == 0) {
            struct mpi_parent *p = mpi_parent_watch(30);
            if (release) mpi_parent_release(&p);
            pid_t own = getpid();
            ssize_t n = write(pids[1], &own, sizeof own);
            close(life[0]);
            for (; n > 0;) pause();
        }
        close(life[1]);
        for (;;) pause();
    }
    assert_int_equal(read(pids[0], rank, sizeof *rank), sizeof *rank);
    close(pids[0]);
    close(pids[1]);
    close(life[1]);
    *ended = life[0];
    return parent;
}

static void kill_and_wait(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void an_orphan_ends(void **state) {
    (void)state;
    int ended;
    pid_t rank, parent = start(false, &ended, &rank);
    usleep(300000);
    assert_int_equal(kill(rank, 0), 0);  // while its parent lives it stays
    kill_and_wait(parent);
    struct pollfd end = {.fd = ended};  // it is hung up when the rank has ended
    int rc = poll(&end, 1, 20000);
    if (rc != 1) kill(rank, SIGKILL);
    assert_int_equal(rc, 1);
    close(ended);
}

static void who_is_through_stays(void **state) {
    (void)state;
    int ended;
    pid_t rank, parent = start(true, &ended, &rank);
    kill_and_wait(parent);
    usleep(600000);
    assert_int_equal(kill(rank, SIGKILL), 0);
    close(ended);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_orphan_ends),
                                       cmocka_unit_test(who_is_through_stays)};
    return cmocka_run_group_tests_name("mpi_parent", tests, NULL, NULL);
}
