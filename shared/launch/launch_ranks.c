#include "shared/launch/launch_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/core/segment.h"
#include "shared/core/topology_row.h"
#include "shared/launch/last_word.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint.h"

#define GRACE_MAX_S 5.0
#define OWN_WORDS   6

struct ranks {
    struct run *r;
    int argc;
    char *const *argv;
    const struct launch_row *row;
    int count;  // of processes to start
    struct launcher *launcher;
    struct segment memory;  // that they meet in, and leave their last word in
    char *program;
    int life;
    struct restarts restarts;
    char why[192];           // the last death
    struct verdict verdict;  // after it; its pid 0: it is heard
};

bool launch_ranks_needed(const struct run *r) {
    const struct config *c = r->config;
    if (c->row->scheduled || r->life || r->env.kind != RANK_ENV_NONE) return false;
    const struct launch_row *row = &launch_rows[c->launch];
    return c->recovery.restart > 0 || (c->row->collectives && (row->one_each || row->by_others));
}

// ---------------------------------------------------------------- one life
static int start_one(struct ranks *s, int rank) {
    const struct config *c = s->r->config;
    char life[16];
    char **argv = xcalloc((size_t)s->argc + OWN_WORDS + 1, sizeof *argv);
    int n = 0;
    snprintf(life, sizeof life, "%d", s->life);
    argv[n++] = s->program;
    argv[n++] = "train";
    argv[n++] = "--life";
    argv[n++] = life;
    argv[n++] = "--out";  // before the given words, which may end in "--", and name it again
    argv[n++] = c->out;
    for (int i = 0; i < s->argc; i++) argv[n++] = s->argv[i];
    rank_env_give(s->row->one_each ? rank : -1, s->count, s->memory.fd);
    int rc = launcher_start(s->launcher, &(struct launch_child){.role = s->row->child,
                                                                .rank = s->row->one_each ? rank : -1,
                                                                .program = s->program,
                                                                .argv = argv,
                                                                .keep_fd = s->memory.fd,
                                                                .apart = s->row->by_others,
                                                                .orderly = true});
    rank_env_take_back();
    free(argv);
    return rc;
}

// The next ranks ignore what those of the life before have left in the memory.
static int start_all(struct ranks *s) {
    const struct config *c = s->r->config;
    size_t bytes = SEGMENT_HEAD + sizeof(struct last_word);
    segment_close(&s->memory);
    if (s->row->one_each && c->row->meeting_bytes) bytes = c->row->meeting_bytes(c);
    if (segment_create(&s->memory, bytes)) return -1;
    launcher_tell(s->launcher, segment_data(&s->memory));
    s->life++;
    for (int i = 0; i < s->count; i++)
        if (start_one(s, i)) return -1;
    return 0;
}

static int64_t last_step(void *ctx) { return metrics_last_step(((const struct ranks *)ctx)->r->config->out); }

// A death is all processes', and takes a restart.
static void decide(void *ctx, const struct death *d) {
    struct ranks *s = ctx;
    struct verdict *v = &s->verdict;
    bool again = !d->leaving && restarts_take(&s->restarts);
    *v = (struct verdict){.kind = again ? VERDICT_ANEW : VERDICT_ENDS, .pid = d->pid, .again = again};
    v->of = s->restarts.count;
    v->left = v->of - s->restarts.used;
    memcpy(v->name, d->name, sizeof v->name);
    memcpy(s->why, d->why, sizeof s->why);
    if (!again) snprintf(v->reason, sizeof v->reason, RESTARTS_USED_UP, v->of);
}

static bool hear(void *ctx, struct verdict *out) {
    struct ranks *s = ctx;
    *out = s->verdict;
    s->verdict.pid = 0;
    return out->pid;
}

// All processes of the life before are gone.
static int begin_anew(void *ctx) {
    struct ranks *s = ctx;
    const struct config *c = s->r->config;
    const char *dir = c->out;
    int64_t done = metrics_last_step(dir);
    if (c->recovery.checkpoint_every > 0) checkpoint_sweep(dir, CHECKPOINT_ALL, 0);
    char *latest = checkpoint_latest(dir);
    int64_t from = latest ? checkpoint_latest_step(dir) : 0;
    bool known = latest || !c->recovery.resume;
    history_add(dir, &(struct history_row){.kind = HISTORY_LIFE,
                                           .step = known ? from + 1 : 0,
                                           .start = history_last_life(dir).start,
                                           .epoch = (uint32_t)s->life + 1,
                                           .job = s->r->lives,
                                           .restarts = s->restarts.used,
                                           .checkpoint = latest ? latest : c->recovery.resume,
                                           .why = s->why,
                                           .counted = known,
                                           .lost = done > from ? done - from : 0});
    free(latest);
    return start_all(s);
}

// ---------------------------------------------------------------- all of them
int launch_ranks(struct run *r, int argc, char *const *argv) {
    const struct config *c = r->config;
    double deadline_s = (double)c->deadline_ms * 1e-3;
    struct ranks s = {
        .r = r, .argc = argc, .argv = argv, .row = &launch_rows[c->launch], .memory = {.fd = -1}};
    s.count = s.row->one_each ? c->workers : 1;
    s.restarts.count = c->recovery.restart;
    if (c->recovery.restart &&
        (getrandom(&r->lives, sizeof r->lives, 0) != (ssize_t)sizeof r->lives || !r->lives))
        return fail("no random number"), EXIT_RUN_FAILED;
    if (!(s.program = launch_self())) return EXIT_RUN_FAILED;
    if (run_begin(r)) {
        free(s.program);
        return EXIT_USAGE;
    }
    struct launch_options o = {
        .grace_s = deadline_s > 0 && deadline_s < GRACE_MAX_S ? deadline_s : GRACE_MAX_S,
        .still_s = s.row->one_each || s.row->by_others ? deadline_s : 0,
        .together = true,
        .speaks_for_others = s.row->by_others,
        .last_step = last_step,
        .ctx = &s};
    if (c->recovery.restart) o.deaths = (struct launch_deaths){decide, hear, begin_anew, &s};
    fflush(NULL);
    rank_env_supervise();
    stop_answers("this step");
    s.launcher = launcher_create(&o);
    output_apart_begin();  // a thread that takes no signals, as all of them from here on
    if (start_all(&s)) launcher_end_all(s.launcher);
    int status = launcher_wait(s.launcher), number = launcher_interrupted(s.launcher);
    // All have gone: one Ctrl-C more must not cut short what is written of the run.
    if (number) signal(SIGINT, SIG_IGN);
    output_apart_end();
    launcher_destroy(&s.launcher);
    // One that failed has said why, better than its launcher, which knows its exit status alone.
    const char *why = status && !number && s.memory.base ? last_word(segment_data(&s.memory)) : NULL;
    if (why && strncmp(error_last(), why, strlen(why)) != 0) error_take_over(why);
    segment_close(&s.memory);
    free(s.program);
    return run_end(r, status, number);
}
