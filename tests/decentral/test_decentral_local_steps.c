// Local steps around zero:0, zero:1 and zero:2 against a plain loop over the ranks' models: bits of each rank's own masters behind
// each step and of the anchor behind each round, for each kind of outer optimizer; memory and bytes as predicted; the end of a
// round alone is where a run can end.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/hub.h"
#include "decentral/ring.h"
#include "decentral/zero/zero.h"
#include "shared/core/error.h"
#include "shared/launch/local_steps.h"
#include "shared/state/part_file.h"
#include "tests/decentral/own_cases.h"

#define RANKS 3
#define STEPS 6

// ---------------------------------------------------------------- the plain loop
struct plain {
    struct layout *l;
    float *x[STEPS + 1][RANKS][UNITS];  // own masters behind so many steps, before the next anchor is taken
    float *anchor[STEPS + 1][UNITS];    // masters of all behind so many steps; of rounds alone
};

static float *zeros(const struct layout *l, int u) {
    return calloc((size_t)l->units[u].n_pad, sizeof(float));
}
static float rounded(enum dtype dt, float x) {
    uint32_t bits = 0;
    dtype_store(dt, &bits, 0, x);
    return dtype_load(dt, &bits, 0);
}

// The outer step: SGD as torch has it, of the sum in rank order, which is rounded once.
static void plain_outer(const struct config *c, struct plain *p, int step, float *const *momentum) {
    const struct local_steps_config *o = &c->local_steps;
    int n = c->workers;
    float lr = o->outer == OUTER_ELASTIC ? o->lr : o->lr / (float)n;
    for (int u = 0; u < UNITS; u++)
        for (int64_t i = 0; i < p->l->units[u].n_pad; i++) {
            float sum = 0, *a = &p->anchor[step][u][i], seen = rounded(c->dtype, *a);
            for (int r = 0; r < n; r++) {
                float way = seen - p->x[step][r][u][i];
                sum += rounded(c->dtype, way);
                if (o->outer == OUTER_ELASTIC) p->x[step][r][u][i] = fmaf(o->lr, way, p->x[step][r][u][i]);
            }
            float g = rounded(c->dtype, sum), *m = &momentum[u][i];
            if (o->momentum > 0) *m = fmaf(o->momentum, *m, g);
            if (o->outer == OUTER_MOMENTUM) g = *m;
            if (o->outer == OUTER_NESTEROV) g = fmaf(o->momentum, *m, g);
            *a = fmaf(-lr, g, *a);
        }
}

static struct plain *plain_run(const struct config *c) {
    struct plain *p = calloc(1, sizeof *p);
    float *state[RANKS][UNITS][2], *momentum[UNITS];
    int n = c->workers, every = (int)c->local_steps.steps;
    p->l = zero_case_layout(n, false);
    for (int u = 0; u < UNITS; u++) {
        momentum[u] = zeros(p->l, u);
        for (int r = 0; r < n; r++) state[r][u][0] = zeros(p->l, u), state[r][u][1] = zeros(p->l, u);
        for (int step = 0; step <= STEPS; step++) {
            p->anchor[step][u] = zeros(p->l, u);
            for (int r = 0; r < n; r++) p->x[step][r][u] = zeros(p->l, u);
        }
        zero_case_init(&p->l->units[u], u, p->anchor[0][u]);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int u = 0; u < UNITS; u++) {
            size_t bytes = (size_t)p->l->units[u].n_pad * sizeof(float);
            memcpy(p->anchor[step + 1][u], p->anchor[step][u], bytes);
            for (int r = 0; r < n; r++) {
                memcpy(p->x[step + 1][r][u], p->x[step][r][u], bytes);
                bool takes = step % every == 0 && (step == 0 || c->local_steps.outer != OUTER_ELASTIC);
                for (int64_t i = 0; takes && i < p->l->units[u].n_pad; i++)
                    p->x[step + 1][r][u][i] = rounded(c->dtype, p->anchor[step][u][i]);
            }
        }
        for (int r = 0; r < n; r++) own_update(c, p->l, r, step, p->x[step + 1][r], state[r]);
        if ((step + 1) % every == 0) plain_outer(c, p, step + 1, momentum);
    }
    for (int u = 0; u < UNITS; u++) {
        free(momentum[u]);
        for (int r = 0; r < n; r++) free(state[r][u][0]), free(state[r][u][1]);
    }
    return p;
}

static void plain_free(struct plain *p, int n) {
    for (int step = 0; step <= STEPS; step++)
        for (int u = 0; u < UNITS; u++) {
            for (int r = 0; r < n; r++) free(p->x[step][r][u]);
            free(p->anchor[step][u]);
        }
    layout_destroy(&p->l);
    free(p);
}

// ---------------------------------------------------------------- a rank
struct rank_case {
    const struct config *config;
    const struct plain *plain;
    int asked_at;     // the last rank is asked to leave in this step; -1: never
    int left[RANKS];  // the step behind which each rank left
};

static int check_own(struct topology *t, const struct plain *p, int step) {
    struct state_range r;
    int seen = 0, held = 0;
    for (int i = 0; !topology_state(t, i, &r); i++) {
        held += r.kind >= 0;
        if (r.kind != STATE_OWN) continue;
        seen++;
        if (memcmp(r.data, p->x[step][t->rank][r.unit], (size_t)(r.end - r.begin) * sizeof(float)) != 0)
            return (fail)("rank %d, step %d, unit %d: own masters differ", t->rank, step, r.unit);
    }
    return seen == UNITS && held ? 0 : (fail)("%d units of own masters, %d ranges of all", seen, held);
}

static int check_anchor(struct topology *t, const struct plain *p, int step) {
    for (int u = 0; u < UNITS; u++) {
        struct unit_view v;
        if (topology_acquire(t, u, PASS_EVAL, &v) || stream_sync(t->compute)) return -1;
        for (int64_t i = 0; i < t->layout->units[u].n_pad; i++)
            if (dtype_load(t->dtype, v.weights, i) != rounded(t->dtype, p->anchor[step][u][i]))
                return (fail)("rank %d, step %d, unit %d, element %d: the anchor is %g, not %g", t->rank,
                              step, u, (int)i, (double)dtype_load(t->dtype, v.weights, i),
                              (double)p->anchor[step][u][i]);
        if (topology_release(t, u, PASS_EVAL)) return -1;
    }
    return 0;
}

static int check_counts(struct topology *t) {
    struct mem_usage m;
    dev_usage(t->dev, &m);
    for (int k = 0; k < MEM_CLASSES; k++)
        if (m.peak_bytes[k] != t->memory.predicted_bytes[k])
            return (fail)("%s: %zu bytes, predicted %zu", mem_class_name((enum mem_class)k), m.peak_bytes[k],
                          t->memory.predicted_bytes[k]);
    // A step's are a round's by its steps, whole bytes.
    uint64_t sent = atomic_load(&t->wire.payload_sent) / STEPS, want = t->wire_predicted.sent_per_step;
    return sent == want ? 0
                        : (fail)("%llu bytes, not %llu", (unsigned long long)sent, (unsigned long long)want);
}

static struct topology *create(const struct config *c, const struct layout *l,
                               const struct collective_source *s, struct device *dev,
                               struct stream *compute) {
    struct config in = local_steps_inner(c);
    in.deadline_ms = 20000;
    struct zero_options z = {.config = &in, .layout = l, .dev = dev, .compute = compute, .source = s};
    return local_steps_around(c, zero_create(&z));
}

static int train_rank(void *ctx, struct hub *hub, int rank) {
    struct rank_case *k = ctx;
    const struct config *c = k->config;
    struct layout *l = zero_case_layout(c->workers, false);
    struct collective_source source = {&collective_threads_kind, hub, rank, c->workers, false};
    struct device *dev = NULL;
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, &dev))
        return -1;
    struct stream *compute = stream_create(dev, "compute");
    struct topology *t = create(c, l, &source, dev, compute);
    int rc = t ? 0 : -1, step = 0;
    double loss = 1;
    for (int u = 0; u < UNITS && !rc; u++) rc = topology_load_unit(t, u, k->plain->anchor[0][u]);
    if (t) t->plan.mean = c->workers;
    for (bool leaves = false; step < STEPS && !rc && !leaves; step++) {
        struct step_input in = {.step = step,
                                .updates = step,
                                .lr = 0.01f,
                                .loss_scale = 1,
                                .clip = c->clip,
                                .loss_sum = &loss,
                                .loss_tokens = c->workers,
                                .stop = rank == c->workers - 1 && step == k->asked_at};
        struct step_stats out;
        rc = own_step(t, c, &in, &out);
        bool whole = (step + 1) % c->local_steps.steps == 0;
        if (!rc && (t->plan.not_resumable == whole || (out.stop && !whole)))
            rc = (fail)("step %d: a round's end is another", step);
        if (!rc && out.loss != 1) rc = (fail)("the loss is %g, the rank's own is 1", out.loss);
        if (!rc) rc = check_own(t, k->plain, step + 1);
        if (!rc && whole) rc = check_anchor(t, k->plain, step + 1);
        leaves = out.stop;
        k->left[rank] = step;
    }
    if (!rc) rc = topology_finish(t);
    if (!rc && step == STEPS) rc = check_counts(t);
    topology_destroy(&t);
    stream_destroy(&compute);
    dev_close(&dev);
    layout_destroy(&l);
    return rc;
}

static struct config config_of(int stage, int n, enum dtype dt, int every, enum outer_kind outer) {
    const struct optimizer *sgd = optimizer_find("SGD");
    float lr[] = {1, 0.5f, 0.7f, 0.25f}, momentum = outer_rows[outer].momentum;
    struct config c = {
        .row = &topology_zero,
        .variant = stage,
        .workers = n,
        .device = DEVICE_CPU,
        .dtype = dt,
        .optimizer = zero_case_optimizer(),
        .clip = 0.75f,
        .micro_batch = 1,
        .train_batch = n,
        .accumulation = 1,
        .steps = STEPS,
        .local_steps = {.steps = every, .outer = outer, .lr = lr[outer], .momentum = momentum}};
    c.local_steps.optimizer = (struct optimizer_config){.row = momentum > 0 ? sgd->moving : sgd,
                                                        .lr = lr[outer],
                                                        .momentum = momentum,
                                                        .nesterov = outer == OUTER_NESTEROV};
    return c;
}

static void train(struct config c, int asked_at, int left) {
    struct rank_case k = {.config = &c, .plain = plain_run(&c), .asked_at = asked_at};
    if (hub_run(c.workers, "--workers", train_rank, &k))
        fail_msg("zero:%d, %d ranks, %s, %d steps, outer %d: %s", c.variant, c.workers, dtype_name(c.dtype),
                 (int)c.local_steps.steps, c.local_steps.outer, error_last());
    for (int r = 0; r < c.workers; r++) assert_int_equal(k.left[r], left);
    plain_free((struct plain *)(uintptr_t)k.plain, c.workers);
}

static void test_equals_the_plain_loop(void **state) {
    (void)state;
    for (int outer = OUTER_MEAN; outer <= OUTER_ELASTIC; outer++)
        for (int n = 1; n <= RANKS; n++)
            for (int every = 1; every <= 3; every++)
                train(config_of(0, n, every == 2 ? DT_BF16 : DT_F32, every, (enum outer_kind)outer), -1,
                      STEPS - 1);
}

static void test_other_stages(void **state) {
    (void)state;
    for (int stage = 1; stage <= 2; stage++)
        train(config_of(stage, 3, DT_BF16, 2, OUTER_NESTEROV), -1, STEPS - 1);
}

static void test_all_leave_behind_a_round(void **state) {
    (void)state;
    train(config_of(0, 3, DT_F32, 3, OUTER_MEAN), 0, 2);
    train(config_of(0, 2, DT_F32, 2, OUTER_MEAN), 3, 3);
}

// One rank, whose steps are plain SGD, and lr 1: what a round gives back is where the rank is, but for the rounding of a - x.
static void test_one_rank_follows_itself(void **state) {
    (void)state;
    struct config c = config_of(0, 1, DT_F32, 1, OUTER_MEAN);
    struct plain *p = plain_run(&c);
    for (int step = 1; step <= STEPS; step++)
        for (int u = 0; u < UNITS; u++)
            for (int64_t i = 0; i < p->l->units[u].n_pad; i++) {
                float x = p->x[step][0][u][i], a = p->anchor[step][u][i], from = p->anchor[step - 1][u][i];
                assert_true(fabsf(x - a) <= 1.2e-7f * fmaxf(fabsf(from), fabsf(x)));
            }
    plain_free(p, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_plain_loop),
        cmocka_unit_test(test_other_stages),
        cmocka_unit_test(test_all_leave_behind_a_round),
        cmocka_unit_test(test_one_rank_follows_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
