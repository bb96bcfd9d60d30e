#include "ps/launch_star.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"
#include "shared/report/metrics.h"

#define GRACE_MAX_S 5.0  // roles look at their stop flag many times a second
#define ARGS_MAX    24

struct star {
    const struct job *job;
    struct launcher *launcher;
    char *program, *config_path;
    char address[256];  // of the scheduler
};

static int64_t last_step(void *ctx) { return metrics_last_step(ctx); }

static int start(struct star *s, const char *role, int rank, int announce_fd) {
    char threads[16], number[16], fd[16];
    const char *argv[ARGS_MAX] = {s->program, role, "-c", s->config_path, "--launched", "--out", s->job->dir};
    int n = 7;
    snprintf(threads, sizeof threads, "%d", job_threads(s->job));
    snprintf(number, sizeof number, "%d", rank);
    snprintf(fd, sizeof fd, "%d", announce_fd);
    if (announce_fd) {
        argv[n++] = "--announce-fd", argv[n++] = fd;
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
    struct launch_child child = {.role = role,
                                 .rank = announce_fd ? -1 : rank,
                                 .program = s->program,
                                 .argv = (char *const *)argv,
                                 .keep_fd = announce_fd,
                                 .orderly = !strcmp(role, "worker")};
    return launcher_start(s->launcher, &child);
}

static int start_scheduler(struct star *s) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    int rc = start(s, "scheduler", 0, ends[1]);
    close(ends[1]);
    double deadline_s = (double)s->job->config->ps.deadline_ms * 1e-3;
    if (!rc && launcher_read_line(s->launcher, ends[0], deadline_s, s->address, sizeof s->address))
        rc = fail("the scheduler did not come up: see above");
    close(ends[0]);
    return rc;
}

int launch_star(const struct job *job, int *interrupted_by) {
    const struct config *c = job->config;
    double deadline_s = (double)c->ps.deadline_ms * 1e-3;
    struct launch_options o = {.grace_s = deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S,
                               .last_step = last_step,
                               .ctx = (void *)job->dir};
    struct star s = {.job = job, .program = launch_self()};
    if (!s.program) return EXIT_RUN_FAILED;
    s.config_path = xasprintf("%s/config.json", job->dir);
    stop_supervise();
    s.launcher = launcher_create(&o);
    int rc = start_scheduler(&s);
    for (int r = 0; r < c->ps.servers && !rc; r++) rc = start(&s, "server", r, 0);
    for (int r = 0; r < c->workers && !rc; r++) rc = start(&s, "worker", r, 0);
    if (rc) launcher_end_all(s.launcher);
    int status = launcher_wait(s.launcher);
    *interrupted_by = launcher_interrupted(s.launcher);
    // Every role has gone: one Ctrl-C more must not cut short what is written of the run.
    if (*interrupted_by) signal(SIGINT, SIG_IGN);
    launcher_destroy(&s.launcher);
    free(s.config_path);
    free(s.program);
    return status;
}
