// Gossip against a plain loop over the ranks' models: bits of weights, masters, means, the distance from the mean; bytes and
// memory as predicted; the step behind which all leave.
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
#include "decentral/ranks.h"
#include "decentral/ring.h"
#include "shared/core/error.h"
#include "shared/state/part_file.h"
#include "tests/decentral/own_cases.h"

#define RANKS 5
#define STEPS 5

// ---------------------------------------------------------------- the plain loop
struct plain {
    struct layout *l;
    float *x[STEPS + 1][RANKS][UNITS];  // masters before step i
    double distance[RANKS];             // behind the last one
    float *mean[STEPS + 1][UNITS];
};

// Ranks that a rank hears, itself included, rising: written out anew.
static int hears(enum gossip_graph graph, int step, int n, int i, int out[RANKS]) {
    bool in[RANKS] = {0};
    int count = 0, k = 0;
    in[i] = true;
    while (1 << k < n) k++;
    if (n > 1 && graph == GOSSIP_RING) in[(i + 1) % n] = in[(i + n - 1) % n] = true;
    if (n > 1 && graph == GOSSIP_EXPONENTIAL) in[(i + n - (1 << step % k)) % n] = true;
    for (int j = 0; j < k && graph == GOSSIP_STATIC_EXPONENTIAL; j++) in[(i + n - (1 << j)) % n] = true;
    for (int j = 0; j < n; j++)
        if (in[j]) out[count++] = j;
    return count;
}

static struct plain *plain_run(const struct config *c) {
    struct plain *p = calloc(1, sizeof *p);
    float *state[RANKS][UNITS][2];
    int n = c->workers;
    p->l = zero_case_layout(n, false);
    for (int step = 0; step <= STEPS; step++)
        for (int u = 0; u < UNITS; u++)
            for (int r = 0; r < n; r++) {
                size_t bytes = (size_t)p->l->units[u].n_pad * sizeof(float);
                p->x[step][r][u] = calloc(1, bytes);
                if (r == 0) p->mean[step][u] = calloc(1, bytes);
                for (int k = 0; k < 2 && step == 0; k++) state[r][u][k] = calloc(1, bytes);
                if (step == 0) zero_case_init(&p->l->units[u], u, p->x[0][r][u]);
            }
    for (int step = 0; step < STEPS; step++) {
        for (int r = 0; r < n; r++)
            for (int u = 0; u < UNITS; u++)
                memcpy(p->x[step + 1][r][u], p->x[step][r][u], (size_t)p->l->units[u].n_pad * sizeof(float));
        for (int r = 0; r < n; r++) own_update(c, p->l, r, step, p->x[step + 1][r], state[r]);
        for (int r = 0; r < n && n > 1; r++) {
            int from[RANKS], heard = hears(c->gossip_graph, step, n, r, from);
            for (int u = 0; u < UNITS; u++)
                for (int64_t i = 0; i < p->l->units[u].n_pad; i++) {
                    float mixed = 0;
                    for (int k = 0; k < heard; k++) mixed += p->x[step][from[k]][u][i];
                    p->x[step + 1][r][u][i] += mixed * (1.0f / (float)heard) - p->x[step][r][u][i];
                }
        }
    }
    for (int step = 0; step <= STEPS; step++)
        for (int u = 0; u < UNITS; u++)
            for (int64_t i = 0; i < p->l->units[u].n_pad; i++) {
                float sum = 0;
                for (int r = 0; r < n; r++) sum += p->x[step][r][u][i];
                p->mean[step][u][i] = sum / (float)n;
                for (int r = 0; r < n && step == STEPS; r++) {
                    double d = (double)p->x[step][r][u][i] - (double)p->mean[step][u][i];
                    p->distance[r] += d * d;
                }
            }
    for (int r = 0; r < n; r++)
        for (int u = 0; u < UNITS; u++)
            for (int k = 0; k < 2; k++) free(state[r][u][k]);
    return p;
}

static void plain_free(struct plain *p, int n) {
    for (int step = 0; step <= STEPS; step++)
        for (int u = 0; u < UNITS; u++) {
            for (int r = 0; r < n; r++) free(p->x[step][r][u]);
            free(p->mean[step][u]);
        }
    layout_destroy(&p->l);
    free(p);
}

// ---------------------------------------------------------------- a rank
struct rank_case {
    const struct config *config;
    const struct plain *plain;
    struct hub *hub;
    int asks, asked_at;  // the rank that is asked to leave, and in which step; -1: none
    int left[RANKS];     // the step behind which each rank left
};

// Own masters, and this rank's shard of their mean, to the bit.
static int check_state(struct topology *t, const struct plain *p, int step) {
    struct state_range r[256];
    int count = 0, seen = 0;
    while (!topology_state(t, count, &r[count])) count++;
    if (stream_sync(t->compute)) return -1;
    for (int i = 0; i < count; i++) {
        const float *want = r[i].kind == STATE_OWN      ? p->x[step][t->rank][r[i].unit]
                            : r[i].kind == STATE_MASTER ? p->mean[step][r[i].unit]
                                                        : NULL;
        if (!want) continue;
        seen++;
        if (memcmp(r[i].data, want + r[i].begin, (size_t)(r[i].end - r[i].begin) * sizeof(float)) != 0)
            return (fail)("rank %d, step %d, unit %d: kind %d differs", t->rank, step, r[i].unit, r[i].kind);
    }
    return seen == 2 * UNITS && count == 2 * 3 * UNITS ? 0 : (fail)("%d ranges, %d of masters", count, seen);
}

static int check_last(struct topology *t, const struct plain *p) {
    for (int u = 0; u < UNITS; u++) {
        struct unit_view v;
        if (topology_acquire(t, u, PASS_EVAL, &v)) return -1;
        for (int64_t i = 0; i < t->layout->units[u].n_pad; i++) {
            uint32_t want = 0, got = 0;
            dtype_store(t->dtype, &want, 0, p->mean[STEPS][u][i]);
            memcpy(&got, (const char *)v.weights + (size_t)i * dtype_size(t->dtype), dtype_size(t->dtype));
            if (want != got) return (fail)("rank %d, unit %d: the mean differs", t->rank, u);
        }
        if (topology_release(t, u, PASS_EVAL)) return -1;
    }
    double want = p->distance[t->rank];
    if (fabs(t->consensus_distance - want) > 1e-12 * want)
        return (fail)("rank %d: distance %g, not %g", t->rank, t->consensus_distance, want);
    return 0;
}

static int check_counts(struct topology *t, int steps) {
    struct mem_usage m;
    dev_usage(t->dev, &m);
    for (int k = 0; k < MEM_CLASSES; k++)
        if (m.peak_bytes[k] != t->memory.predicted_bytes[k])
            return (fail)("%s: %zu bytes, predicted %zu", mem_class_name((enum mem_class)k), m.peak_bytes[k],
                          t->memory.predicted_bytes[k]);
    uint64_t sent = atomic_load(&t->wire.payload_sent), got = atomic_load(&t->wire.payload_received);
    uint64_t want = t->wire_predicted.sent_per_step * (uint64_t)steps;
    return sent == want && got == want ? 0
                                       : (fail)("%llu and %llu bytes, not %llu", (unsigned long long)sent,
                                                (unsigned long long)got, (unsigned long long)want);
}

static int train_rank(void *ctx, struct hub *hub, int rank) {
    struct rank_case *k = ctx;
    const struct config *c = k->config;
    struct layout *l = zero_case_layout(c->workers, false);
    struct job job = {.config = c, .layout = l};
    struct collective_source source = {&collective_threads_kind, hub, rank, c->workers, false};
    struct device *dev = NULL;
    struct device_options d = {.threads = 1};
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &d, &dev)) return -1;
    struct stream *compute = stream_create(dev, "compute");
    struct topology *t =
        gossip_create(&(struct ring_rank){.job = &job, .source = &source, .dev = dev, .compute = compute});
    int rc = t ? 0 : -1, step = 0;
    double loss = 1;
    for (int u = 0; u < UNITS && !rc; u++) rc = topology_load_unit(t, u, k->plain->x[0][rank][u]);
    if (t) t->plan.mean = c->workers;
    for (bool leaves = false; step < STEPS && !rc && !leaves; step++) {
        struct step_input in = {.step = step,
                                .updates = step,
                                .lr = 0.01f,
                                .loss_scale = 1,
                                .clip = c->clip,
                                .loss_sum = &loss,
                                .loss_tokens = c->workers,
                                .stop = rank == k->asks && step >= k->asked_at};
        struct step_stats out;
        rc = own_step(t, c, &in, &out);
        if (!rc && out.loss != 1) rc = (fail)("the loss is %g, the rank's own is 1", out.loss);
        if (!rc) rc = check_state(t, k->plain, step + 1);
        leaves = out.stop;
        k->left[rank] = step;
    }
    if (!rc) rc = topology_finish(t);
    if (!rc && step == STEPS) rc = check_counts(t, step);
    if (!rc && step == STEPS) rc = check_last(t, k->plain);
    topology_destroy(&t);
    stream_destroy(&compute);
    dev_close(&dev);
    layout_destroy(&l);
    return rc;
}

static struct config config_of(int n, enum dtype dt, enum gossip_graph graph) {
    return (struct config){.workers = n,
                           .device = DEVICE_CPU,
                           .dtype = dt,
                           .optimizer = zero_case_optimizer(),
                           .clip = 0.75f,
                           .accumulation = 1,
                           .deadline_ms = 20000,
                           .gossip_graph = graph,
                           .recovery = {.checkpoint_every = 1}};
}

static void test_equals_the_plain_loop(void **state) {
    (void)state;
    for (int graph = GOSSIP_RING; graph < GOSSIP_GRAPHS; graph++)
        for (int n = 1; n <= RANKS; n++)
            for (int dt = DT_F32; dt <= (n == 3 ? DT_BF16 : DT_F32); dt++) {
                struct config c = config_of(n, (enum dtype)dt, (enum gossip_graph)graph);
                struct rank_case k = {.config = &c, .plain = plain_run(&c), .asks = -1};
                if (hub_run(n, "--workers", train_rank, &k))
                    fail_msg("%s, %d ranks, %s: %s", gossip_graphs[graph], n, dtype_name((enum dtype)dt),
                             error_last());
                plain_free((struct plain *)(uintptr_t)k.plain, n);
            }
}

// Complete averaging: behind log2 N steps of the exponential graph, and behind one of two ranks, what the ranks began with
// counts the same in all.
static void test_the_exponential_graph_averages(void **state) {
    (void)state;
    double x[4] = {1, 2, 4, 9}, y[4];
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 4; i++) {
            int from[RANKS], heard = hears(GOSSIP_EXPONENTIAL, step, 4, i, from);
            y[i] = 0;
            for (int k = 0; k < heard; k++) y[i] += x[from[k]] / heard;
        }
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < 4; i++) assert_true(x[i] == 4);
}

static void test_all_leave_behind_one_step(void **state) {
    (void)state;
    for (int graph = GOSSIP_RING; graph < GOSSIP_GRAPHS; graph++)
        for (int n = 1; n <= RANKS; n += 2) {
            struct config c = config_of(n, DT_F32, (enum gossip_graph)graph);
            struct rank_case k = {.config = &c, .plain = plain_run(&c), .asks = n - 1, .asked_at = 1};
            if (hub_run(n, "--workers", train_rank, &k)) fail_msg("%d ranks: %s", n, error_last());
            for (int r = 0; r < n; r++) {
                assert_int_equal(k.left[r], k.left[0]);
                assert_true(k.left[r] >= 1 && k.left[r] <= 1 + (n + 1) / 2 && k.left[r] < STEPS);
            }
            plain_free((struct plain *)(uintptr_t)k.plain, n);
        }
}

static void refused(struct config c, const char *part) {
    error_quiet(QUIET_ALL);
    assert_int_equal(topology_gossip.check(&c), -1);
    error_quiet(QUIET_NOT);
    if (!strstr(error_last(), part)) fail_msg("\"%s\" does not mention \"%s\"", error_last(), part);
}

static void test_refusals(void **state) {
    (void)state;
    struct config c = config_of(2, DT_F32, GOSSIP_RING), x;
    assert_int_equal(topology_gossip.check(&c), 0);
    x = c, x.dtype = DT_F16;
    refused(x, "use --dtype bf16 or fp32");
    x = c, x.device = DEVICE_CUDA;
    refused(x, "use --device cpu");
    x = c, x.eval_every_seconds = 1;
    refused(x, "use eval_every");
    x = c, x.optimizer.row = optimizer_find("OneBitAdam");
    refused(x, "use Adam");
    x = c, x.documents = DOCUMENTS_WHOLE;
    refused(x, "use --documents packed");
    x = c, x.reduce_native = true;
    refused(x, "leave \"reduce\" out");
    x = c, x.no_overlap = true;
    refused(x, "overlap_comm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_plain_loop),
        cmocka_unit_test(test_the_exponential_graph_averages),
        cmocka_unit_test(test_all_leave_behind_one_step),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
