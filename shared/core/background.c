#include "shared/core/background.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/core/error.h"

struct job {
    struct job *next;
    int (*run)(void *);
    void (*release)(void *);
    void *arg;
};

struct background {
    char *label;
    pthread_t thread;
    _Atomic int quit;
    pthread_mutex_t mutex;  // guards the fields below
    pthread_cond_t changed;
    struct job *first, **last;
    uint64_t asked, done;
    double since_s;  // start of the current job; 0: none
    bool over;       // no more jobs will be queued
    char *why;
};

// Closes the copies of the process's sockets in the thread's new table: a connection is closed only when its last descriptor
// is closed.
void background_own_descriptors(const int *keep, int count) {
    struct rlimit l;
    if (unshare(CLONE_FILES)) return;
    for (unsigned first = STDERR_FILENO + 1; first;) {
        unsigned next = 0;  // the smallest descriptor that is to be kept
        for (int i = 0; i < count; i++)
            if ((unsigned)keep[i] >= first && (!next || (unsigned)keep[i] < next)) next = (unsigned)keep[i];
        unsigned last = next ? next - 1 : ~0u;
        if (first <= last && syscall(SYS_close_range, first, last, 0) != 0) {
            if (getrlimit(RLIMIT_NOFILE, &l)) return;
            for (unsigned fd = first; fd <= last && fd < l.rlim_cur; fd++) close((int)fd);
        }
        first = next ? next + 1 : 0;
    }
}

static void *background_main(void *arg) {
    struct background *b = arg;
    error_set_label("%s", b->label);
    background_own_descriptors(NULL, 0);
    pthread_mutex_lock(&b->mutex);
    for (struct job *j; b->first || !b->over;) {
        if (!(j = b->first)) {
            pthread_cond_wait(&b->changed, &b->mutex);
            continue;
        }
        b->first = j->next;
        if (!b->first) b->last = &b->first;
        b->since_s = now_seconds();
        pthread_mutex_unlock(&b->mutex);
        int rc = j->run(j->arg);
        if (j->release) j->release(j->arg);
        free(j);
        pthread_mutex_lock(&b->mutex);
        if (rc && !b->why) b->why = xstrdup(error_last());
        b->done++;
        b->since_s = 0;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

static void release(struct background **at) {
    struct background *b = *at;
    pthread_mutex_destroy(&b->mutex);
    pthread_cond_destroy(&b->changed);
    free(b->label);
    free(b->why);
    free(b);
    *at = NULL;
}

struct background *background_create(const char *purpose, const char *label) {
    struct background *b = xcalloc(1, sizeof *b);
    b->label = xstrdup(label);
    b->last = &b->first;
    pthread_mutex_init(&b->mutex, NULL);
    cond_init(&b->changed);
    if (pthread_create(&b->thread, NULL, background_main, b) == 0) return b;
    if (purpose) fail("cannot start the thread that %s: " ERROR_RAISE_THREADS, purpose);
    release(&b);
    return NULL;
}

void background_destroy(struct background **at) {
    struct background *b = *at;
    if (!b) return;
    pthread_mutex_lock(&b->mutex);
    b->over = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(b->thread, NULL);
    release(at);
}

uint64_t background_submit(struct background *b, int (*run)(void *), void *arg, void (*release_arg)(void *)) {
    struct job *j = xcalloc(1, sizeof *j);
    *j = (struct job){.run = run, .release = release_arg, .arg = arg};
    pthread_mutex_lock(&b->mutex);
    *b->last = j;
    b->last = &j->next;
    uint64_t number = ++b->asked;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    return number;
}

uint64_t background_submitted(struct background *b) {
    pthread_mutex_lock(&b->mutex);
    uint64_t number = b->asked;
    pthread_mutex_unlock(&b->mutex);
    return number;
}

bool background_wait(struct background *b, uint64_t number, double seconds) {
    struct timespec end = time_after(seconds);
    int late = 0;
    pthread_mutex_lock(&b->mutex);
    while (b->done < number && !late && seconds > 0)
        late = pthread_cond_timedwait(&b->changed, &b->mutex, &end);
    bool done = b->done >= number;
    pthread_mutex_unlock(&b->mutex);
    return done;
}

bool background_done(struct background *b, uint64_t number) { return background_wait(b, number, 0); }

double background_age(struct background *b, double now, uint64_t *number) {
    pthread_mutex_lock(&b->mutex);
    double age = b->since_s > 0 ? now - b->since_s : 0;
    *number = b->done + 1;
    pthread_mutex_unlock(&b->mutex);
    return age;
}

void background_quit(struct background *b) { atomic_store(&b->quit, 1); }
const _Atomic int *background_flag(const struct background *b) { return &b->quit; }

const char *background_why(struct background *b) {
    pthread_mutex_lock(&b->mutex);
    const char *why = b->why;
    pthread_mutex_unlock(&b->mutex);
    return why;
}

// ---------------------------------------------------------------- output
#define WAITING_MOST ((size_t)1 << 16)  // bytes of queued messages

void output_open_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int output_end(int status, bool run) {
    errno = 0;
    bool failed = ferror(stdout) != 0, flushed = !fflush(stdout);  // retries what could not be written
    int why = flushed ? 0 : errno;
    if (flushed && !failed) return status;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) > 0 && out.revents & POLLERR) {  // its reader has left
        if (run) warn("standard output has no reader any more: printed text is lost, the run continues");
        return status;
    }
    if (!why && write(STDOUT_FILENO, "", 0) < 0) why = errno;  // stdio does not keep the errno
    fail("standard output could not be written: %s; printed text is lost, the run's files are complete",
         why ? strerror(why) : "is the disk full?");
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
    background_submit(apart.writer, write_message, m, free);
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

void output_thread_begin(void) {
    apart.writer = background_create(NULL, "");
    error_taken_by(take);
}

void output_thread_wait(double seconds) {
    if (apart.writer) background_wait(apart.writer, background_submitted(apart.writer), seconds);
}

void output_thread_end(void) {
    pthread_mutex_lock(&apart.mutex);
    struct background *writer = apart.writer;
    apart.writer = NULL;
    pthread_mutex_unlock(&apart.mutex);
    background_destroy(&writer);
}
