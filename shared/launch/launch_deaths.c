// The deaths of a launcher's children: how they are said, and which child is started again.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "shared/core/error.h"
#include "shared/launch/last_word.h"
#include "shared/launch/launch_state.h"
#include "shared/launch/stop.h"

static void when(const struct launcher *l, char *text, size_t size) {
    int64_t step = l->o.last_step ? l->o.last_step(l->o.ctx) : -1;
    int n = snprintf(text, size, "%.1f s after the start", now_seconds() - l->start_s);
    if (step > 0)
        snprintf(text + n, size - (size_t)n, ", after step %lld", (long long)step);
    else
        snprintf(text + n, size - (size_t)n, ", before the first step was done");
}

// ---------------------------------------------------------------- started again
// A death counts once with others of the same life of the job: two roles that are killed at once take one restart. One
// that dies again before the next life has begun would go on like that.
static bool may_die(struct launcher *l, struct child *child) {
    const struct launch_restarts *r = &l->o.restarts;
    if (!r->count || l->interrupted_by || l->kill_at_s > 0) return false;
    bool another = !l->incidents || l->lives != l->life || child->incident == l->incidents;
    if (another && l->incidents + l->replaced >= r->count) return false;
    l->incidents += another;
    l->life = l->lives;
    child->incident = l->incidents;
    return true;
}

// The job has not begun its next life yet, since somebody was started again.
static bool is_mending(const struct launcher *l) {
    return l->incidents > 0 && !l->interrupted_by && !l->kill_at_s && l->lives == l->life;
}

static void start_again(struct launcher *l, struct child *child) {
    char role[sizeof child->role];
    int rank = child->rank;
    memcpy(role, child->role, sizeof role);
    if (!l->o.restarts.again(l->o.ctx, role, rank)) return;
    l->status = EXIT_RUN_FAILED;
    launcher_end_rest(l);
}

static const char *say_left(const struct launcher *l, char *out, size_t size) {
    int left = l->o.restarts.count - l->incidents - l->replaced;
    snprintf(out, size, "%d of %d restarts %s left", left, l->o.restarts.count, left == 1 ? "is" : "are");
    return out;
}

static bool used_up(const struct launcher *l) {
    return !l->interrupted_by && l->o.restarts.count && l->incidents + l->replaced >= l->o.restarts.count;
}

// Those that had ended well too: the job goes back to where they were needed.
static void mend(struct launcher *l, struct child *child, pid_t pid, const char *why, const char *text) {
    char left[64];
    warn("%s %s: starting it again; %s", why, text, say_left(l, left, sizeof left));
    l->o.restarts.died(l->o.ctx, (int)pid, why);
    start_again(l, child);
    for (int i = 0; i < l->count; i++) l->children[i].replaced = false;  // all begin anew: none can be missed
    for (int i = 0; i < l->count; i++)
        if (l->children[i].ended_well && !l->children[i].pid && !l->kill_at_s)
            start_again(l, &l->children[i]);
}

// The others go on without it, and with it once it is back.
static void replace(struct launcher *l, struct child *child) {
    char left[64];
    bool again = !l->interrupted_by && l->running && l->incidents + l->replaced < l->o.restarts.count;
    l->replaced += again;
    if (again)
        warn("%s %s: the others go on; starting it again; %s", child->why, child->when,
             say_left(l, left, sizeof left));
    else if (!child->told_to)
        warn("%s %s: the others %s without it", child->why, child->when, l->interrupted_by ? "end" : "go on");
    if (!again) return;
    child->replaced = true;
    start_again(l, child);
}

static void end_job(struct launcher *l, const char *why, const char *text, const char *reason) {
    if (l->word) last_word_say(l->word, why);
    l->status = l->interrupted_by ? 128 + l->interrupted_by : EXIT_RUN_FAILED;
    char used[64] = "";
    if (used_up(l))
        snprintf(used, sizeof used, "; all restarts are used up (--restart %d)", l->o.restarts.count);
    fail("%s %s: %s%s%s%s", why, text, reason, *reason ? ": " : "",
         l->count > 1 ? "ending the other processes of the job" : "the run ends", used);
    launcher_end_rest(l);
}

// ---------------------------------------------------------------- of those that live together
void launcher_begin_anew(struct launcher *l) {
    l->anew = false;
    if (l->interrupted_by) {
        l->status = 128 + l->interrupted_by;
        return;
    }
    if (!l->o.restarts.anew(l->o.ctx, l->why)) return;
    l->status = EXIT_RUN_FAILED;
    launcher_end_rest(l);
}

// The others have nothing to say: they wait for the one that has died, or soon would.
static void end_together(struct launcher *l, struct child *child, const char *why, const char *text) {
    char left[64];
    l->anew = may_die(l, child);
    l->lives++;
    snprintf(l->why, sizeof l->why, "%s", why);
    if (l->anew) {
        warn("%s %s: starting it again; %s", why, text, say_left(l, left, sizeof left));
    } else if (l->interrupted_by) {  // the caller has one message of both
        error_take_over(why);
        l->status = 128 + l->interrupted_by;
        launcher_end_rest(l);
    } else {
        end_job(l, why, text, "");
    }
    launcher_signal_all(l, SIGKILL);
}

// ---------------------------------------------------------------- what becomes of the job without a child
static void ask_fate(struct launcher *l, struct child *child, pid_t pid, const char *why, const char *text) {
    child->asked = pid;
    child->asked_s = now_seconds();
    snprintf(child->why, sizeof child->why, "%s", why);
    snprintf(child->when, sizeof child->when, "%s", text);
    l->o.restarts.died(l->o.ctx, (int)pid, why);
}

static void decide(struct launcher *l, struct child *child, enum fate fate, const char *reason) {
    pid_t pid = child->asked;
    child->asked = 0;
    if (l->kill_at_s > 0) return;  // all end
    if (fate == FATE_WITHOUT) {
        replace(l, child);
    } else if (fate == FATE_ANEW && may_die(l, child)) {
        mend(l, child, pid, child->why, child->when);
    } else if (!child->told_to) {
        end_job(l, child->why, child->when, reason);
    } else {
        l->status = 128 + l->interrupted_by;
        launcher_end_rest(l);
    }
}

// The rank that would have answered has died, or stands still: the job begins anew when that one is back.
void launcher_decide_unanswered(struct launcher *l, double asked_before_s) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].asked && l->children[i].asked_s < asked_before_s)
            decide(l, &l->children[i], FATE_ANEW, "");
}

void launcher_forget_unanswered(struct launcher *l) {
    for (int i = 0; i < l->count; i++) {
        struct child *child = &l->children[i];
        if (child->asked && !child->told_to && !l->kill_at_s)
            warn("%s %s: the others have ended without it", child->why, child->when);
        child->asked = 0;
    }
}

void launcher_hear_fate(struct launcher *l, int pid, const char *words) {
    static const char *const names[] = {"without", "anew", "ends"};
    int fate = 0;
    while (fate < 3 && strncmp(words, names[fate], strlen(names[fate])) != 0) fate++;
    if (fate == 3) return;
    words += strlen(names[fate]);
    words += strspn(words, " ");
    for (int i = 0; i < l->count; i++)
        if (l->children[i].asked == pid) decide(l, &l->children[i], (enum fate)fate, words);
}

static void child_killed(struct launcher *l, struct child *child, pid_t pid, int number) {
    char text[96], why[128];
    when(l, text, sizeof text);
    if (child->still)
        snprintf(why, sizeof why, "%s (pid %d) gave no sign of life for the deadline and was killed",
                 child->name, (int)pid);
    else
        snprintf(why, sizeof why, "%s (pid %d) was killed by signal %d (%s)", child->name, (int)pid, number,
                 strsignal(number));
    if (l->o.together)
        end_together(l, child, why, text);
    else if (child->expendable)
        ask_fate(l, child, pid, why, text);
    else if (may_die(l, child))
        mend(l, child, pid, why, text);
    else
        end_job(l, why, text, "");
    if (pid == l->alive) launcher_decide_unanswered(l, now_seconds());
}

// It was asked to leave, and did not belong to a step that it could have finished.
static void child_left(struct launcher *l, struct child *child, pid_t pid) {
    char text[96], why[128];
    bool asks = child->expendable && launcher_has_begun(l);
    // The job's other processes hear of it from the launcher, at once, because another orderly child may already wait
    // for this one.
    if (child->orderly && !asks) launcher_end_rest(l);
    child->told_to = true;
    when(l, text, sizeof text);
    snprintf(why, sizeof why, "%s (pid %d) was asked to leave", child->name, (int)pid);
    if (asks)
        ask_fate(l, child, pid, why, text);
    else
        l->status = 128 + l->interrupted_by;
}

static void child_ended(struct launcher *l, struct child *child, int status) {
    pid_t pid = child->pid;
    child->pid = 0;
    l->running--;
    if (l->anew) return;  // all are ended
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        child->ended_well = true;
        if (is_mending(l)) start_again(l, child);
        return;
    }
    if (l->interrupted_by && l->kill_at_s > 0) l->status = 128 + l->interrupted_by;
    if (l->kill_at_s > 0) return;  // told to end, or a consequence of the first death
    if (l->interrupted_by && (WIFEXITED(status) ? WEXITSTATUS(status) > 128 : WTERMSIG(status) == SIGTERM)) {
        child_left(l, child, pid);
        return;
    }
    if (WIFSIGNALED(status)) {
        child_killed(l, child, pid, WTERMSIG(status));
        return;
    }
    char text[96], why[128];
    when(l, text, sizeof text);
    bool killed = l->o.speaks_for_others && WEXITSTATUS(status) > 128,
         lost = WEXITSTATUS(status) == EXIT_RUN_LOST;
    if (l->o.together && (killed || lost)) {
        if (killed)
            snprintf(why, sizeof why, "a rank of %s (pid %d) was killed by signal %d (%s)", child->name,
                     (int)pid, WEXITSTATUS(status) - 128, strsignal(WEXITSTATUS(status) - 128));
        else
            snprintf(why, sizeof why, "%s (pid %d) gave up a rank and ended", child->name, (int)pid);
        end_together(l, child, why, text);
        return;
    }
    if (child->replaced) {
        warn("%s (pid %d) ended with exit status %d %s: the others go on without it", child->name, (int)pid,
             WEXITSTATUS(status), text);
        return;
    }
    l->status = l->interrupted_by                   ? 128 + l->interrupted_by
                : WEXITSTATUS(status) == EXIT_USAGE ? EXIT_USAGE
                                                    : EXIT_RUN_FAILED;
    snprintf(why, sizeof why, "%s (pid %d) ended with exit status %d", child->name, (int)pid,
             WEXITSTATUS(status));
    if (l->word) last_word_say(l->word, why);
    fail("%s %s%s", why, text, l->count > 1 ? ": ending the other processes of the job" : "");
    launcher_end_rest(l);
}

// Only children of this launcher are waited for, one by one: the program may have others. When several
// have ended since the last look, one that was killed comes first: the others may have left because of it.
void launcher_reap(struct launcher *l) {
    int count = l->count;
    int *status = xcalloc((unsigned long)count + 1, sizeof *status);
    bool *ended = xcalloc((unsigned long)count + 1, sizeof *ended);
    for (int i = 0; i < count; i++)
        ended[i] =
            l->children[i].pid && waitpid(l->children[i].pid, &status[i], WNOHANG) == l->children[i].pid;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++)
            if (ended[i] && WIFSIGNALED(status[i]) == (pass == 0)) child_ended(l, &l->children[i], status[i]);
    free(status);
    free(ended);
}
