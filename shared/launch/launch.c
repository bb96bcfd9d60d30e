#include "shared/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/proc_look.h"
#include "shared/launch/last_word.h"
#include "shared/launch/launch_state.h"
#include "shared/launch/stop.h"

#define WAKE_MS     100  // how often the clock is looked at when no signal comes
#define STILL_LOOKS 16   // whether a child is stopped is looked at so often before it is believed

struct launcher *launcher_create(const struct launch_options *o) {
    struct launcher *l = xcalloc(1, sizeof *l);
    l->o = *o;
    l->start_s = now_seconds();
    l->said_step = -1;
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
    if (c->apart) setpgid(0, 0);
    if (c->apart) signal(SIGTTOU, SIG_IGN);  // and it may print all the same
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

// The child's place: its own where it is started again.
static struct child *place_of(struct launcher *l, const struct launch_child *c) {
    for (int i = 0; i < l->count; i++)
        if (!l->children[i].pid && l->children[i].rank == c->rank && !strcmp(l->children[i].role, c->role))
            return &l->children[i];
    l->children = xrealloc(l->children, (unsigned long)(l->count + 1) * sizeof *l->children);
    struct child *child = &l->children[l->count++];
    *child = (struct child){.rank = c->rank, .orderly = c->orderly != 0, .expendable = c->expendable != 0};
    snprintf(child->role, sizeof child->role, "%s", c->role);
    if (c->rank < 0)
        snprintf(child->name, sizeof child->name, "%s", c->role);
    else
        snprintf(child->name, sizeof child->name, "%s %d", c->role, c->rank);
    return child;
}

int launcher_start(struct launcher *l, const struct launch_child *c) {
    int report[2];
    if (pipe2(report, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) become(l, c, parent, report[1]);
    int why = pid < 0 ? errno : 0;
    close(report[1]);
    // The pipe closes by itself when exec succeeds.
    ssize_t got = pid < 0 ? 0 : read(report[0], &why, sizeof why);
    close(report[0]);
    struct child *child = place_of(l, c);
    if (pid < 0 || got > 0) {
        if (pid > 0) waitpid(pid, NULL, 0);
        return fail("cannot start %s (%s): %s%s", child->name, c->program, strerror(why),
                    why == EAGAIN ? "; " ERROR_RAISE_THREADS : "");
    }
    child->pid = pid;
    child->ended_well = child->told_to = child->waited_for = child->still = false;
    child->moved_s = 0;
    l->running++;
    return 0;
}

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
    if (!l->rest_at_s) l->rest_at_s = now_seconds() + (launcher_has_begun(l) ? l->o.grace_s : 0);
    if (now_seconds() < l->rest_at_s) return;
    if (!l->kill_at_s) l->status = 128 + l->interrupted_by;
    launcher_end_rest(l);
}

void launcher_tell(struct launcher *l, struct last_word *word) { l->word = word; }

void launcher_listen(struct launcher *l, int fd) { l->link = fd; }

static void end_lost(struct launcher *l, int pid, const char *name) {
    for (int i = 0; i < l->count; i++) {
        const struct child *child = &l->children[i];
        if (child->pid && (pid ? child->pid == pid : !strcmp(child->name, name))) kill(child->pid, SIGKILL);
    }
}

static void hear(struct launcher *l) {
    char c;
    while (l->link && recv(l->link, &c, 1, MSG_DONTWAIT) == 1) {
        int pid = 0;
        if (c != '\n') {
            if (l->length < sizeof l->line - 1) l->line[l->length++] = c;
            continue;
        }
        l->line[l->length] = 0;
        l->length = 0;
        int name = 0, fate = 0;
        if (sscanf(l->line, "lost %d %n", &pid, &name) == 1 && name > 0) end_lost(l, pid, l->line + name);
        l->lives += !strcmp(l->line, "life");
        long long step = -1;
        if (sscanf(l->line, "alive %d %lld", &pid, &step) >= 1) {
            l->alive = pid;
            l->alive_s = now_seconds();
            if (step >= 0) l->said_step = step;
        }
        if (sscanf(l->line, "fate %d %n", &pid, &fate) == 1 && fate > 0)
            launcher_hear_fate(l, pid, l->line + fate);
    }
}

// A child that has fallen silent stands still: it is ended, as one that has died. Not if this launcher has stood still
// itself, as after Ctrl-Z.
static void watch_silence(struct launcher *l) {
    double now = now_seconds();
    if (now - l->watched_s > 0.5 * l->o.silent_s) l->alive_s = now;
    l->watched_s = now;
    if (!l->alive || l->o.silent_s <= 0 || now - l->alive_s <= l->o.silent_s) return;
    for (int i = 0; i < l->count; i++)
        if (l->children[i].pid == l->alive)
            warn("%s (pid %d) has been silent for %.1f s: killing it", l->children[i].name, l->alive,
                 now - l->alive_s);
    end_lost(l, l->alive, "");
    l->alive = 0;
}

// Once the first have ended well nobody may be left who asks the others whether they live.
static void watch_rest(struct launcher *l) {
    double now = now_seconds(), before = l->looked_s, most_s = l->o.still_s;
    if (most_s <= 0 || now - before < most_s / STILL_LOOKS) return;
    bool any = l->o.together;
    int stopped = 0;
    for (int i = 0; i < l->count; i++) any = any || l->children[i].ended_well;
    if (!any || !l->ended_s) l->ended_s = any ? now : 0;
    // This launcher has stood still, and they perhaps with it.
    bool anew = now - before > 0.5 * most_s;
    l->looked_s = now;
    for (int i = 0; i < l->count && any; i++) {
        struct child *child = &l->children[i];
        if (!child->pid) continue;
        if (anew || !child->moved_s || !proc_is_stopped(child->pid)) child->moved_s = now;
        if (now - child->moved_s > 0.5 * most_s) stopped = 1 + child->rank;
        if (now - l->ended_s > most_s && child->moved_s == now && !child->waited_for && !l->o.together) {
            info("waiting for %s (pid %d), which has not ended, while others have", child->name,
                 (int)child->pid);
            child->waited_for = true;
        }
        if (now - child->moved_s <= most_s) continue;
        child->still = l->o.together;
        if (!l->o.together)
            warn("%s (pid %d) has been stopped by a signal for %.1f s, while others have ended: killing it",
                 child->name, (int)child->pid, now - child->moved_s);
        kill(child->pid, SIGKILL);
        child->moved_s = 0;
    }
    if (l->word) atomic_store(&l->word->stopped, stopped);
}

static void interrupt(struct launcher *l, int number) {
    double now = now_seconds();
    if (!l->interrupted_by) {
        l->interrupted_by = number;
        l->interrupted_s = now;
        stop_answer(number);
        ask_orderly(l);
    } else if (now - l->interrupted_s >= STOP_AGAIN_S) {
        l->kill_at_s = now + l->o.grace_s;
        launcher_signal_all(l, SIGKILL);  // asked twice: now
    }
}

// Waits up to ms for a signal and handles it; kills children whose grace period is over.
static void watch(struct launcher *l, int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    int number = sigtimedwait(&l->signals, NULL, &t);
    if (number == SIGINT || number == SIGTERM) interrupt(l, number);
    hear(l);
    watch_silence(l);
    watch_rest(l);
    launcher_reap(l);
    launcher_decide_unanswered(l, now_seconds() - fmax(l->o.silent_s, l->o.grace_s));
    if (l->interrupted_by) follow_orderly(l);
    if (l->kill_at_s > 0 && now_seconds() >= l->kill_at_s && l->running) {
        for (int i = 0; i < l->count; i++)
            if (l->children[i].pid) warn("%s did not end in time: killing it", l->children[i].name);
        launcher_signal_all(l, SIGKILL);
        l->kill_at_s = now_seconds() + l->o.grace_s;
    }
    if (l->anew && !l->running) launcher_begin_anew(l);
}

// The only child that runs counts as dead where a signal has stopped it and it may be started again; otherwise it is slow:
// what it reads may stand still. 0, or -1 after logging.
static int give_up_silent(struct launcher *l, double deadline_s) {
    struct child *only = NULL;
    for (int i = 0; i < l->count && l->running == 1; i++)
        if (l->children[i].pid) only = &l->children[i];
    if (only && !proc_is_stopped(only->pid)) {
        info("waiting for %s (pid %d), which has not answered within %.1f s", only->name, (int)only->pid,
             deadline_s);
        return 0;
    }
    if (!only || !l->o.restarts.count)
        return fail("%s did not answer within %.1f s", only ? only->name : "a process", deadline_s);
    warn("%s (pid %d) did not answer within %.1f s: killing it", only->name, (int)only->pid, deadline_s);
    kill(only->pid, SIGKILL);
    return 0;
}

int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size) {
    double looked_s = now_seconds(), until_s = looked_s + deadline_s;
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
        double now = now_seconds(), turn_s = now - looked_s;
        looked_s = now;
        if (turn_s > 0.1 * deadline_s)
            until_s += turn_s;  // this launcher stood still, and they perhaps with it
        if (now <= until_s) continue;
        if (give_up_silent(l, deadline_s)) return -1;
        until_s = now_seconds() + deadline_s;
        length = 0;
    }
    return -1;
}

int64_t launcher_said_step(const struct launcher *l) { return l->said_step; }
int launcher_interrupted(const struct launcher *l) { return l->interrupted_by; }

int launcher_wait(struct launcher *l) {
    do {
        while (l->running || l->anew) watch(l, WAKE_MS);
        hear(l);  // of the last one that has died
    } while (l->running);
    launcher_forget_unanswered(l);
    return l->status;
}

void launcher_end_all(struct launcher *l) {
    if (!l->status) l->status = EXIT_RUN_FAILED;
    launcher_end_rest(l);
    launcher_wait(l);
}

void launcher_destroy(struct launcher **pl) {
    struct launcher *l = *pl;
    if (!l) return;
    launcher_signal_all(l, SIGKILL);
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
