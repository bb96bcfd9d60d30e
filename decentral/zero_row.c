// ZeRO's row: its names, which options exclude each other, its predictions, and how a rank creates its topology.
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/ranks.h"
#include "decentral/ring.h"
#include "decentral/zero/zero.h"
#include "shared/config/config.h"
#include "shared/core/error.h"
#include "shared/launch/local_steps.h"

// ---------------------------------------------------------------- choices that exclude each other
// Checks the secondary shards of stage 3.
static int check_hpz(const struct config *c) {
    static const char key[] = "zero_optimization.zero_hpz_partition_size";
    int64_t g = config_group(c), h = c->hpz;
    if (c->workers % h)
        return fail("%s %lld: --workers %d ranks are not groups of %lld; give a number that divides them",
                    key, (long long)h, c->workers, (long long)h);
    if (h == 1 || h == c->workers) return 0;
    if (g && g != h)
        return fail(
            "%s %lld: reduce_group is %lld, and both name the ranks of one host, whose traffic is counted separately; make them "
            "equal, or leave one of them out",
            key, (long long)h, (long long)g);
    if (c->reduce_native)
        return fail(
            "%s %lld: with \"reduce\": \"native\" the bytes of a sum that leave a host are unknown; leave one of them out",
            key, (long long)h);
    return 0;
}

// 1-bit Adam needs whole states on every rank: each updates with the whole exchanged momentum and the whole variance.
static int check_onebit(const struct config *c) {
    if (config_group(c))
        return fail(
            "optimizer.type %s: ranks exchange their momenta in one bit with all other ranks, not in groups; leave "
            "reduce_group out",
            c->optimizer.row->name);
    if (zero_policy_of(c->variant)->gather_grads) return 0;
    return fail(
        "optimizer.type %s: every rank keeps the whole momentum and variance, which zero:%d shards (DeepSpeed: "
        "\"1bit-Adam is not compatible with ZeRO\"); use --topology zero:0, or Adam",
        c->optimizer.row->name, c->variant);
}

// no_sync changes only stages with several reductions per step.
static int check_no_sync(const struct config *c) {
    if (c->variant < 2)
        return fail("ring.no_sync: zero:%d reduces whole gradients once per step in any case; leave it out",
                    c->variant);
    if (c->accumulation < 2)
        return fail(
            "ring.no_sync: a step of one micro-batch reduces once in any case; leave it out, or set "
            "gradient_accumulation_steps above 1");
    return 0;
}

static int check_local_steps(const struct config *c) {
    const char *why =
        c->variant == 3
            ? "each rank subtracts its weights from the whole anchor: use zero:0, zero:1 or zero:2"
        : c->offload_optimizer.device != OFFLOAD_NONE
            ? "a rank's own masters stay on its device: leave zero_optimization.offload_optimizer out"
            : NULL;
    return c->local_steps.steps && why ? fail("local_steps.steps: %s", why) : 0;
}

static int check(const struct config *c) {
    if (ranks_check(c) || check_local_steps(c)) return -1;
    if (config_group(c) && c->reduce_native)
        return fail(
            "reduce_group %lld: with \"reduce\": \"native\" the library sums in its own order; leave one of them out",
            (long long)c->reduce_group);
    if (check_hpz(c)) return -1;
    if (c->no_sync && check_no_sync(c)) return -1;
    return c->optimizer.row->onebit ? check_onebit(c) : 0;
}

static int check_machine(const struct config *c) {
    return config_check_folders(c) ? -1 : ranks_check_machine(c);
}

// ---------------------------------------------------------------- memory and bytes
static int predict(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out) {
    (void)role;
    struct collective_source source = ranks_predicted(c, rank);
    const struct config in = local_steps_inner(c);
    const struct zero_options z = {
        .config = &in, .layout = l, .device_memory = config_device(c)->gpu, .source = &source};
    out->state_bytes = (size_t)(l->padded / l->world) * optimizer_bytes(in.optimizer.row, true);
    if (zero_predict(&z, &out->memory, &out->wire)) return -1;
    local_steps_predict(c, l, out);
    return 0;
}

static int step_tasks(const struct config *c, const struct layout *l, int rank, struct step_tasks *t) {
    struct collective_source source = ranks_predicted(c, rank);
    const struct config in = local_steps_inner(c);
    const struct zero_options z = {
        .config = &in, .layout = l, .device_memory = config_device(c)->gpu, .source = &source};
    return zero_step_tasks(&z, t);
}

// Returns whether frozen weights are sharded. *copies receives the number of copies in device memory: with hpZ one per
// group; 0 if weights are offloaded.
static bool shards_frozen(const struct config *c, const char *role, size_t *copies) {
    const struct collective_source source = {.size = c->workers};
    const struct zero_options o = {.config = c, .source = &source};
    (void)role;
    if (zero_policy_of(c->variant)->weights != RESIDENT_SHARD) return false;
    *copies = zero_hpz(&o) ? (size_t)(c->workers / zero_hpz(&o)) : !c->offload_param.device;
    return true;
}

static struct topology_formula formula(const struct config *c, const char *role) {
    const struct config in = local_steps_inner(c);
    const struct collective_source source = {.size = c->workers};
    const struct zero_options o = {.config = &in, .source = &source};
    const struct zero_policy *p = zero_policy_for(&o);
    struct topology_formula f;
    (void)role;
    textbook_text(f.memory, zero_textbook(p, &o), 'N');
    zero_wire_text(f.wire, sizeof f.wire, p, in.accumulation);
    local_steps_formula(c, &f);
    if (c->optimizer.row->onebit && p->gather_grads) {
        size_t n = strlen(f.wire);
        snprintf(f.wire + n, sizeof f.wire - n, "; compressed: U of 9/64 byte an element");
    }
    return f;
}

// Loading takes memory for a rounded copy of this rank's elements of a unit.
static struct topology_allowance allowance(const struct config *c, const char *role,
                                           const struct prediction *p) {
    bool whole = zero_policy_of(c->variant)->weights == RESIDENT_FULL;
    (void)role, (void)p;
    return (struct topology_allowance){.loading_units = 1.0 / (whole ? 1 : c->workers)};
}

static void describe(const struct config *c, struct cJSON *summary) {
    cJSON_AddNumberToObject(summary, "stage", c->variant);
}

static void explain(const struct config *c, struct topology_texts *out) {
    out->picture = "ring";
    out->how =
        "There is no server. Each of N ranks owns a shard, 1/N of every layer, adds the gradients of all ranks there in rank order, "
        "and updates it. Stage 0 keeps everything whole on every rank; stage 1 shards masters and the optimizer's states; stage 2 also "
        "the gradients; stage 3 also the weights, which are gathered layer by layer before each use.";
    if (c->reduce_native)
        out->differs = "the library adds gradients in an order of its own (\"reduce\": \"native\")";
    local_steps_explain(c, out);
}

// ---------------------------------------------------------------- the row
static bool variant(int stage, struct topology_variant *out) {
    const struct zero_policy *p = zero_policy_of(stage);
    *out = (struct topology_variant){0};
    if (p) snprintf(out->name, sizeof out->name, "%s", p->name);
    return p != NULL;
}

static int parse(const char *text, int *bound) {
    size_t digits = strncmp(text, "zero:", 5) ? 0 : strspn(text + 5, "0123456789");
    int stage = digits > 0 && digits < 10 && !text[5 + digits] ? atoi(text + 5) : -1;
    (void)bound;
    return zero_policy_of(stage) ? stage : -1;
}

static struct topology *create(const struct ring_rank *r) {
    const struct config in = local_steps_inner(r->job->config);
    const struct zero_options z = {.config = &in,
                                   .layout = r->job->layout,
                                   .dev = r->dev,
                                   .compute = r->compute,
                                   .source = r->source,
                                   .threads = job_threads(r->job)};
    return local_steps_around(r->job->config, zero_create(&z));
}

static int run(struct run *r) { return ranks_run(r, create); }

static const char replicas[] =
    "data parallel: every rank has the whole model, gradients are summed over the ring",
                  stages[] = "stages are zero:0 to zero:3, each of which shards more",
                  shards_all[] = "weights, gradients and optimizer state are sharded",
                  alone[] = "with --local-steps H: a rank trains by itself between two exchanges";
static const struct topology_alias words[] = {
    {"0", "zero:0", NULL},
    {"1", "zero:1", NULL},
    {"2", "zero:2", NULL},
    {"3", "zero:3", NULL},
    {"ring", "zero:0", replicas},
    {"allreduce", "zero:0", replicas},
    {"ringallreduce", "zero:0", replicas},
    {"dp", "zero:0", replicas},
    {"ddp", "zero:0", replicas},
    {"dataparallel", "zero:0", replicas},
    {"distributeddataparallel", "zero:0", replicas},
    {"noshard", "zero:0", replicas},
    {"horovod", "zero:0", replicas},
    {"nccl", "zero:0", replicas},
    {"zero", "zero:1", stages},
    {"deepspeed", "zero:1", stages},
    {"distributedoptimizer", "zero:1", "optimizer state is sharded"},
    {"zeroredundancyoptimizer", "zero:1", "optimizer state is sharded"},
    {"shardgradop", "zero:2", "gradients and optimizer state are sharded"},
    {"fsdp", "zero:3", shards_all},
    {"fsdp2", "zero:3", shards_all},
    {"fullshard", "zero:3", shards_all},
    {"fullyshard", "zero:3", shards_all},
    {"fullysharded", "zero:3", shards_all},
    {"fullyshardeddataparallel", "zero:3", shards_all},
    {"sharded", "zero:3", shards_all},
    {"hsdp", "zero:3", "with zero_optimization.zero_hpz_partition_size"},
    {"hybridshard", "zero:3", "with zero_optimization.zero_hpz_partition_size"},
    {"zeroinfinity", "zero:3", "with zero_optimization.offload_param"},
    {"zerooffload", "zero:2", "with zero_optimization.offload_optimizer"},
    {"localsgd", "zero:0", alone},
    {"diloco", "zero:0", alone},
    {"fedavg", "zero:0", alone},
    {0}};

const struct topology_row topology_zero = {
    .parse = parse,
    .variant = variant,
    .words = words,
    .textbook = 4,
    .takes_stage = true,
    .roles = ranks_roles,
    .default_workers = 2,
    .launches = RANKS_LAUNCHES,
    .launch_advice = "a ring's ranks are started in every way that there is",
    .takes_groups = true,
    .takes_local_steps = true,
    .collectives = true,
    .resolve = ranks_resolve,
    .check = check,
    .check_rank = ranks_check_rank,
    .check_machine = check_machine,
    .predict = predict,
    .step_tasks = step_tasks,
    .formula = formula,
    .shards_frozen = shards_frozen,
    .allowance = allowance,
    .describe = describe,
    .explain = explain,
    .shared_memory_bytes = ranks_segment_bytes,
    .meet = ranks_rendezvous_options,
    .run = run,
};
