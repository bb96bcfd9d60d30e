// Workers that come and go, as processes over real sockets and shared memory: one of three is killed in the middle of the
// run, the others go on; another takes its rank. The weights are those of the plain trainer that is told how many there
// were in each step.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ps/agree/step_set.h"
#include "tests/ps/test_ps_star.h"

#define WORKERS     3
#define SERVERS     2
#define ROLES       (1 + SERVERS + WORKERS + 1)  // scheduler, servers, workers, the one that comes later
#define LATER       (ROLES - 1)
#define STEPS       40
#define VICTIM      1
#define VICTIM_STEP 3
#define WEIGHTS_MAX (1 << 18)

// Seen by all processes.
struct shared {
    char address[256];
    _Atomic int bound;
    _Atomic int64_t step[WORKERS];  // begun
    uint64_t members[STEPS + 1];    // of the step, as worker 0 knows
    int contributors[STEPS + 1];    // of the step before
    int64_t joined_at;              // step; -1: nobody has joined
    _Atomic int left;               // worker 0 waits in its last steps until the other has come
    _Atomic int killed;             // the victim is; who takes its rank may begin with the same step
    struct step_stats last;
    int rc[ROLES];
    char error[ROLES][512];
    size_t bytes;
    char weights[WORKERS][WEIGHTS_MAX];  // final ones
};

struct star {
    struct toy_case t;
    struct config c;
    struct layout *l;
    struct shared *shared;
    pid_t pid[ROLES];
};

static int on_step(void *ctx, int rank, int64_t step) {
    struct shared *b = ctx;
    double begin = now_seconds(), end = begin + 60;
    atomic_store(&b->step[rank], step);
    usleep(5000);
    // Neither side runs away from what the test waits for.
    bool victim = rank == VICTIM && step == VICTIM_STEP;
    while (victim && !atomic_load(&b->killed) && now_seconds() < end) usleep(1000);
    // A late worker is admitted between two steps: the job continues until then, and does not stop.
    while (rank != VICTIM && step >= STEPS / 2 && atomic_load(&b->left) && now_seconds() < begin + 1)
        usleep(1000);
    return 0;
}

// The input of the plain trainer.
static void look(void *ctx, const struct topology *t, int64_t step) {
    struct shared *b = ctx;
    if (t->joined_running_job && b->joined_at < 0) {
        b->joined_at = t->start.step;
        atomic_store(&b->left, 0);
    }
    if (t->rank == 0 && step < STEPS) b->contributors[step + 1] = t->plan.workers;
}

static void keep_weights(struct shared *b, const struct star *j, const struct toy_worker_result *r) {
    size_t at = 0;
    for (int u = 0; u < TOY_UNITS && r->weights[u]; u++) {
        size_t bytes = (size_t)j->l->units[u].n_pad * dtype_size(j->t.dtype);
        assert_true(at + bytes <= WEIGHTS_MAX);
        memcpy(b->weights[r->rank] + at, r->weights[u], bytes);
        at += bytes;
    }
    b->bytes = at;
}

// A child's whole life: role number `i`.
static void role_run(struct star *j, int i) {
    struct shared *b = j->shared;
    struct ps_role_options o = {
        .config = &j->c, .layout = j->l, .scheduler = b->address, .key = key_of_test()};
    error_quiet(1);
    bool worker = i > SERVERS;
    o.rank = !worker ? i - 1 : i == LATER ? VICTIM : i - 1 - SERVERS;
    if (i == 0) {
        o.meet = meeting_of_test(&j->c, b->address);
        atomic_store(&b->bound, 1);
        o.scheduler = "tcp://127.0.0.1:*";
        b->rc[i] = ps_scheduler_run(&o);
    } else if (!(o.meet = member_enter(&o, worker ? PS_WORKER : PS_SERVER, 1, true))) {
        b->rc[i] = -1;
    } else if (!worker) {
        b->rc[i] = ps_server_run(&o, NULL);
    } else {
        static struct toy_worker_result r;
        struct toy_worker_options w = {
            .t = &j->t, .role = o, .on_step = on_step, .on_stepped = look, .ctx = b};
        toy_worker_run(&w, &r);
        b->rc[i] = r.rc;
        error_take_over(r.error);
        if (!r.rc) keep_weights(b, j, &r);
        if (!r.rc && r.rank == 0) b->last = r.last;
    }
    leave_of_test(&o.meet);
    snprintf(b->error[i], 512, "%s", error_last());
}

static void start(struct star *j, int i) {
    j->shared->rc[i] = 99;
    j->pid[i] = fork();
    assert_true(j->pid[i] >= 0);
    if (j->pid[i] > 0) return;
    role_run(j, i);
    _exit(0);
}

static void job_start(struct star *j, const char *consistency, enum medium medium, bool comes_back) {
    j->t = (struct toy_case){.dtype = DT_BF16,
                             .consistency = consistency,
                             .workers = WORKERS,
                             .servers = SERVERS,
                             .threads = 1,
                             .steps = STEPS,
                             .overflow_step = -1,
                             .clip = 0.5f,
                             .medium = medium,
                             .elastic_min = 2};
    j->c = toy_config(&j->t);
    j->c.quiet = true;
    j->c.ps.deadline_ms = 12000;
    j->l = toy_layout(WORKERS, 80);
    j->shared = mmap(NULL, sizeof *j->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->shared != MAP_FAILED);
    j->shared->joined_at = -1;
    atomic_store(&j->shared->left, comes_back);
    for (int i = 0; i < LATER; i++) {
        start(j, i);
        while (i == 0 && !atomic_load(&j->shared->bound)) usleep(1000);
    }
}

static void end_of(struct star *j, int i, double end) {
    int status = 0;
    pid_t done = 0;
    while ((done = waitpid(j->pid[i], &status, WNOHANG)) == 0 && now_seconds() < end) usleep(2000);
    if (done == 0) {
        kill(j->pid[i], SIGKILL);
        waitpid(j->pid[i], &status, 0);
        fail_msg("role %d hung", i);
    }
    if (j->shared->rc[i] != 0) fail_msg("role %d: %s", i, j->shared->error[i]);
}

// Kills the victim in its step, lets another take its rank or not, and waits for the rest.
static void star_run(struct star *j, bool comes_back) {
    int victim = 1 + SERVERS + VICTIM;
    double end = now_seconds() + 60;
    while (atomic_load(&j->shared->step[VICTIM]) < VICTIM_STEP && now_seconds() < end) usleep(1000);
    assert_int_equal(kill(j->pid[victim], SIGKILL), 0);
    waitpid(j->pid[victim], NULL, 0);
    atomic_store(&j->shared->killed, 1);
    if (comes_back) start(j, LATER);
    for (int i = 0; i < (comes_back ? ROLES : LATER); i++)
        if (i != victim) end_of(j, i, end);
}

static void job_end(struct star *j) {
    munmap(j->shared, sizeof *j->shared);
    layout_destroy(&j->l);
}

// Sums over the set alone, in worker order, times N/n.
static void ref_step(const struct star *j, struct toy_ref *r, int64_t step, int64_t dealt, uint64_t members,
                     uint64_t set) {
    struct exact_sum sum = {{0}, 0};
    void *total[TOY_UNITS];
    const char *why = "";
    int n = elastic_count(set);
    r->last = (struct step_stats){0};
    for (int u = 0; u < TOY_UNITS; u++) {
        int64_t count = j->l->units[u].n_pad;
        float *acc = xcalloc((unsigned long)count, sizeof *acc);
        void *grad = xcalloc((unsigned long)count, 2);
        total[u] = xcalloc((unsigned long)count, 2);
        for (int w = 0, first = 1; w < WORKERS; w++) {
            int64_t sample = dealt + elastic_index(members, w);
            if (!(set & elastic_bit(w))) continue;
            toy_grad(&j->t, j->l, u, (int)(sample % WORKERS), sample / WORKERS, r->weight[u], grad);
            for (int64_t i = 0; i < count; i++)
                acc[i] = first ? dtype_load(DT_BF16, grad, (size_t)i)
                               : acc[i] + dtype_load(DT_BF16, grad, (size_t)i);
            first = 0;
            if (u == 0) r->last.loss += toy_loss(&j->t, (int)(sample % WORKERS), sample / WORKERS);
        }
        for (int64_t i = 0; i < count; i++)
            dtype_store(DT_BF16, total[u], (size_t)i,
                        n == WORKERS ? acc[i] : acc[i] * ((float)WORKERS / (float)n));
        struct sumsq_args a = {.out = &sum, .x = total[u], .n = count, .dt = DT_BF16};
        cpu_ops[OP_SUMSQ](1, &a, &why);
        free(acc);
        free(grad);
    }
    struct update_scalars scalars = update_decide(&sum, 1, j->t.clip);
    for (int u = 0; u < TOY_UNITS; u++) {
        struct update_range range = {.unit = &j->l->units[u],
                                     .end = j->l->units[u].n_pad,
                                     .master = r->master[u],
                                     .state = {r->m[u], r->v[u]},
                                     .weight = r->weight[u],
                                     .grad = total[u],
                                     .dtype = DT_BF16};
        const struct update_step update = {TOY_LR, step + 1, &scalars};
        optimizer_apply(&j->c.optimizer, &range, &update, 1);
        free(total[u]);
    }
    r->last.grad_norm = scalars.norm;
    if (n < WORKERS) r->last.loss = r->last.loss * WORKERS / n;
}

static void check_sync(const struct star *j, bool comes_back) {
    const struct shared *b = j->shared;
    struct toy_ref r = toy_ref_start(&j->t, j->l);
    uint64_t members = 7, without = 7 & ~elastic_bit(VICTIM);
    int64_t dealt = 0;
    for (int64_t step = 0; step < STEPS; step++) {
        if (step == b->joined_at) members = 7;
        uint64_t set = b->contributors[step + 1] == elastic_count(members) ? members : without;
        ref_step(j, &r, step, dealt, members, set);
        dealt += elastic_count(members);
        members = set;
    }
    for (int w = 0; w < WORKERS; w++) {
        const char *at = b->weights[w];
        for (int u = 0; u < TOY_UNITS && (comes_back || w != VICTIM); u++) {
            size_t bytes = (size_t)j->l->units[u].n_pad * 2;
            assert_memory_equal(at, r.weight[u], bytes);
            at += bytes;
        }
    }
    assert_true(b->last.loss == r.last.loss && b->last.grad_norm == r.last.grad_norm);
    assert_int_equal(b->contributors[VICTIM_STEP + 1], 2);  // it was killed before it had pushed
    toy_ref_free(&r);
}

static void elastic_case(enum medium medium, bool comes_back) {
    struct star j;
    job_start(&j, "sync", medium, comes_back);
    star_run(&j, comes_back);
    check_sync(&j, comes_back);
    assert_int_equal(j.shared->joined_at > VICTIM_STEP, comes_back);
    job_end(&j);
}

// No process reports that it has died: it is silent.
static void test_stays_away(void **state) {
    (void)state;
    elastic_case(MEDIUM_AUTO, false);
}

static void test_comes_back(void **state) {
    (void)state;
    elastic_case(MEDIUM_AUTO, true);
}

static void test_comes_back_tcp(void **state) {
    (void)state;
    elastic_case(MEDIUM_TCP, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stays_away),
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_comes_back_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
