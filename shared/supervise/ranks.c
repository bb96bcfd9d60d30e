#include "shared/supervise/ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"
#include "shared/supervise/mpi_guard.h"
#include "shared/supervise/proc_look.h"

#define LIFE_EVERY_S \
    0.5  // how often signs of life are looked for; and: this process has stood still if it looked
#define STOOD_S        2.0  // so long ago
#define MEET_DEADLINES 3  // they need so much of the machine that this counts no deadline that all others do
#define TOLD_S \
    1.0  // after mpirun has told the ranks that something is wrong, until that is taken for what is known
#define STILL     "gave no sign of life for"
#define NOT_COME  "lived, and did not come to the others within"
#define HOW_TRIES 20
#define HOW_NS    5000000

struct life {
    uint64_t runs;
    double at_s;  // when it last showed that it lives
};

struct rank {
    pid_t pid;  // 0: not seen yet
    int pidfd;  // 0: there is none
    struct life life;
    bool enters, met, spoke, ended, gone;
    bool slow;   // it has been said to be
    int status;  // of one that has ended
    int how;     // as of waitpid, of one that is gone
    bool how_known;
};

struct ranks {
    int count, seen;
    double deadline_s;
    bool here;  // all of them
    pid_t mpirun;
    struct life mpirun_life;
    bool strangers;  // mpirun has other children: it may have ranks elsewhere
    struct rank *rank;
    double looked_s;  // all is judged as of then: this process may have stood still since
    double lived_s, told_s;
    int told;                    // that rank, by somebody else; -1: all, by mpirun
    double came_s;               // when the last one that is new was seen, or heard
    int entered;                 // MPI_Init
    double entered_s;            // when the last one did
    int lost_first, lost_count;  // as a rank has said
    bool lost_live;              // those live, and did not come
    int first_status;
    bool wordless;  // its rank has not said why
    char why[160];  // of a loss
};

struct ranks *ranks_create(int count, double deadline_s, bool here) {
    struct ranks *r = xcalloc(1, sizeof *r);
    r->count = count;
    r->deadline_s = deadline_s;
    r->here = here;
    r->rank = xcalloc((size_t)count, sizeof *r->rank);
    return r;
}

static void forget(struct ranks *r) {
    for (int i = 0; i < r->count; i++)
        if (r->rank[i].pidfd) close(r->rank[i].pidfd);
    memset(r->rank, 0, (size_t)r->count * sizeof *r->rank);
}

void ranks_destroy(struct ranks **at) {
    struct ranks *r = *at;
    if (!r) return;
    forget(r);
    free(r->rank);
    free(r);
    *at = NULL;
}

void ranks_begin(struct ranks *r, pid_t mpirun) {
    double now = now_seconds();
    forget(r);
    *r = (struct ranks){.count = r->count,
                        .deadline_s = r->deadline_s,
                        .here = r->here,
                        .mpirun = mpirun,
                        .mpirun_life.at_s = now,
                        .rank = r->rank,
                        .looked_s = now,
                        .came_s = now};
}

// ---------------------------------------------------------------- what they say
void ranks_hear(struct ranks *r, int number, const siginfo_t *info) {
    bool value = info->si_code == SI_QUEUE;
    int i = value ? stop_value_rank(info->si_value.sival_int) : r->count;
    int said = value ? stop_value_number(info->si_value.sival_int) : 0;
    if (number == STOP_RANK_DIED && value && said && !r->lost_count) {
        r->lost_first = i;
        r->lost_count = said & ~STOP_STUCK;
        r->lost_live = said & STOP_STUCK;
    }
    if (number == STOP_RANK_DIED && !said && !r->told_s) r->told_s = now_seconds(), r->told = value ? i : -1;
    if (i >= r->count || number == STOP_RANK_DIED) return;
    struct rank *rank = &r->rank[i];
    r->came_s = now_seconds();
    rank->enters |= number == STOP_RANK_ENTERS;
    rank->met |= number == STOP_RANK_MET;
    rank->spoke |= number == STOP_RANK_SPOKE;
    if (number == STOP_RANK_ENTERS && ++r->entered == r->count) r->entered_s = now_seconds();
    if (number != STOP_RANK_ENDED) return;
    rank->ended = true;
    rank->status = said;
    if (!r->first_status) r->first_status = said;
}

// ---------------------------------------------------------------- which they are
static bool see(void *ctx, pid_t pid) {
    struct ranks *r = ctx;
    struct proc_look p;
    char number[16];
    if (proc_look(pid, &p) || p.parent != r->mpirun || p.state == 'Z' || !strcmp(p.name, MPI_GUARD_NAME))
        return true;
    bool named = proc_variable(pid, "OMPI_COMM_WORLD_RANK", number, sizeof number);
    int i = named ? atoi(number) : r->count;
    if (i < 0 || i >= r->count) {
        r->strangers = true;
        return true;
    }
    struct rank *rank = &r->rank[i];
    if (rank->pid) return true;
    rank->pid = pid;
    rank->life.at_s = r->came_s = now_seconds();
    long fd = syscall(SYS_pidfd_open, pid, 0);
    rank->pidfd = fd > 0 ? (int)fd : 0;
    r->seen++;
    return true;
}

// How one that is gone has ended; newer kernels remember it for who holds a descriptor.
static bool ask_how(int pidfd, int *how) {
    struct {
        uint64_t mask, cgroup;
        uint32_t ids[11];
        int32_t exit_code;
    } info = {.mask = 1 << 3};
    if (!pidfd || ioctl(pidfd, _IOWR(0xff, 11, info), &info) || !(info.mask & 1 << 3)) return false;
    *how = info.exit_code;
    return true;
}

static bool is_gone(const struct rank *rank) {
    struct pollfd p = {.fd = rank->pidfd, .events = POLLIN};
    struct proc_look look;
    if (rank->pidfd) return poll(&p, 1, 0) > 0;
    return proc_look(rank->pid, &look) || look.state == 'Z';
}

// It is asked about once mpirun has taken note of it, which is soon.
static void note_gone(struct rank *rank) {
    rank->gone = true;
    for (int i = 0; i < HOW_TRIES && !rank->how_known; i++) {
        if (i) nanosleep(&(struct timespec){.tv_nsec = HOW_NS}, NULL);
        rank->how_known = ask_how(rank->pidfd, &rank->how);
        if (!rank->pidfd) return;
    }
}

// ---------------------------------------------------------------- whether they live
static void look_alive(struct life *life, pid_t pid, bool excused) {
    bool waits;
    uint64_t runs = proc_runs(pid, &waits);
    if (runs != life->runs || waits || excused) life->at_s = now_seconds();
    life->runs = runs;
}

void ranks_look(struct ranks *r, bool excused) {
    double now = now_seconds();
    excused |= now - r->looked_s > STOOD_S;
    r->looked_s = now;
    r->strangers = false;
    if (r->seen < r->count) proc_each(see, r);
    for (int i = 0; i < r->count; i++)
        if (r->rank[i].pid && !r->rank[i].gone && is_gone(&r->rank[i])) note_gone(&r->rank[i]);
    if (now - r->lived_s < LIFE_EVERY_S && !excused) return;
    if (excused && r->entered_s) r->entered_s = now;
    if (excused) r->came_s = now;
    r->lived_s = now;
    for (int i = 0; i < r->count; i++)
        if (r->rank[i].pid && !r->rank[i].gone) look_alive(&r->rank[i].life, r->rank[i].pid, excused);
    // Between its events mpirun sleeps.
    look_alive(&r->mpirun_life, r->mpirun,
               excused || (r->seen == r->count && !proc_is_stopped(r->mpirun)) || r->strangers);
}

// ---------------------------------------------------------------- what follows
static void say_gone(struct ranks *r, int i) {
    const struct rank *rank = &r->rank[i];
    int n = snprintf(r->why, sizeof r->why, "rank %d (pid %d) ", i, (int)rank->pid);
    char *at = r->why + n;
    size_t size = sizeof r->why - (size_t)n;
    if (!rank->how_known)
        snprintf(at, size, "was killed");
    else if (WIFSIGNALED(rank->how))
        snprintf(at, size, "was killed by signal %d (%s)", WTERMSIG(rank->how),
                 strsignal(WTERMSIG(rank->how)));
    else
        snprintf(at, size, "ended with exit status %d and without a word", WEXITSTATUS(rank->how));
}

// One that a signal has ended: others may have ended because of that. One that left by itself without a word, as a library
// may make it do, has failed; and so has one that has said why, where no signal is known to have ended it.
static bool find_killed(struct ranks *r) {
    struct proc_look mpirun;
    if (proc_look(r->mpirun, &mpirun) || mpirun.state == 'Z')
        return false;  // its ranks are killed when it was
    for (int i = 0; i < r->count; i++) {
        struct rank *rank = &r->rank[i];
        if (!rank->gone || rank->ended) continue;
        if (rank->spoke && !(rank->how_known && WIFSIGNALED(rank->how))) r->first_status = EXIT_RUN_FAILED;
        if (r->first_status) return false;
        say_gone(r, i);
        if (!rank->how_known || WIFSIGNALED(rank->how)) return true;
    }
    if (!r->why[0]) return false;
    fail("%s", r->why);
    r->why[0] = 0;
    r->first_status = EXIT_RUN_FAILED;
    r->wordless = true;
    return false;
}

static void say_lost(struct ranks *r, int first, int count, const char *did) {
    if (count == 1)
        snprintf(r->why, sizeof r->why, "rank %d %s the deadline and was killed", first, did);
    else
        snprintf(r->why, sizeof r->why, "rank %d and %d more %s the deadline and were killed", first,
                 count - 1, did);
}

// Whoever is not stopped may stand in a file, or wait in MPI_Init for one that does.
static bool find_stopped(struct ranks *r) {
    int first = 0, count = 0;
    for (int i = r->count - 1; i >= 0; i--) {
        struct rank *rank = &r->rank[i];
        double still_s = r->looked_s - rank->life.at_s;
        bool waits = rank->enters && !rank->met;
        if (!rank->pid || rank->gone || rank->ended || still_s <= r->deadline_s) continue;
        if (proc_is_stopped(rank->pid)) {
            first = i;
            count++;
        } else if (!waits && !rank->slow) {
            rank->slow = true;
            info("waiting for rank %d: it has done nothing for %.0f s: it may stand in a file", i, still_s);
        }
    }
    if (count) say_lost(r, first, count, STILL);
    return count > 0;
}

// All are in MPI_Init, and stay there.
static bool find_unmet(struct ranks *r) {
    if (!r->entered_s || r->looked_s - r->entered_s <= MEET_DEADLINES * r->deadline_s) return false;
    for (int i = 0; i < r->count; i++)
        if (r->rank[i].met) return false;
    snprintf(r->why, sizeof r->why, "no rank has come out of MPI_Init %.1f s after all were in it,",
             r->looked_s - r->entered_s);
    return true;
}

static int begun(const struct ranks *r) {
    int count = 0;
    for (int i = 0; i < r->count; i++) count += r->rank[i].pid || r->rank[i].enters || r->rank[i].ended;
    return count;
}

// It lives, and starts nobody any more: it may have failed to, and wait for them all the same.
static bool find_mpirun_useless(struct ranks *r) {
    int count = begun(r);
    if (!r->here || count == r->count || r->looked_s - r->came_s <= MEET_DEADLINES * r->deadline_s)
        return false;
    snprintf(r->why, sizeof r->why,
             "mpirun (pid %d) has started %d of %d ranks, no more for %.1f s, and was killed", (int)r->mpirun,
             count, r->count, r->looked_s - r->came_s);
    return true;
}

static bool find_mpirun_still(struct ranks *r) {
    bool stopped = proc_is_stopped(r->mpirun);
    if (r->looked_s - r->mpirun_life.at_s <= r->deadline_s * (stopped ? 1 : MEET_DEADLINES)) return false;
    if (stopped)
        snprintf(r->why, sizeof r->why,
                 "mpirun (pid %d) gave no sign of life for the deadline and was killed", (int)r->mpirun);
    else
        snprintf(r->why, sizeof r->why,
                 "mpirun (pid %d) has started %d of %d ranks and does nothing any more", (int)r->mpirun,
                 r->seen, r->count);
    return true;
}

static bool is_lost(struct ranks *r) {
    if (r->lost_count) {
        say_lost(r, r->lost_first, r->lost_count, r->lost_live ? NOT_COME : STILL);
        return true;
    }
    // mpirun first: what waits for it is as still.
    if (find_killed(r) || find_mpirun_useless(r) || find_mpirun_still(r) || find_stopped(r) || find_unmet(r))
        return true;
    if (!r->told_s || r->looked_s - r->told_s < TOLD_S) return false;
    if (r->told < 0)
        snprintf(r->why, sizeof r->why, "mpirun ended the ranks");
    else
        snprintf(r->why, sizeof r->why, "rank %d was told to end by a signal of another process", r->told);
    return true;
}

static bool all_ended(const struct ranks *r) {
    for (int i = 0; i < r->count; i++)
        if (!r->rank[i].ended) return false;
    return true;
}

// What is left, if anything is, has entered MPI_Init and will not leave it.
static bool is_useless(const struct ranks *r) {
    for (int i = 0; i < r->count; i++) {
        const struct rank *rank = &r->rank[i];
        bool waits = rank->enters && !rank->met;
        if (!waits && !rank->ended && !rank->gone) return false;
    }
    return true;
}

enum ranks_are ranks_are(struct ranks *r) {
    if (r->why[0]) return RANKS_LOST;
    if (all_ended(r)) return RANKS_ENDED;
    if (!r->first_status && is_lost(r)) return RANKS_LOST;
    if (!r->first_status) return RANKS_AT_WORK;
    if (is_useless(r)) return RANKS_USELESS;
    return find_stopped(r) ? RANKS_LOST : RANKS_FAILED;
}

bool ranks_are_explained(const struct ranks *r) { return r->why[0] || (r->first_status && !r->wordless); }
pid_t ranks_first_pid(const struct ranks *r) { return r->rank[0].pid; }
bool ranks_all_seen(const struct ranks *r) { return r->seen == r->count; }
int ranks_status(const struct ranks *r) { return r->first_status; }
bool ranks_first_has_ended(const struct ranks *r) { return r->rank[0].ended; }

int ranks_signal(struct ranks *r, int number) {
    int count = 0;
    if (r->seen < r->count) proc_each(see, r);
    r->told_s = 0;  // they are told by this process now
    for (int i = 0; i < r->count; i++) {
        const struct rank *rank = &r->rank[i];
        if (!rank->pid || rank->gone || rank->ended) continue;
        kill(rank->pid, number);
        count++;
    }
    return count;
}

void ranks_say(const struct ranks *r, char *why, size_t size) { snprintf(why, size, "%s", r->why); }
