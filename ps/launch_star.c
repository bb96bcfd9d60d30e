#include "ps/launch_star.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/net/net.h"
#include "ps/star_ranks.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/peer.h"
#include "shared/launch/launch.h"
#include "shared/launch/local_steps.h"
#include "shared/launch/stop.h"

#define GRACE_MAX_S 5.0  // roles look at their stop flag many times a second
#define ARGS_MAX    32

struct star {
    const struct run *run;
    const struct job *job;
    struct star_ranks *ranks;
    struct launcher *launcher;
    char *program, config_path[32];
    char address[NET_ADDRESS_MAX];  // of the scheduler; "": it has none yet
    bool talks;                     // roles may be started again, or missed
    // The scheduler's thread, of rank 0's launcher.
    struct verdicts *verdicts;  // NULL: another rank has it
    struct ps_role_options role;
    struct config inner;  // the star's own: of local steps a step of it is a round
    struct job_key key;
    pthread_t thread;
    sem_t listens;  // or it has ended
    _Atomic int stop, ended;
    char why[512];  // once it has ended; "": well
};

static int64_t last_step(void *ctx) {
    const struct star *s = ctx;
    return s->verdicts ? verdicts_step(s->verdicts) : -1;
}

// ---------------------------------------------------------------- the scheduler: a thread of this process
static int bound(void *ctx, const char *address) {
    struct star *s = ctx;
    snprintf(s->address, sizeof s->address, "%s", address);
    sem_post(&s->listens);
    return 0;
}

// With descriptors of its own: connections of strangers may use up the scheduler's, and the launcher still starts children.
static void *schedule(void *arg) {
    struct star *s = arg;
    background_own_descriptors(verdicts_fd(s->verdicts));
    if (ps_scheduler_run(&s->role)) snprintf(s->why, sizeof s->why, "%s", error_last());
    s->ended = 1;
    sem_post(&s->listens);
    return NULL;
}

// All signals are blocked on the launcher's thread, and so on this one.
static int start_scheduler(struct star *s) {
    const struct job *j = s->job;
    const struct config *c = j->config;
    int keyed = job_key_open(c->security.insecure, &s->key);
    if (keyed < 0 || !(s->verdicts = verdicts_open())) return -1;
    bool concerns = c->trace || s->talks || c->recovery.resume;
    s->inner = local_steps_inner(c);
    s->role = (struct ps_role_options){.config = &s->inner,
                                       .layout = j->layout,
                                       .spec = &j->spec,
                                       .scheduler = star_ranks_bind(s->ranks),
                                       .dir = concerns ? j->dir : NULL,
                                       .key = keyed ? &s->key : NULL,
                                       .rank = -1,
                                       .stop = &s->stop,
                                       .launcher = s->verdicts,
                                       .on_bound = bound,
                                       .ctx = s};
    int why = pthread_create(&s->thread, NULL, schedule, s);
    if (why) verdicts_close(&s->verdicts);
    if (why) return fail("cannot start the scheduler's thread: %s; " ERROR_RAISE_THREADS, strerror(why));
    while (sem_wait(&s->listens)) continue;
    if (!*s->address) error_take_over(s->why);
    return *s->address ? 0 : -1;
}

// Whether it is gone. It is not where files stand still and the job was ended: it uses what it has been given until this process
// ends.
static bool end_scheduler(struct star *s) {
    if (s->verdicts && !s->ended) return false;
    if (s->verdicts) pthread_join(s->thread, NULL);
    job_key_forget(&s->key);
    verdicts_close(&s->verdicts);
    return true;
}

// No child is left, and none has died that nothing has been decided about.
static int works_on(void *ctx) {
    struct star *s = ctx;
    if (s->verdicts) verdicts_over(s->verdicts, true);
    return s->verdicts && !s->ended;
}

// ---------------------------------------------------------------- the other roles
static int start(struct star *s, const char *role, int rank) {
    char threads[16], number[16], local[16];
    const char *argv[ARGS_MAX] = {s->program, role, "-c", s->config_path, "--launched", "--out", s->job->dir};
    int n = 7;
    snprintf(threads, sizeof threads, "%d", job_threads(s->job));
    snprintf(number, sizeof number, "%d", rank);
    argv[n++] = "--scheduler", argv[n++] = s->address;
    argv[n++] = "--rank", argv[n++] = number;
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
    struct launch_child child = {.role = role,
                                 .rank = rank,
                                 .program = s->program,
                                 .argv = (char *const *)argv,
                                 .orderly = !strcmp(role, "worker")};
    return launcher_start(s->launcher, &child);
}

// ---------------------------------------------------------------- after a death
static int start_again(void *ctx, const char *role, int rank) {
    struct star *s = ctx;
    if (s->verdicts) verdicts_over(s->verdicts, false);
    return start(s, role, rank);
}

static void tell_death(void *ctx, const struct death *d) {
    struct star *s = ctx;
    if (s->verdicts)
        verdicts_tell(s->verdicts, d);
    else
        star_ranks_dead(s->ranks, d);
}

// Carries to and fro what the scheduler and the launchers of other ranks say.
static const char *look_outside(void *ctx, const char *ends) {
    struct star *s = ctx;
    struct death d;
    struct verdict v;
    if (ends) s->stop = 1;
    while (s->verdicts && star_ranks_death(s->ranks, &d)) verdicts_tell(s->verdicts, &d);
    while (s->verdicts ? verdicts_hear(s->verdicts, &v) : star_ranks_verdict(s->ranks, &v)) {
        star_ranks_said(s->ranks, &v);
        launcher_obey(s->launcher, &v);
    }
    const char *why = star_ranks_ends(s->ranks, ends);
    return why ? why : s->ended && *s->why ? s->why : NULL;
}

int launch_star(struct run *r, int *interrupted_by) {
    const struct job *job = &r->job;
    const struct config *c = job->config;
    double deadline_s = (double)c->ps.deadline_ms * 1e-3;
    struct launch_options o = {.grace_s = deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S,
                               .still_s = deadline_s,
                               .last_step = r->env.rank > 0 ? NULL : last_step,  // others do not know it
                               .outside = look_outside,
                               .others = r->meet != NULL,
                               .beside = works_on,
                               .restarts.count = c->recovery.restart};
    struct star *s = xcalloc(1, sizeof *s);
    *s = (struct star){
        .run = r, .job = job, .program = launch_self(), .talks = c->recovery.restart || ps_elastic(c)};
    if (s->talks) o.deaths = (struct launch_deaths){tell_death, start_again};
    if (!s->program || !(s->ranks = star_ranks_open(r))) {
        int status = s->program ? EXIT_USAGE : EXIT_RUN_FAILED;
        free(s->program);
        free(s);
        return status;
    }
    o.ctx = s;
    sem_init(&s->listens, 0, 0);
    int config_fd = config_hand_down(c, s->config_path);
    rank_env_supervise();
    stop_answers(r->env.rank > 0 ? NULL : "this step");
    s->launcher = launcher_create(&o);
    output_apart_begin();  // a thread that takes no signals, as all of them from here on
    int rc = config_fd < 0 ? -1 : r->env.rank == 0 ? start_scheduler(s) : 0;
    if (!rc) rc = star_ranks_scheduler(s->ranks, s->address, sizeof s->address);
    for (int i = 0; i < c->ps.servers && !rc; i++)
        if (star_ranks_starts_server(s->ranks, i)) rc = start(s, "server", i);
    for (int i = 0; i < c->workers && !rc; i++)
        if (star_ranks_starts_worker(s->ranks, i)) rc = start(s, "worker", i);
    if (rc) launcher_end_all(s->launcher);
    int status = launcher_wait(s->launcher);
    if (status)
        star_ranks_ends(s->ranks, error_last());
    else if (s->verdicts)
        star_ranks_said(s->ranks, &(struct verdict){.kind = VERDICT_OVER});
    *interrupted_by = launcher_interrupted(s->launcher);
    // Every role has gone: one Ctrl-C more must not cut short what is written of the run.
    if (*interrupted_by) signal(SIGINT, SIG_IGN);
    output_apart_end();
    launcher_destroy(&s->launcher);
    if (config_fd >= 0) close(config_fd);
    bool gone = end_scheduler(s);
    star_ranks_close(&s->ranks);
    free(s->program);
    if (gone) sem_destroy(&s->listens);
    if (gone) free(s);
    return status;
}
