#include "shared/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"

#define WAKE_MS 100  // how often the clock is looked at when no signal comes

struct child {
    char name[32];  // "server 1"
    pid_t pid;      // 0: ended
    bool orderly;
};

struct launcher {
    struct launch_options o;
    struct child *children;
    int count, running;
    double start_s;
    double kill_at_s;    // SIGKILL then; 0: nobody has been told to end
    double rest_at_s;    // after an interruption: the rest is told to end then; 0: not known yet
    int status;          // the job's, once something went wrong
    int interrupted_by;  // SIGINT or SIGTERM, 0: neither
    sigset_t signals, before;
};

struct launcher *launcher_create(const struct launch_options *o) {
    struct launcher *l = xcalloc(1, sizeof *l);
    l->o = *o;
    l->start_s = now_seconds();
    sigemptyset(&l->signals);
    sigaddset(&l->signals, SIGCHLD);
    sigaddset(&l->signals, SIGINT);
    sigaddset(&l->signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &l->signals, &l->before);
    return l;
}

// In the child, between fork and exec: async-signal-safe calls alone.
static void become(const struct launcher *l, const struct launch_child *c, pid_t parent, int report_fd) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        signal(SIGINT, SIG_IGN);  // the terminal sends it to all; the launcher says whom it concerns
        if (c->keep_fd) fcntl(c->keep_fd, F_SETFD, 0);
        sigprocmask(SIG_SETMASK, &l->before, NULL);
        execv(c->program, c->argv);
    }
    int why = errno;
    ssize_t written = write(report_fd, &why, sizeof why);
    (void)written;  // where the pipe is broken, nobody reads
    _exit(127);
}

int launcher_start(struct launcher *l, const struct launch_child *c) {
    int report[2];
    if (pipe2(report, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become(l, c, parent, report[1]);
    int why = pid < 0 ? errno : 0;
    close(report[1]);
    // The pipe closes by itself when exec succeeds.
    ssize_t got = pid < 0 ? 0 : read(report[0], &why, sizeof why);
    close(report[0]);
    l->children = xrealloc(l->children, (unsigned long)(l->count + 1) * sizeof *l->children);
    struct child *child = &l->children[l->count];
    *child = (struct child){.pid = pid, .orderly = c->orderly != 0};
    if (c->rank < 0)
        snprintf(child->name, sizeof child->name, "%s", c->role);
    else
        snprintf(child->name, sizeof child->name, "%s %d", c->role, c->rank);
    if (pid < 0 || got > 0) {
        if (pid > 0) waitpid(pid, NULL, 0);
        return fail("cannot start %s (%s): %s", child->name, c->program, strerror(why));
    }
    l->count++;
    l->running++;
    return 0;
}

static void signal_all(struct launcher *l, int number) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].pid) kill(l->children[i].pid, number);
}

static void end_rest(struct launcher *l) {
    if (l->kill_at_s > 0) return;
    l->kill_at_s = now_seconds() + l->o.grace_s;
    signal_all(l, SIGTERM);
}

static bool has_begun(const struct launcher *l) { return l->o.last_step && l->o.last_step(l->o.ctx) > 0; }

static bool any_orderly(const struct launcher *l) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].orderly && l->children[i].pid) return true;
    return false;
}

static void ask_orderly(struct launcher *l) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].orderly && l->children[i].pid) kill(l->children[i].pid, SIGTERM);
}

// Behind the last orderly child the rest ends by itself, with its reports; not where the job had no step yet.
static void follow_orderly(struct launcher *l) {
    if (any_orderly(l) || !l->running) return;
    if (!l->rest_at_s) l->rest_at_s = now_seconds() + (has_begun(l) ? l->o.grace_s : 0);
    if (now_seconds() < l->rest_at_s) return;
    if (!l->kill_at_s) l->status = 128 + l->interrupted_by;
    end_rest(l);
}

static void when(const struct launcher *l, char *text, size_t size) {
    int64_t step = l->o.last_step ? l->o.last_step(l->o.ctx) : -1;
    int n = snprintf(text, size, "%.1f s after the start", now_seconds() - l->start_s);
    if (step > 0)
        snprintf(text + n, size - (size_t)n, ", after step %lld", (long long)step);
    else
        snprintf(text + n, size - (size_t)n, ", before the first step was done");
}

static void child_ended(struct launcher *l, struct child *child, int status) {
    pid_t pid = child->pid;
    child->pid = 0;
    l->running--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (l->interrupted_by) l->status = 128 + l->interrupted_by;
    if (l->kill_at_s > 0) return;  // told to end, or a consequence of the first death
    // Interrupted before it had begun: the job's other processes hear of it from the launcher, at once, because
    // another orderly child may already wait for this one.
    if (l->interrupted_by && (WIFEXITED(status) ? WEXITSTATUS(status) > 128 : WTERMSIG(status) == SIGTERM)) {
        if (child->orderly && !has_begun(l)) end_rest(l);
        return;
    }
    char text[96];
    when(l, text, sizeof text);
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        if (!l->interrupted_by) l->status = EXIT_RUN_FAILED;
        fail("%s (pid %d) was killed by signal %d (%s) %s: ending the other processes of the job",
             child->name, (int)pid, number, strsignal(number), text);
    } else {
        if (!l->interrupted_by) l->status = WEXITSTATUS(status) == EXIT_USAGE ? EXIT_USAGE : EXIT_RUN_FAILED;
        fail("%s (pid %d) ended with exit status %d %s: ending the other processes of the job", child->name,
             (int)pid, WEXITSTATUS(status), text);
    }
    end_rest(l);
}

// Only children of this launcher are waited for, one by one: the program may have others. When several
// have ended since the last look, one that was killed comes first: the others may have left because of it.
static void reap(struct launcher *l) {
    int *status = xcalloc((unsigned long)l->count + 1, sizeof *status);
    bool *ended = xcalloc((unsigned long)l->count + 1, sizeof *ended);
    for (int i = 0; i < l->count; i++)
        ended[i] =
            l->children[i].pid && waitpid(l->children[i].pid, &status[i], WNOHANG) == l->children[i].pid;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < l->count; i++)
            if (ended[i] && WIFSIGNALED(status[i]) == (pass == 0)) child_ended(l, &l->children[i], status[i]);
    free(status);
    free(ended);
}

// Waits up to ms for a signal and handles it; kills children whose grace period is over.
static void watch(struct launcher *l, int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    int number = sigtimedwait(&l->signals, NULL, &t);
    if (number == SIGINT || number == SIGTERM) {
        if (l->interrupted_by) {
            l->kill_at_s = now_seconds() + l->o.grace_s;
            signal_all(l, SIGKILL);  // asked twice: now
        } else {
            l->interrupted_by = number;
            ask_orderly(l);
        }
    }
    reap(l);
    if (l->interrupted_by) follow_orderly(l);
    if (l->kill_at_s > 0 && now_seconds() >= l->kill_at_s && l->running) {
        for (int i = 0; i < l->count; i++)
            if (l->children[i].pid) warn("%s did not end in time: killing it", l->children[i].name);
        signal_all(l, SIGKILL);
        l->kill_at_s = now_seconds() + l->o.grace_s;
    }
}

int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size) {
    double until_s = now_seconds() + deadline_s;
    int length = 0;
    while (!l->status) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) > 0) {
            char c;
            ssize_t got = read(fd, &c, 1);
            if (got <= 0) {
                watch(l, WAKE_MS);
                return l->status ? -1 : fail("a process ended before it answered");
            }
            if (c == '\n') {
                line[length] = 0;
                return 0;
            }
            if (length < size - 1) line[length++] = c;
            continue;
        }
        watch(l, 1);
        if (now_seconds() > until_s) return fail("a process did not answer within %.1f s", deadline_s);
    }
    return -1;
}

int launcher_interrupted(const struct launcher *l) { return l->interrupted_by; }

int launcher_wait(struct launcher *l) {
    while (l->running) watch(l, WAKE_MS);
    return l->status;
}

void launcher_end_all(struct launcher *l) {
    if (!l->status) l->status = EXIT_RUN_FAILED;
    end_rest(l);
    launcher_wait(l);
}

void launcher_destroy(struct launcher **pl) {
    struct launcher *l = *pl;
    if (!l) return;
    signal_all(l, SIGKILL);
    for (int i = 0; i < l->count; i++)
        if (l->children[i].pid) waitpid(l->children[i].pid, NULL, 0);
    // A Ctrl-C that came while all was ending would fire on unblocking: it has been obeyed already.
    struct timespec now = {0};
    while (sigtimedwait(&l->signals, NULL, &now) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &l->before, NULL);
    free(l->children);
    free(l);
    *pl = NULL;
}

char *launch_self(void) {
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) {
        fail("/proc/self/exe: %s", strerror(errno));
        return NULL;
    }
    path[n] = 0;
    return xstrdup(path);
}
