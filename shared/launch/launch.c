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

#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/system.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/rank_env.h"
#include "shared/launch/stop.h"
#include "shared/time/poll_clock.h"

#define WAKE_MS           100   // how often the clock is checked when no signal arrives
#define ASKED_MS          5     // the same, while a verdict is awaited
#define GRACE_MAX_S       5.0   // ranks and roles check their stop flag many times a second
#define DESCRIPTORS_FOR_S 10.0  // how long the start of a child waits for a free descriptor
#define STOPPED_CHECKS    16    // checks within stopped_s for a stopped child

// Ends the message about a child that the launcher itself has killed: otherwise the signal would look like another
// process's.
#define GAVE_NO_SIGN "gave no sign of life for the deadline and was killed"

struct child {
    char role[16], name[32];  // "server", "server 1"
    int rank;
    struct launch_child options;  // the options of its last start
    pid_t pid;                    // 0: ended
    bool orderly;
    bool ended_well;
    bool restarted_alone;  // this child was restarted while the others continued
    double not_stopped_s;  // when a check last found it not stopped; 0: not checked
    bool waited_for;       // it was logged that the launcher still waits for this child
    pid_t awaits_verdict;  // the process that has died and waits for a verdict; 0: none
    char why[192], when[96];
    bool asked_to_end;  // the child was asked to end, so its end is expected
    // The child, or a process that it represents, was stopped by a signal, and the launcher has killed it.
    bool killed_as_stopped;
};

struct launcher {
    struct launch_options o;
    struct child *children;
    int count, running;
    double start_s;
    double kill_time_s;      // time of SIGKILL; 0: no child was asked to end
    double end_rest_time_s;  // when the remaining children are asked to end; 0: not known yet
    int status;              // the job's exit status, after the first failure
    int interrupted_by;      // SIGINT or SIGTERM; 0: none
    double interrupted_s;    // when the first signal arrived
    bool restarting;         // all ranks restart, and some required ones have not joined yet
    bool no_more_verdicts;   // the deciding process has ended
    int verdicts_received;
    bool done;                // whether it was last reported that no child is left
    struct poll_clock turns;  // the clock of the next two, and of children's not_stopped_s
    double checked_s;         // when it last checked for stopped children
    double ended_s;           // when the first child was seen to have ended well; 0: none has
    bool restart_all;         // all children are being ended, to be restarted
    sigset_t signals, before;
};

// ---------------------------------------------------------------- starting
struct launcher *launcher_create(const struct launch_options *o) {
    struct launcher *l = xcalloc(1, sizeof *l);
    l->o = *o;
    rank_env_supervise();
    l->start_s = now_seconds();
    l->turns = (struct poll_clock){.lost_s = o->stopped_s, .pause_s = WAKE_MS * 1e-3};
    sigemptyset(&l->signals);
    sigaddset(&l->signals, SIGCHLD);
    sigaddset(&l->signals, SIGINT);
    sigaddset(&l->signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &l->signals, &l->before);
    return l;
}

// Runs in the child between fork and exec: only async-signal-safe calls.
static void child_exec(const struct launcher *l, const struct launch_child *c, pid_t parent, int report_fd) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (c->own_group) setpgid(0, 0);
    if (c->own_group) signal(SIGTTOU, SIG_IGN);  // it may print although it is in the background
    if (getppid() == parent) {
        // The terminal sends SIGINT to all processes; the launcher decides which ones have to end.
        signal(SIGINT, SIG_IGN);
        if (c->keep_fd) fcntl(c->keep_fd, F_SETFD, 0);
        if (c->input_fd) dup2(c->input_fd, STDIN_FILENO);
        if (c->output_fd) dup2(c->output_fd, STDOUT_FILENO);
        sigprocmask(SIG_SETMASK, &l->before, NULL);
        execv(c->program, c->argv);
    }
    int why = errno;
    ssize_t written = write(report_fd, &why, sizeof why);
    (void)written;  // a broken pipe has no reader
    _exit(127);
}

// Returns the child's entry; a restarted child keeps its entry.
static struct child *entry_of(struct launcher *l, const struct launch_child *c) {
    for (int i = 0; i < l->count; i++)
        if (!l->children[i].pid && l->children[i].rank == c->rank && !strcmp(l->children[i].role, c->role))
            return &l->children[i];
    l->children = xrealloc(l->children, (unsigned long)(l->count + 1) * sizeof *l->children);
    struct child *child = &l->children[l->count++];
    *child = (struct child){.rank = c->rank, .orderly = c->orderly != 0};
    snprintf(child->role, sizeof child->role, "%s", c->role);
    if (c->rank >= 0)
        snprintf(child->name, sizeof child->name, "%s %d", c->role, c->rank);
    else
        snprintf(child->name, sizeof child->name, "%s", c->role);
    return child;
}

static void free_options(struct launch_child *c) {
    for (char *const *word = c->argv; word && *word; word++) free(*word);
    free((char **)c->argv);
    free((char *)c->program);
}

static void keep_options(struct child *child, const struct launch_child *c) {
    size_t n = 0;
    if (child->options.argv == c->argv) return;
    free_options(&child->options);
    while (c->argv[n]) n++;
    char **argv = xcalloc(n + 1, sizeof *argv);
    for (size_t i = 0; i < n; i++) argv[i] = xstrdup(c->argv[i]);
    child->options = *c;
    child->options.role = NULL;
    child->options.program = xstrdup(c->program);
    child->options.argv = argv;
}

int launcher_start(struct launcher *l, const struct launch_child *c) {
    int report[2];
    // Strangers' connections to the rendezvous take descriptors of this process; those above the limit are closed
    // soon.
    double until_s = now_seconds() + DESCRIPTORS_FOR_S;
    while (pipe2(report, O_CLOEXEC))
        if (errno != EMFILE || now_seconds() > until_s || usleep(1000))
            return fail("pipe: %s", strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) child_exec(l, c, parent, report[1]);
    int why = pid < 0 ? errno : 0;
    close(report[1]);
    // A successful exec closes the pipe.
    ssize_t got = pid < 0 ? 0 : read(report[0], &why, sizeof why);
    close(report[0]);
    struct child *child = entry_of(l, c);
    if (pid < 0 || got > 0) {
        if (pid > 0) waitpid(pid, NULL, 0);
        return fail("cannot start %s (%s): %s%s", child->name, c->program, strerror(why),
                    why == EAGAIN ? "; " ERROR_RAISE_THREADS : "");
    }
    keep_options(child, c);
    child->pid = pid;
    child->ended_well = child->asked_to_end = child->waited_for = child->killed_as_stopped = false;
    child->not_stopped_s = 0;
    l->running++;
    return 0;
}

// ---------------------------------------------------------------- deaths: messages and consequences
static void signal_all(struct launcher *l, int number) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].pid) kill(l->children[i].pid, number);
}

// Sends SIGTERM to all running children, and SIGKILL after the grace period; once.
static void end_rest(struct launcher *l) {
    if (l->kill_time_s > 0) return;
    l->kill_time_s = now_seconds() + l->o.grace_s;
    signal_all(l, SIGTERM);
}

// Returns whether at least one step of the job is done.
static bool has_begun(const struct launcher *l) { return l->o.last_step && l->o.last_step(l->o.ctx) > 0; }

static void time_text(const struct launcher *l, char *text, size_t size) {
    int64_t step = l->o.last_step ? l->o.last_step(l->o.ctx) : -1;
    int n = snprintf(text, size, "%.1f s after the start", now_seconds() - l->start_s);
    if (step > 0)
        snprintf(text + n, size - (size_t)n, ", after step %lld", (long long)step);
    else if (l->o.last_step)
        snprintf(text + n, size - (size_t)n, ", before the first step was done");
}

// ---------------------------------------------------------------- restarts
static void start_again(struct launcher *l, struct child *child) {
    struct launch_child as = child->options;
    as.role = child->role;
    if (!launcher_start(l, &as)) return;
    l->status = EXIT_RUN_FAILED;
    end_rest(l);
}

static void end_job(struct launcher *l, const struct child *child, const char *reason) {
    l->status = l->interrupted_by ? 128 + l->interrupted_by : EXIT_RUN_FAILED;
    if (l->o.together && l->interrupted_by)
        error_take_over(child->why);  // the caller prints one message about both
    else
        fail("%s %s: %s%s%s", child->why, child->when, reason, *reason ? ": " : "",
             l->count > 1 || l->o.others ? "ending the other processes of the job" : "the run ends");
    end_rest(l);
}

// All children of a `together` job have ended after one of them died, and are restarted.
static void start_all_again(struct launcher *l) {
    l->restart_all = false;
    if (!l->interrupted_by && !l->o.start(l->o.ctx)) return;
    l->status = l->interrupted_by ? 128 + l->interrupted_by : EXIT_RUN_FAILED;
    end_rest(l);
}

// ---------------------------------------------------------------- deaths and verdicts
// Both sides of verdict.h.
bool verdict_death(const struct member_news *n, struct death *out) {
    if (n->kind != MEMBER_SENT || strcmp(n->word, VERDICT_DEAD) != 0 || n->bytes != sizeof *out) return false;
    memcpy(out, n->data, sizeof *out);
    out->name[sizeof out->name - 1] = out->why[sizeof out->why - 1] = 0;
    return true;
}

void verdict_send(struct rendezvous *meet, int *said, const struct verdict *v) {
    char name[MEET_NAME_MAX];
    snprintf(name, sizeof name, VERDICT_SAID, (*said)++);
    rendezvous_put(meet, name, v, sizeof *v);
}

static void report_done(struct launcher *l, bool done) {
    char said = done;
    if (l->done != done) rendezvous_send(l->o.meet, VERDICT_DONE, &said, 1);
    l->done = done;
}

static bool receive_verdict(struct launcher *l, struct verdict *out) {
    char name[MEET_NAME_MAX];
    size_t bytes;
    snprintf(name, sizeof name, VERDICT_SAID, l->verdicts_received);
    void *said = rendezvous_try_get(l->o.meet, name, &bytes);
    bool whole = said && bytes == sizeof *out;
    l->verdicts_received += said != NULL;
    if (whole) memcpy(out, said, sizeof *out);
    free(said);
    if (!whole) return false;
    out->name[sizeof out->name - 1] = out->reason[sizeof out->reason - 1] = 0;
    if (out->again || out->kind == VERDICT_ANEW) report_done(l, false);
    return true;
}

static void drop_if_over(const struct launcher *l, struct child *child) {
    if (!l->no_more_verdicts || !child->awaits_verdict) return;
    if (!child->asked_to_end) warn("%s %s: the others have ended without it", child->why, child->when);
    child->awaits_verdict = 0;
}

static void report_death(struct launcher *l, struct child *child, pid_t pid) {
    struct death d = {.pid = (int)pid, .leaving = l->interrupted_by != 0};
    memcpy(d.name, child->name, sizeof d.name);
    memcpy(d.why, child->why, sizeof d.why);
    child->awaits_verdict = pid;
    if (!l->no_more_verdicts) rendezvous_send(l->o.meet, VERDICT_DEAD, &d, sizeof d);
    drop_if_over(l, child);
}

static void carry_out(struct launcher *l, struct child *child, const struct verdict *v) {
    child->awaits_verdict = 0;
    if (l->kill_time_s > 0) return;  // all are being ended
    // A restart makes sense only if other processes of the job are left.
    bool without = v->kind == VERDICT_WITHOUT, others = l->running || l->o.others || !without;
    bool again = v->again && !l->interrupted_by && others && v->kind != VERDICT_ENDS;
    if (again)
        warn("%s %s: %sstarting it again; %d of %d restarts %s left", child->why, child->when,
             without ? "the others continue; " : "", v->left, v->of, v->left == 1 ? "is" : "are");
    else if (without && !child->asked_to_end)
        warn("%s %s: the others %s without it", child->why, child->when,
             l->interrupted_by ? "end" : "continue");
    else if (!without && !child->asked_to_end)
        end_job(l, child, v->reason);
    else if (!without)
        l->status = 128 + l->interrupted_by, end_rest(l);
    child->restarted_alone = again && without;
    l->restart_all = again && l->o.together;
    if (again && !l->o.together) start_again(l, child);
}

static void kill_lost(struct launcher *l, const struct verdict *v) {
    for (int i = 0; i < l->count; i++) {
        struct child *child = &l->children[i];
        if (!child->pid || strcmp(child->name, v->name) != 0 || (v->pid && child->pid != v->pid)) continue;
        child->killed_as_stopped = true;
        kill(child->pid, SIGKILL);
    }
}

// Carries out a verdict: about a dead child of this launcher, or for the whole job.
static void apply_verdict(struct launcher *l, const struct verdict *v) {
    if (v->kind == VERDICT_LOST) kill_lost(l, v);
    if (v->kind == VERDICT_LOST) return;
    l->no_more_verdicts = l->no_more_verdicts || v->kind == VERDICT_OVER;
    for (int i = 0; i < l->count; i++) drop_if_over(l, &l->children[i]);
    bool mends = v->kind == VERDICT_ANEW && !l->o.together;
    l->restarting = mends || (l->restarting && v->kind != VERDICT_BEGINS);
    for (int i = 0; i < l->count; i++)
        if (l->children[i].awaits_verdict && l->children[i].awaits_verdict == v->pid &&
            !strcmp(l->children[i].name, v->name))
            carry_out(l, &l->children[i], v);
    if (!mends) return;
    // After this all children are needed.
    for (int i = 0; i < l->count; i++) l->children[i].restarted_alone = false;
    // The job returns to an earlier step, at which children that have ended well were needed.
    for (int i = 0; i < l->count; i++)
        if (l->children[i].ended_well && !l->children[i].pid && !l->kill_time_s)
            start_again(l, &l->children[i]);
}

// Returns whether a verdict is awaited.
static bool waits_for_verdict(const struct launcher *l) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].awaits_verdict && !l->kill_time_s) return true;
    return false;
}

// A child was killed, or the process that it represents was, or it exited because it lost a rank.
static void child_died(struct launcher *l, struct child *child, pid_t pid, int status) {
    const char *of = WIFSIGNALED(status) ? "" : "a rank of ";
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
    time_text(l, child->when, sizeof child->when);
    if (number < 0)
        snprintf(child->why, sizeof child->why, "%s (pid %d) gave up a rank and ended", child->name,
                 (int)pid);
    else if (child->killed_as_stopped)
        snprintf(child->why, sizeof child->why, "%s%s (pid %d) " GAVE_NO_SIGN, of, child->name, (int)pid);
    else
        snprintf(child->why, sizeof child->why, "%s%s (pid %d) was killed by signal %d (%s)", of, child->name,
                 (int)pid, number, strsignal(number));
    // The others are killed before they wait for the dead child, and report it too.
    if (l->o.together) signal_all(l, SIGKILL);
    if (l->o.decided)
        report_death(l, child, pid);
    else
        end_job(l, child, "");
}

// The child exited because it was asked to, outside a step that it could have finished.
static void child_left(struct launcher *l, struct child *child, pid_t pid) {
    bool asks = l->o.decided && !l->o.together && child->orderly && has_begun(l);
    // The launcher ends the job's other processes at once: another orderly child may already wait for this one.
    if (child->orderly && !asks) end_rest(l);
    child->asked_to_end = true;
    time_text(l, child->when, sizeof child->when);
    snprintf(child->why, sizeof child->why, "%s (pid %d) was asked to leave", child->name, (int)pid);
    if (asks)
        report_death(l, child, pid);
    else
        l->status = 128 + l->interrupted_by;
}

// Returns whether a child was killed, or a process that it represents, or whether it exited because it lost another
// rank.
static bool was_killed(const struct launcher *l, int status) {
    int of_others = l->o.speaks_for_others && WEXITSTATUS(status) > 128;
    return WIFSIGNALED(status) || (l->o.together && (of_others || WEXITSTATUS(status) == EXIT_RUN_LOST));
}

static void child_ended(struct launcher *l, struct child *child, int status) {
    pid_t pid = child->pid;
    child->pid = 0;
    l->running--;
    if (l->restart_all || (l->o.together && waits_for_verdict(l))) return;  // all are being ended
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        child->ended_well = true;
        if (l->restarting && !l->interrupted_by && !l->kill_time_s) start_again(l, child);
        return;
    }
    if (l->interrupted_by && l->kill_time_s > 0) l->status = 128 + l->interrupted_by;
    if (l->kill_time_s > 0) return;  // it was asked to end, or its end is a consequence of the first death
    // mpirun that was asked to end always exits with 1; the ranks' reports show how they ended.
    if (l->interrupted_by && l->o.speaks_for_others && WIFEXITED(status) && WEXITSTATUS(status) == 1) {
        child->ended_well = true;
        return;
    }
    if (l->interrupted_by && (WIFEXITED(status) ? WEXITSTATUS(status) > 128 : WTERMSIG(status) == SIGTERM)) {
        child_left(l, child, pid);
        // It died before its signal handler was installed; the other children would wait for it.
        if (l->o.together && WIFSIGNALED(status)) signal_all(l, SIGKILL);
        return;
    }
    if (was_killed(l, status)) {
        child_died(l, child, pid, status);
        return;
    }
    time_text(l, child->when, sizeof child->when);
    if (child->restarted_alone) {
        warn("%s (pid %d) ended with exit status %d %s: the others continue without it", child->name,
             (int)pid, WEXITSTATUS(status), child->when);
        return;
    }
    l->status = l->interrupted_by                   ? 128 + l->interrupted_by
                : WEXITSTATUS(status) == EXIT_USAGE ? EXIT_USAGE
                                                    : EXIT_RUN_FAILED;
    fail("%s (pid %d) ended with exit status %d %s%s", child->name, (int)pid, WEXITSTATUS(status),
         child->when, l->count > 1 ? ": ending the other processes of the job" : "");
    end_rest(l);
}

// Waits only for children of this launcher, one by one: the program may have others. If several have ended since the
// last check, a killed one is handled first: the others may have exited because of it.
static void reap(struct launcher *l) {
    int count = l->count;
    int *status = xcalloc((unsigned long)count + 1, sizeof *status);
    bool *ended = xcalloc((unsigned long)count + 1, sizeof *ended);
    for (int i = 0; i < count; i++) {
        const struct child *child = &l->children[i];
        ended[i] = child->pid && waitpid(child->pid, &status[i], WNOHANG) == child->pid;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++)
            if (ended[i] && was_killed(l, status[i]) == (pass == 0))
                child_ended(l, &l->children[i], status[i]);
    free(status);
    free(ended);
}

// ---------------------------------------------------------------- watching
// After the last orderly child has ended, the others end by themselves and write reports, but not if no step was done.
static void end_after_orderly(struct launcher *l) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].orderly && l->children[i].pid) return;
    if (!l->running || l->o.others) return;
    if (!l->end_rest_time_s) l->end_rest_time_s = now_seconds() + (has_begun(l) ? l->o.grace_s : 0);
    if (now_seconds() < l->end_rest_time_s) return;
    if (!l->kill_time_s) l->status = 128 + l->interrupted_by;
    end_rest(l);
}

// Handles verdicts, and calls the poll callback, which may end the job.
static void poll_job(struct launcher *l) {
    struct verdict v;
    while (l->o.decided && receive_verdict(l, &v)) apply_verdict(l, &v);
    if (!l->o.poll) return;
    const char *why = l->o.poll(l->o.ctx, l->kill_time_s > 0 ? error_last() : NULL);
    if (!why || l->kill_time_s > 0) return;
    l->status = l->interrupted_by ? 128 + l->interrupted_by : EXIT_RUN_FAILED;
    error_take_over(why);
    end_rest(l);
}

struct stopped {
    pid_t parent, pid;
};

static bool is_stopped_child(void *ctx, pid_t pid) {
    struct stopped *s = ctx;
    struct proc_look look;
    if (!proc_look(pid, &look) && look.parent == s->parent && (look.state == 'T' || look.state == 't'))
        s->pid = pid;
    return !s->pid;
}

// Returns the process that a signal has stopped: the child or a process that it represents; 0 if none.
static pid_t find_stopped(const struct launcher *l, const struct child *child) {
    struct stopped s = {.parent = child->pid};
    if (proc_is_stopped(child->pid)) return child->pid;
    if (l->o.speaks_for_others) proc_each(is_stopped_child, &s);
    return s.pid;
}

// After the first children have ended well, no other process may be left that checks whether the rest are alive.
static void watch_rest(struct launcher *l) {
    double now = poll_clock_poll(&l->turns, now_seconds()), most_s = l->o.stopped_s;
    if (most_s <= 0 || now - l->checked_s < most_s / STOPPED_CHECKS) return;
    bool any = l->o.together;
    for (int i = 0; i < l->count; i++) any = any || l->children[i].ended_well;
    if (!any || !l->ended_s) l->ended_s = any ? now : 0;
    l->checked_s = now;
    for (int i = 0; i < l->count && any; i++) {
        struct child *child = &l->children[i];
        if (!child->pid) continue;
        pid_t still = find_stopped(l, child);
        if (!child->not_stopped_s || !still) child->not_stopped_s = now;
        if (now - l->ended_s > most_s && child->not_stopped_s == now && !child->waited_for &&
            !l->o.together) {
            info("waiting for %s (pid %d), which has not ended, while others have", child->name,
                 (int)child->pid);
            child->waited_for = true;
        }
        if (now - child->not_stopped_s <= most_s) continue;
        child->killed_as_stopped = true;
        if (!l->o.together)
            warn("%s (pid %d) has been stopped by a signal for %.1f s, while others have ended: killing it",
                 child->name, (int)child->pid, now - child->not_stopped_s);
        kill(still, SIGKILL);
        child->not_stopped_s = 0;
    }
}

static void on_interrupt(struct launcher *l, int number) {
    double now = now_seconds();
    if (!l->interrupted_by) {
        l->interrupted_by = number;
        l->interrupted_s = now;
        stop_answer(number);
        for (int i = 0; i < l->count; i++)
            if (l->children[i].orderly && l->children[i].pid) kill(l->children[i].pid, SIGTERM);
    } else if (now - l->interrupted_s >= STOP_AGAIN_S) {
        l->kill_time_s = now + l->o.grace_s;
        signal_all(l, SIGKILL);  // the second request to end: kill the children at once
    }
}

// Waits up to ms for a signal and handles it; kills children whose grace period is over.
static void watch(struct launcher *l, int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    int number = sigtimedwait(&l->signals, NULL, &t);
    // This process may have been stopped and continued, also after its wait was over: it first handles the signals that
    // arrived meanwhile, the lowest number first: a request to end before a death.
    if (number < 0) number = sigtimedwait(&l->signals, NULL, &(struct timespec){0});
    if (number == SIGINT || number == SIGTERM) on_interrupt(l, number);
    poll_job(l);
    watch_rest(l);
    reap(l);
    if (l->interrupted_by) end_after_orderly(l);
    if (l->kill_time_s > 0 && now_seconds() >= l->kill_time_s && l->running) {
        for (int i = 0; i < l->count; i++)
            if (l->children[i].pid) warn("%s did not end in time: killing it", l->children[i].name);
        signal_all(l, SIGKILL);
        l->kill_time_s = now_seconds() + l->o.grace_s;
    }
    if (l->restart_all && !l->running) start_all_again(l);
}

// The only running child is slow, unless a signal has stopped it: the files that it reads may hang. Returns 0 to wait
// longer, or -1 after logging.
static int give_up_silent(const struct launcher *l, double deadline_s) {
    const struct child *only = NULL;
    for (int i = 0; i < l->count && l->running == 1; i++)
        if (l->children[i].pid) only = &l->children[i];
    if (!only || proc_is_stopped(only->pid))
        return fail("%s did not answer within %.1f s", only ? only->name : "a process", deadline_s);
    info("waiting for %s (pid %d), which has not answered within %.1f s", only->name, (int)only->pid,
         deadline_s);
    return 0;
}

int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size) {
    double until_s = poll_clock_at(&l->turns, now_seconds()) + deadline_s;
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
        double now = poll_clock_at(&l->turns, now_seconds());
        if (now <= until_s) continue;
        if (give_up_silent(l, deadline_s)) return -1;
        until_s = now + deadline_s;
        length = 0;
    }
    return -1;
}

int launcher_interrupted(const struct launcher *l) { return l->interrupted_by; }

// A thread that hangs on a file cannot be killed as a process can: after the grace it is no longer waited for.
static bool has_background_work(struct launcher *l) {
    bool late = l->kill_time_s > 0 && now_seconds() > l->kill_time_s;
    if (l->running || late || !l->o.background_work) return false;
    report_done(l, true);
    return l->o.background_work(l->o.ctx);
}

int launcher_wait(struct launcher *l) {
    while (l->running || l->restart_all || waits_for_verdict(l) || has_background_work(l))
        watch(l, waits_for_verdict(l) ? ASKED_MS : WAKE_MS);
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
    // A Ctrl-C that arrived during the end would be delivered on unblocking: it has been handled already.
    struct timespec now = {0};
    while (sigtimedwait(&l->signals, NULL, &now) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &l->before, NULL);
    for (int i = 0; i < l->count; i++) free_options(&l->children[i].options);
    free(l->children);
    free(l);
    *pl = NULL;
}

int launch_run(struct launch_options o, double deadline_s, const char *behind, struct launcher **launcher,
               int *interrupted_by) {
    o.grace_s = deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S;
    fflush(NULL);
    stop_answers(behind);
    *launcher = launcher_create(&o);
    output_thread_begin();  // all threads that start from here on block signals, this one too
    if (o.start(o.ctx)) launcher_end_all(*launcher);
    int status = launcher_wait(*launcher);
    if (status) o.poll(o.ctx, error_last());
    *interrupted_by = launcher_interrupted(*launcher);
    if (*interrupted_by) signal(SIGINT, SIG_IGN);
    output_thread_end();
    launcher_destroy(launcher);
    return status;
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
