#include "shared/launch/launch_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/segment.h"
#include "shared/core/topology_row.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint.h"

#define OWN_WORDS 6

struct ranks {
    struct run *r;
    int argc;
    char *const *argv;
    const struct launch_row *row;
    int count;  // processes to start
    struct launcher *launcher;
    struct segment memory;       // the memory of ranks that share it
    struct rendezvous *meet;     // between the launcher and its children
    char failed[MEET_TEXT_MAX];  // the reason of the first child that reported a failure
    char *program;
    int life;
    struct restarts restarts;
    char why[192];  // why the last child died
    int said;       // number of verdicts sent
};

bool launch_ranks_needed(const struct run *r) {
    const struct config *c = r->config;
    if (c->row->scheduled || r->life || r->env.kind != RANK_ENV_NONE) return false;
    const struct launch_row *row = &launch_rows[c->launch];
    return c->recovery.restart > 0 || (c->row->collectives && (row->one_each || row->by_others));
}

// ---------------------------------------------------------------- one start of the ranks (a life)
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
    argv[n++] = "--out";  // before the user's arguments, which may end in "--", and may have another --out
    argv[n++] = c->out;
    for (int i = 0; i < s->argc; i++) argv[n++] = s->argv[i];
    rank_env_give(rendezvous_port(s->meet), s->row->one_each ? rank : -1, s->count, s->memory.fd);
    int rc = launcher_start(s->launcher, &(struct launch_child){.role = s->row->child,
                                                                .rank = s->row->one_each ? rank : -1,
                                                                .program = s->program,
                                                                .argv = argv,
                                                                .keep_fd = s->memory.base ? s->memory.fd : 0,
                                                                .own_group = s->row->by_others,
                                                                .orderly = true});
    rank_env_take_back();
    free(argv);
    return rc;
}

// A death ends all processes, and uses one restart.
static void decide(struct ranks *s, const struct death *d) {
    bool again = !d->leaving && restarts_take(&s->restarts);
    int of = s->restarts.count, left = of - s->restarts.used;
    struct verdict v = {
        .kind = again ? VERDICT_ANEW : VERDICT_ENDS, .pid = d->pid, .again = again, .left = left, .of = of};
    memcpy(v.name, d->name, sizeof v.name);
    memcpy(s->why, d->why, sizeof s->why);
    if (!again) snprintf(v.reason, sizeof v.reason, RESTARTS_USED_UP, of);
    verdict_send(s->meet, &s->said, &v);
}

// Handles the messages of this start's children, and sends them the reason if they are ended.
static const char *on_poll(void *ctx, const char *ends) {
    struct ranks *s = ctx;
    struct death d;
    char failed[MEET_NAME_MAX];
    snprintf(failed, sizeof failed, RUN_WHY, s->life);
    for (struct member_news n; rendezvous_news(s->meet, &n); free(n.data))
        if (verdict_death(&n, &d))
            decide(s, &d);
        else if (n.kind == MEMBER_SENT && !strcmp(n.word, failed) && !*s->failed)
            snprintf(s->failed, sizeof s->failed, "%s", (const char *)n.data);
    if (ends && !rendezvous_end_reason(s->meet) && !launcher_interrupted(s->launcher))
        rendezvous_abort(s->meet, *s->failed ? s->failed : ends);
    return NULL;
}

static int64_t last_step(void *ctx) { return metrics_last_step(((const struct ranks *)ctx)->r->config->out); }

// Records a restart. All processes of the previous start have ended.
static void record_restart(const struct ranks *s) {
    const struct config *c = s->r->config;
    const char *dir = c->out;
    int64_t done = metrics_last_step(dir);
    if (c->recovery.checkpoint_every > 0) checkpoint_sweep(dir, CHECKPOINT_ALL, 0);
    char *latest = checkpoint_latest(dir);
    int64_t from = latest ? checkpoint_latest_step(dir) : 0;
    bool known = latest || !c->recovery.resume;
    history_add(dir, &(struct history_row){.kind = HISTORY_START,
                                           .step = known ? from + 1 : 0,
                                           .start = history_last_start(dir).start,
                                           .epoch = (uint32_t)s->life,
                                           .job = s->r->lives,
                                           .restarts = s->restarts.used,
                                           .checkpoint = latest ? latest : c->recovery.resume,
                                           .why = s->why,
                                           .counted = known,
                                           .lost = done > from ? done - from : 0});
    free(latest);
}

static int start_all(void *ctx) {
    struct ranks *s = ctx;
    const struct config *c = s->r->config;
    if (s->life++) record_restart(s);
    *s->failed = 0;
    segment_close(&s->memory);
    if (s->row->one_each && c->row->shared_memory_bytes &&
        segment_create(&s->memory, c->row->shared_memory_bytes(c)))
        return -1;
    for (int i = 0; i < s->count; i++)
        if (start_one(s, i)) return -1;
    return 0;
}

// ---------------------------------------------------------------- the whole run
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
    bool opened =
        !job_key_hand_down() && (s.program = launch_self()) && (s.meet = run_meeting(c, 0, s.count, 0));
    if (!opened || run_begin(r)) {
        rendezvous_close(&s.meet);
        free(s.program);
        return opened ? EXIT_USAGE : EXIT_RUN_FAILED;
    }
    struct launch_options o = {.stopped_s = s.row->one_each || s.row->by_others ? deadline_s : 0,
                               .together = true,
                               .speaks_for_others = s.row->by_others,
                               .last_step = last_step,
                               .poll = on_poll,
                               .start = start_all,
                               .meet = s.meet,
                               .decided = c->recovery.restart > 0,
                               .ctx = &s};
    int number, status = launch_run(o, deadline_s, "this step", &s.launcher, &number);
    // A child that failed has logged the reason; the launcher knows only its exit status.
    if (status && !number && *s.failed) error_take_over(s.failed);
    rendezvous_close(&s.meet);
    segment_close(&s.memory);
    free(s.program);
    return run_end(r, status, number);
}

// ---------------------------------------------------------------- mpirun
// After Ctrl-C mpirun signals its ranks, always waits this long, and kills them. The default of one second is often
// too short: the ranks first end their step and write their reports.
#define STOP_SECONDS "5"

// The programs that start ranks, by launch (struct launch_row.by_others): the words between "-n N" and the ranks' own
// command, and the advice if the program is missing.
static const struct {
    const char *const *words;
    const char *advice;
} starters[LAUNCH_KINDS] = {
    // --oversubscribe: more ranks than cores are allowed. --bind-to none: binding would give each rank only one core.
    // -x passes the key to ranks on other machines.
    [LAUNCH_MPI] = {(const char *const[]){"--oversubscribe", "--bind-to", "none", "-x", JOB_KEY_VARIABLE,
                                          NULL},
                    "install Open MPI (the packages openmpi-bin and libopenmpi-dev)"},
};

int launch_mpi(const struct config *c, int argc, char *const *argv) {
    const char *name = launch_rows[c->launch].child;
    char *program = launch_self();
    if (!program) return -1;
    // A bundle has its own mpirun beside the program; otherwise PATH is searched.
    char *starter = xasprintf("%.*s/%s", (int)(strrchr(program, '/') - program), program, name);
    if (access(starter, X_OK) != 0) {
        free(starter);
        starter = xstrdup(name);
    }
    char count[16];
    const char **words = xcalloc((size_t)argc + 16, sizeof *words);
    size_t n = 0;
    snprintf(count, sizeof count, "%d", c->workers);
    words[n++] = name;
    words[n++] = "-n";
    words[n++] = count;
    for (const char *const *own = starters[c->launch].words; *own; own++) words[n++] = *own;
    words[n++] = program;
    words[n++] = "train";
    size_t given = n;
    // A configuration of `-c <(..)` is a descriptor, which mpirun's ranks do not inherit.
    for (int i = 0; i < argc; i++) words[n++] = file_of_others(argv[i]);
    if (geteuid() == 0) {  // containers run as root; mpirun requires both variables
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    setenv("OMPI_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);  // the same for Open MPI 5
    // By default PMIx 5 keeps the ranks' data in files of the temporary folder, which a killed mpirun would not
    // remove.
    setenv("PMIX_MCA_gds", "hash", 0);
    fflush(NULL);
    execvp(starter, (char *const *)words);
    fail("%s: %s; %s, or use --launch processes", starter, strerror(errno), starters[c->launch].advice);
    for (int i = 0; i < argc; i++) free((char *)words[given + (size_t)i]);
    free(starter);
    free(words);
    free(program);
    return -1;
}
