// A whole star over real sockets in one process, roles as threads, and its comparison with the plain trainer.
#ifndef STARRING_TESTS_PS_TEST_PS_STAR_H
#define STARRING_TESTS_PS_TEST_PS_STAR_H

#include "ps/job/shard_map.h"
#include "ps/net/member.h"
#include "shared/time/stall_report.h"
#include "test_ps_job.h"

#define MAX_WORKERS 4
#define MAX_SERVERS 3

struct job {
    struct toy_case t;
    struct config c;
    struct layout *l;
    struct rendezvous *meet;  // member 0's
    char address[256];
    int (*on_step)(void *ctx, int rank, int64_t step);  // of each worker, or NULL
    const struct config *odd_server;                    // the last server's configuration, or NULL: the job's
    pid_t (*attack)(const char *address);               // once the scheduler listens; NULL: nobody does
    pid_t stranger;
    int scheduler_rc, server_rc[MAX_SERVERS];
    char scheduler_error[512], server_error[MAX_SERVERS][512];
    struct rank_report report[MAX_SERVERS];
    struct toy_worker_result worker[MAX_WORKERS];
    double wall_s;  // of all roles
};

struct seat {
    struct job *job;
    int rank;
    const struct config *config;  // NULL: the job's
    pthread_t thread;
};

static inline struct ps_role_options role_of(struct seat *s) {
    return (struct ps_role_options){.config = s->config ? s->config : &s->job->c,
                                    .layout = s->job->l,
                                    .scheduler = s->job->address,
                                    .key = key_of_test(),
                                    .rank = s->rank};
}

// Where a job of this process, or of its children, meets.
static inline struct rendezvous *meeting_of_test(const struct config *c, char address[256]) {
    struct endpoint at;
    assert_int_equal(endpoint_read("bind", "tcp://127.0.0.1:*", &at), 0);
    struct rendezvous *meet = member_open(c, &at, true);
    assert_non_null(meet);
    snprintf(address, 256, "tcp://127.0.0.1:%d", rendezvous_port(meet));
    return meet;
}
// A role's. Its last log message stays.
static inline void leave_of_test(struct rendezvous **meet) {
    char *why = xstrdup(error_last());
    rendezvous_close(meet);
    error_take_over(why);
    free(why);
}

static inline void *scheduler_main(void *arg) {
    struct seat *s = arg;
    struct ps_role_options o = role_of(s);
    o.scheduler = "tcp://127.0.0.1:*";
    o.meet = s->job->meet;
    error_quiet(1);
    s->job->scheduler_rc = ps_scheduler_run(&o);
    leave_of_test(&s->job->meet);
    snprintf(s->job->scheduler_error, 512, "%s", error_last());
    return NULL;
}

static inline void *server_main(void *arg) {
    struct seat *s = arg;
    struct ps_role_options o = role_of(s);
    int *rc = &s->job->server_rc[s->rank];
    error_quiet(1);
    o.meet = member_enter(&o, PS_SERVER, 1, true);
    *rc = o.meet ? ps_server_run(&o, &s->job->report[s->rank]) : -1;
    leave_of_test(&o.meet);
    stall_report_free(&s->job->report[s->rank].stall_report);
    snprintf(s->job->server_error[s->rank], 512, "%s", error_last());
    return NULL;
}

static inline void *worker_main(void *arg) {
    struct seat *s = arg;
    struct toy_worker_options o = {.t = &s->job->t, .role = role_of(s), .on_step = s->job->on_step};
    error_quiet(1);
    o.role.meet = member_enter(&o.role, PS_WORKER, 1, true);
    toy_worker_run(&o, &s->job->worker[s->rank]);
    leave_of_test(&o.role.meet);
    return NULL;
}

static inline struct job *job_create(const struct toy_case *t) {
    struct job *j = xcalloc(1, sizeof *j);
    j->t = *t;
    j->c = toy_config(t);
    j->l = toy_layout(t->workers, t->rows ? t->rows : 80);
    return j;
}

static inline void job_destroy(struct job *j) {
    for (int w = 0; w < MAX_WORKERS; w++)
        for (int u = 0; u < TOY_UNITS; u++) free(j->worker[w].weights[u]);
    layout_destroy(&j->l);
    free(j);
}

// Runs all roles; `odd` (may be NULL) is the last worker's configuration, `workers` how many really come.
static inline void job_run(struct job *j, const struct config *odd, int workers) {
    double start = now_seconds();
    struct seat scheduler = {.job = j}, server[MAX_SERVERS], worker[MAX_WORKERS];
    j->meet = meeting_of_test(&j->c, j->address);
    pthread_create(&scheduler.thread, NULL, scheduler_main, &scheduler);
    if (j->attack) j->stranger = j->attack(j->address);
    for (int i = 0; i < j->t.servers; i++) {
        server[i] =
            (struct seat){.job = j, .rank = i, .config = i == j->t.servers - 1 ? j->odd_server : NULL};
        pthread_create(&server[i].thread, NULL, server_main, &server[i]);
    }
    for (int i = 0; i < workers; i++) {
        worker[i] = (struct seat){.job = j, .rank = i, .config = i == workers - 1 ? odd : NULL};
        pthread_create(&worker[i].thread, NULL, worker_main, &worker[i]);
    }
    for (int i = 0; i < workers; i++) pthread_join(worker[i].thread, NULL);
    for (int i = 0; i < j->t.servers; i++) pthread_join(server[i].thread, NULL);
    pthread_join(scheduler.thread, NULL);
    j->wall_s = now_seconds() - start;
}

// The size of worker w's payloads.
static inline const char *expected_medium(const struct job *j, int w, const struct config *odd) {
    const struct config *c = odd && w == j->t.workers - 1 ? odd : &j->c;
    bool tcp = c->medium == MEDIUM_TCP || (j->t.refused && w == j->t.workers - 1),
         server = j->odd_server && j->odd_server->medium == MEDIUM_TCP;
    return tcp ? "tcp" : server && j->t.servers > 1 ? "shm and tcp" : server ? "tcp" : "shm";
}

static inline void check_honest(const struct job *j) {
    assert_int_equal(far_pages.live, 0);
    assert_int_equal(far_pages.misused, 0);
    int64_t steps = 0;
    for (int w = 0; w < j->t.workers; w++) {
        const struct toy_worker_result *r = &j->worker[w];
        assert_memory_equal(r->memory.predicted_bytes, r->usage.peak_bytes, sizeof r->usage.peak_bytes);
        for (int c = 0; c < MEM_CLASSES; c++)
            assert_int_equal(r->usage.current_bytes[c], 0);  // all given back
        assert_int_equal(r->torn, 0);
        // The times of the last step, and those of the one before that were not over when it began.
        assert_int_equal(r->odd_transfers, 0);
        if (r->steps) {
            assert_true(r->transfers[TRANSFER_GRADIENTS] >= TOY_UNITS &&
                        r->transfers[TRANSFER_WEIGHTS] >= TOY_UNITS);
            assert_true(r->transfers[TRANSFER_CONTROL] > 0 && fabs(r->parts - 1) < 0.01);
        }
        assert_int_equal(r->sent, r->predicted_sent * (uint64_t)r->steps);
        assert_int_equal(r->received, r->predicted_received * (uint64_t)r->steps);
        steps += r->steps;
        assert_true(r->sums[0] == j->t.workers * (j->t.workers + 1) / 2 &&
                    r->sums[1] == 0.125 * j->t.workers);
    }
    assert_int_equal(steps, j->t.workers * j->t.steps);  // of one budget, too
    for (int s = 0; s < j->t.servers; s++) {
        const struct rank_report *r = &j->report[s];
        assert_memory_equal(r->memory.predicted_bytes, r->peak_bytes, sizeof r->peak_bytes);
        assert_string_equal(r->role, "server");
        assert_int_equal(r->rank, s);
        assert_true(r->sent_per_step == (double)r->wire.sent_per_step);
        assert_true(r->received_per_step == (double)r->wire.received_per_step);
        assert_true(r->control_sent_per_step > 0 && r->rss_bytes > 0);
        const struct server_time *time = &r->server_time;
        double parts = time->receive + time->sum + time->hold + time->wait + time->update + time->reply;
        assert_int_equal(time->threads, j->t.threads);
        assert_true(time->total > 0 && fabs(parts - time->total) < 1e-6);
        assert_true(time->receive > 0 && time->update > 0 && time->reply > 0);
        // A thread's time: from its first gradient to its last answer.
        assert_true(time->total < time->threads * j->wall_s);
    }
}

static inline void check_all_done(const struct job *j) {
    assert_string_equal(j->scheduler_error, "");
    assert_int_equal(j->scheduler_rc, 0);
    for (int s = 0; s < j->t.servers; s++) assert_int_equal(j->server_rc[s], 0);
    for (int w = 0; w < j->t.workers; w++)
        if (j->worker[w].rc != 0) fail_msg("worker %d: %s", w, j->worker[w].error);
}

// A whole job whose last worker or server may be started otherwise, and the plain trainer.
static inline void sync_job(struct job *j, const struct config *odd) {
    const struct toy_case *t = &j->t;
    job_run(j, odd, t->workers);
    check_all_done(j);
    check_honest(j);
    struct toy_ref ref = toy_ref_start(t, j->l);
    for (int64_t step = 0; step < t->steps; step++) toy_ref_step(t, j->l, &j->c, &ref, step);
    for (int w = 0; w < t->workers; w++) {
        for (int u = 0; u < TOY_UNITS; u++)
            assert_memory_equal(j->worker[w].weights[u], ref.weight[u],
                                (size_t)j->l->units[u].n_pad * dtype_size(t->dtype));
        assert_string_equal(j->worker[w].medium, expected_medium(j, w, odd));
        assert_true(j->worker[w].last.loss == ref.last.loss &&
                    j->worker[w].last.grad_norm == ref.last.grad_norm);
        assert_int_equal(j->worker[w].last.skipped, ref.last.skipped);
    }
    toy_ref_free(&ref);
    job_destroy(j);
}

static inline void sync_case(const struct toy_case *t) { sync_job(job_create(t), NULL); }

static inline struct toy_case base_case(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 3,
                             .servers = 2,
                             .threads = 1,
                             .steps = 5,
                             .overflow_step = -1,
                             .seed = 1,
                             .look = true};
}

static inline struct toy_case async_of(float clip, enum dtype dtype) {
    struct toy_case t = base_case();
    t.consistency = "async";
    t.clip = clip;
    t.dtype = dtype;
    t.overflow_step = dtype == DT_F16 ? 1 : -1;
    return t;
}

static inline void async_case(const struct toy_case *t) {
    struct job *j = job_create(t);
    job_run(j, NULL, t->workers);
    check_all_done(j);
    check_honest(j);
    uint64_t pushes = 0, acknowledged = 0;
    for (int w = 0; w < t->workers; w++) {
        for (int u = 0; u < TOY_UNITS; u++)
            assert_memory_equal(j->worker[w].weights[u], j->worker[0].weights[u],
                                (size_t)j->l->units[u].n_pad * dtype_size(t->dtype));
        for (int i = 0; i < 64; i++) acknowledged += j->worker[w].staleness.count[i];
        if (j->worker[w].steps) {
            int64_t sample = j->worker[w].sample;
            assert_true(j->worker[w].last.loss ==
                        toy_loss(t, (int)(sample % t->workers), sample / t->workers));
            assert_true(isfinite(j->worker[w].last.grad_norm));
        }
        assert_string_equal(j->worker[w].medium, expected_medium(j, w, NULL));
    }
    for (int s = 0; s < t->servers; s++)
        for (int i = 0; i < 64; i++) pushes += j->report[s].staleness.count[i];
    struct shard_map *map = shard_map_of(&j->c, j->l);
    // A step that a worker skips is in no update.
    assert_int_equal(pushes,
                     (uint64_t)map->count * (uint64_t)(t->workers * t->steps - (t->overflow_step >= 0)));
    assert_int_equal(acknowledged, pushes);
    shard_map_destroy(&map);
    job_destroy(j);
}

#endif
