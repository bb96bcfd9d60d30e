// Where a step's time went: the pure split against its definition, and the recorder on a real stream.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/time/clock.h"
#include "shared/time/timeline.h"
#include "shared/train/pace.h"

#define S 1000000000LL

static void assert_near(double got, double want, double error, const char *what) {
    if (!(fabs(got - want) <= error)) fail_msg("%s: %.9f, not %.9f", what, got, want);
}

// ---------------------------------------------------------------- the split
struct made_up {
    struct span busy[8], moves[8], data[8];
    struct split_block blocked[8];
    size_t busy_count, blocked_count, move_count, data_count;
};

static struct time_split split(struct made_up m, int64_t begin, int64_t end) {
    struct time_split out;
    time_split_of(&(struct split_input){begin, end, m.busy, m.blocked, m.moves, m.data, m.busy_count,
                                        m.blocked_count, m.move_count, m.data_count, NULL, NULL},
                  &out);
    assert_near(time_split_parts(&out), out.total, 1e-12, "the parts");
    return out;
}

static void test_a_gap_ends_by_one_transfer(void **state) {
    (void)state;
    struct made_up m = {.busy = {{.begin = 0, .end = 2 * S, .phase = PHASE_FORWARD},
                                 {.begin = 7 * S, .end = 9 * S, .phase = PHASE_BACKWARD}},
                        .busy_count = 2,
                        .blocked = {{3 * S, 7 * S, 1 * S, 4 * S, 0, -1}},
                        .blocked_count = 1};
    struct time_split t = split(m, 0, 10 * S);
    assert_near(t.forward, 2, 1e-9, "forward");
    assert_near(t.backward, 2, 1e-9, "backward");
    assert_near(t.wait, 1, 1e-9, "wait");
    assert_near(t.comm_exposed, 3, 1e-9, "exposed");
    assert_near(t.host, 2, 1e-9, "host");
    assert_near(t.total, 10, 1e-9, "total");
}

static void test_where_the_peers_were_ready_decides(void **state) {
    (void)state;
    struct {
        int64_t own, peers;
        double wait;
    } cases[] = {
        {1, 1, 0},          // all were ready before: only the link is late
        {1, 20 * S, 4},     // the peers come after the gap (a clock is off): all of it is waiting
        {1, 5 * S, 2},      // in between
        {4 * S, 6 * S, 2},  // the own part is still on its way for a second: that is communication
        {1, 0, 0},          // nobody has said: exposed
        {0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made_up m = {.blocked = {{3 * S, 7 * S, cases[i].own, cases[i].peers, 0, -1}},
                            .blocked_count = 1};
        struct time_split t = split(m, 2 * S, 8 * S);
        assert_near(t.wait, cases[i].wait, 1e-9, "wait");
        assert_near(t.comm_exposed, 4 - cases[i].wait, 1e-9, "exposed");
        assert_near(t.host, 2, 1e-9, "host");
    }
}

static void test_of_two_transfers_the_one_that_ends_the_gap_counts(void **state) {
    (void)state;
    struct made_up m = {.blocked = {{1 * S, 6 * S, 1, 6 * S, 0, -1},
                                    {2 * S, 4 * S, 1, 1, 0, -1},
                                    {5 * S, 8 * S, 1, 1, 0, -1}},
                        .blocked_count = 3};
    struct time_split t = split(m, 0, 10 * S);
    assert_near(t.wait, 4, 1e-9, "wait");             // 1 .. 5: the second lies inside of the first
    assert_near(t.comm_exposed, 3, 1e-9, "exposed");  // 5 .. 8
    assert_near(t.host, 3, 1e-9, "host");
}

static void test_blocked_while_busy_is_busy(void **state) {
    (void)state;
    struct made_up m = {.busy = {{.begin = 1 * S, .end = 5 * S, .phase = PHASE_BACKWARD}},
                        .busy_count = 1,
                        .blocked = {{0, 6 * S, 1, 1, 0, -1}},
                        .blocked_count = 1,
                        .moves = {{.begin = 2 * S, .end = 3 * S, .phase = PHASE_COMM},
                                  {.begin = 1 * S, .end = 4 * S, .phase = PHASE_COMM},
                                  {.begin = 5 * S, .end = 6 * S, .phase = PHASE_COMM}},
                        .move_count = 3};
    struct time_split t = split(m, 0, 6 * S);
    assert_near(t.backward, 4, 1e-9, "backward");
    assert_near(t.comm_exposed, 2, 1e-9, "exposed");
    assert_near(t.comm_overlapped, 3, 1e-9, "overlapped");  // transfers at the same time count once
    assert_near(t.host, 0, 1e-9, "host");
}

static void test_reading_is_data_only_where_nothing_else_happens(void **state) {
    (void)state;
    struct made_up m = {.busy = {{.begin = 0, .end = 2 * S, .phase = PHASE_FORWARD},
                                 {.begin = 8 * S, .end = 9 * S, .phase = PHASE_OTHER}},
                        .busy_count = 2,
                        .blocked = {{3 * S, 4 * S, 1, 1, 0, -1}},
                        .blocked_count = 1,
                        .data = {{.begin = 1 * S, .end = 6 * S, .phase = PHASE_DATA}},
                        .data_count = 1};
    struct time_split t = split(m, 0, 10 * S);
    assert_near(t.data, 3, 1e-9, "data");
    assert_near(t.comm_exposed, 1, 1e-9, "exposed");
    assert_near(t.host, 4, 1e-9, "host");  // what has no phase is the host's
}

static void test_nothing_recorded_is_the_hosts(void **state) {
    (void)state;
    struct time_split t = split((struct made_up){0}, 5 * S, 7 * S);
    assert_near(t.host, 2, 1e-12, "host");
    t = split((struct made_up){0}, 7 * S, 7 * S);
    assert_near(t.total, 0, 0, "an empty step");
}

// The definition, nanosecond by nanosecond.
static struct time_split by_definition(const struct made_up *m, int64_t begin, int64_t end) {
    struct time_split t = {.total = (double)(end - begin)};
    for (int64_t now = begin; now < end; now++) {
        const struct span *busy = NULL;
        const struct split_block *on = NULL;
        bool moving = false, reading = false;
        for (size_t i = 0; i < m->busy_count; i++)
            if (now >= m->busy[i].begin && now < m->busy[i].end) busy = &m->busy[i];
        for (size_t i = 0; i < m->blocked_count; i++) {
            const struct split_block *b = &m->blocked[i];
            if (now >= b->begin && now < b->end && (!on || b->end > on->end)) on = b;
        }
        for (size_t i = 0; i < m->move_count; i++)
            moving |= now >= m->moves[i].begin && now < m->moves[i].end;
        for (size_t i = 0; i < m->data_count; i++) reading |= now >= m->data[i].begin && now < m->data[i].end;
        if (busy && busy->phase != PHASE_COMM && moving) t.comm_overlapped++;
        if (busy)
            *(busy->phase == PHASE_FORWARD    ? &t.forward
              : busy->phase == PHASE_BACKWARD ? &t.backward
              : busy->phase == PHASE_COMM     ? &t.comm_exposed
                                              : &t.host) += 1;
        else if (on && now >= on->own_ready && now < on->peers_ready)
            t.wait++;
        else if (on)
            t.comm_exposed++;
        else
            *(reading ? &t.data : &t.host) += 1;
    }
    return t;
}

static void test_the_split_is_its_definition(void **state) {
    (void)state;
    unsigned seed = 7;
    for (int round = 0; round < 4000; round++) {
        struct made_up m = {.busy_count = (size_t)(rand_r(&seed) % 5),
                            .blocked_count = (size_t)(rand_r(&seed) % 7),
                            .move_count = (size_t)(rand_r(&seed) % 5),
                            .data_count = (size_t)(rand_r(&seed) % 3)};
        int64_t at = 0;
        for (size_t i = 0; i < m.busy_count; i++) {  // one stream: one behind the other
            m.busy[i].begin = at + rand_r(&seed) % 20;
            at = m.busy[i].end = m.busy[i].begin + rand_r(&seed) % 20;
            static const enum phase phases[] = {PHASE_OTHER, PHASE_COMM, PHASE_FORWARD, PHASE_BACKWARD};
            m.busy[i].phase = phases[rand_r(&seed) % 4];
        }
        for (size_t i = 0; i < m.blocked_count; i++) {
            // Ends that differ: which of two that end together counts is anybody's guess.
            int64_t begin = rand_r(&seed) % 90, length = 8 * (rand_r(&seed) % 6) + (int64_t)i;
            m.blocked[i] = (struct split_block){
                begin, (begin + length) / 8 * 8 + (int64_t)i, rand_r(&seed) % 60, rand_r(&seed) % 100, 0, -1};
        }
        for (size_t i = 0; i < m.move_count; i++) {
            m.moves[i].begin = rand_r(&seed) % 90;
            m.moves[i].end = m.moves[i].begin + rand_r(&seed) % 40;
        }
        for (size_t i = 0; i < m.data_count; i++) {
            m.data[i].begin = rand_r(&seed) % 90;
            m.data[i].end = m.data[i].begin + rand_r(&seed) % 40;
        }
        struct time_split want = by_definition(&m, 10, 80), got = split(m, 10, 80);
        assert_near(1e9 * got.forward, want.forward, 1e-3, "forward");
        assert_near(1e9 * got.backward, want.backward, 1e-3, "backward");
        assert_near(1e9 * got.wait, want.wait, 1e-3, "wait");
        assert_near(1e9 * got.comm_exposed, want.comm_exposed, 1e-3, "exposed");
        assert_near(1e9 * got.comm_overlapped, want.comm_overlapped, 1e-3, "overlapped");
        assert_near(1e9 * got.data, want.data, 1e-3, "data");
        assert_near(1e9 * got.host, want.host, 1e-3, "host");
    }
}

// ---------------------------------------------------------------- clocks of several hosts
// Meetings that take from 100 to 1100 ns beyond the way, whose two directions are not alike.
static void test_an_offset_lies_within_its_error(void **state) {
    (void)state;
    unsigned seed = 3;
    for (int round = 0; round < 200; round++) {
        int64_t offset = rand_r(&seed) % 2000000 - 1000000, now = 5000000;
        struct clock_offset o = clock_offset_unknown();
        double before = 1e18;
        for (int i = 0; i < 20; i++) {
            int64_t begin_own = now + rand_r(&seed) % 1000, begin_first = now + rand_r(&seed) % 1000;
            int64_t met = (begin_own > begin_first ? begin_own : begin_first) + 100;
            struct clock_barrier own = {begin_own - offset, met + rand_r(&seed) % 1000 - offset};
            struct clock_barrier first = {begin_first, met + rand_r(&seed) % 1000};
            clock_offset_learn(&o, own, first);
            int64_t error = clock_offset_error_ns(&o);
            assert_true(llabs(clock_offset_ns(&o) - offset) <= error + 1);
            assert_true((double)error <= before);  // every meeting narrows it, or leaves it
            before = (double)error;
            now += 10000;
        }
        assert_true(before < 1000);
    }
    assert_int_equal(clock_host(), clock_host());
    assert_true(clock_host() != 0);
}

// ---------------------------------------------------------------- the recorder
struct rig {
    struct device *dev;
    struct stream *compute, *other;
    struct event *e;
    struct unit units[2];
    struct layout layout;
    struct timeline *tl;
};

static int open_rig(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    *state = r;
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, &r->dev))
        return -1;
    r->compute = stream_create(r->dev, "compute");
    r->other = stream_create(r->dev, "other");
    r->e = event_create(r->dev);
    snprintf(r->units[0].name, sizeof r->units[0].name, "first");
    snprintf(r->units[1].name, sizeof r->units[1].name, "second");
    r->layout = (struct layout){.count = 2, .units = r->units};
    r->tl = timeline_create(&(struct timeline_options){r->compute, &r->layout, 1, 2, false, NULL});
    return r->tl ? 0 : -1;
}

static int close_rig(void **state) {
    struct rig *r = *state;
    timeline_destroy(&r->tl);
    event_destroy(&r->e);
    stream_destroy(&r->compute);
    stream_destroy(&r->other);
    dev_close(&r->dev);
    free(r);
    return 0;
}

static int doze(void *ms) {
    usleep((unsigned)(1000 * (intptr_t)ms));
    return 0;
}

static void work(struct stream *s, int ms) { stream_host(s, "work", doze, (void *)(intptr_t)ms); }

static void finish(struct rig *r, struct time_split *t, int64_t steps) {
    stream_sync(r->compute);
    stream_sync(r->other);
    timeline_end(r->tl);
    assert_int_equal(timeline_split(r->tl, t), steps);
    assert_near(time_split_parts(t), t->total, 1e-9, "the parts");
    assert_int_equal(timeline_lost(r->tl), 0);
}

// A loop that sums up its steps by its own looks at the clock is right, however late it comes to say so.
static void test_a_step_is_as_long_as_its_loop_says(void **state) {
    struct rig *r = *state;
    struct time_split t;
    int64_t now = now_ns();
    usleep(3000);
    timeline_step_at(r->tl, 0, now);
    usleep(1000);
    timeline_step_at(r->tl, 1, now + 1000000);
    timeline_pause_at(r->tl, now + 1500000);
    usleep(2000);
    finish(r, &t, 2);
    assert_true(fabs(time_split_parts(&t) - 1.5e-3) < 1e-9);
}

// A forward pass that begins when all has been enqueued, and a transfer that begins at its end.
struct paced {
    sem_t enqueued, forward_done;
};

static int forward(void *ctx) {
    struct paced *p = ctx;
    sem_wait(&p->enqueued);
    doze((void *)(intptr_t)30);
    return sem_post(&p->forward_done);
}

static int forward_is_done(void *ctx) { return sem_wait(&((struct paced *)ctx)->forward_done); }

// Sleeping may take longer on a loaded machine, never shorter: lower bounds hold, and the parts add up.
static void test_a_stream_notes_when_it_is_busy_and_blocked(void **state) {
    struct rig *r = *state;
    struct time_split t;
    struct paced paced;
    assert_int_equal(sem_init(&paced.enqueued, 0, 0) | sem_init(&paced.forward_done, 0, 0), 0);
    assert_int_equal(timeline_watch(r->tl, r->other), 0);
    timeline_step(r->tl, 0);
    stream_phase(r->compute, PHASE_FORWARD);
    stream_host(r->compute, "work", forward, &paced);
    uint64_t moment = timeline_mark(r->tl);
    uint64_t id = timeline_ask(r->tl, &(struct transfer){TRANSFER_WEIGHTS, 1, 77});
    timeline_ready_at_mark(r->tl, id, moment);
    stream_host(r->other, "wait", forward_is_done, &paced);
    timeline_stamp(r->tl, r->other, id, TIMELINE_FIRST_BYTE);
    work(r->other, 120);
    timeline_stamp(r->tl, r->other, id, TIMELINE_DONE);
    event_record(r->e, r->other);
    assert_int_equal(timeline_ready(r->tl, id), 0);  // the moment has not passed
    timeline_wait(r->tl, r->compute, r->e, id);
    stream_phase(r->compute, PHASE_BACKWARD);
    work(r->compute, 20);
    sem_post(&paced.enqueued);
    stream_sync(r->compute);
    int64_t ready = timeline_ready(r->tl, id);
    timeline_peers_ready(r->tl, id, ready + 40000000, 1);
    timeline_pause(r->tl);
    work(r->compute, 50);  // between steps: nobody's
    finish(r, &t, 1);
    assert_true(t.forward >= 0.03 && t.backward >= 0.02);
    struct timeline_view v;
    assert_true(timeline_view(r->tl, 0, &v));
    assert_int_equal(v.transfer_count, 1);
    for (size_t i = 0; i < v.gap_count; i++) assert_int_equal(v.gaps[i].id, id);
    // The gap from the moment on: until the peers are ready it is waiting, then exposed communication. A loaded machine may keep the
    // compute stream's thread from its wait until the transfer is done.
    int64_t begin = v.gap_count && v.gaps[0].begin > ready ? v.gaps[0].begin : ready,
            split = ready + 40000000;
    int64_t end = v.gap_count ? v.gaps[v.gap_count - 1].end : begin;
    if (split > end) split = end;
    if (split < begin) split = begin;
    assert_near(t.wait, 1e-9 * (double)(split - begin), 1e-6, "wait");
    assert_near(t.comm_exposed, 1e-9 * (double)(end - split), 1e-6, "exposed");
    assert_near(timeline_gaps(r->tl)->waited[1], t.wait, 1e-9, "for rank 1");
    const struct transfer_times *x = &v.transfers[0];
    assert_true(x->asked <= x->own_ready && x->own_ready <= x->peers_ready && x->first_byte < x->done);
    assert_true(x->done - x->first_byte >= 120000000 && x->what.bytes == 77 && x->what.unit == 1);
    assert_true(v.compute_count == 2 && v.compute[0].phase == PHASE_FORWARD);
    // The moment: behind the work before it, and before what waits for it.
    assert_true(x->own_ready >= v.compute[0].begin + 30000000 && x->own_ready <= v.compute[1].begin);
    timeline_view_free(&v);
    assert_false(timeline_view(r->tl, 1, &v));
}

static void test_a_transfer_may_be_waited_for_in_the_next_step(void **state) {
    struct rig *r = *state;
    struct time_split t;
    int64_t base = now_ns();
    uint64_t ids[12];
    for (int step = 0; step < 12; step++) {
        timeline_step(r->tl, step);
        if (step > 0) {
            int64_t now = now_ns();
            timeline_blocked(r->tl, ids[step - 1], now, now + 20000000);
            usleep(20000);
            timeline_peers_ready(r->tl, ids[step - 1], now + 10000000, -1);
            timeline_done(r->tl, ids[step - 1], now + 20000000);
        }
        ids[step] = timeline_ask(r->tl, &(struct transfer){TRANSFER_GRADIENTS, 0, 1});
        timeline_own_ready(r->tl, ids[step], now_ns());
    }
    timeline_pause(r->tl);
    int64_t end = now_ns();
    finish(r, &t, 12);
    assert_near(t.wait, 0.11, 1e-6, "wait");
    assert_near(t.comm_exposed, 0.11, 1e-6, "exposed");
    assert_true(t.total >= 11 * 0.02 && t.total <= 1e-9 * (double)(end - base));
    // A step's view has the transfer that was asked for in the step before.
    struct timeline_view v;
    for (int back = 0; back < TIMELINE_KEPT; back++) {
        assert_true(timeline_view(r->tl, back, &v));
        assert_int_equal(v.step, 11 - back);
        assert_true(v.gap_count > 0);
        for (size_t i = 0; i < v.gap_count; i++) assert_int_equal(v.gaps[i].id, ids[10 - back]);
        timeline_view_free(&v);
    }
    assert_false(timeline_view(r->tl, TIMELINE_KEPT, &v));
}

static void *ask_much(void *tl) {
    for (int i = 0; i < 20000; i++) {
        uint64_t id = timeline_ask(tl, &(struct transfer){TRANSFER_CONTROL, -1, 8});
        timeline_own_ready(tl, id, now_ns());
        timeline_done(tl, id, now_ns());
        timeline_blocked(tl, id, now_ns(), now_ns() + 1000);
    }
    return NULL;
}

// More than there is room for, from several threads: ids go stale, nothing is written where it does not belong.
static void test_it_is_bounded(void **state) {
    struct rig *r = *state;
    struct time_split t;
    pthread_t threads[3];
    uint64_t old = timeline_ask(r->tl, &(struct transfer){TRANSFER_CONTROL, -1, 8});
    timeline_step(r->tl, 0);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, ask_much, r->tl);
    for (int step = 1; step < 40; step++) {
        timeline_step(r->tl, step);
        timeline_mark(r->tl);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    timeline_done(r->tl, old, 5);
    assert_int_equal(timeline_ready(r->tl, old), 0);
    finish(r, &t, 40);
}

// A step with more intervals than a stream keeps between two looks: they are counted as lost.
static void test_lost_intervals_are_counted(void **state) {
    struct rig *r = *state;
    struct time_split t;
    timeline_step(r->tl, 0);
    for (int i = 0; i < 10000; i++) timeline_mark(r->tl);
    stream_sync(r->compute);
    timeline_pause(r->tl);
    timeline_end(r->tl);
    timeline_split(r->tl, &t);
    assert_near(time_split_parts(&t), t.total, 1e-9, "the parts");
    assert_true(timeline_lost(r->tl) > 0);
}

static void test_nothing_is_recorded_without_one(void **state) {
    struct rig *r = *state;
    struct time_split t;
    timeline_step(NULL, 0);
    assert_int_equal(timeline_ask(NULL, &(struct transfer){0}), 0);
    assert_int_equal(timeline_mark(NULL), 0);
    timeline_ready_at_mark(NULL, 1, 1);
    timeline_stamp(NULL, r->compute, 1, TIMELINE_DONE);
    timeline_wait(NULL, r->compute, r->e, 1);
    timeline_blocked(NULL, 1, 0, 1);
    timeline_end(NULL);
    assert_int_equal(timeline_split(NULL, &t), 0);
}

// The other rank's report: when its last step ended, and when it knew that there was no other one, in microseconds.
static double others[2];
static int others_sum(struct topology *t, double *values, int count) {
    assert_true(t->rank == 0 && count == 2);
    values[1] = others[0];
    others[0] = others[1];
    return 0;
}

// A rank that stood still behind its last step, before it knew that there was no other, leaves no tail behind it; nor does the
// moment in which the last one learns it belong to the tail.
static void the_tail_begins_when_somebody_knows_that_no_work_is_left(void **state) {
    struct rig *r = *state;
    const struct topology_ops ops = {.sum = others_sum};
    struct topology t = {.ops = &ops, .size = 2};
    static const struct {
        double end, told, tail_s;
        int64_t batches;
    } cases[] = {{1000, 1900, 1e-4, 1}, {1000, 1100, 9e-4, 2}, {2500, 2600, 3e-4, 0}, {2150, 2160, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pace p = {0};
        struct rank_report out = {0};
        for (int step = 0; step < 3; step++)
            pace_step(&p, step, 4 * step, 1000 * (int64_t[]){500, 1500, 2000}[step], step == 1);
        others[0] = cases[i].end;
        others[1] = cases[i].told;
        const struct pace_end at = {&t, r->tl, 2000000, 2200000};
        assert_int_equal(pace_report(&p, &at, &out), 0);
        assert_true(fabs(out.tail_seconds - cases[i].tail_s) < 1e-9);
        assert_int_equal(out.tail_batches, cases[i].batches);
        assert_int_equal(out.skipped, 1);
    }
}

int main(void) {
#define RIG(f) cmocka_unit_test_setup_teardown(f, open_rig, close_rig)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gap_ends_by_one_transfer),
        cmocka_unit_test(test_where_the_peers_were_ready_decides),
        cmocka_unit_test(test_of_two_transfers_the_one_that_ends_the_gap_counts),
        cmocka_unit_test(test_blocked_while_busy_is_busy),
        cmocka_unit_test(test_reading_is_data_only_where_nothing_else_happens),
        cmocka_unit_test(test_nothing_recorded_is_the_hosts),
        RIG(test_a_step_is_as_long_as_its_loop_says),
        cmocka_unit_test(test_the_split_is_its_definition),
        cmocka_unit_test(test_an_offset_lies_within_its_error),
        RIG(test_a_stream_notes_when_it_is_busy_and_blocked),
        RIG(test_a_transfer_may_be_waited_for_in_the_next_step),
        RIG(test_it_is_bounded),
        RIG(test_lost_intervals_are_counted),
        RIG(test_nothing_is_recorded_without_one),
        RIG(the_tail_begins_when_somebody_knows_that_no_work_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
