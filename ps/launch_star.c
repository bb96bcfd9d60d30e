#include "ps/launch_star.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/net/member.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/fabric/address.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/joined.h"
#include "shared/launch/launch.h"
#include "shared/launch/local_steps.h"

#define ARGS_MAX 32
#define KEY      "star/key"

struct star {
    const struct run *run;
    const struct job *job;
    const struct config *c;
    struct launcher *launcher;
    char *program, config_path[32];
    int config_fd;
    // The rendezvous of the job's processes, and what this launcher starts.
    struct rendezvous *meet;
    bool joined;  // other programs have started the ranks; else this launcher starts all roles
    int rank, size;
    int *server_rank;             // (servers) the rank whose launcher starts each
    bool no_key;                  // the rendezvous has no key although the job has one
    char host[64], address[300];  // host: this machine; address: of the rendezvous, "tcp://HOST:PORT"
    bool *loss_logged;            // (size) the loss of this rank was logged
    bool others_informed;         // the other launchers know that this one ends
    char lost[400];
    // The scheduler's thread, in rank 0's launcher.
    bool has_scheduler;
    struct ps_role_options role;
    struct config inner;  // the star's own configuration: with local steps one of its steps is a round
    struct job_key key;
    char bind[96];  // the scheduler's address for rounds
    pthread_t thread;
    _Atomic int64_t step;
    _Atomic int stop, ended;
    char why[512];  // why it has ended; "": normally
};

static int64_t last_step(void *ctx) { return ((const struct star *)ctx)->step; }

// ---------------------------------------------------------------- which launcher starts what
// Returns the first rank of the machine that the n characters of `word` name, or -1.
static int rank_on(const char *word, size_t n, const struct rank_place *ranks, int count) {
    int number = -1;
    const char *end = text_count(word, &number);
    bool numbered = end && end == word + n;
    for (int r = 0; r < count; r++)
        if (ranks[r].machine >= 0 &&
            (numbered ? ranks[r].machine == number
                      : strlen(ranks[r].host) == n && !strncmp(ranks[r].host, word, n)))
            return r;
    return -1;
}

static int fail_no_machine(const char *servers_on, const char *word, size_t n, const struct rank_place *ranks,
                           int count) {
    char names[200] = "";
    size_t at = 0;
    for (int r = 0, next = 0; r < count; r++) {
        if (ranks[r].machine != next) continue;
        if (at + 80 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%d %.60s", next ? ", " : "", next,
                                   ranks[r].host);
        next++;
    }
    return fail(
        "--servers-on %s: %.*s is no machine of this job, which has %s: give hosts, workers, or a list of these numbers or "
        "names",
        servers_on, (int)n, word, names);
}

int placement_servers(const char *servers_on, const struct rank_place *ranks, int count, int servers,
                      int *rank_of) {
    int *launchers = xcalloc((size_t)count + strlen(servers_on), sizeof *launchers), listed = 0, rc = 0;
    if (!strcmp(servers_on, "workers")) {
        for (int r = 0; r < count; r++) launchers[listed++] = r;
    } else if (!strcmp(servers_on, "hosts")) {
        for (int r = 0; r < count; r++)
            if (ranks[r].machine == listed) launchers[listed++] = r;
    } else {
        for (const char *word = servers_on; word && !rc;
             word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL) {
            size_t n = strcspn(word, ",");
            launchers[listed] = rank_on(word, n, ranks, count);
            if (launchers[listed++] < 0) rc = fail_no_machine(servers_on, word, n, ranks, count);
        }
    }
    for (int s = 0; s < servers && !rc; s++) rank_of[s] = launchers[s % listed];
    free(launchers);
    return rc;
}

static int place_servers(struct star *s) {
    struct rank_place *places = xcalloc((size_t)s->size, sizeof *places);
    gethostname(s->host, sizeof s->host - 1);
    for (int r = 0; r < s->size; r++) {
        const struct rendezvous_member *m = s->joined ? rendezvous_member(s->meet, r) : NULL;
        places[r] = (struct rank_place){m ? m->host : s->host, m ? m->machine : 0};
    }
    s->server_rank = xcalloc((size_t)s->c->ps.servers, sizeof *s->server_rank);
    int rc = placement_servers(s->c->ps.servers_on, places, s->size, s->c->ps.servers, s->server_rank);
    free(places);
    return rc;
}

// The machine's address replaces the host in parameter_server.bind; the port remains.
static int bind_own_address(struct star *s, struct config *c) {
    bool alone = rendezvous_machines(s->meet) == 1;
    const char *address = alone ? "127.0.0.1" : rendezvous_member(s->meet, s->rank)->address;
    struct endpoint given;
    char bind[FABRIC_ADDRESS_MAX];
    if (endpoint_read("parameter_server.bind", c->ps.bind, &given)) return -1;
    endpoint_text(address, given.port, bind, sizeof bind);
    free(c->ps.bind);
    c->ps.bind = xstrdup(bind);
    endpoint_text(address, 0, s->bind, sizeof s->bind);
    return 0;
}

// Rank 0 was given the key, or makes it, and passes it to the others' children. If the rendezvous has a key, all have
// it.
static int share_key(const struct star *s) {
    if (s->c->security.insecure || (s->joined && !s->no_key)) return 0;
    if (s->rank == 0 && job_key_hand_down()) return -1;
    if (!s->joined) return 0;
    const char *own = getenv(JOB_KEY_VARIABLE);
    if (s->rank == 0) return rendezvous_put(s->meet, KEY, own, strlen(own));
    char *key = rendezvous_get(s->meet, KEY, &(size_t){0});
    if (!key) return -1;
    setenv(JOB_KEY_VARIABLE, key, 1);
    explicit_bzero(key, strlen(key));
    free(key);
    return 0;
}

// If other programs have started the ranks: places the servers among the ranks, and lets all agree on one key.
// Otherwise also opens the rendezvous for the roles that this launcher starts. Returns 0, or the exit status after
// logging.
static int open_rendezvous(struct star *s, struct config *c) {
    const struct endpoint here = {"127.0.0.1", 0};
    const struct rank_env *env = &s->run->env;
    const char *key = getenv(JOB_KEY_VARIABLE);
    s->loss_logged = xcalloc((size_t)s->size, sizeof *s->loss_logged);
    s->no_key = s->joined && !(key && *key) && !c->security.insecure;
    snprintf(s->bind, sizeof s->bind, "tcp://127.0.0.1:*");
    if (s->joined && bind_own_address(s, c)) return EXIT_USAGE;
    if (s->joined) endpoint_text(env->host, env->port, s->address, sizeof s->address);
    if (place_servers(s) != 0) return EXIT_USAGE;
    if (share_key(s) != 0) return EXIT_RUN_FAILED;
    if (s->joined) return 0;
    if (!(s->meet = member_open(c, &here, c->security.insecure))) return EXIT_RUN_FAILED;
    endpoint_text(here.host, rendezvous_port(s->meet), s->address, sizeof s->address);
    return 0;
}

// ---------------------------------------------------------------- the scheduler: a thread of this process
// It has its own file descriptors: strangers' connections may use up the scheduler's, and the launcher can still start
// children.
static void *scheduler_main(void *arg) {
    struct star *s = arg;
    int descriptors[2];
    rendezvous_descriptors(s->role.meet, descriptors);
    background_own_descriptors(descriptors, 2);
    if (ps_scheduler_run(&s->role))
        snprintf(s->why, sizeof s->why, "%s", *error_last() ? error_last() : "the scheduler has failed");
    s->ended = 1;
    return NULL;
}

// Starts the scheduler's thread. It inherits the launcher's signal mask, which blocks all signals.
static int start_scheduler(struct star *s) {
    const struct job *j = s->job;
    const struct config *c = j->config;
    int has_key = job_key_open(c->security.insecure, &s->key);
    if (has_key < 0) return -1;
    s->inner = local_steps_inner(c);
    s->role = (struct ps_role_options){.config = &s->inner,
                                       .layout = j->layout,
                                       .spec = &j->spec,
                                       .scheduler = s->bind,
                                       .meet = s->meet,
                                       .dir = ps_scheduler_has_files(c) ? j->dir : NULL,
                                       .key = has_key ? &s->key : NULL,
                                       .rank = -1,
                                       .stop = &s->stop,
                                       .launched = true,
                                       .step = &s->step};
    int why = pthread_create(&s->thread, NULL, scheduler_main, s);
    s->has_scheduler = !why;
    return why ? fail("cannot start the scheduler's thread: %s; " ERROR_RAISE_THREADS, strerror(why)) : 0;
}

// ---------------------------------------------------------------- the other roles
static int start_role(struct star *s, const char *role, int rank) {
    char threads[16], number[16], local[16], ranks[16];
    const char *argv[ARGS_MAX] = {s->program, role, "-c", s->config_path, "--launched", "--out", s->job->dir};
    int n = 7;
    snprintf(threads, sizeof threads, "%d", job_threads(s->job));
    snprintf(number, sizeof number, "%d", rank);
    snprintf(ranks, sizeof ranks, "%d", s->run->env.size);
    argv[n++] = "--scheduler", argv[n++] = s->address;
    argv[n++] = "--rank", argv[n++] = number;
    if (s->joined) argv[n++] = "--ranks", argv[n++] = ranks;
    if (s->no_key) argv[n++] = "--open";
    if (!strcmp(role, "worker")) {
        argv[n++] = "--threads", argv[n++] = threads;
        if (s->joined) {
            snprintf(local, sizeof local, "%d", rendezvous_member(s->meet, rank)->local_rank);
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

static int start(void *ctx) {
    struct star *s = ctx;
    s->config_fd = config_hand_down(s->c, s->config_path);
    int rc = s->config_fd < 0 ? -1 : s->rank == 0 ? start_scheduler(s) : 0;
    for (int i = 0; i < s->c->ps.servers && !rc; i++)
        if (!s->joined || s->server_rank[i] == s->rank) rc = start_role(s, "server", i);
    for (int i = 0; i < s->c->workers && !rc; i++)
        if (!s->joined || i == s->rank) rc = start_role(s, "worker", i);
    return rc;
}

// ---------------------------------------------------------------- news at the rendezvous
static int has_work(void *ctx) {
    struct star *s = ctx;
    return s->has_scheduler && !s->ended;
}

// Finds a rank whose launcher has ended together with its children. Returns the reason, or NULL if there is none: then
// the scheduler decides about the job.
static const char *find_lost_rank(struct star *s) {
    for (int r = 0; r < s->size && rendezvous_lost(s->meet) >= 0; r++) {
        const struct rendezvous_member *m = rendezvous_member(s->meet, r);
        if (s->loss_logged[r] || m->machine < 0 || !rendezvous_is_lost(s->meet, r)) continue;
        s->loss_logged[r] = true;
        snprintf(s->lost, sizeof s->lost, "rank %d, on %s, is lost, with the roles that it started%s", r,
                 m->host, ps_elastic(s->c) ? "" : ": the run ends");
        if (!ps_elastic(s->c)) return s->lost;
        if (s->rank == 0) warn("%s", s->lost);
    }
    return NULL;
}

// launch_options.poll. Returns why the job ends, from the other ranks or from the scheduler, or NULL if it continues.
static const char *on_poll(void *ctx, const char *ends) {
    struct star *s = ctx;
    if (!ends) {
        // Rank 0's scheduler logs itself what has ended the job.
        const char *why = s->rank ? rendezvous_end_reason(s->meet) : NULL;
        if (!why && s->joined) why = find_lost_rank(s);
        if (why) fail("%s", why);
        s->others_informed = why != NULL;
        return why ? why : s->ended && *s->why ? s->why : NULL;
    }
    // Informs the other ranks why this launcher ends its children.
    char *text = xasprintf("rank %d, on %s: %s", s->rank, s->host, *ends ? ends : "interrupted");
    s->stop = 1;
    if (!s->others_informed) rendezvous_abort(s->meet, text);
    s->others_informed = true;
    free(text);
    return NULL;
}

// ---------------------------------------------------------------- the run
// If its files block, the scheduler's thread uses its memory until this process ends, so nothing is freed.
static void star_free(struct star **star) {
    struct star *s = *star;
    free(s->program);
    s->program = NULL;
    if (s->has_scheduler && !s->ended) return;
    if (s->has_scheduler) pthread_join(s->thread, NULL);
    job_key_forget(&s->key);
    if (!s->joined) rendezvous_close(&s->meet);
    free(s->server_rank);
    free(s->loss_logged);
    free(s);
    *star = NULL;
}

// Starts the run's processes and waits until all have ended. Returns the job's exit status; 0 also if it ended in order
// after Ctrl-C or SIGTERM: *interrupted_by then receives the signal's number.
static int launch(struct run *r, int *interrupted_by) {
    const struct job *job = &r->job;
    const struct config *c = job->config;
    double deadline_s = (double)c->deadline_ms * 1e-3;
    struct launch_options o = {.stopped_s = deadline_s,
                               // Only rank 0, which has the scheduler, knows the last step.
                               .last_step = r->env.rank > 0 ? NULL : last_step,
                               .poll = on_poll,
                               .start = start,
                               .others = r->meet != NULL,
                               .background_work = r->env.rank > 0 ? NULL : has_work,
                               .decided = c->recovery.restart || ps_elastic(c)};
    struct star *s = xcalloc(1, sizeof *s);
    *s = (struct star){.run = r,
                       .job = job,
                       .c = c,
                       .program = launch_self(),
                       .meet = r->meet,
                       .joined = r->meet != NULL,
                       .rank = r->meet ? r->env.rank : 0,
                       .size = c->workers,
                       .step = -1};
    int refused = s->program ? open_rendezvous(s, r->config) : EXIT_RUN_FAILED;
    if (refused) {
        star_free(&s);
        return refused;
    }
    o.ctx = s;
    o.meet = s->meet;
    int status =
        launch_run(o, deadline_s, r->env.rank > 0 ? NULL : "this step", &s->launcher, interrupted_by);
    if (s->config_fd >= 0) close(s->config_fd);
    star_free(&s);
    return status;
}

int launch_star(struct run *r) {
    int number = 0, status;
    if (run_meets(r) ? run_join(r, &status) : (status = run_begin(r) ? EXIT_USAGE : 0)) return status;
    status = launch(r, &number);
    return r->meet ? run_leave(r, run_part(r, status), number) : run_end(r, status, number);
}
