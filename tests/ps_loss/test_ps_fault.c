// Messages that are lost, doubled, late and out of order on demand: what becomes of which, the line that they wait in,
// and whole stars over real sockets that it costs time, but no bit, no push and no word of why a job ended.
#include "ps/net/fault.h"
#include "ps/net/net.h"
#include "tests/ps/test_ps_star.h"

#define FAULTS "drop=0.05,dup=0.05,reorder=0.1,delay=5"

// ---------------------------------------------------------------- what may be said
static void test_texts(void **state) {
    static const char *const wrong[] = {"",          "drop",       "drop=",         "drop=x",
                                        "drop=0.1,", "lose=0.1",   "drop=-.1",      "drop=0.1;",
                                        "drop=1",    "dup=1.5",    "delay=nan",     "delay=10001",
                                        "seed=0.5",  "drop=1e400", "drop=0,drop=0", "dup=0.1 "};
    struct message_fault f;
    char why[FAULT_WHY_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (message_fault_parse(wrong[i], 1, &f, why) == 0) fail_msg("\"%s\" was taken", wrong[i]);
    assert_int_equal(message_fault_parse("drop=0.1,drop=0.2", 1, &f, why), -1);
    assert_string_equal(why, "\"drop=0.2\": it is there twice");
    assert_int_equal(message_fault_parse(NULL, 7, &f, why), 0);
    assert_false(message_fault_any(&f));
    assert_int_equal(message_fault_parse("seed=9,delay=5,reorder=.25,dup=0.125,drop=0.5", 7, &f, why), 0);
    assert_true(f.drop == 0.5 && f.dup == 0.125 && f.reorder == 0.25 && f.delay_ms == 5 && f.seed == 9);
    assert_int_equal(message_fault_parse("drop=0.5", 7, &f, why), 0);
    assert_int_equal(f.seed, 7);
    char *text = message_fault_text("drop=0.5,delay=5");
    assert_string_equal(
        text, "of the messages a share of 0.5 is lost, 0 sent twice, 0 out of order; each arrives 5 ms late");
    free(text);
    assert_null(message_fault_text(NULL));
}

static void test_fates(void **state) {
    enum { N = 40000 };
    struct message_fault f = {.drop = 0.1, .dup = 0.2, .reorder = 0.3, .delay_ms = 5, .seed = 3}, other = f;
    int lost = 0, twice = 0, overtaken = 0, of_seed = 0, of_socket = 0;
    (void)state;
    other.seed = 4;
    for (uint64_t n = 0; n < N; n++) {
        struct message_faults x = message_faults_of(&f, 1, n), y = message_faults_of(&f, 1, n);
        assert_true(x.lost == y.lost && x.twice == y.twice && x.late_s == y.late_s);
        lost += x.lost;
        twice += x.twice;
        overtaken += x.overtaken;
        of_seed += x.lost != message_faults_of(&other, 1, n).lost;
        of_socket += x.lost != message_faults_of(&f, 2, n).lost;
        assert_true(x.overtaken ? x.late_s >= 0.005 && x.late_s < 0.025 : x.late_s == 0.005);
        assert_true(x.copy_late_s >= 0.005 && x.copy_late_s < 0.025);
    }
    assert_in_range(lost, 0.09 * N, 0.11 * N);
    assert_in_range(twice, 0.19 * N, 0.21 * N);
    assert_in_range(overtaken, 0.29 * N, 0.31 * N);
    assert_true(of_seed > N / 10 && of_socket > N / 10);
}

// ---------------------------------------------------------------- the line
static int frames;
static void release(struct ps_frame *f) {
    frames--;
    free((void *)f->data);
    free(f);
}

static struct net_message message(int64_t step) {
    struct ps_frame *f = xcalloc(1, sizeof *f);
    int64_t *data = xcalloc(1, sizeof *data);
    *data = step;
    *f = (struct ps_frame){data, sizeof *data, release};
    frames++;
    return (struct net_message){.header = {.kind = WIRE_PUSH, .step = step}, .frame = f};
}

static void test_line(void **state) {
    enum { N = 2000 };
    struct fault_plan plan = {.fault = {.drop = 0.1, .dup = 0.1, .reorder = 0.1, .delay_ms = 5, .seed = 1},
                              .role = 5};
    struct wire_count counts = {0};
    struct net_message m;
    int seen[N] = {0}, given = 0, behind = 0;
    int64_t last = 0;
    (void)state;
    struct fault_line *l = fault_line_create(&plan, 0, &counts);
    assert_true(isinf(fault_due(l)));
    for (int i = 0; i < N + 100; i++) {
        double now = 0.001 * i;
        if (i < N) {
            m = message(i);
            fault_take(l, &m, now);
        }
        while (fault_give(l, &m, now)) {
            assert_true(m.frame->bytes == 8 && *(const int64_t *)m.frame->data == m.header.step);
            assert_true(i - m.header.step >= 5 && i - m.header.step <= 25);
            behind += m.header.step < last;
            last = m.header.step;
            seen[m.header.step]++;
            given++;
            ps_frame_release(m.frame);
        }
        assert_true(fault_due(l) > now);
    }
    int lost = 0, twice = 0;
    for (int i = 0; i < N; i++) lost += seen[i] == 0, twice += seen[i] == 2;
    assert_int_equal(lost, atomic_load(&counts.faults[FAULT_LOST]));
    assert_int_equal(twice, atomic_load(&counts.faults[FAULT_TWICE]));
    assert_int_equal(given, N - lost + twice);
    assert_int_equal(atomic_load(&counts.faults[FAULT_MESSAGES]), N);
    assert_true(lost > N / 20 && twice > N / 20 && behind > N / 20);
    m = message(0);
    plan.fault = (struct message_fault){.delay_ms = 5};
    struct fault_line *kept = fault_line_create(&plan, 1, &counts);
    fault_take(kept, &m, 0);
    fault_line_destroy(&kept);
    fault_line_destroy(&l);
    assert_int_equal(frames, 0);
}

// ---------------------------------------------------------------- whole stars
static uint64_t faults_of(const struct job *j, enum wire_fault what) {
    uint64_t n = 0;
    for (int s = 0; s < j->t.servers; s++) n += j->report[s].faults[what];
    return n;
}

static void check_troubled(const struct job *j) {
    check_all_done(j);
    assert_true(faults_of(j, FAULT_LOST) + faults_of(j, FAULT_TWICE) + faults_of(j, FAULT_OVERTAKEN) > 0);
}

static void sync_troubled(const struct toy_case *t, const char *faults) {
    struct job *j = job_create(t);
    j->c.fault = (char *)faults;
    j->c.seed = 5;
    job_run(j, NULL, t->workers);
    check_troubled(j);
    struct toy_ref ref = toy_ref_start(t, j->l);
    for (int64_t step = 0; step < t->steps; step++) toy_ref_step(t, j->l, &j->c, &ref, step);
    for (int w = 0; w < t->workers; w++) {
        for (int u = 0; u < TOY_UNITS; u++)
            assert_memory_equal(j->worker[w].weights[u], ref.weight[u],
                                (size_t)j->l->units[u].n_pad * dtype_size(t->dtype));
        assert_true(j->worker[w].last.loss == ref.last.loss &&
                    j->worker[w].last.grad_norm == ref.last.grad_norm);
        assert_int_equal(j->worker[w].torn, 0);
        // First copies are counted where they leave, whatever becomes of them.
        assert_int_equal(j->worker[w].sent, j->worker[w].predicted_sent * (uint64_t)t->steps);
    }
    toy_ref_free(&ref);
    job_destroy(j);
}

static void test_sync(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct toy_case t = base_case();
        t.dtype = i % 2 ? DT_F16 : DT_BF16;
        t.overflow_step = i % 2 ? 2 : -1;
        t.clip = i < 2 ? 0.5f : 0.0f;
        t.servers = i == 1 || i == 2 ? 3 : 1;
        t.workers = i == 1 ? 3 : 2;
        t.medium = i < 2 ? MEDIUM_TCP : MEDIUM_SHM;
        if (i == 3) t.partition_bytes = 8192;
        sync_troubled(&t, FAULTS);
    }
}

// Every push is one update, and every worker hears of each of its own.
static void test_async(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct toy_case t = async_of(0.0f, DT_BF16);
        t.medium = i ? MEDIUM_SHM : MEDIUM_TCP;
        t.partition_bytes = 8192;
        struct job *j = job_create(&t);
        j->c.fault = (char *)FAULTS;
        job_run(j, NULL, t.workers);
        check_troubled(j);
        struct shard_map *map = shard_map_of(&j->c, j->l);
        uint64_t all = (uint64_t)map->count * (uint64_t)(t.workers * t.steps), pushes = 0, acknowledged = 0;
        for (int s = 0; s < t.servers; s++) {
            assert_int_equal(j->report[s].updates, t.workers * t.steps);
            for (int b = 0; b < 64; b++) pushes += j->report[s].staleness.count[b];
        }
        for (int w = 0; w < t.workers; w++)
            for (int b = 0; b < 64; b++) acknowledged += j->worker[w].staleness.count[b];
        assert_int_equal(pushes, all);
        assert_int_equal(acknowledged, all);
        shard_map_destroy(&map);
        job_destroy(j);
    }
}

// Why a job ends is said more than once: with 2 of 10 messages lost everybody still hears it.
static int fails_at(void *ctx, int rank, int64_t step) {
    (void)ctx;
    return rank == 1 && step == 1 ? (fail)("its machine was sold") : 0;
}

static void test_last_words(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct toy_case t = base_case();
        struct job *j = job_create(&t);
        j->c.fault = (char *)"drop=0.2";
        j->c.seed = seed;
        j->on_step = fails_at;
        double begin = now_seconds();
        job_run(j, NULL, t.workers);
        assert_true(now_seconds() - begin < 60);
        assert_non_null(strstr(j->scheduler_error, "worker 1: its machine was sold"));
        for (int w = 0; w < t.workers; w++)
            assert_non_null(strstr(j->worker[w].error, "its machine was sold"));
        for (int s = 0; s < t.servers; s++)
            assert_non_null(strstr(j->server_error[s], "its machine was sold"));
        job_destroy(j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts), cmocka_unit_test(test_fates), cmocka_unit_test(test_line),
        cmocka_unit_test(test_sync),  cmocka_unit_test(test_async), cmocka_unit_test(test_last_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
