#include "shared/supervise/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/output.h"

#define HOLD_S   8.0  // mpirun has described an end within this, and told its ranks of it (STOP_SECONDS later)
#define STUCK_S  1.0
#define HELD_MAX 65536
#define LOOK_MS  200

struct relay {
    pthread_t thread;
    pthread_mutex_t lock;  // guards what is held
    int from[RELAY_WAYS], to[RELAY_WAYS];
    int quit[2];  // closed: pass on what is there, then end
    char *held;
    size_t held_bytes;
    double held_s;            // since when
    bool drops;               // what comes to be held
    bool lost[2];             // standard output, messages: nothing more is written to it
    int why;                  // standard output could not be written: errno
    _Atomic double writes_s;  // since when a write has not returned; 0: none is under way
};

static void lose(struct relay *r, int fd) {
    int why = errno;
    bool out = fd == STDOUT_FILENO;
    r->lost[!out] = true;
    if (out && why == EPIPE) output_warn_unread();
    if (out && why != EPIPE) r->why = why;
}

static void pass_on(struct relay *r, int fd, const char *text, size_t size) {
    atomic_store(&r->writes_s, now_seconds());
    while (size && !r->lost[fd != STDOUT_FILENO]) {
        ssize_t n = write(fd, text, size);
        if (n >= 0) {
            text += n;
            size -= (size_t)n;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, LOOK_MS);
        } else if (errno != EINTR) {
            lose(r, fd);
        }
    }
    atomic_store(&r->writes_s, 0);
}

static void hold(struct relay *r, const char *text, size_t size) {
    pthread_mutex_lock(&r->lock);
    if (!r->held_bytes) r->held_s = now_seconds();
    if (size > HELD_MAX - r->held_bytes) size = HELD_MAX - r->held_bytes;
    if (!r->drops) {
        memcpy(r->held + r->held_bytes, text, size);
        r->held_bytes += size;
    }
    pthread_mutex_unlock(&r->lock);
}

static void show_held(struct relay *r) {
    char *text = xcalloc(HELD_MAX, 1);
    pthread_mutex_lock(&r->lock);
    size_t size = r->held_bytes;
    memcpy(text, r->held, size);
    r->held_bytes = 0;
    pthread_mutex_unlock(&r->lock);
    pass_on(r, STDERR_FILENO, text, size);
    free(text);
}

// Whether there was something.
static bool move(struct relay *r, int way) {
    char text[16384];
    ssize_t n = read(r->from[way], text, sizeof text);
    if (n <= 0) return false;
    if (way == RELAY_HELD)
        hold(r, text, (size_t)n);
    else
        pass_on(r, way == RELAY_OUT ? STDOUT_FILENO : STDERR_FILENO, text, (size_t)n);
    return true;
}

static bool is_due(struct relay *r) {
    pthread_mutex_lock(&r->lock);
    bool due = r->held_bytes && now_seconds() - r->held_s > HOLD_S;
    pthread_mutex_unlock(&r->lock);
    return due;
}

static void *relay_main(void *arg) {
    struct relay *r = arg;
    struct pollfd p[RELAY_WAYS + 1];
    for (int i = 0; i < RELAY_WAYS; i++) p[i] = (struct pollfd){.fd = r->from[i], .events = POLLIN};
    p[RELAY_WAYS] = (struct pollfd){.fd = r->quit[0], .events = POLLIN};
    while (!p[RELAY_WAYS].revents) {
        if (poll(p, RELAY_WAYS + 1, LOOK_MS) < 0) continue;
        for (int i = 0; i < RELAY_WAYS; i++)
            if (p[i].revents) move(r, i);
        if (is_due(r)) show_held(r);
    }
    for (int i = 0; i < RELAY_WAYS; i++)
        while (move(r, i)) continue;
    return NULL;
}

static void close_all(struct relay *r) {
    for (int i = 0; i < RELAY_WAYS; i++) {
        if (r->from[i]) close(r->from[i]);
        if (r->to[i]) close(r->to[i]);
    }
    if (r->quit[0]) close(r->quit[0]);
    if (r->quit[1]) close(r->quit[1]);
    pthread_mutex_destroy(&r->lock);
    free(r->held);
    free(r);
}

// Standard streams are open (main sees to it): no descriptor here is 0.
static int open_all(struct relay *r) {
    int ends[2];
    if (pipe2(r->quit, O_CLOEXEC)) return -1;
    for (int i = 0; i < RELAY_WAYS; i++) {
        if (pipe2(ends, O_CLOEXEC)) return -1;
        r->from[i] = ends[0];
        r->to[i] = ends[1];
        if (fcntl(r->from[i], F_SETFL, O_NONBLOCK)) return -1;
    }
    return 0;
}

struct relay *relay_start(void) {
    struct relay *r = xcalloc(1, sizeof *r);
    r->held = xcalloc(HELD_MAX, 1);
    pthread_mutex_init(&r->lock, NULL);
    int rc = open_all(r) ? errno : pthread_create(&r->thread, NULL, relay_main, r);
    if (!rc) return r;
    fail("cannot read what the ranks print: %s", strerror(rc));
    close_all(r);
    return NULL;
}

int relay_end_of(const struct relay *r, enum relay_way way) { return r->to[way]; }

bool relay_is_stuck(const struct relay *r) {
    double since = atomic_load(&r->writes_s);
    return since > 0 && now_seconds() - since > STUCK_S;
}

void relay_held(struct relay *r, bool show) {
    pthread_mutex_lock(&r->lock);
    if (!show) r->held_bytes = 0;
    r->drops = !show;
    r->held_s = 0;  // due
    pthread_mutex_unlock(&r->lock);
}

int relay_stop(struct relay **at) {
    struct relay *r = *at;
    close(r->quit[1]);
    r->quit[1] = 0;
    pthread_join(r->thread, NULL);
    show_held(r);
    int why = r->why;
    close_all(r);
    *at = NULL;
    return why ? output_fail(why) : 0;
}
