// Lost roles: the star as processes, one of them killed, interrupted or hung in the middle of the
// run. Every other role ends with an error that names it, by the deadline.
#include "test_ps_star.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS     3
#define SERVERS     2
#define ROLES       (1 + SERVERS + WORKERS)  // scheduler, servers, workers
#define DEADLINE_MS 6000                     // half of it is no silence of processes that wait for a core
#define LIMIT_S     60.0                     // a hang
#define VICTIM_STEP 3

// Seen by all processes.
struct shared {
    char address[256];
    _Atomic int bound;
    _Atomic int64_t step[WORKERS];
    int rc[ROLES];
    char error[ROLES][512];
    _Atomic int hang;  // worker 1 stays there, alive
};

struct star {
    struct toy_case t;
    struct config c;
    struct layout *l;
    struct shared *shared;
    pid_t pid[ROLES];
};

static _Atomic int stopped;
static void on_term(int sig) { atomic_store(&stopped, sig); }

static int on_step(void *ctx, int rank, int64_t step) {
    struct shared *b = ctx;
    atomic_store(&b->step[rank], step);
    while (rank == 1 && step == VICTIM_STEP && atomic_load(&b->hang)) usleep(10000);
    usleep(20000);
    return 0;
}

// A child's whole life: role number `i`.
static void role_run(struct star *s, int i) {
    struct ps_role_options o = {.config = &s->c,
                                .layout = s->l,
                                .scheduler = s->shared->address,
                                .key = key_of_test(),
                                .stop = &stopped};
    signal(SIGTERM, on_term);
    error_quiet(1);
    bool worker = i > SERVERS;
    o.rank = worker ? i - 1 - SERVERS : i - 1;
    if (i == 0) {
        o.meet = meeting_of_test(&s->c, s->shared->address);
        atomic_store(&s->shared->bound, 1);
        o.scheduler = "tcp://127.0.0.1:*";
        s->shared->rc[i] = ps_scheduler_run(&o);
    } else if (!(o.meet = member_enter(&o, worker ? PS_WORKER : PS_SERVER, 1, true))) {
        s->shared->rc[i] = -1;
    } else if (!worker) {
        s->shared->rc[i] = ps_server_run(&o, NULL);
    } else {
        struct toy_worker_result r = {0};
        struct toy_worker_options w = {.t = &s->t, .role = o, .on_step = on_step, .ctx = s->shared};
        toy_worker_run(&w, &r);
        s->shared->rc[i] = r.rc;
        error_take_over(r.error);
    }
    leave_of_test(&o.meet);
    snprintf(s->shared->error[i], 512, "%s", error_last());
}

static void job_start(struct star *s, float clip, int64_t steps) {
    s->t = (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = WORKERS,
                             .servers = SERVERS,
                             .threads = 1,
                             .steps = (int)steps,
                             .overflow_step = -1,
                             .clip = clip};
    s->c = toy_config(&s->t);
    s->c.ps.deadline_ms = DEADLINE_MS;
    s->l = toy_layout(WORKERS, 80);
    s->shared = mmap(NULL, sizeof *s->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s->shared != MAP_FAILED);
    for (int i = 0; i < ROLES; i++) {
        s->shared->rc[i] = 99;
        s->pid[i] = fork();
        assert_true(s->pid[i] >= 0);
        if (s->pid[i] == 0) {
            role_run(s, i);
            _exit(0);
        }
        while (i == 0 && !atomic_load(&s->shared->bound)) usleep(1000);
    }
}

static void wait_step(struct star *s, int worker) {
    double end = now_seconds() + LIMIT_S;
    while (atomic_load(&s->shared->step[worker]) < VICTIM_STEP && now_seconds() < end) usleep(1000);
    assert_true(atomic_load(&s->shared->step[worker]) >= VICTIM_STEP);
}

// Waits for everyone but `except` (-1: nobody); whoever is still there after `limit_s` has hung.
static void wait_others(struct star *s, int except, double limit_s) {
    double end = now_seconds() + limit_s;
    for (int i = 0; i < ROLES; i++) {
        int status = 0;
        pid_t done = 0;
        if (i == except) continue;
        while ((done = waitpid(s->pid[i], &status, WNOHANG)) == 0 && now_seconds() < end) usleep(2000);
        if (done == 0) {
            kill(s->pid[i], SIGKILL);
            waitpid(s->pid[i], &status, 0);
            fail_msg("role %d hung", i);
        }
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    if (except >= 0) {
        kill(s->pid[except], SIGKILL);
        waitpid(s->pid[except], NULL, 0);
    }
}

static void job_end(struct star *s) {
    munmap(s->shared, sizeof *s->shared);
    layout_destroy(&s->l);
}

// Everyone but the victim failed and says so in these words.
static void check_told(struct star *s, int victim, const char *words) {
    for (int i = 0; i < ROLES; i++) {
        if (i == victim) continue;
        assert_int_equal(s->shared->rc[i], -1);
        if (!strstr(s->shared->error[i], words))
            fail_msg("role %d says \"%s\", not \"%s\"", i, s->shared->error[i], words);
    }
}

static void kill_case(int victim, float clip, const char *words) {
    struct star s;
    job_start(&s, clip, 100000);
    wait_step(&s, 1);
    assert_int_equal(kill(s.pid[victim], SIGKILL), 0);
    wait_others(&s, victim, LIMIT_S);
    check_told(&s, victim, words);
    for (int i = 0; i < ROLES; i++)
        if (i != victim) assert_non_null(strstr(s.shared->error[i], victim ? "at step" : "lost"));
    job_end(&s);
}

static void test_worker_killed(void **state) {
    (void)state;
    kill_case(1 + SERVERS + 2, 0.0f, "worker 2 was lost");
}

static void test_server_killed(void **state) {
    (void)state;
    kill_case(1, 0.5f, "server 0 was lost");
}

static void test_scheduler_killed(void **state) {
    (void)state;
    kill_case(0, 0.0f, "the scheduler was lost");
}

// A process that is there but does nothing: named by the deadline, with its step.
static void stop_case(int victim, const char *words) {
    struct star s;
    job_start(&s, 0.0f, 100000);
    wait_step(&s, 1);
    assert_int_equal(kill(s.pid[victim], SIGSTOP), 0);
    wait_others(&s, victim, LIMIT_S);
    check_told(&s, victim, words);
    job_end(&s);
}

static void test_worker_stopped(void **state) {
    (void)state;
    stop_case(1 + SERVERS + 1, "worker 1 was lost at step");
}

static void test_server_stopped(void **state) {
    (void)state;
    stop_case(1, "server 0 was lost at step");
}

// Slow is not dead: a worker that does not step for longer than the deadline, and whose heartbeats arrive, is
// waited for.
static void test_worker_slow(void **state) {
    (void)state;
    struct star s;
    job_start(&s, 0.5f, VICTIM_STEP + 3);
    atomic_store(&s.shared->hang, 1);
    wait_step(&s, 1);
    usleep((useconds_t)(1.5 * 1000 * DEADLINE_MS));
    for (int i = 0; i < ROLES; i++) assert_int_equal(s.shared->rc[i], 99);  // none has left
    atomic_store(&s.shared->hang, 0);
    wait_others(&s, -1, LIMIT_S);
    for (int i = 0; i < ROLES; i++) assert_int_equal(s.shared->rc[i], 0);
    job_end(&s);
}

// Asked to end, a worker says so with its step, and all workers leave after the same one; the job ends well.
static void test_asked_to_end(void **state) {
    (void)state;
    struct star s;
    job_start(&s, 0.0f, 100000);
    wait_step(&s, 0);
    assert_int_equal(kill(s.pid[1 + SERVERS], SIGTERM), 0);
    wait_others(&s, -1, LIMIT_S);
    for (int i = 0; i < ROLES; i++) assert_int_equal(s.shared->rc[i], 0);
    for (int w = 1; w < WORKERS; w++)
        assert_int_equal(atomic_load(&s.shared->step[w]), atomic_load(&s.shared->step[0]));
    assert_true(atomic_load(&s.shared->step[0]) < 100000 - 1);
    job_end(&s);
}

// Ctrl-C at the scheduler or a server ends all of them.
static void interrupt_case(int role) {
    struct star s;
    job_start(&s, 0.0f, 100000);
    wait_step(&s, 0);
    assert_int_equal(kill(s.pid[role], SIGTERM), 0);
    wait_others(&s, -1, LIMIT_S);
    check_told(&s, -1, "interrupted");
    job_end(&s);
}

static void test_interrupted(void **state) {
    (void)state;
    interrupt_case(0);
    interrupt_case(2);
}

// No role is lost: all processes end well, in whatever order they end.
static void test_no_loss(void **state) {
    (void)state;
    struct star s;
    job_start(&s, 0.5f, 4);
    wait_others(&s, -1, LIMIT_S);
    for (int i = 0; i < ROLES; i++) assert_int_equal(s.shared->rc[i], 0);
    job_end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_loss),        cmocka_unit_test(test_worker_killed),
        cmocka_unit_test(test_server_killed),  cmocka_unit_test(test_scheduler_killed),
        cmocka_unit_test(test_worker_slow),    cmocka_unit_test(test_worker_stopped),
        cmocka_unit_test(test_server_stopped), cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_asked_to_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
