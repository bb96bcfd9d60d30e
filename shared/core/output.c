#include "shared/core/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/background.h"
#include "shared/core/error.h"

#define WAITING_MOST ((size_t)1 << 16)  // bytes of queued messages

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
    bool failed = ferror(stdout) != 0, flushed = !fflush(stdout);  // retries what could not be written
    int why = flushed ? 0 : errno;
    if (flushed && !failed) return status;
    if (reader_left()) {
        if (run) output_warn_unread();
        return status;
    }
    if (!why && write(STDOUT_FILENO, "", 0) < 0) why = errno;  // stdio does not keep the errno
    output_fail(why);
    return status ? status : EXIT_RUN_FAILED;
}

// ---------------------------------------------------------------- standard error on a thread of its own
static struct {
    struct background *writer;
    pthread_mutex_t mutex;  // guards the fields below
    size_t waiting, left_out;
} apart = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct message {
    size_t bytes;
    char text[];
};

static int write_message(void *arg) {
    struct message *m = arg;
    fwrite(m->text, 1, m->bytes, stderr);
    fflush(stderr);
    pthread_mutex_lock(&apart.mutex);
    apart.waiting -= m->bytes;
    pthread_mutex_unlock(&apart.mutex);
    return 0;
}

static void ask(const char *line, size_t bytes) {
    struct message *m = xcalloc(1, sizeof *m + bytes);
    m->bytes = bytes;
    memcpy(m->text, line, bytes);
    apart.waiting += bytes;
    background_ask(apart.writer, write_message, m, free);
}

static bool take(const char *line, size_t bytes) {
    char note[96];
    pthread_mutex_lock(&apart.mutex);
    bool apart_now = apart.writer;
    bool fits = apart_now && apart.waiting + bytes + sizeof note <= WAITING_MOST;
    if (fits && apart.left_out)
        ask(note,
            (size_t)snprintf(note, sizeof note,
                             "starring: %zu messages are left out: nobody has taken them\n", apart.left_out));
    if (fits) ask(line, bytes);
    if (apart_now) apart.left_out = fits ? 0 : apart.left_out + 1;
    pthread_mutex_unlock(&apart.mutex);
    return apart_now;
}

void output_apart_begin(void) {
    apart.writer = background_create(NULL, "");
    error_taken_by(take);
}

void output_apart_wait(double seconds) {
    if (apart.writer) background_wait(apart.writer, background_asked(apart.writer), seconds);
}

void output_apart_end(void) {
    pthread_mutex_lock(&apart.mutex);
    struct background *writer = apart.writer;
    apart.writer = NULL;
    pthread_mutex_unlock(&apart.mutex);
    background_destroy(&writer);
}
