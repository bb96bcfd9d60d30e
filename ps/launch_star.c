#include "ps/launch_star.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/star_ranks.h"
#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/fabric/peer.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"

#define GRACE_MAX_S 5.0  // roles look at their stop flag many times a second
#define ARGS_MAX    32

struct star {
    const struct run *run;
    const struct job *job;
    struct star_ranks *ranks;
    struct launcher *launcher;
    char *program, config_path[32];
    char address[256];  // of the scheduler; "": not known yet
    int link[2];        // a socket to it: our end, and the one that each scheduler is given; with restarts
    int lives;          // of the scheduler, so far
    int start;          // of the command, for DIR/history.jsonl
};

// A scheduler with a link says it: no file is looked at where somebody else waits for this launcher.
static int64_t last_step(void *ctx) {
    const struct star *s = ctx;
    return s->link[0] ? launcher_said_step(s->launcher) : metrics_last_step(s->job->dir);
}

static int start(struct star *s, const char *role, int rank, int announce_fd) {
    char threads[16], number[16], fd[16], life[16], of_run[16], local[16];
    const char *argv[ARGS_MAX] = {s->program, role, "-c", s->config_path, "--launched", "--out", s->job->dir};
    int n = 7;
    snprintf(threads, sizeof threads, "%d", job_threads(s->job));
    snprintf(number, sizeof number, "%d", rank);
    snprintf(fd, sizeof fd, "%d", announce_fd);
    if (announce_fd) {
        argv[n++] = "--announce-fd", argv[n++] = fd;
        snprintf(life, sizeof life, "%d", ++s->lives);
        snprintf(of_run, sizeof of_run, "%d", s->start);
        if (s->link[1]) argv[n++] = "--life", argv[n++] = life, argv[n++] = "--start", argv[n++] = of_run;
        argv[n++] = "--bind", argv[n++] = *s->address ? s->address : star_ranks_bind(s->ranks);
    } else {
        argv[n++] = "--scheduler", argv[n++] = s->address;
        argv[n++] = "--rank", argv[n++] = number;
    }
    if (s->run->env.rank > 0) argv[n++] = "--apart";
    if (!strcmp(role, "worker")) {
        argv[n++] = "--threads", argv[n++] = threads;
        if (s->run->meet) {
            snprintf(local, sizeof local, "%d", rendezvous_member(s->run->meet, rank)->local_rank);
            argv[n++] = "--local-rank", argv[n++] = local;
            argv[n++] = "--started-by", argv[n++] = s->run->env.by;
        }
        if (s->job->no_weights) argv[n++] = "--no-weights";
        if (s->job->save_on_interrupt) argv[n++] = "--save-on-interrupt";
    }
    argv[n] = NULL;
    struct launch_child child = {
        .role = role,
        .rank = announce_fd ? -1 : rank,
        .program = s->program,
        .argv = (char *const *)argv,
        .keep_fd = announce_fd,
        .expendable = ps_elastic(s->job->config) && !strcmp(role, "worker") && rank > 0,
        .orderly = !strcmp(role, "worker")};
    return launcher_start(s->launcher, &child);
}

// One that may be started again keeps a socket, at which its successor listens too; else a pipe tells the address.
static int open_ends(struct star *s, int ends[2]) {
    if (!s->job->config->recovery.restart && !ps_elastic(s->job->config))
        return pipe2(ends, O_CLOEXEC) ? fail("pipe: %s", strerror(errno)) : 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return fail("socketpair: %s", strerror(errno));
    memcpy(s->link, ends, sizeof s->link);
    return 0;
}

static int start_scheduler(struct star *s) {
    int ends[2];
    if (open_ends(s, ends)) return -1;
    int rc = start(s, "scheduler", 0, ends[1]);
    if (!s->link[1]) close(ends[1]);
    double deadline_s = (double)s->job->config->ps.deadline_ms * 1e-3;
    if (!rc && launcher_read_line(s->launcher, ends[0], deadline_s, s->address, sizeof s->address)) rc = -1;
    if (s->link[0])
        launcher_listen(s->launcher, s->link[0]);
    else
        close(ends[0]);
    return rc;
}

// ---------------------------------------------------------------- after a death
static int start_again(void *ctx, const char *role, int rank) {
    struct star *s = ctx;
    return start(s, role, rank, rank < 0 ? s->link[1] : 0);
}

// The scheduler need not wait for the one that takes its place to log in.
static void tell_death(void *ctx, int pid, const char *why) {
    struct star *s = ctx;
    char line[256];
    if (!s->link[0]) {
        star_ranks_dead(s->ranks, pid, why);
        return;
    }
    int n = snprintf(line, sizeof line, "dead %d %s\n", pid, why);
    ssize_t sent = n < (int)sizeof line ? send(s->link[0], line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    (void)sent;  // it hears of it when the next one logs in
}

// ---------------------------------------------------------------- beside the launchers of other ranks
static const char *look_outside(void *ctx, const char *ends) {
    struct star *s = ctx;
    return star_ranks_look(s->ranks, s->launcher, s->link[0], ends);
}

static void said(void *ctx, const char *line) { star_ranks_said(((struct star *)ctx)->ranks, line); }

int launch_star(struct run *r, int *interrupted_by) {
    const struct job *job = &r->job;
    const struct config *c = job->config;
    double deadline_s = (double)c->ps.deadline_ms * 1e-3;
    struct launch_options o = {.grace_s = deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S,
                               .silent_s = ps_lost_s(c),
                               .still_s = deadline_s,
                               .last_step = r->env.rank > 0 ? NULL : last_step,  // others do not know it
                               .outside = r->meet ? look_outside : NULL,
                               .said = said,
                               .restarts = {c->recovery.restart, start_again, tell_death}};
    struct star s = {.run = r, .job = job, .program = launch_self()};
    if (!s.program) return EXIT_RUN_FAILED;
    if (!(s.ranks = star_ranks_open(r))) {
        free(s.program);
        return EXIT_USAGE;
    }
    o.ctx = &s;
    if (r->env.rank == 0) s.start = history_last_life(job->dir).start + 1;
    int config_fd = config_hand_down(c, s.config_path);
    rank_env_supervise();
    stop_answers(r->env.rank > 0 ? NULL : "this step");
    s.launcher = launcher_create(&o);
    output_apart_begin();  // a thread that takes no signals, as all of them from here on
    int rc = config_fd < 0 ? -1 : r->env.rank == 0 ? start_scheduler(&s) : 0;
    if (!rc) rc = star_ranks_scheduler(s.ranks, s.address, sizeof s.address);
    for (int i = 0; i < c->ps.servers && !rc; i++)
        if (star_ranks_starts_server(s.ranks, i)) rc = start(&s, "server", i, 0);
    for (int i = 0; i < c->workers && !rc; i++)
        if (star_ranks_starts_worker(s.ranks, i)) rc = start(&s, "worker", i, 0);
    if (rc) launcher_end_all(s.launcher);
    int status = launcher_wait(s.launcher);
    if (status) star_ranks_look(s.ranks, s.launcher, 0, error_last());
    *interrupted_by = launcher_interrupted(s.launcher);
    // Every role has gone: one Ctrl-C more must not cut short what is written of the run.
    if (*interrupted_by) signal(SIGINT, SIG_IGN);
    output_apart_end();
    launcher_destroy(&s.launcher);
    for (int i = 0; i < 2; i++)
        if (s.link[i]) close(s.link[i]);
    if (config_fd >= 0) close(config_fd);
    star_ranks_close(&s.ranks);
    free(s.program);
    return status;
}
