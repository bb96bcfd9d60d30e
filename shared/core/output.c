#include "shared/core/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"

void output_open_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

void output_warn_unread(void) {
    warn("nobody reads standard output any more: what is printed is lost, the run goes on");
}

int output_fail(int why) {
    return fail("standard output could not be written: %s; what was printed is lost, the run's files are not",
                why ? strerror(why) : "is the disk full?");
}

static bool reader_left(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && out.revents & POLLERR;
}

int output_end(int status, bool run) {
    errno = 0;
    bool failed = ferror(stdout) != 0, flushed = !fflush(stdout);  // tries again what could not be written
    int why = flushed ? 0 : errno;
    if (flushed && !failed) return status;
    if (reader_left()) {
        if (run) output_warn_unread();
        return status;
    }
    if (!why && write(STDOUT_FILENO, "", 0) < 0) why = errno;  // stdio has forgotten
    output_fail(why);
    return status ? status : EXIT_RUN_FAILED;
}
