// Workers that keep two units at a time, as state machines without sockets: whatever the network does to the messages, and however
// far a worker gets ahead within a step, the state is that of a plain trainer that sums each micro-batch over the workers and
// then over the micro-batches; no worker reads weights of another version; what is held and lent comes back; and nobody waits for a
// slower worker as long as the credits reach.
#include "ps/job/shard_sizes.h"
#include "ps/server/server_state.h"
#include "ps/worker/worker_core_state.h"
#include "shared/model/unit_schedule.h"
#include "test_ps_sim.h"

// A worker's loop, as ps/worker/unit_slots.c is called by shared/train/train.c.
struct loop {
    struct unit_schedule schedule;
    int micro, unit;
    bool backward, said;
    int in_slot[2];  // unit that was pulled last; -1: none
    int64_t pulls[TOY_UNITS], pushes[TOY_UNITS];
    int in_grad[2];  // unit that was pushed last
};

static struct loop loops[SIM_WORKERS];
static struct toy_ref ref;
static void *before[TOY_UNITS];  // ref's weights one step ago: of the step that all workers are in
static int64_t known;            // steps of ref
static int most_ahead;           // micro-batches between two workers of one step

// ---------------------------------------------------------------- the plain trainer
static void plain_step(const struct sim *s) {
    struct exact_sum sum = {{0}, 0};
    void *total[TOY_UNITS];
    const char *why = "";
    int64_t step = known++;
    for (int u = 0; u < s->l->count; u++) {
        size_t n = (size_t)s->l->units[u].n_pad;
        memcpy(before[u], ref.weight[u], n * dtype_size(s->t.dtype));
        float *all = xcalloc(n, sizeof *all);
        void *inputs[SIM_WORKERS], *of_micro = xcalloc(n, sizeof(float));
        total[u] = xcalloc(n, sizeof(float));
        for (int w = 0; w < s->t.workers; w++) inputs[w] = xcalloc(n, sizeof(float));
        for (int m = 0; m < s->t.micro; m++) {
            for (int w = 0; w < s->t.workers; w++)
                toy_grad(&s->t, s->l, u, w, step * s->t.micro + m, ref.weight[u], inputs[w]);
            toy_reduce(&s->t, of_micro, inputs, (int64_t)n);
            for (size_t i = 0; i < n; i++) {
                float x = dtype_load(s->t.dtype, of_micro, i);
                all[i] = m ? all[i] + x : x;
            }
        }
        for (size_t i = 0; i < n; i++) dtype_store(s->t.dtype, total[u], i, all[i]);
        struct sumsq_args a = {.out = &sum, .x = total[u], .n = (int64_t)n, .dt = s->t.dtype};
        cpu_ops[OP_SUMSQ](1, &a, &why);
        for (int w = 0; w < s->t.workers; w++) free(inputs[w]);
        free(of_micro);
        free(all);
    }
    struct update_scalars scalars = update_decide(&sum, toy_loss_scale(&s->t), s->t.clip);
    for (int u = 0; u < s->l->count; u++) {
        struct update_range range = {.unit = &s->l->units[u],
                                     .end = s->l->units[u].n_pad,
                                     .master = ref.master[u],
                                     .state = {ref.m[u], ref.v[u]},
                                     .weight = ref.weight[u],
                                     .grad = total[u],
                                     .dtype = s->t.dtype};
        const struct update_step update = {TOY_LR, ref.updates + 1, &scalars};
        if (!scalars.skip) optimizer_apply(&s->c.optimizer, &range, &update, 1);
        free(total[u]);
    }
    if (!scalars.skip) ref.updates++;
}

// ---------------------------------------------------------------- a worker
static bool has_landed(const struct sim_worker *x, const struct loop *p, int u) {
    return u < 0 || worker_core_has_landed(x->core, u, 0, p->pulls[u]);
}

// Pulls u unless its slot has it; false: the slot waits for another one.
static bool pull(struct sim *s, struct sim_worker *x, struct loop *p, int u) {
    enum pass pass = p->backward ? PASS_BACKWARD : PASS_FORWARD;
    if (unit_schedule_holds(&p->schedule, u, pass)) return true;
    if (!has_landed(x, p, p->in_slot[u & 1])) return false;
    worker_core_pull_unit(x->core, u, &(struct pull_info){.step = x->step}, sim_clock(s, x));
    p->pulls[u]++;
    p->in_slot[u & 1] = u;
    unit_schedule_gathered(&p->schedule, u, pass);
    return true;
}

static bool is_through(const struct sim_worker *x, const struct loop *p, int u) {
    return u < 0 || worker_core_has_freed(x->core, u, 0, p->pushes[u]);
}

static void push(struct sim *s, struct sim_worker *x, struct loop *p, int u) {
    struct push_info info = {.step = x->step,
                             .lr = TOY_LR,
                             .grad_scale = 1.0f,
                             .pulls_separately = true,
                             .batch = p->micro,
                             .ready_ns = ps_clock_ns(sim_clock(s, x))};
    memset(x->grads[u], 0, (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
    toy_grad(&s->t, s->l, u, x->end.index, x->step * s->t.micro + p->micro, x->weights[u], x->grads[u]);
    worker_core_push_unit(x->core, u, &info);
    p->pushes[u]++;
    p->in_grad[u & 1] = u;
}

static void note_ahead(const struct sim *s, const struct sim_worker *x) {
    for (int w = 0; w < s->t.workers; w++) {
        int behind = loops[x->end.index].micro - loops[w].micro;
        if (s->workers[w].step == x->step && behind > most_ahead) most_ahead = behind;
    }
}

// One turn of a step; true: it has been computed.
static bool compute(struct sim *s, struct sim_worker *x, struct loop *p) {
    int u = p->unit, way = p->backward ? -1 : 1, next = u + way;
    if (!pull(s, x, p, u) || !has_landed(x, p, u)) return false;
    if (known == x->step) plain_step(s);  // all workers have computed the step before
    if (next >= 0 && next < s->l->count) pull(s, x, p, next);
    if (p->backward && !is_through(x, p, p->in_grad[u & 1])) return false;
    size_t bytes = (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
    assert_int_equal(known, x->step + 1);
    assert_memory_equal(x->weights[u], before[u], bytes);
    if (p->backward) push(s, x, p, u);
    p->unit = next;
    if (next == s->l->count) {
        p->backward = true;
        p->unit = s->l->count - 1;
    } else if (next < 0) {
        p->backward = false;
        p->unit = 0;
        p->micro++;
        note_ahead(s, x);
    }
    return p->micro == s->t.micro;
}

static void work(struct sim *s, struct sim_worker *x) {
    const struct worker_status *now = worker_core_status(x->core);
    struct loop *p = &loops[x->end.index];
    int busy = 0;
    for (int u = 0; u < s->l->count; u++) busy += worker_core_busy(x->core, u, x->step);
    if (x->phase == SIM_LOADING && busy == 0) {
        worker_core_gather(x->core, NULL, 0);
        x->phase = SIM_BARRIER;
    } else if (x->phase == SIM_BARRIER && now->gathers_done == 1) {
        x->phase = SIM_COMPUTE;
    } else if (x->phase == SIM_COMPUTE && x->step == s->t.steps) {
        // The last weights, one unit after the other.
        int u = p->unit;
        if (u < s->l->count && pull(s, x, p, u) && has_landed(x, p, u)) {
            assert_memory_equal(x->weights[u], ref.weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
            p->unit++;
        }
        if (p->unit == s->l->count && busy == 0) x->phase = SIM_OVER;
    } else if (x->phase == SIM_COMPUTE && compute(s, x, p)) {
        sim_report(s, x);
        x->phase = SIM_CLOSING;
    } else if (x->phase == SIM_CLOSING && now->steps_done + consistency_of(&s->c).lag > x->step) {
        x->step++;
        p->micro = 0;
        unit_schedule_invalidate(&p->schedule);
        x->phase = SIM_COMPUTE;
    }
}

// A micro-batch that does not come next, and one that no step has.
static void refuses(struct sim *s) {
    int shard = s->map->parts[0].shard;
    uint64_t refused = s->shards[shard]->totals.refused;
    for (int64_t batch = 1; batch < 1000; batch *= 9) {
        struct wire_header h = {.kind = WIRE_PUSH,
                                .role = PS_WORKER,
                                .job = SIM_JOB,
                                .incarnation = sim_incarnation(PS_WORKER, 0),
                                .step = s->t.steps,
                                .lr = TOY_LR,
                                .version = server_core_version(s->shards[shard], 0),
                                .batch = batch};
        size_t bytes = (size_t)(s->map->parts[0].end) * dtype_size(s->t.dtype);
        struct ps_frame *f = sim_frame(s, xcalloc(1, bytes), bytes);
        assert_int_equal(server_core_message(s->shards[shard], &h, f, s->now), 0);
        assert_int_equal(s->shards[shard]->totals.refused, ++refused);
    }
}

// slow: this worker gets one turn in eight; -1: all get as many.
static void run(const struct toy_case *t, int drop, int repeat, int slow) {
    struct sim *s = sim_create(t);
    s->drop_percent = drop;
    s->repeat_percent = repeat;
    ref = toy_ref_start(t, s->l);
    known = 0;
    for (int u = 0; u < s->l->count; u++)
        before[u] = xcalloc((unsigned long)s->l->units[u].n_pad, sizeof(float));
    for (int w = 0; w < t->workers; w++) {
        loops[w] = (struct loop){.in_slot = {-1, -1}, .in_grad = {-1, -1}};
        unit_schedule_open(&loops[w].schedule, s->l, &(struct unit_prefetch){0});
        assert_int_equal(loops[w].schedule.slots, 2);
    }
    for (int u = 0; u < s->l->count; u++)
        worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
    for (int64_t i = 0; !sim_over(s); i++) {
        assert_true(i < 4000000);
        s->now += 0.001;
        if (s->count > 0) assert_int_equal(sim_deliver(s), 0);
        struct sim_worker *x = &s->workers[sim_draw(s, (uint64_t)t->workers)];
        if (x->end.index != slow || sim_draw(s, 8) == 0) work(s, x);
        assert_int_equal(sim_tick_worker(s, x), 0);
        assert_int_equal(sim_tick_shard(s, (int)sim_draw(s, (uint64_t)s->map->shards)), 0);
        assert_int_equal(sim_tick_scheduler(s), 0);
    }
    assert_int_equal(known, t->steps);
    for (int k = 0; k < s->map->count; k++) {
        const struct partition *p = &s->map->parts[k];
        size_t bytes = (size_t)(p->end - p->begin) * sizeof(float);
        assert_memory_equal(s->buffers[k].master, ref.master[p->unit] + p->begin, bytes);
        assert_memory_equal(s->buffers[k].state[0], ref.m[p->unit] + p->begin, bytes);
        assert_memory_equal(s->buffers[k].state[1], ref.v[p->unit] + p->begin, bytes);
        assert_int_equal(server_core_version(s->shards[p->shard], k), ref.updates);
    }
    for (int g = 0; g < s->map->shards; g++) assert_int_equal(s->shards[g]->totals.held_bytes, 0);
    refuses(s);
    for (int w = 0; w < t->workers; w++) {
        const struct credits *c = &s->workers[w].core->credits;
        // The last words of what was held may still be on their way.
        assert_true(c->taken == c->held);
        unit_schedule_close(&loops[w].schedule);
    }
    for (int u = 0; u < s->l->count; u++) free(before[u]);
    toy_ref_free(&ref);
    sim_destroy(s);
}

static struct toy_case units_case(uint64_t seed) {
    static const enum toy_share shares[] = {SHARE_NOTHING, SHARE_WRITTEN, SHARE_MIXED};
    struct toy_case t = {.dtype = seed % 4 == 0   ? DT_F16
                                  : seed % 4 == 1 ? DT_BF16
                                                  : DT_F32,
                         .consistency = "sync",
                         .workers = 1 + (int)(seed / 2 % 4),
                         .servers = 1 + (int)(seed / 2 % 3),
                         .threads = 1 + (int)(seed / 3 % 2),
                         .steps = 3,
                         .clip = seed % 2 ? 0.5f : 0.0f,
                         .overflow_step = -1,
                         .seed = seed,
                         .micro = 1 + (int)(seed % 4),
                         .share = shares[seed % 3]};
    t.overflow_step = t.dtype == DT_F16 ? t.micro : -1;  // in the second step
    t.beside = seed / 5 % 2;
    if (t.beside) t.servers = t.workers;
    return t;
}

static void test_equals_plain(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct toy_case t = units_case(seed);
        bool quiet = seed % 5 == 0;
        run(&t, quiet ? 0 : (int)(seed / 5 % 4) * 8, quiet ? 0 : (int)(seed / 7 % 5) * 6,
            (int)(seed % 5) - 1);
    }
}

// With credits for a whole step a worker computes all its micro-batches while another one is in its first; with few it
// waits, and the bits are the same.
static void test_nobody_waits(void **state) {
    (void)state;
    for (int slow = 0; slow < 3; slow++)
        for (int few = 0; few < 2; few++) {
            struct toy_case t = units_case(7);
            t.workers = 3;
            t.servers = 2;
            t.beside = false;
            t.micro = 4;
            t.share = slow == 1 ? SHARE_WRITTEN : SHARE_NOTHING;
            t.credit_bytes = few ? 2048 : 1 << 20;
            most_ahead = 0;
            run(&t, 8, 6, slow);
            if (few)
                assert_true(most_ahead <= 2);
            else
                assert_true(most_ahead >= 3);
        }
}

// Beside workers, server r has the r-th of N equal parts of each unit, and the prediction knows it without the keys.
static void test_parts(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct toy_case t = units_case(seed);
        t.beside = true;
        t.servers = t.workers;
        t.partition_bytes = 512 << seed % 3;
        struct layout *l = toy_layout(t.workers, 80);
        struct config c = toy_config(&t);
        struct shard_map *m = shard_map_of(&c, l);
        struct shard_sizes *sizes = shard_sizes_of(&c, l);
        for (int u = 0; u < l->count; u++) {
            int64_t at = 0, part = l->units[u].n_pad / t.workers;
            for (int k = m->first[u]; k < m->first[u + 1]; k++) {
                const struct partition *p = &m->parts[k];
                int server = p->shard / t.threads;
                assert_true(p->begin == at && p->end > at && p->begin % SUMSQ_BLOCK == 0);
                assert_true(p->begin >= server * part && p->end <= (server + 1) * part);
                at = p->end;
            }
            assert_int_equal(at, l->units[u].n_pad);
        }
        for (int r = 0; r < t.workers; r++) {
            int64_t keys[16], all = 0, own = 0;
            assert_int_equal(shard_sizes_of_server(sizes, r, keys), l->padded / t.workers);
            assert_int_equal(shard_map_server_elements(m, r), l->padded / t.workers);
            for (int i = 0; i < sizes->classes; i++) all += keys[i];
            for (int g = 0; g < t.threads; g++) own += m->shard_keys[r * t.threads + g];
            assert_int_equal(all, own);
        }
        shard_sizes_destroy(&sizes);
        shard_map_destroy(&m);
        layout_destroy(&l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_equals_plain),
                                       cmocka_unit_test(test_nobody_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
