// Devices and streams: the ledger, order within and between streams, events and their re-recording,
// host functions, sticky failure, phases and the trace.
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "kernels/queue/queue.h"
#include "tests/kernels/kernel_test.h"

static struct device *open_cpu(bool trace) {
    struct device *d;
    const char *why = NULL;
    const struct backend *b = backend_find("cpu", &why);
    assert_non_null(b);
    assert_int_equal(
        dev_open(b, &(struct device_options){.threads = 2, .label = "rank 1", .trace = trace}, &d), 0);
    return d;
}

// Long enough for a stream that does not wait to run ahead; correct streams pass however short it is.
static void give_way(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }

static int wait_gate(void *gate) {
    while (sem_wait(gate) != 0) continue;
    return 0;
}
static int open_gate(void *gate) { return sem_post(gate); }
static int set_one(void *p) {
    *(int *)p = 1;
    return 0;
}
static int always_fails(void *p) {
    (void)p;
    return 5;
}

struct copy_int {
    const int *from;
    int *to;
};
static int copy_int(void *arg) {
    struct copy_int *c = arg;
    *c->to = *c->from;
    return 0;
}

static void test_find(void **state) {
    (void)state;
    const char *why = NULL;
    assert_string_equal(backend_find("ref", &why)->name, "ref");
    assert_null(backend_find("cuda", &why));
    assert_non_null(strstr(why, "CUDA"));
    assert_null(backend_find("tpu", &why));
    assert_non_null(strstr(why, "cpu"));
    for (int op = 0; op < OP_COUNT; op++) {
        assert_non_null(op_name((enum op)op));
        assert_non_null(ref_ops[op]);
        assert_non_null(cpu_ops[op]);
    }
    assert_string_equal(mem_class_name(MEM_SERVER), "server");
    assert_string_equal(mem_class_name(MEM_CHECKPOINT), "checkpoint");
}

// Memory is zero although the host's allocator hands out what was used before.
static void test_zeroed(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    for (int round = 0; round < 8; round++) {
        unsigned char *p = dev_alloc(d, MEM_WORKSPACE, 4096);
        for (int k = 0; k < 4096; k++) assert_int_equal(p[k], 0);
        memset(p, 0x5a, 4096);
        dev_free(d, MEM_WORKSPACE, p, 4096);
    }
    dev_close(&d);
}

static void test_ledger(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    static const size_t bytes[] = {1, 256, 257, 5 << 20};
    unsigned char *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = dev_alloc(d, i < 2 ? MEM_GRADIENT : MEM_COMM, bytes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % DEV_ALIGN, 0);
        for (size_t k = 0; k < dev_round(bytes[i]); k++) assert_int_equal(p[i][k], 0);
        memset(p[i], 0x5a, dev_round(bytes[i]));
    }
    dev_free(d, MEM_GRADIENT, p[0], bytes[0]);
    dev_free(d, MEM_COMM, p[3], bytes[3]);
    struct mem_usage u;
    dev_usage(d, &u);
    assert_int_equal(u.current_bytes[MEM_GRADIENT], 256);
    assert_int_equal(u.peak_bytes[MEM_GRADIENT], 512);
    assert_int_equal(u.current_bytes[MEM_COMM], 512);
    assert_int_equal(u.peak_bytes[MEM_COMM], 512 + (5 << 20));
    assert_int_equal(u.peak_bytes[MEM_MASTER], 0);
    assert_int_equal(u.allocations, 4);
    unsigned char *small = dev_alloc(d, MEM_COMM, 10);  // below the peak, which stays
    dev_usage(d, &u);
    assert_int_equal(u.current_bytes[MEM_COMM], 768);
    assert_int_equal(u.peak_bytes[MEM_COMM], 512 + (5 << 20));
    dev_free(d, MEM_COMM, small, 10);
    assert_null(dev_alloc(d, MEM_COMM, SIZE_MAX));
    assert_null(dev_alloc(d, MEM_COMM, (size_t)1 << 62));
    dev_usage(d, &u);
    assert_int_equal(u.allocations, 5);
    assert_int_equal(u.current_bytes[MEM_COMM], 512);
    dev_free(d, MEM_GRADIENT, p[1], bytes[1]);
    dev_free(d, MEM_COMM, p[2], bytes[2]);
    dev_close(&d);
    assert_null(d);
}

struct sequence {
    int expect, bad;
};
struct number {
    struct sequence *s;
    int value;
};
static int check_next(void *arg) {
    struct number *n = arg;
    n->s->bad += n->s->expect++ != n->value;
    return 0;
}

// More slots than the ring holds, first behind a closed gate: enqueuing blocks and nothing is lost.
static void test_order_and_full_ring(void **state) {
    (void)state;
    enum { COUNT = 3000 };
    struct device *d = open_cpu(false);
    struct stream *s = stream_create(d, "compute"), *helper = stream_create(d, "helper");
    struct sequence seq = {0, 0};
    struct number *n = calloc(COUNT, sizeof *n);
    sem_t gate;
    sem_init(&gate, 0, 0);
    stream_host(s, "gate", wait_gate, &gate);
    for (int i = 0; i < COUNT; i++) {
        n[i] = (struct number){&seq, i};
        if (i == 500) stream_host(helper, "open", open_gate, &gate);
        stream_host(s, "number", check_next, &n[i]);
    }
    assert_int_equal(stream_sync(s), 0);
    assert_int_equal(seq.expect, COUNT);
    assert_int_equal(seq.bad, 0);
    stream_destroy(&helper);
    stream_destroy(&s);
    assert_null(s);
    free(n);
    dev_close(&d);
}

// Arguments are copied at launch; operations, copies and host functions run in order; destroy drains.
static void test_operations(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *s = stream_create(d, "compute");
    float *x = dev_alloc(d, MEM_ACTIVATION, 100 * sizeof *x), host[100], back[100];
    for (int i = 0; i < 100; i++) host[i] = (float)i;
    struct add_args a = {.y = x, .a = x, .b = x, .n = 100, .dt = DT_F32};
    dev_copy(s, x, host, sizeof host);
    op_add(s, &a);
    a.n = 50;
    op_add(s, &a);
    memset(&a, 0xff, sizeof a);
    dev_copy(s, back, x, sizeof back);
    dev_copy(s, back, x, 0);
    stream_destroy(&s);
    for (int i = 0; i < 100; i++) assert_true(back[i] == (float)(i < 50 ? 4 * i : 2 * i));
    dev_free(d, MEM_ACTIVATION, x, 100 * sizeof *x);
    dev_close(&d);
}

// Without the wait, b would read before a's gate opens.
static void test_event_orders_streams(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d), *never = event_create(d);
    int value = 0, seen = -1, unrelated = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    stream_host(a, "gate", wait_gate, &gate);
    stream_host(a, "set", set_one, &value);
    event_record(e, a);
    stream_wait_event(b, never);  // never recorded: counts as passed
    stream_host(b, "unrelated", set_one, &unrelated);
    assert_int_equal(event_sync(never), 0);
    assert_int_equal(stream_sync(b), 0);  // b proceeds while a's host function blocks
    assert_int_equal(unrelated, 1);
    stream_wait_event(b, e);
    event_destroy(&e);  // the queued wait keeps what it needs
    stream_host(b, "read", copy_int, &(struct copy_int){&value, &seen});
    give_way();
    sem_post(&gate);
    assert_int_equal(stream_sync(b), 0);
    assert_int_equal(seen, 1);
    event_destroy(&never);
    stream_destroy(&a);
    stream_destroy(&b);
    dev_close(&d);
}

// A wait holds on to the record it saw, whether the event is recorded again elsewhere or later.
static void test_re_record(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *slow = stream_create(d, "slow"), *quick = stream_create(d, "quick");
    struct stream *first = stream_create(d, "first"), *second = stream_create(d, "second");
    struct event *e = event_create(d);
    int value = 0, seen = -1, passed = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    stream_host(slow, "gate", wait_gate, &gate);
    stream_host(slow, "set", set_one, &value);
    event_record(e, slow);
    stream_wait_event(first, e);
    stream_host(first, "read", copy_int, &(struct copy_int){&value, &seen});
    event_record(e, quick);
    assert_int_equal(event_sync(e), 0);  // the new record has passed while slow is blocked
    stream_wait_event(second, e);
    stream_host(second, "set", set_one, &passed);
    assert_int_equal(stream_sync(second), 0);
    assert_int_equal(passed, 1);
    give_way();
    sem_post(&gate);
    assert_int_equal(stream_sync(first), 0);
    assert_int_equal(seen, 1);

    // Recorded again on the same stream behind a second gate: the earlier wait does not need it.
    seen = -1;
    event_record(e, slow);
    stream_wait_event(first, e);
    stream_host(slow, "gate", wait_gate, &gate);
    event_record(e, slow);
    assert_int_equal(stream_sync(first), 0);
    sem_post(&gate);
    assert_int_equal(event_sync(e), 0);
    event_destroy(&e);
    stream_destroy(&slow);
    stream_destroy(&quick);
    stream_destroy(&first);
    stream_destroy(&second);
    dev_close(&d);
}

static void test_failure_is_sticky(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *bad = stream_create(d, "bad"), *waits = stream_create(d, "waits"),
                  *good = stream_create(d, "good");
    struct event *before = event_create(d), *right_after = event_create(d), *after = event_create(d);
    int before_ran = 0, after_ran = 0, behind_ran = 0, good_ran = 0;
    assert_string_equal(dev_error(d), "");
    stream_host(bad, "before", set_one, &before_ran);
    event_record(before, bad);
    stream_host(bad, "push weights", always_fails, NULL);
    event_record(right_after, bad);
    stream_host(bad, "after", set_one, &after_ran);
    event_record(after, bad);
    stream_wait_event(good, before);
    stream_host(good, "good", set_one, &good_ran);
    stream_wait_event(waits, after);
    stream_host(waits, "behind", set_one, &behind_ran);
    assert_int_equal(event_sync(before), 0);
    assert_int_equal(event_sync(right_after), -1);
    assert_int_equal(event_sync(after), -1);
    assert_int_equal(stream_sync(bad), -1);
    assert_int_equal(stream_sync(bad), -1);
    assert_int_equal(stream_sync(waits), -1);
    assert_int_equal(stream_sync(good), 0);
    assert_int_equal(before_ran, 1);
    assert_int_equal(after_ran, 0);
    assert_int_equal(behind_ran, 0);
    assert_int_equal(good_ran, 1);
    assert_non_null(strstr(dev_error(d), "[rank 1]"));
    assert_non_null(strstr(dev_error(d), "stream bad"));
    assert_non_null(strstr(dev_error(d), "push weights"));
    stream_host(bad, "later", set_one, &after_ran);
    assert_int_equal(stream_sync(bad), -1);
    assert_int_equal(after_ran, 0);
    event_destroy(&before);
    event_destroy(&right_after);
    event_destroy(&after);
    stream_destroy(&bad);
    stream_destroy(&waits);
    stream_destroy(&good);
    dev_close(&d);
}

// A wait for a stream that was destroyed meanwhile: what was recorded there has run.
static void test_event_outlives_stream(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    int value = 0, seen = -1;
    stream_host(a, "set", set_one, &value);
    event_record(e, a);
    stream_destroy(&a);
    stream_wait_event(b, e);
    stream_host(b, "read", copy_int, &(struct copy_int){&value, &seen});
    assert_int_equal(stream_sync(b), 0);
    assert_int_equal(seen, 1);
    assert_int_equal(event_sync(e), 0);
    event_destroy(&e);
    stream_destroy(&b);
    dev_close(&d);
}

// The later stream's thread may get the pthread_t of the earlier one's, which has ended.
static void test_event_of_an_earlier_stream(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *a = stream_create(d, "a");
    struct event *e = event_create(d);
    int value = 0, seen = -1;
    stream_host(a, "set", set_one, &value);
    event_record(e, a);
    stream_destroy(&a);
    struct stream *b = stream_create(d, "b");
    stream_wait_event(b, e);
    stream_host(b, "read", copy_int, &(struct copy_int){&value, &seen});
    assert_int_equal(stream_sync(b), 0);
    assert_int_equal(seen, 1);
    event_destroy(&e);
    stream_destroy(&b);
    dev_close(&d);
}

static int spend_time(void *arg) {
    (void)arg;
    give_way();
    return 0;
}

// Busy and waiting seconds go to the phase that was current when they were spent.
// By hand, and each kind of what depends on an argument.
static void test_work(void **state) {
    (void)state;
    static char some;
    const struct {
        enum op op;
        const void *args;
        double bytes, flops;
    } cases[] = {
        {OP_MATMUL, &(struct matmul_args){.m = 3, .n = 5, .k = 7, .dt = DT_BF16}, 0, 210},
        {OP_ATTN_FWD, &(struct attn_fwd_args){.batch = 2, .seq = 8, .heads = 3, .head_size = 4}, 0, 3072},
        {OP_ATTN_BWD, &(struct attn_bwd_args){.batch = 2, .seq = 8, .heads = 3, .head_size = 4}, 0, 7680},
        {OP_NORM_FWD, &(struct norm_fwd_args){.rows = 4, .channels = 8, .dt = DT_F32}, 256, 0},
        {OP_NORM_FWD, &(struct norm_fwd_args){.rows = 4, .channels = 8, .residual = &some, .dt = DT_F32}, 512,
         0},
        {OP_NORM_BWD, &(struct norm_bwd_args){.rows = 4, .channels = 8, .dt = DT_BF16}, 192, 0},
        {OP_EMBED_FWD,
         &(struct embed_fwd_args){.batch = 2, .seq = 3, .channels = 8, .wpe = &some, .dt = DT_BF16}, 144, 0},
        {OP_EMBED_BWD,
         &(struct embed_bwd_args){
             .batch = 2, .seq = 3, .channels = 8, .vocab = 10, .zero_dwte = true, .dt = DT_BF16},
         256, 0},
        {OP_ROPE,
         &(struct rope_args){.batch = 1, .seq = 2, .heads = 3, .kv_heads = 1, .head_size = 4, .dt = DT_BF16},
         128, 0},
        {OP_XENT, &(struct xent_args){.rows = 2, .vocab = 10, .want_grad = true, .dt = DT_BF16}, 80, 0},
        {OP_XENT, &(struct xent_args){.rows = 2, .vocab = 10, .dt = DT_BF16}, 40, 0},
        {OP_ADAMW, &(struct update_args){.n = 10, .weight = &some, .dt = DT_BF16}, 280, 0},
        {OP_ADAMW, &(struct update_args){.n = 10, .weight = &some, .master = (float *)&some, .dt = DT_F32},
         280, 0},
        {OP_SGD, &(struct update_args){.n = 10, .dt = DT_BF16}, 100, 0},
        {OP_SGD, &(struct update_args){.n = 10, .m = (float *)&some, .dt = DT_BF16}, 180, 0},
        {OP_CODE_ADD,
         &(struct code_add_args){.n = 256, .format = {CODE_TOPK, .share = 0.125}, .use = CODE_PLUS}, 512, 0},
        {OP_CODE_ADD, &(struct code_add_args){.n = 256, .format = {CODE_INT8, 0}, .use = CODE_PLUS}, 2308, 0},
        {OP_REDUCE, &(struct reduce_args){.n = 10, .count = 3, .dt = DT_BF16}, 80, 0},
        {OP_CAST, &(struct cast_args){.n = 10, .from = DT_F32, .to = DT_BF16}, 60, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op_work w = op_work_of(cases[i].op, cases[i].args);
        if (w.bytes != cases[i].bytes || w.flops != cases[i].flops)
            fail_msg("case %zu, %s: %g bytes, %g flops", i, op_name(cases[i].op), w.bytes, w.flops);
    }
}

// A stream adds up what its operations and copies do, each in the phase that it was given in.
static void test_work_of_phases(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *s = stream_create(d, "a");
    float *p = dev_alloc(d, MEM_WORKSPACE, 4096);
    stream_phase(s, PHASE_FORWARD);
    op_matmul(
        s, &(struct matmul_args){.c = p + 512, .a = p, .b = p + 256, .m = 4, .n = 4, .k = 4, .dt = DT_F32});
    op_add(s, &(struct add_args){.y = p, .a = p, .b = p + 256, .n = 64, .dt = DT_F32});
    stream_phase(s, PHASE_BACKWARD);
    for (int i = 0; i < 2; i++) dev_copy(s, p, p + 512, 100);
    assert_int_equal(stream_sync(s), 0);
    struct stream_times t;
    stream_get_times(s, &t);
    assert_true(t.work[PHASE_FORWARD].flops == 128 && t.work[PHASE_FORWARD].bytes == 768);
    assert_true(t.work[PHASE_BACKWARD].flops == 0 && t.work[PHASE_BACKWARD].bytes == 400);
    assert_true(t.work[PHASE_OTHER].bytes == 0);
    dev_free(d, MEM_WORKSPACE, p, 4096);
    stream_destroy(&s);
    dev_close(&d);
}

static void test_phases(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    stream_phase(a, PHASE_COMM);
    stream_host(a, "spend", spend_time, NULL);
    event_record(e, a);
    stream_phase(b, PHASE_BACKWARD);
    stream_wait_event(b, e);
    stream_phase(b, PHASE_OPTIMIZER);
    assert_int_equal(stream_sync(a), 0);
    assert_int_equal(stream_sync(b), 0);
    struct stream_times ta, tb;
    stream_get_times(a, &ta);
    stream_get_times(b, &tb);
    assert_true(ta.busy_s[PHASE_COMM] > 0);
    assert_true(tb.wait_s[PHASE_BACKWARD] > 0);
    for (int p = 0; p < PHASES; p++) {
        assert_true(p == PHASE_COMM || ta.busy_s[p] == 0);
        assert_true(ta.wait_s[p] == 0);
        assert_true(tb.busy_s[p] == 0);
        assert_true(p == PHASE_BACKWARD || tb.wait_s[p] == 0);
    }
    event_destroy(&e);
    stream_destroy(&a);
    stream_destroy(&b);
    dev_close(&d);
}

// Neighbours are one span, a stamp is the end of what came before it, a wait has its tag.
static void test_a_stream_logs_its_spans(void **state) {
    (void)state;
    struct device *d = open_cpu(false);
    struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
    struct event *e = event_create(d);
    struct span got[8];
    uint64_t lost = 1;
    assert_int_equal(stream_log(b, 4, false), 0);
    stream_phase(b, PHASE_FORWARD);
    for (int i = 0; i < 3; i++) stream_host(b, "spend", spend_time, NULL);
    stream_stamp(b, 5);
    stream_host(a, "spend", spend_time, NULL);
    for (int i = 0; i < 4; i++) stream_host(a, "spend", spend_time, NULL);
    event_record(e, a);
    stream_wait_tagged(b, e, 6);
    stream_stamp(b, 7);
    stream_stamp(b, 8);
    assert_int_equal(stream_sync(b), 0);
    size_t n = stream_take_log(b, got, 8, &lost);
    assert_true(n >= 3 && got[0].kind == SPAN_BUSY && got[0].phase == PHASE_FORWARD);
    size_t stamp = n;
    for (size_t i = 0; i < n; i++) {
        if (got[i].kind == SPAN_STAMP && got[i].id == 5) stamp = i;
        if (got[i].kind == SPAN_BLOCKED) assert_true(got[i].id == 6 && got[i].end > got[i].begin);
        assert_true(i == 0 || got[i].begin >= got[i - 1].begin);
    }
    assert_true(stamp > 0 && stamp < n && got[stamp].begin == got[stamp - 1].end);
    assert_true(n + lost >=
                5);  // the busy ones (they may be several on a loaded machine), a wait, three stamps
    assert_int_equal(stream_take_log(b, got, 8, &lost), 0);
    assert_int_equal(lost, 0);
    event_destroy(&e);
    stream_destroy(&a);
    stream_destroy(&b);
    dev_close(&d);
}

// By times that are told: what follows within QUEUE_GAP_NS, in the same phase, with stamps alone in between, goes on.
static void test_neighbours_are_one_span(void **state) {
    (void)state;
    static const struct span told[] = {
        {.begin = 1000, .end = 2000, .kind = SPAN_BUSY, .phase = PHASE_FORWARD},
        {.begin = 2000, .end = 2000, .kind = SPAN_STAMP, .id = 5},
        {.begin = 2000 + QUEUE_GAP_NS, .end = 5000, .kind = SPAN_BUSY, .phase = PHASE_FORWARD},
        {.begin = 5000, .end = 5000 + QUEUE_GAP_NS - 1, .kind = SPAN_BLOCKED, .id = 6},  // as short as none
        {.begin = 7000, .end = 8000, .kind = SPAN_BUSY, .phase = PHASE_FORWARD},
        {.begin = 8000, .end = 9000, .kind = SPAN_BUSY, .phase = PHASE_BACKWARD},
        {.begin = 9000, .end = 9000 + QUEUE_GAP_NS, .kind = SPAN_BLOCKED, .id = 7},
        {.begin = 11000, .end = 12000, .kind = SPAN_BUSY, .phase = PHASE_BACKWARD},
        {.begin = 12001 + QUEUE_GAP_NS, .end = 20000, .kind = SPAN_BUSY, .phase = PHASE_BACKWARD},
    };
    static const int64_t kept[][2] = {{1000, 8000},  {2000, 2000},   {8000, 9000},
                                      {9000, 11000}, {11000, 12000}, {14001, 20000}};
    struct device *d = open_cpu(false);
    struct stream *s = stream_create(d, "a");
    struct span got[9];
    uint64_t lost;
    assert_int_equal(stream_log(s, 9, false), 0);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) queue_span((struct queue *)s, &told[i]);
    assert_int_equal(stream_take_log(s, got, 9, &lost), sizeof kept / sizeof *kept);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        assert_true(got[i].begin == kept[i][0] && got[i].end == kept[i][1]);
    // No taken work continues.
    queue_span((struct queue *)s, &(struct span){.begin = 20000, .end = 21000, .phase = PHASE_BACKWARD});
    assert_int_equal(stream_take_log(s, got, 9, &lost), 1);
    stream_destroy(&s);
    dev_close(&d);
}

static int count_spans(struct device *d, int stream, const char *stream_name, const char *name) {
    const char *called;
    const struct spans *all = dev_spans(d, stream, &called);
    int count = 0;
    assert_string_equal(called, stream_name);
    assert_int_equal(all->lost, 0);
    for (size_t i = 0; i < spans_count(all); i++) {
        const struct span *s = spans_at(all, i);
        assert_true(s->begin > 0 && span_length(s) >= 0 && (i == 0 || s->begin >= spans_at(all, i - 1)->end));
        count += !strcmp(s->name, name);
    }
    return count;
}

static void test_trace(void **state) {
    (void)state;
    for (int traced = 0; traced < 2; traced++) {
        struct device *d = open_cpu(traced);
        struct stream *a = stream_create(d, "a"), *b = stream_create(d, "b");
        int x = 0;
        const char *name;
        int64_t *bytes = dev_alloc(d, MEM_ACTIVATION, 64);
        stream_host(a, "set it", set_one, &x);
        for (int i = 0; i < 5; i++) op_fill_zero(b, &(struct fill_zero_args){bytes, 64});
        assert_int_equal(stream_sync(a), 0);
        stream_destroy(&b);  // its spans are kept
        assert_int_equal(count_spans(d, 1, "a", "set it"), traced);
        assert_int_equal(count_spans(d, 0, "b", "fill_zero"), 5 * traced);
        assert_null(dev_spans(d, 2, &name));
        stream_destroy(&a);
        dev_free(d, MEM_ACTIVATION, bytes, 64);
        dev_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_logs_its_spans),
        cmocka_unit_test(test_neighbours_are_one_span),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_zeroed),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_order_and_full_ring),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_event_orders_streams),
        cmocka_unit_test(test_re_record),
        cmocka_unit_test(test_failure_is_sticky),
        cmocka_unit_test(test_event_outlives_stream),
        cmocka_unit_test(test_event_of_an_earlier_stream),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_work),
        cmocka_unit_test(test_work_of_phases),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests_name("kernels: streams", tests, NULL, NULL);
}
