#include "shared/supervise/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/lives.h"
#include "shared/launch/steps_lost.h"
#include "shared/launch/stop.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "shared/supervise/launch_mpi.h"
#include "shared/supervise/mpi_guard.h"
#include "shared/supervise/private_net.h"
#include "shared/supervise/proc_look.h"
#include "shared/supervise/ranks.h"
#include "shared/supervise/relay.h"

#define EXIT_NO_PROGRAM 126  // as shells say of what cannot be executed

#define OWN_WORDS     6
#define LOOK_NS       250000000  // how often mpirun's ranks are looked at; and before all are there
#define LOOK_FIRST_NS 20000000
#define RESUMED_S     2.0   // for mpirun to pass a SIGCONT on
#define FAILED_S      10.0  // for the other ranks to leave when one has failed: rank 0 writes down why
#define ENDED_S       2.0   // for mpirun to end when its ranks have: a stranger's connection may keep it
#define GONE_IN_S     10.0  // what is killed is gone then, unless the kernel holds it

struct supervisor {
    const struct supervise_options *o;
    uint64_t job;
    int life;    // 1, 2, ..; 1 again where the first one died before it had taken the run directory
    int deaths;  // so far
    pid_t child;
    int interrupted_by;    // SIGINT or SIGTERM, 0: neither
    double interrupted_s;  // when the first came
    struct ranks *ranks;   // NULL: the child is the run itself
    struct relay *relay;
    bool alone;          // mpirun has no other host to talk to
    enum ranks_are are;  // in this life
    double end_at_s;     // mpirun is killed then; 0: not known yet
    double resumed_s;  // when the run was last continued after a Ctrl-Z, of which mpirun tells its ranks too
    double start_s;
    sigset_t signals, before;
};

int supervise_life(const char *text, int *life, uint64_t *job) {
    int end = 0;
    return sscanf(text, "%d-%" SCNx64 "%n", life, job, &end) == 2 && !text[end] && *life > 0 ? 0 : -1;
}

// ---------------------------------------------------------------- the child
static char **words_of(const struct supervisor *s, char *program, char *life) {
    const struct supervise_options *o = s->o;
    char **argv = xcalloc((size_t)o->argc + OWN_WORDS + 1, sizeof *argv);
    int n = 0;
    argv[n++] = program;
    argv[n++] = "train";
    argv[n++] = "--life";
    argv[n++] = life;
    if (o->adds_out) {  // before the given words, which may end in "--"
        argv[n++] = "--out";
        argv[n++] = (char *)o->dir;
    }
    for (int i = 0; i < o->argc; i++) argv[n++] = o->argv[i];
    return argv;
}

// Between fork and exec: async-signal-safe calls alone.
static void become(const struct supervisor *s, char *const *argv, pid_t parent) {
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN);  // what is in the background of a terminal may print all the same
    if (s->relay) {
        int null = open("/dev/null", O_RDONLY);  // mpirun reads, for a rank that does not
        dup2(null, STDIN_FILENO);
        dup2(relay_end_of(s->relay, RELAY_OUT), STDOUT_FILENO);
        dup2(relay_end_of(s->relay, RELAY_HELD), STDERR_FILENO);
        if (null > STDERR_FILENO) close(null);
        fcntl(relay_end_of(s->relay, RELAY_OUT), F_SETFD, 0);  // for the ranks, which find them at mpirun
        fcntl(relay_end_of(s->relay, RELAY_ERR), F_SETFD, 0);
    }
    if (s->alone)
        (void)
            private_net_enter();  // without, strangers of this host may connect to mpirun (docs/security.md)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
    if (getppid() == parent) execv(argv[0], argv);
    _exit(EXIT_NO_PROGRAM);
}

static int start(struct supervisor *s) {
    char life[64], *program = launch_self();
    if (!program) return -1;
    snprintf(life, sizeof life, "%d-%016" PRIx64, s->life, s->job);
    char **argv = words_of(s, program, life);
    pid_t parent = getpid();
    fflush(NULL);
    s->child = fork();
    if (s->child == 0) become(s, argv, parent);
    free(argv);
    free(program);
    if (s->child < 0) return fail("cannot start the run: %s", strerror(errno));
    setpgid(s->child, s->child);  // here too: a signal may come before the child has done so
    return 0;
}

// ---------------------------------------------------------------- watching it
// Ctrl-Z of a terminal reaches this process alone.
static void pause_both(struct supervisor *s) {
    kill(s->child, SIGTSTP);
    kill(getpid(), SIGSTOP);
    s->resumed_s = now_seconds();
    kill(s->child, SIGCONT);
}

// Ranks first: without mpirun they would have something to say.
static void end_all(const struct supervisor *s) {
    ranks_signal(s->ranks, SIGKILL);
    kill(s->child, SIGKILL);
}

// Ranks get it from here: mpirun would give them a few seconds. Asked twice, or before there are any: now.
static void interrupt(struct supervisor *s, int number) {
    bool again = s->interrupted_by != 0;
    if (again && now_seconds() - s->interrupted_s < STOP_AGAIN_S) return;
    if (!again) s->interrupted_s = now_seconds();
    s->interrupted_by = number;
    if (!s->ranks)
        kill(s->child, number);
    else if (again || !ranks_signal(s->ranks, number))
        end_all(s);
    else
        stop_answer(number);
}

// How long mpirun may still take. It sleeps for seconds between its signals to the ranks of a job that has lost one, where
// there is nothing to wait for.
static double patience(const struct supervisor *s, enum ranks_are are) {
    if (are == RANKS_FAILED) return FAILED_S;
    return are == RANKS_ENDED && !ranks_status(s->ranks) ? ENDED_S : 0;
}

static void judge(struct supervisor *s) {
    enum ranks_are are = ranks_are(s->ranks);
    double now = now_seconds();
    // Those that were asked to end do so one after the other, with that as their status.
    if (are == RANKS_AT_WORK || (are == RANKS_FAILED && s->interrupted_by)) return;
    if (are != s->are) s->end_at_s = now + patience(s, are);
    s->are = are;
    relay_held(s->relay, !ranks_are_explained(s->ranks));
    if (now >= s->end_at_s) end_all(s);
}

static void hear(struct supervisor *s, int number, const siginfo_t *info) {
    if (number == SIGINT || number == SIGTERM) interrupt(s, number);
    if (number == SIGTSTP) pause_both(s);
    if (s->ranks && number > 0) ranks_hear(s->ranks, number, info);
}

static void look(struct supervisor *s) {
    struct timespec none = {0};
    siginfo_t info;
    ranks_look(s->ranks, relay_is_stuck(s->relay) || now_seconds() - s->resumed_s < RESUMED_S);
    for (int number; (number = sigtimedwait(&s->signals, &info, &none)) > 0;) hear(s, number, &info);
    judge(s);
}

// How the child ended, as of waitpid. Of other children, whose own parent has died, nothing is wanted to be known.
static int await(struct supervisor *s) {
    for (;;) {
        int status;
        struct timespec t = {.tv_nsec = s->ranks && !ranks_all_seen(s->ranks) ? LOOK_FIRST_NS : LOOK_NS};
        siginfo_t info = {0};
        hear(s, sigtimedwait(&s->signals, &info, &t), &info);
        if (s->ranks) look(s);
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            if (pid == s->child) return status;
    }
}

// ---------------------------------------------------------------- what it leaves
struct children {
    int ranks, guards;
};

// Kills what the child has left, but those that clean up behind mpirun: they go on, should somebody have stopped them.
static bool kill_orphan(void *ctx, pid_t pid) {
    struct children *c = ctx;
    struct proc_look p;
    if (proc_look(pid, &p) || p.parent != getpid() || p.state == 'Z') return true;
    bool guard = !strcmp(p.name, MPI_GUARD_NAME);
    kill(pid, guard ? SIGCONT : SIGKILL);
    c->guards += guard;
    c->ranks += !guard;
    return true;
}

static void end_orphans(struct supervisor *s) {
    double until = now_seconds() + GONE_IN_S;
    for (struct children left = {1, 0}; (left.ranks || left.guards) && now_seconds() < until;) {
        left = (struct children){0};
        proc_each(kill_orphan, &left);
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (left.ranks || left.guards) usleep(2000);
    }
    // What they have said of their end is of no concern to the next life.
    struct timespec now = {0};
    siginfo_t info;
    sigset_t said;
    sigemptyset(&said);
    sigaddset(&said, STOP_RANK_DIED);
    sigaddset(&said, STOP_RANK_ENTERS);
    sigaddset(&said, STOP_RANK_MET);
    sigaddset(&said, STOP_RANK_ENDED);
    sigaddset(&said, STOP_RANK_SPOKE);
    for (int number; (number = sigtimedwait(&said, &info, &now)) > 0;)
        if (s->ranks) ranks_hear(s->ranks, number, &info);
}

// ---------------------------------------------------------------- lives
static void say_death(const struct supervisor *s, int status, char *why, size_t size) {
    if (s->are == RANKS_LOST)
        ranks_say(s->ranks, why, size);
    else if (s->ranks)
        snprintf(why, size, "mpirun (pid %d) was killed by signal %d (%s)", (int)s->child, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status))
        snprintf(why, size, "the run (pid %d) gave up a rank and ended", (int)s->child);
    else
        snprintf(why, size, "the run (pid %d) was killed by signal %d (%s)", (int)s->child, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
}

// done: steps, as the life before has said.
static void add_life(const struct supervisor *s, const char *why, int64_t done) {
    char *latest = checkpoint_latest(s->o->dir);
    int64_t from = latest ? checkpoint_latest_step(s->o->dir) : 0;
    struct life life = {.start = lives_last(s->o->dir).start,
                        .epoch = (uint32_t)s->life,
                        .job = s->job,
                        .restarts = s->deaths,
                        .checkpoint = latest ? latest : s->o->resume,
                        .why = why,
                        .counted = latest || !s->o->resume,
                        .lost = done > from ? done - from : 0};
    lives_add(s->o->dir, &life);
    free(latest);
}

// Whether the run directory is this job's: taken in an earlier life, of which a line tells, or in this one, by the process
// that stands for the run.
static bool has_taken(const struct supervisor *s) {
    struct run_state state;
    if (s->o->restarts && lives_last(s->o->dir).job == s->job) return true;
    run_state_read(s->o->dir, &state);
    return state.pid > 0 && state.pid == (s->ranks ? ranks_first_pid(s->ranks) : s->child);
}

// That process was killed and cannot say how the run ended.
static void leave_word(const struct supervisor *s, enum run_phase phase, const char *why) {
    run_state_end_for(s->o->dir, s->ranks ? ranks_first_pid(s->ranks) : s->child, phase, why);
}

// The next life begins. 0, or -1 after logging: there is none left.
static int next_life(struct supervisor *s, int status) {
    char why[160], when[64] = ", before the first step was done";
    int64_t step = metrics_last_step(s->o->dir);
    int left = s->o->restarts - ++s->deaths;
    bool taken = has_taken(s);
    say_death(s, status, why, sizeof why);
    if (step > 0 && taken) snprintf(when, sizeof when, ", after step %lld", (long long)step);
    if (left < 0) {
        char used[64] = "ending all ranks";
        if (s->o->restarts)
            snprintf(used, sizeof used, "all restarts are used up (--restart %d)", s->o->restarts);
        fail("%s %.1f s after the start%s; %s", why, now_seconds() - s->start_s, when, used);
        leave_word(s, RUN_FAILED, error_last());
        return -1;
    }
    warn("%s %.1f s after the start%s: starting it again; %d of %d restarts %s left", why,
         now_seconds() - s->start_s, when, left, s->o->restarts, left == 1 ? "is" : "are");
    if (!taken) return 0;
    s->life++;
    add_life(s, why, step);
    return 0;
}

// The message of an interruption, where who stands for the run was killed before it could end in order: by somebody else,
// with another rank, or where it had hardly been started again.
static void say_interrupted(const struct supervisor *s, int status) {
    bool taken = has_taken(s);
    char when[64] = "before the first step was done", why[160] = "";
    int64_t step = taken ? metrics_last_step(s->o->dir) : -1;
    if (s->ranks ? ranks_first_has_ended(s->ranks) : step < 1) return;
    if (s->are == RANKS_LOST || !s->ranks) say_death(s, status, why, sizeof why);
    if (step > 0) snprintf(when, sizeof when, "after step %lld", (long long)step);
    info("%s: ended %s%s%s", s->interrupted_by == SIGINT ? "Ctrl-C" : "SIGTERM", when, *why ? ": " : "", why);
    if (s->o->checkpoints && step > 0) steps_lost_say(s->o->dir, step);
    leave_word(s, RUN_INTERRUPTED, NULL);
}

// mpirun ended by itself, of ranks that have not all said how: they run elsewhere, or there never were any.
static int mpirun_ended(const struct supervisor *s, int status) {
    bool begun = ranks_all_seen(s->ranks);
    if (status == EXIT_NO_MPIRUN) return EXIT_RUN_FAILED;
    if (!status && s->alone)
        return fail("mpirun ended with status 0 before its ranks had %s: is it Open MPI's?",
                    begun ? "ended" : "begun"),
               EXIT_RUN_FAILED;
    if (status && !begun) fail("mpirun ended with status %d before its ranks had begun", status);
    return status == EXIT_USAGE || !status ? status : EXIT_RUN_FAILED;
}

// The exit status of a job whose child ended with this one; -1: it is to be started again.
static int end_of_life(struct supervisor *s, int status) {
    bool killed = WIFSIGNALED(status) || (!s->ranks && WEXITSTATUS(status) == EXIT_RUN_LOST);
    int said = s->ranks ? ranks_status(s->ranks) : 0;
    if (WIFEXITED(status) &&
        WEXITSTATUS(status) == EXIT_NO_PROGRAM)  // removed, or replaced, since the run began
        return fail("cannot start the run: the program's file is not there, or cannot be executed"),
               EXIT_RUN_FAILED;
    if (s->are == RANKS_ENDED) return said;
    if (s->interrupted_by && (killed || s->ranks)) say_interrupted(s, status);
    if (s->interrupted_by && (killed || s->ranks)) return 128 + s->interrupted_by;
    if (said) return said;
    if (s->are == RANKS_LOST || killed) return next_life(s, status) ? EXIT_RUN_FAILED : -1;
    return s->ranks ? mpirun_ended(s, WEXITSTATUS(status)) : WEXITSTATUS(status);
}

static int run_all(struct supervisor *s) {
    for (int result = -1;;) {
        s->are = RANKS_AT_WORK;
        s->end_at_s = 0;
        if (start(s)) return EXIT_RUN_FAILED;
        if (s->ranks) ranks_begin(s->ranks, s->child);
        if (s->relay) relay_held(s->relay, true);
        int status = await(s);
        end_orphans(s);
        if (s->ranks && WIFEXITED(status)) look(s);  // it ended before it was seen why
        if ((result = end_of_life(s, status)) >= 0) return result;
    }
}

static void take_signals(struct supervisor *s) {
    static const int heard[] = {SIGCHLD, SIGINT, SIGTERM, SIGTSTP, STOP_RANK_DIED};
    sigemptyset(&s->signals);
    for (size_t i = 0; i < sizeof heard / sizeof heard[0]; i++) sigaddset(&s->signals, heard[i]);
    sigaddset(&s->signals, STOP_RANK_ENTERS);
    sigaddset(&s->signals, STOP_RANK_MET);
    sigaddset(&s->signals, STOP_RANK_ENDED);
    sigaddset(&s->signals, STOP_RANK_SPOKE);
    pthread_sigmask(SIG_BLOCK, &s->signals, &s->before);
}

// A thread reads what the ranks print, from before the first to behind the last.
static int run_mpi(struct supervisor *s) {
    s->relay = relay_start();
    if (!s->relay) return EXIT_RUN_FAILED;
    s->alone = launch_mpi_is_here();
    s->ranks = ranks_create(s->o->mpirun, s->o->deadline_s, s->alone);
    stop_supervise_ranks(relay_end_of(s->relay, RELAY_OUT), relay_end_of(s->relay, RELAY_ERR));
    int status = run_all(s);
    ranks_destroy(&s->ranks);
    return relay_stop(&s->relay) && !status ? EXIT_RUN_FAILED : status;
}

int supervise(const struct supervise_options *o) {
    struct supervisor s = {.o = o, .life = 1, .start_s = now_seconds()};
    if (getrandom(&s.job, sizeof s.job, 0) != (ssize_t)sizeof s.job || !s.job)
        return fail("no random number"), EXIT_RUN_FAILED;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    take_signals(&s);
    stop_answers("this step");
    int status = o->mpirun ? run_mpi(&s) : run_all(&s);
    // A Ctrl-C that came while all was ending would end this process in its own way: it has been obeyed already, or the
    // run had ended before it, and that has been said.
    struct timespec now = {0};
    while (sigtimedwait(&s.signals, NULL, &now) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &s.before, NULL);
    return status;
}
