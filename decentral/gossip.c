// Gossip: decentralized parallel SGD (D-PSGD, Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized
// Algorithms?", algorithm 1). Each rank trains a model of its own on its own slice of the batch, and mixes it with its
// neighbours' models. While the gradient is computed on the weights x of step t, the neighbours' weights of t arrive:
//
//     rank i     x_i(t+1) = sum over j of W_ij x_j(t)  -  update of (x_i(t), gradient of i's own samples)
//
//     compute    | forward, backward of t | update | + delta |    the local topology updates its fp32 masters
//     stream     | x_i <-> x_j            | delta = sum W_ij x_j - x_i
//
// W gives a rank and each of its n neighbours, the ranks that it receives from, the same weight, 1 / (1 + n). Each graph
// of "gossip.graph" is a row of `graphs`; K is the least number with 2^K >= N:
//
//     ring                from both neighbours, i - 1 and i + 1 (with two ranks: from the other). Two models per step
//     exponential         one-peer exponential (Ying et al. 2021, "Exponential Graph is Provably Efficient for
//                         Decentralized Deep Training", section 4): in step t from i - 2^k, k = t modulo K. One model
//                         per step. If N is a power of two, K steps without updates turn all models into their mean
//     static_exponential  the same paper, section 3: in each step from i - 1, i - 2, i - 4, .. i - 2^(K-1). K models per step
//
// A rank waits for no ranks except these. One number is sent with the weights: the last step, after which all ranks
// stop. A rank that is asked to stop sets it so many steps ahead that the number reaches all ranks in time.
//
// Weights         A rank computes on its own weights. The run's results are means over the ranks, in fp32 in rank
//                 order: the last weights and their hash, snapshots, and the masters and moments of a checkpoint, from
//                 which another topology can start (--resume-weights-only). A checkpoint also has each rank's own
//                 masters, moments and number of updates, from which the same number of ranks continues with the same
//                 bits. loss and grad_norm of a step are rank 0's own.
// Order           Sums are in rank order. Along the cycle i, i + distance, i + 2 distance, .. every other rank sends first,
//                 so no cycle of ranks deadlocks.
// Time            Waiting for a neighbour counts as exposed communication: neighbours do not report their ready times.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "decentral/ranks.h"
#include "decentral/ring.h"
#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/launch/local.h"
#include "shared/model/step_tasks.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/part_file.h"
#include "shared/time/timeline.h"

// The most neighbours of a rank in a step: static_exponential has 31 with 2^31 ranks.
#define NEIGHBOURS_MAX 31
#define KINDS          (1 + OPTIMIZER_STATES_MAX)
// The means per unit that may be enqueued together: of the last weights, of a snapshot, of a checkpoint's kinds.
enum { MEAN_LAST, MEAN_SNAPSHOT, MEAN_CHECKPOINT, MEANS = MEAN_CHECKPOINT + KINDS };

// ---------------------------------------------------------------- the graphs
static int log2_up(int n) {
    int k = 0;
    while (1LL << k < n) k++;
    return k;
}

static int ring_distances(int64_t step, int size, int distance[NEIGHBOURS_MAX]) {
    (void)step;
    distance[0] = 1;
    distance[1] = size - 1;
    return size > 2 ? 2 : 1;
}

static int exponential_distances(int64_t step, int size, int distance[NEIGHBOURS_MAX]) {
    distance[0] = 1 << step % log2_up(size);
    return 1;
}

static int static_exponential_distances(int64_t step, int size, int distance[NEIGHBOURS_MAX]) {
    int count = log2_up(size);
    (void)step;
    for (int k = 0; k < count; k++) distance[k] = 1 << k;
    return count;
}

// A row per enum gossip_graph. Weights of the mean, memory, bytes and messages follow from the distances.
#define HOW(neighbours)                                                                                      \
    "There is no server, and nothing is added over all ranks. Each rank trains a whole model of its "        \
    "own on its slice of the batch. In every step it takes the mean of its weights and those of " neighbours \
    ", and adds its own update. The run's weights are the mean over all ranks."
static const struct graph {
    // size > 1. distance receives the distances of a step: from 1 to size - 1, no two the same. Rank i sends to rank
    // i + distance, and receives from i - distance, modulo size. Returns their number, which depends only on size.
    // A number that ranks pass on in each step must reach all of them within (size + 1) / 2 steps (reach_of).
    int (*distances)(int64_t step, int size, int distance[NEIGHBOURS_MAX]);
    const char *how;  // summary.json, "explained"
} graphs[GOSSIP_GRAPHS] = {
    [GOSSIP_RING] = {ring_distances, HOW("both neighbours on a ring")},
    [GOSSIP_EXPONENTIAL] = {exponential_distances,
                            HOW("one other rank, which is 1, 2, 4, .. places away in turn")},
    [GOSSIP_STATIC_EXPONENTIAL] = {static_exponential_distances,
                                   HOW("the ranks that are 1, 2, 4, .. places away")},
};

// Returns the number of distances.
static int distances_of(enum gossip_graph graph, int64_t step, int size, int distance[NEIGHBOURS_MAX]) {
    int count = size > 1 ? graphs[graph].distances(step, size, distance) : 0;
    for (int i = 0; i < count; i++) {
        assert(distance[i] > 0 && distance[i] < size && "a graph's distance is from 1 to size - 1");
        for (int k = 0; k < i; k++) assert(distance[k] != distance[i] && "a graph's distances differ");
    }
    return count;
}

static int neighbours_of(const struct config *c) {
    int distance[NEIGHBOURS_MAX];
    return distances_of(c->gossip_graph, 0, c->workers, distance);
}

// Returns whether a rank's position on its cycle, counted from the cycle's lowest rank, is even.
static bool sends_first(int rank, int distance, int size) {
    int lowest = rank, position = 0;
    for (int at = (rank + distance) % size; at != rank; at = (at + distance) % size)
        if (at < lowest) lowest = at;
    for (int at = lowest; at != rank; at = (at + distance) % size) position++;
    return position % 2 == 0;
}

// Returns how many steps a number needs at most to reach all ranks, in any of the graphs.
static int reach_of(int size) { return size > 1 ? (size + 1) / 2 : 0; }

// ---------------------------------------------------------------- a rank
struct gossip {
    struct topology base;
    struct topology *local;  // this rank's model and its update
    enum gossip_graph graph;
    struct arena arena;
    struct collective *weights, *control;
    struct stream *stream;          // the stream of the exchange
    struct event *updated, *mixed;  // the masters may be sent; the deltas are complete
    struct update_scalars *scalars;
    float **delta;                              // (units)(n_pad) sum W x - own
    float *received[NEIGHBOURS_MAX];            // (largest n_pad) a neighbour's masters of one unit, each
    const void *(*inputs)[1 + NEIGHBOURS_MAX];  // (units) of the current sum, in rank order
    double *stop_sent, *stop_received;  // last_step as this rank sends it; as received from each neighbour
    float *mean;                        // (largest n_pad) the mean of one unit's masters
    void *mean_weights;                 // the same in the run's type; in fp32 the same buffer
    float **checkpoint_mean[KINDS];     // (units)(n_pad / N) shards of the means in a checkpoint; NULL: none
    float **snapshot_mean;              // (units)(n_pad / N) shards of the means in a snapshot
    void **snapshot_weights;            // the same in the run's type; in fp32 the same buffers
    void *staging;                      // staging for the means, if the engine needs it
    size_t staging_bytes;
    struct mean_task *tasks;  // (MEANS, units) arguments of the host functions that divide
    double last_step;         // all ranks stop after this step
    int64_t step;
    int neighbours;  // neighbours in the current step; 0: one rank, which mixes nothing
};

struct mean_task {
    struct gossip *g;
    float *mean;
    // This rank's masters, whose squared distance from the mean is summed; NULL: no distance.
    const float *own;
    int64_t n;
};

static struct gossip *gossip_of(struct topology *t) { return (struct gossip *)t; }

static int exchange_failed(struct gossip *g) {
    return fail("gossip: rank %d, step %lld: %s", g->base.rank, (long long)g->step + 1,
                topology_why(&g->base));
}

static const float *own_of(struct gossip *g, int u, int kind) {
    struct state_range r;
    for (int i = 0; !topology_state(g->local, i, &r); i++)
        if (r.unit == u && r.kind == kind) return r.data;
    return NULL;
}
static float *master_of(struct gossip *g, int u) { return (float *)(uintptr_t)own_of(g, u, STATE_MASTER); }

// ---------------------------------------------------------------- a step
static void exchange(struct gossip *g, const void *own, void *received, size_t n, struct collective *c,
                     enum dtype dt, int distance) {
    int size = g->base.size, rank = g->base.rank;
    int to = (rank + distance) % size, from = (rank + size - distance) % size;
    bool first = sends_first(rank, distance, size);
    if (first) collective_send(c, g->stream, own, n, dt, to);
    collective_recv(c, g->stream, received, n, dt, from);
    if (!first) collective_send(c, g->stream, own, n, dt, to);
}

static void mix_unit(struct gossip *g, int u, const int *distance) {
    const int64_t n = g->base.layout->units[u].n_pad;
    const float *own = master_of(g, u);
    const void **in = g->inputs[u];
    int rank[1 + NEIGHBOURS_MAX] = {g->base.rank};
    in[0] = own;
    // 1. Receive the neighbours' masters, and sort them and the own ones by rank.
    for (int k = 0; k < g->neighbours; k++) {
        exchange(g, own, g->received[k], (size_t)n, g->weights, DT_F32, distance[k]);
        int from = (g->base.rank + g->base.size - distance[k]) % g->base.size, at = k + 1;
        for (; at > 0 && rank[at - 1] > from; at--) rank[at] = rank[at - 1], in[at] = in[at - 1];
        rank[at] = from;
        in[at] = g->received[k];
    }
    // 2. delta = their mean - own. The update of this step is added to the same own masters.
    int count = 1 + g->neighbours;
    op_reduce(g->stream, &(struct reduce_args){g->received[0], in, count, n, DT_F32, REDUCTION_SUM});
    op_fill_zero(g->stream, &(struct fill_zero_args){g->delta[u], n * (int64_t)sizeof(float)});
    optimizer_add_scaled(g->stream, g->scalars, g->delta[u], 1.0f / (float)count, g->received[0], n);
    optimizer_add_scaled(g->stream, g->scalars, g->delta[u], -1, own, n);
}

// Enqueues the exchange of the weights at the start of the step.
static void mix(struct gossip *g) {
    int distance[NEIGHBOURS_MAX];
    g->neighbours = distances_of(g->graph, g->step, g->base.size, distance);
    if (!g->neighbours) return;
    event_record(g->updated, g->base.compute);
    stream_wait_event(g->stream, g->updated);
    *g->stop_sent = g->last_step;
    for (int k = 0; k < g->neighbours; k++)
        exchange(g, g->stop_sent, g->stop_received + k, 1, g->control, DT_F64, distance[k]);
    for (int u = 0; u < g->base.layout->count; u++) mix_unit(g, u, distance);
    event_record(g->mixed, g->stream);
}

static int gossip_begin_micro(struct topology *t, int i, int n) {
    struct gossip *g = gossip_of(t);
    g->step = t->plan.steps;
    if (i == 0) mix(g);
    return topology_begin_micro(g->local, i, n);
}

// Blocks the host until the deltas are complete.
static int await_mix(struct gossip *g) {
    struct timeline *tl = g->base.timeline;
    uint64_t id = timeline_ask(
        tl, &(struct transfer){
                .kind = TRANSFER_WEIGHTS, .unit = -1, .bytes = g->base.wire_predicted.received_per_step});
    int64_t begin = now_ns();
    timeline_own_ready(tl, id, begin);
    timeline_peers_ready(tl, id, begin, -1);
    if (event_sync(g->mixed)) return exchange_failed(g);
    int64_t end = now_ns();
    timeline_done(tl, id, end);
    timeline_blocked(tl, id, begin, end);
    for (int k = 0; k < g->neighbours; k++)
        if (g->stop_received[k] < g->last_step) g->last_step = g->stop_received[k];
    return 0;
}

static void add_deltas(struct gossip *g) {
    struct state_range w;
    stream_phase(g->base.compute, PHASE_OPTIMIZER);
    for (int u = 0; u < g->base.layout->count; u++) {
        int64_t n = g->base.layout->units[u].n_pad;
        float *own = master_of(g, u);
        optimizer_add_scaled(g->base.compute, g->scalars, own, 1, g->delta[u], n);
        if (g->base.dtype == DT_F32 || g->local->ops->weights(g->local, u, &w)) continue;
        op_cast(g->base.compute,
                &(struct cast_args){(void *)(uintptr_t)w.data, own, n, DT_F32, g->base.dtype, 1});
    }
    stream_phase(g->base.compute, PHASE_OTHER);
}

// The loop scales a gradient for the mean over the global batch. This rank has 1/N of the samples: its own mean is N
// times that.
static int gossip_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct gossip *g = gossip_of(t);
    struct step_input own = *in;
    own.loss_scale = in->loss_scale / (float)t->size;
    own.loss_tokens = in->loss_tokens / t->size;
    // 1. Wait for the exchange: no peer reads this rank's masters any more.
    if (g->neighbours && await_mix(g)) return -1;
    // 2. Update the masters with this rank's own gradient, then add the deltas.
    if (topology_step(g->local, &own, out)) return -1;
    if (g->neighbours) add_deltas(g);
    // 3. Stop after last_step. A request to stop sets it so far ahead that all ranks receive it in time.
    double last_step = (double)(in->step + reach_of(t->size));
    if (in->stop && last_step < g->last_step) g->last_step = last_step;
    out->stop = g->last_step <= (double)in->step;
    out->snapshot = false;
    t->own_number.value = in->updates + !out->skipped;
    step_plan_advance(t, false);  // the job's samples are done, even if this rank skipped the update
    return 0;
}

// ---------------------------------------------------------------- means over the ranks
static int end_mean(void *arg) {
    const struct mean_task *k = arg;
    double distance = 0;
    for (int64_t i = 0; i < k->n; i++) {
        k->mean[i] /= (float)k->g->base.size;
        double d = k->own ? (double)k->own[i] - (double)k->mean[i] : 0;
        distance += d * d;
    }
    k->g->base.consensus_distance += distance;
    return 0;
}

// A task is reused at the earliest one step later, and the end of that step waits for all earlier work.
static void divide(struct gossip *g, int which, int u, float *mean, const float *own, int64_t n) {
    struct mean_task *k = &g->tasks[which * g->base.layout->count + u];
    *k = (struct mean_task){g, mean, own, n};
    stream_host(g->base.compute, "mean", end_mean, k);
}

// Computes this rank's shard of the ranks' mean of one kind of a unit. Collective; only enqueues.
static void mean_shard(struct gossip *g, int which, int u, int kind, float *to) {
    int64_t n = g->base.layout->units[u].n_pad / g->base.size;
    collective_reduce_scatter(g->control, g->base.compute, own_of(g, u, kind), to, (size_t)n, DT_F32);
    divide(g, which, u, to, NULL, n);
}

// For PASS_EVAL: computes the mean of a unit, whole on every rank, and adds this rank's squared distance from it.
static int gossip_acquire(struct topology *t, int u, enum pass p, struct unit_view *v) {
    struct gossip *g = gossip_of(t);
    int64_t n = t->layout->units[u].n_pad;
    if (p != PASS_EVAL) return topology_acquire(g->local, u, p, v);
    if (u == 0) t->consensus_distance = 0;
    collective_all_reduce(g->control, t->compute, master_of(g, u), g->mean, (size_t)n, DT_F32);
    divide(g, MEAN_LAST, u, g->mean, master_of(g, u), n);
    if (t->dtype != DT_F32)
        op_cast(t->compute, &(struct cast_args){g->mean_weights, g->mean, n, DT_F32, t->dtype, 1});
    *v = (struct unit_view){.weights = g->mean_weights};
    return stream_sync(t->compute) ? exchange_failed(g) : 0;
}

static struct state_range shard_of(const struct gossip *g, int u, int kind, const void *data) {
    int64_t n = g->base.layout->units[u].n_pad / g->base.size;
    return (struct state_range){
        .unit = u, .kind = kind, .begin = n * g->base.rank, .end = n * (g->base.rank + 1), .data = data};
}

// Each rank has its shard of the mean. The call after the last range starts the computation: a caller that only tests
// whether ranges exist, as rank 0 does, starts no collective.
static int gossip_weights(struct topology *t, int i, struct state_range *out) {
    struct gossip *g = gossip_of(t);
    int units = t->layout->count;
    if (!g->snapshot_mean) return -1;
    if (i < units) {
        *out = shard_of(g, i, STATE_WEIGHTS, g->snapshot_weights[i]);
        return 0;
    }
    for (int u = 0; u < units; u++) {
        int64_t n = t->layout->units[u].n_pad / t->size;
        mean_shard(g, MEAN_SNAPSHOT, u, STATE_MASTER, g->snapshot_mean[u]);
        if (t->dtype != DT_F32)
            op_cast(t->compute,
                    &(struct cast_args){g->snapshot_weights[u], g->snapshot_mean[u], n, DT_F32, t->dtype, 1});
    }
    return -1;
}

// The shards of the means, then the rank's own state.
static int gossip_state(struct topology *t, int i, struct state_range *out) {
    struct gossip *g = gossip_of(t);
    int units = t->layout->count, kinds = 0;
    while (kinds < KINDS && g->checkpoint_mean[kinds]) kinds++;
    if (i < units * kinds) {
        *out = shard_of(g, i / kinds, STATE_MASTER + i % kinds, g->checkpoint_mean[i % kinds][i / kinds]);
        return 0;
    }
    if (!local_own_state(g->local, i - units * kinds, out)) return 0;
    for (int u = 0; u < units; u++)
        for (int k = 0; k < kinds; k++)
            mean_shard(g, MEAN_CHECKPOINT + k, u, STATE_MASTER + k, g->checkpoint_mean[k][u]);
    return -1;
}

static int gossip_load(struct topology *t, struct checkpoint *c) {
    struct gossip *g = gossip_of(t);
    char who[32];
    snprintf(who, sizeof who, "worker-%d", t->rank);
    int rc = checkpoint_extra(c, who, t->own_number.name, &t->start.updates, 1);
    t->own_number.value = t->start.updates;
    g->local->start = t->start;
    if (!rc) rc = local_load_own(g->local, c, t->rank, t->size);
    if (rc <= 0) return rc;
    return fail(
        "--resume: %s holds no weights of gossip's own for each of %d ranks: give as many --workers as it had, or begin "
        "anew from their mean with --resume-weights-only",
        checkpoint_path(c), t->size);
}

static int gossip_sum(struct topology *t, double *values, int count) {
    struct gossip *g = gossip_of(t);
    collective_all_reduce(g->control, t->compute, values, values, (size_t)count, DT_F64);
    return stream_sync(t->compute) ? exchange_failed(g) : 0;
}

// ---------------------------------------------------------------- memory
// Returns one array per unit of the arena's memory: n_pad / part elements of `size` bytes each.
static void **carve_units(struct arena *a, enum mem_class class, const struct layout *l, int part,
                          size_t size) {
    void **units = xcalloc((size_t)l->count, sizeof *units);
    for (int u = 0; u < l->count; u++)
        units[u] = arena_take(a, class, (size_t)(l->units[u].n_pad / part) * size);
    return units;
}

// Takes all memory from g->arena, which measures or allocates, and opens the tables.
static void carve(struct gossip *g, const struct config *c, const struct layout *l,
                  const struct collective_source *source) {
    struct arena *a = &g->arena;
    size_t units = (size_t)l->count, e = dtype_size(c->dtype), most = (size_t)layout_largest(l);
    int neighbours = neighbours_of(c);
    bool fp32 = c->dtype == DT_F32;
    g->inputs = xcalloc(units, sizeof *g->inputs);
    g->tasks = xcalloc(units * MEANS, sizeof *g->tasks);
    for (int k = 0; k < neighbours; k++) g->received[k] = arena_take(a, MEM_COMM, most * sizeof(float));
    if (neighbours) g->delta = (float **)carve_units(a, MEM_COMM, l, 1, sizeof(float));
    g->stop_sent = arena_take(a, MEM_COMM, (1 + NEIGHBOURS_MAX) * sizeof(double));
    g->stop_received = g->stop_sent ? g->stop_sent + 1 : NULL;
    g->mean = arena_take(a, MEM_COMM, most * sizeof(float));
    g->mean_weights = fp32 ? g->mean : arena_take(a, MEM_COMM, most * e);
    g->staging_bytes = collective_staging(source, most, DT_F32);
    g->staging = arena_take(a, MEM_COMM, g->staging_bytes);
    g->scalars = arena_take(a, MEM_WORKSPACE, sizeof(struct update_scalars));
    for (int k = 0; c->recovery.checkpoint_every > 0 && k <= c->optimizer.row->states; k++)
        g->checkpoint_mean[k] = (float **)carve_units(a, MEM_CHECKPOINT, l, c->workers, sizeof(float));
    if (!c->eval_batches || c->eval_every <= 0) return;  // this run makes no snapshots
    g->snapshot_mean = (float **)carve_units(a, MEM_CHECKPOINT, l, c->workers, sizeof(float));
    g->snapshot_weights = fp32 ? (void **)g->snapshot_mean : carve_units(a, MEM_CHECKPOINT, l, c->workers, e);
}

static void free_tables(struct gossip *g) {
    for (int k = 0; k < KINDS; k++) free(g->checkpoint_mean[k]);
    if (g->snapshot_weights != (void **)g->snapshot_mean) free(g->snapshot_weights);
    free(g->snapshot_mean);
    free(g->delta);
    free(g->inputs);
    free(g->tasks);
}

// ---------------------------------------------------------------- the other hooks
static int gossip_grad_ready(struct topology *t, int u) {
    return topology_grad_ready(gossip_of(t)->local, u);
}
static int gossip_load_unit(struct topology *t, int u, const float *v) {
    return topology_load_unit(gossip_of(t)->local, u, v);
}
static int gossip_finish(struct topology *t) { return topology_finish(gossip_of(t)->local); }

static void gossip_abort(struct topology *t, const char *why) {
    collective_abort(gossip_of(t)->weights, why);
    collective_abort(gossip_of(t)->control, why);
}

static const char *gossip_why(struct topology *t) {
    const char *why = collective_error(gossip_of(t)->weights);
    return *why ? why : collective_error(gossip_of(t)->control);
}

static void gossip_destroy(struct topology *t) {
    struct gossip *g = gossip_of(t);
    if (g->stream) stream_destroy(&g->stream);  // destroying the stream waits for its work
    stream_sync(t->compute);
    event_destroy(&g->updated);
    event_destroy(&g->mixed);
    collective_destroy(&g->weights);
    collective_destroy(&g->control);
    topology_destroy(&g->local);
    arena_release(&g->arena);
    free_tables(g);
    free(g);
}

static const struct topology_ops gossip_ops = {.name = "gossip",
                                               .acquire = gossip_acquire,
                                               .begin_micro = gossip_begin_micro,
                                               .grad_ready = gossip_grad_ready,
                                               .step = gossip_step,
                                               .sum = gossip_sum,
                                               .finish = gossip_finish,
                                               .weights = gossip_weights,
                                               .state = gossip_state,
                                               .load = gossip_load,
                                               .load_unit = gossip_load_unit,
                                               .abort = gossip_abort,
                                               .why = gossip_why,
                                               .destroy = gossip_destroy};

// ---------------------------------------------------------------- predictions
// The exchange of a step: it needs the masters after the last update, and the update needs its end.
struct gossip_tasks {
    const struct config *c;
    const struct layout *l;
};

static void begin_tasks(void *ctx, struct step_tasks *t, int first_unit, enum pass pass) {
    const struct gossip_tasks *x = ctx;
    if (first_unit > 0 || pass != PASS_FORWARD || t->micro > 0) return;
    for (int u = 0; u < x->l->count; u++)
        for (int k = 0; k < neighbours_of(x->c); k++) {
            struct step_task *s = step_tasks_add(t, TASK_EXCHANGE, ON_GATHER);
            step_task_unit(s, u);
            step_task_after_previous(s, TASK_MIX, -1);
            s->pattern = PATTERN_NEIGHBOURS;
            s->neighbour = k;
            s->bytes = (uint64_t)x->l->units[u].n_pad * sizeof(float);
            s->moves = (struct task_moves){.sent = s->bytes, .received = s->bytes, .messages = 1};
        }
}

static void end_tasks(void *ctx, struct step_tasks *t) {
    const struct gossip_tasks *x = ctx;
    step_tasks_wait(t, t->last[ON_GATHER]);
    step_tasks_update_whole(t, x->l);
    for (int u = 0; u < x->l->count && neighbours_of(x->c); u++) {
        struct step_task *s = step_tasks_add(t, TASK_MIX, ON_COMPUTE);
        step_task_unit(s, u);
        s->elements = x->l->units[u].n_pad;
    }
}

static int step_tasks(const struct config *c, const struct layout *l, int rank, struct step_tasks *t) {
    struct gossip_tasks x = {c, l};
    const struct step_hooks hooks = {.acquire = begin_tasks, .end = end_tasks};
    (void)rank;
    step_tasks_walk(t, l, &hooks, &x);
    return 0;
}

// The distances to which a rank sends, step by step until they repeat.
static int step_facts(const struct config *c, const struct layout *l, FILE *f) {
    int64_t steps = c->gossip_graph == GOSSIP_EXPONENTIAL && c->workers > 1 ? log2_up(c->workers) : 1;
    (void)l;
    fputs("\n\t\t\"distances\": [", f);
    for (int64_t i = 0; i < steps; i++) {
        int distance[NEIGHBOURS_MAX], count = distances_of(c->gossip_graph, i, c->workers, distance);
        fputs(i ? ", [" : "[", f);
        for (int k = 0; k < count; k++) fprintf(f, "%s%d", k ? ", " : "", distance[k]);
        fputs("]", f);
    }
    fputs("],", f);
    return 0;
}

static int predict(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out) {
    struct local_options o = local_options_of(c, l);
    struct collective_source source = ranks_predicted(c, rank);
    struct gossip g = {0};
    size_t state = optimizer_bytes(c->optimizer.row, true);
    (void)role;
    local_predict(&o, &out->memory);
    arena_init(&g.arena, NULL);
    carve(&g, c, l, &source);
    free_tables(&g);
    for (int k = 0; k < MEM_CLASSES; k++) out->memory.predicted_bytes[k] += g.arena.bytes[k];
    if (neighbours_of(c)) out->memory.formula_bytes += sizeof(float) * (size_t)l->params;
    struct step_tasks t = {.micro_batches = 1};
    if (step_tasks(c, l, rank, &t)) return -1;
    out->wire = step_tasks_wire(&t);
    step_tasks_free(&t);
    out->state_bytes = (size_t)l->padded * state + (size_t)(l->padded / c->workers) * state;
    return 0;
}

static struct topology_formula formula(const struct config *c, const char *role) {
    struct topology_formula f;
    int neighbours = neighbours_of(c);
    size_t whole = local_textbook(c->optimizer.row, c->dtype).whole;
    (void)role;
    textbook_text(f.memory, (struct textbook){.whole = whole + (neighbours ? sizeof(float) : 0)}, 'N');
    snprintf(f.wire, sizeof f.wire, "%dP: the masters, to %d", neighbours * 4, neighbours);
    return f;
}

// ---------------------------------------------------------------- the row
struct topology *gossip_create(const struct ring_rank *r) {
    const struct config *c = r->job->config;
    const struct layout *l = r->job->layout;
    struct local_options o = local_options_of(c, l);
    struct prediction p = {0};
    struct gossip *g = xcalloc(1, sizeof *g);
    struct topology *t = &g->base;
    const struct update_scalars one = {.grad_scale = 1};
    o.dev = r->dev;
    o.compute = r->compute;
    predict(c, l, "worker", r->source->rank, &p);
    *t = (struct topology){.ops = &gossip_ops,
                           .layout = l,
                           .dev = r->dev,
                           .compute = r->compute,
                           .dtype = c->dtype,
                           .rank = r->source->rank,
                           .size = r->source->size,
                           .own_number = {.name = "updates"},
                           .memory = p.memory,
                           .wire_predicted = p.wire};
    g->graph = c->gossip_graph;
    g->last_step = (double)INT64_MAX;
    arena_init(&g->arena, r->dev);
    carve(g, c, l, r->source);
    struct collective_options own = {
        .wire = &t->wire, .deadline_s = (double)c->deadline_ms * 1e-3, .dev = r->dev};
    g->weights = collective_create(r->source, 0, &own);
    own.control = true;
    own.staging = g->staging;
    own.staging_bytes = g->staging_bytes;
    g->control = g->weights ? collective_create(r->source, 1, &own) : NULL;
    g->local = g->control ? local_create(&o) : NULL;
    g->stream = stream_create(r->dev, "gossip");
    g->updated = event_create(r->dev);
    g->mixed = event_create(r->dev);
    if (!g->local || g->arena.failed || !g->stream || !g->updated || !g->mixed) {
        topology_destroy(&t);
        return NULL;
    }
    *g->scalars = one;
    return t;
}

static int parse(const char *text, int *bound) {
    (void)bound;
    return strcmp(text, "gossip") ? -1 : 0;
}

static bool variant(int i, struct topology_variant *out) {
    *out = (struct topology_variant){.name = "gossip"};
    return i == 0;
}

static int check(const struct config *c) {
    const char *why = NULL;
    if (config_device(c)->gpu)
        why = "means over the ranks are computed only on CPUs: use --device cpu, or --topology zero:0";
    else if (c->dtype == DT_F16)
        why = "ranks would skip different steps and have different loss scales: use --dtype bf16 or fp32";
    else if (c->eval_every_seconds > 0)
        why = "all ranks take part in a snapshot, and eval_every_seconds is one rank's clock: use eval_every";
    else if (c->optimizer.row->onebit)
        why = "OneBitAdam exchanges the momenta of one model, and each rank has a model of its own: use Adam";
    else if (c->documents == DOCUMENTS_WHOLE)
        why =
            "a rank's gradient is a mean over its own samples, of as many tokens as any other's: use --documents packed";
    else if (c->reduce_native)
        why = "no gradients are summed: leave \"reduce\" out";
    else if (c->no_overlap)
        why =
            "weights are exchanged while the gradient is computed: leave zero_optimization.overlap_comm out";
    return why ? fail("--topology gossip: %s", why) : ranks_check(c);
}

static void describe(const struct config *c, struct cJSON *summary) {
    cJSON_AddStringToObject(summary, "graph", gossip_graphs[c->gossip_graph]);
}

static void explain(const struct config *c, struct topology_texts *out) {
    *out = (struct topology_texts){
        .picture = "gossip",
        .how = graphs[c->gossip_graph].how,
        .differs =
            "each rank updates a model of its own with the gradient of its own slice, and takes means of weights only with its "
            "neighbours, where the others make one update with the mean gradient of all ranks. The run's weights are the "
            "mean of the ranks' models",
        .loss_of = LOSS_OF_RANK_0};
}

static int run(struct run *r) { return ranks_run(r, gossip_create); }

static const char gossip_is[] = "each rank mixes its model with its neighbours'";
static const struct topology_alias words[] = {{"dpsgd", "gossip", gossip_is},
                                              {"adpsgd", "gossip", gossip_is},
                                              {"decentralized", "gossip", gossip_is},
                                              {"decentralised", "gossip", gossip_is},
                                              {"decentralizedsgd", "gossip", gossip_is},
                                              {"neighbours", "gossip", gossip_is},
                                              {"p2p", "gossip", gossip_is},
                                              {0}};

const struct topology_row topology_gossip = {
    .parse = parse,
    .variant = variant,
    .words = words,
    .textbook = 1,
    .describe = describe,
    .explain = explain,
    .roles = ranks_roles,
    .default_workers = 2,
    .launches = RANKS_LAUNCHES,
    .launch_advice = "a ring's ranks are started in every way that there is",
    .collectives = true,
    .takes_graph = true,
    .resolve = ranks_resolve,
    .check = check,
    .check_rank = ranks_check_rank,
    .check_machine = ranks_check_machine,
    .predict = predict,
    .step_tasks = step_tasks,
    .step_facts = step_facts,
    .formula = formula,
    .shared_memory_bytes = ranks_segment_bytes,
    .meet = ranks_rendezvous_options,
    .run = run,
};
