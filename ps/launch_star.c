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
#include "ps/trust/trust.h"
#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/launch/launch.h"
#include "shared/launch/lives.h"
#include "shared/launch/stop.h"
#include "shared/report/metrics.h"

#define GRACE_MAX_S 5.0  // roles look at their stop flag many times a second
#define ARGS_MAX    24

struct star {
    const struct job *job;
    struct launcher *launcher;
    char *program, config_path[32];
    char address[256];  // of the scheduler; "": not known yet
    int link[2];        // a socket to it: our end, and the one that each scheduler is given; with restarts
    int lives;          // of the scheduler, so far
    int start;          // of the command, for DIR/lives.jsonl
};

// A scheduler with a link says it: no file is looked at where somebody else waits for this launcher.
static int64_t last_step(void *ctx) {
    const struct star *s = ctx;
    return s->link[0] ? launcher_said_step(s->launcher) : metrics_last_step(s->job->dir);
}

static int start(struct star *s, const char *role, int rank, int announce_fd) {
    char threads[16], number[16], fd[16], life[16], of_run[16];
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
        if (*s->address) argv[n++] = "--bind", argv[n++] = s->address;
    } else {
        argv[n++] = "--scheduler", argv[n++] = s->address;
        argv[n++] = "--rank", argv[n++] = number;
    }
    if (!strcmp(role, "worker")) {
        argv[n++] = "--threads", argv[n++] = threads;
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
    const struct star *s = ctx;
    char line[256];
    int n = snprintf(line, sizeof line, "dead %d %s\n", pid, why);
    ssize_t sent = n < (int)sizeof line ? send(s->link[0], line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    (void)sent;  // it hears of it when the next one logs in
}

// The rule of who may join is decided before anything starts: the roles' addresses are the scheduler's, on this host, and what
// parameter_server.bind says.
static int prepare_trust(const struct config *c) {
    const struct trust_request r = {.config = c, .role = PS_SERVER, .rank = -1};
    enum trust_mode mode;
    if (trust_mode_of(&r, &mode) != 0) return -1;
    return mode == TRUST_LOOPBACK ? job_secret_hand_down() : 0;
}

int launch_star(const struct job *job, int *interrupted_by) {
    const struct config *c = job->config;
    double deadline_s = (double)c->ps.deadline_ms * 1e-3;
    struct launch_options o = {.grace_s = deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S,
                               .silent_s = ps_lost_s(c),
                               .still_s = deadline_s,
                               .last_step = last_step,
                               .restarts = {c->recovery.restart, start_again, tell_death}};
    struct star s = {.job = job, .program = launch_self()};
    if (!s.program) return EXIT_RUN_FAILED;
    if (prepare_trust(c) != 0) {
        free(s.program);
        return EXIT_USAGE;
    }
    o.ctx = &s;
    s.start = lives_last(job->dir).start + 1;
    int config_fd = config_hand_down(c, s.config_path);
    stop_supervise();
    stop_answers("this step");
    s.launcher = launcher_create(&o);
    output_apart_begin();  // a thread that takes no signals, as all of them from here on
    int rc = config_fd < 0 ? -1 : start_scheduler(&s);
    for (int r = 0; r < c->ps.servers && !rc; r++) rc = start(&s, "server", r, 0);
    for (int r = 0; r < c->workers && !rc; r++) rc = start(&s, "worker", r, 0);
    if (rc) launcher_end_all(s.launcher);
    int status = launcher_wait(s.launcher);
    *interrupted_by = launcher_interrupted(s.launcher);
    // Every role has gone: one Ctrl-C more must not cut short what is written of the run.
    if (*interrupted_by) signal(SIGINT, SIG_IGN);
    output_apart_end();
    launcher_destroy(&s.launcher);
    for (int i = 0; i < 2; i++)
        if (s.link[i]) close(s.link[i]);
    if (config_fd >= 0) close(config_fd);
    free(s.program);
    return status;
}
