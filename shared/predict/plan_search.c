#include "shared/predict/plan_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/config/cli.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/device/device_choice.h"
#include "shared/launch/launch_check.h"
#include "shared/model/recompute.h"
#include "shared/model/spec.h"
#include "shared/predict/memory_limits.h"
#include "shared/predict/memory_need.h"

// ---------------------------------------------------------------- rates
#define RATE(name, text, unit_is, on_cpu, on_gpu, of)                                    \
    {                                                                                    \
        .option = name, .unit = text, .per_unit = unit_is, .cpu = on_cpu, .gpu = on_gpu, \
        .member = offsetof(struct plan_rates, of)                                        \
    }

// CPU: one or two cores of a laptop and its loopback. GPU: an H100 at 40% of its 989 Tflop/s (the share that LLaMA 3's
// authors report, Grattafiori et al. 2024, section 3.3.2), a 400 Gbit/s link, HBM3, PCIe 5 and one NVMe drive.
const struct plan_rate plan_rates_list[] = {
    RATE("tflops", "Tflop/s", 1e12, 0.1, 400, flops),
    RATE("wire-rate", "GB/s", 1e9, 2, 50, wire),
    RATE("device-memory-rate", "GB/s", 1e9, 10, 3000, device_memory),
    RATE("host-memory-rate", "GB/s", 1e9, 10, 200, host_memory),
    RATE("host-link-rate", "GB/s", 1e9, 10, 50, host_link),
    RATE("disk-rate", "GB/s", 1e9, 1, 5, disk),
    {0},
};

double plan_rate_of(const struct plan_rates *rates, const struct plan_rate *r) {
    double x;
    memcpy(&x, (const char *)rates + r->member, sizeof x);
    return x;
}

void plan_rate_set(struct plan_rates *rates, const struct plan_rate *r, double per_second) {
    memcpy((char *)rates + r->member, &per_second, sizeof per_second);
}

// ---------------------------------------------------------------- knobs
const struct plan_knob plan_knobs[PLAN_KNOBS] = {
    {"recompute", "activation_checkpointing.recompute", {NULL, "cheap", "block", ""}, NULL},
    {"offload_optimizer",
     "zero_optimization.offload_optimizer.device",
     {NULL, "cpu", "nvme", ""},
     "zero_optimization.offload_optimizer.nvme_path"},
    {"offload_param",
     "zero_optimization.offload_param.device",
     {NULL, "cpu", "nvme", ""},
     "zero_optimization.offload_param.nvme_path"},
};
#define HERE "."  // the folder if none is named
enum { KNOB_RECOMPUTE, KNOB_OPTIMIZER, KNOB_PARAM };

// Reads the configuration's own setting of each knob.
static void read_knobs(const struct config *c, const char *is[PLAN_KNOBS]) {
    is[KNOB_RECOMPUTE] = recompute_name(c->recompute.kind);
    is[KNOB_OPTIMIZER] = offload_names[c->offload_optimizer.device];
    is[KNOB_PARAM] = offload_names[c->offload_param.device];
}

// Returns the folder that the configuration has for a knob, or NULL.
static const char *folder_of(const struct config *c, int knob) {
    return knob == KNOB_OPTIMIZER ? c->offload_optimizer.nvme_path
           : knob == KNOB_PARAM   ? c->offload_param.nvme_path
                                  : NULL;
}

// Returns whether the caller's options, not a file, set the key.
static bool given(const struct plan_question *q, const char *path) {
    for (size_t i = 0; i < q->args->override_count; i++)
        if (!strcmp(q->args->overrides[i].path, path)) return true;
    return false;
}

// ---------------------------------------------------------------- one candidate
static double busiest(const struct job *j) {
    double most = 0;
    for (const struct topology_role *r = j->config->row->roles; r->name; r++) {
        struct prediction p = {0};
        if (config_ranks(j->config, r->name) < 1 || prediction_of_rank(j, r->name, 0, &p)) continue;
        int64_t steps = j->config->steps, later = wire_later_steps(&p.wire, steps);
        double sent = wire_mean(p.wire.sent_per_step, p.wire.later.sent_per_step, steps, later);
        double received = wire_mean(p.wire.received_per_step, p.wire.later.received_per_step, steps, later);
        if (sent > most) most = sent;
        if (received > most) most = received;
    }
    return most;
}

// Computes the time of a rank's step from the prediction of the same run.
static struct plan_step step_of(const struct job *j, const struct plan_candidate *c,
                                const struct plan_rates *r) {
    const struct config *cfg = j->config;
    const struct offload_traffic *o = &c->offload;
    double tokens = (double)(cfg->micro_batch * cfg->accumulation * cfg->seq);
    double again =
        tokens * recompute_elements_per_token(&cfg->recompute, &j->spec) * (double)dtype_size(cfg->dtype);
    bool whole = (cfg->variant == 0 && cfg->row->takes_stage) || cfg->row->takes_graph;  // on each rank
    double ranks = whole ? 1 : cfg->workers;
    double state = (double)j->layout->params * (double)optimizer_bytes(cfg->optimizer.row, true) / ranks;
    bool on_host = cfg->offload_optimizer.device != OFFLOAD_NONE, one_memory = !config_device(cfg)->gpu;
    // The update reads and writes the states in the memory that holds them.
    double memory = 2 * state / (on_host ? r->host_memory : r->device_memory);
    double link = (double)(o->down > o->up ? o->down : o->up) / r->host_link;
    double disk = (double)(o->read + o->written) / r->disk;
    struct plan_step s = {
        .compute_s = tokens * model_flops_per_token(&j->spec, (double)cfg->seq).causal / r->flops,
        .again_s = tokens * recompute_flops_per_token(&cfg->recompute, &j->spec, (double)cfg->seq).causal /
                       r->flops +
                   again / r->device_memory,
        .wire_s = c->wire_bytes / r->wire,
        .update_s = fmax(one_memory ? memory + link : fmax(memory, link), disk)};
    double compute = s.compute_s + s.again_s, beside = fmax(compute, s.wire_s);
    s.total_s = beside + s.update_s;
    if (s.update_s > beside)
        s.bound = disk >= link && disk >= memory ? "disk" : link >= memory ? "host link" : "memory";
    else
        s.bound = s.wire_s > compute ? "wire" : "compute";
    return s;
}

// Returns the largest factor by which c exceeds a limit; at most 1: it fits.
static double excess(const struct plan_question *q, const struct plan_candidate *c) {
    double most = c->device_bytes / q->device_bytes;
    most = fmax(most, c->host_bytes / q->host_bytes);
    return c->disk_bytes > 0 ? fmax(most, c->disk_bytes / q->disk_bytes) : most;
}

static int measure(const struct plan_question *q, const struct job *j, struct plan_candidate *c) {
    const struct config *cfg = j->config;
    const struct memory_part one = {"worker", 0, 1, .processes = true, .gpus = 1},
                             all = memory_part_of_run(cfg);
    struct memory_need need, host;
    struct prediction p = {0};
    if (prediction_of_rank(j, "worker", 0, &p) || memory_need_of(j, &one, &need) ||
        memory_need_of(j, &all, &host))
        return -1;
    read_knobs(cfg, c->is);
    c->device_bytes = (double)mem_device_bytes(p.memory.predicted_bytes);
    if (need.gpus) c->device_bytes += need.gpu[0].allowed_bytes;
    c->host_bytes = ceil(host.host.predicted_bytes + host.host.allowed_bytes);
    struct prediction server = {0};
    bool servers = config_ranks(cfg, "server") >= 1 && !prediction_of_rank(j, "server", 0, &server);
    c->server_bytes = servers ? (double)mem_device_bytes(server.memory.predicted_bytes) : 0;
    c->wire_bytes = busiest(j);
    c->offload = p.wire.offload;
    // The bytes on disk are those that a step writes there: masters, states and 16-bit weights, each once.
    c->disk_bytes = (double)c->offload.written * cfg->workers;
    c->tokens = cfg->micro_batch * cfg->accumulation * cfg->workers * cfg->seq;
    c->step = step_of(j, c, &q->rates);
    c->tokens_per_s = (double)c->tokens / c->step.total_s;
    c->excess = excess(q, c);
    return 0;
}

// Returns the configuration of a candidate: the caller's options, then its own keys. NULL: refused.
static struct config *config_of(const struct plan_question *q, const struct plan_candidate *c) {
    struct cli_args args = *q->args;
    char batch[24], workers[24];
    args.owned = NULL;
    args.owned_count = 0;
    args.overrides = xcalloc(args.override_count + 3 + 2 * PLAN_KNOBS, sizeof *args.overrides);
    size_t n = q->args->override_count;
    memcpy(args.overrides, q->args->overrides, n * sizeof *args.overrides);
    snprintf(batch, sizeof batch, "%lld", (long long)c->batch);
    snprintf(workers, sizeof workers, "%d", c->workers);
    args.overrides[n++] = (struct config_override){.path = "topology", .value = c->topology};
    args.overrides[n++] = (struct config_override){.path = "workers", .value = workers};
    args.overrides[n++] = (struct config_override){.path = "train_micro_batch_size_per_gpu", .value = batch};
    for (int k = 0; k < PLAN_KNOBS; k++) {
        if (c->knob[k])
            args.overrides[n++] = (struct config_override){.path = plan_knobs[k].path, .value = c->knob[k]};
        if (c->folder[k])
            args.overrides[n++] =
                (struct config_override){.path = plan_knobs[k].folder_path, .value = c->folder[k]};
    }
    struct config *config = config_load(q->topologies, cli_get(q->args, "config"), args.overrides, n);
    free(args.overrides);
    if (!config) return NULL;
    device_resolve(config);
    if (config->row->resolve) config->row->resolve(config, &(struct rank_env){0});
    if (launch_check(config)) config_destroy(&config);
    return config;
}

// Sets the candidate's left-out knobs to "none" where a file sets them to something else, or where the configuration
// was refused (config NULL). Returns whether it changed any.
static bool say_none_of_file(const struct plan_question *q, const struct config *config,
                             struct plan_candidate *c) {
    const char *is[PLAN_KNOBS] = {0};
    bool changed = false;
    if (config) read_knobs(config, is);
    for (int k = 0; k < PLAN_KNOBS; k++) {
        if (c->knob[k] || given(q, plan_knobs[k].path) || (config && !strcmp(is[k], "none"))) continue;
        c->knob[k] = "none";
        changed = true;
    }
    return changed;
}

// Predicts c. Returns whether such a run is possible.
static bool try(const struct plan_question *q, struct plan_candidate *c) {
    struct config *config = config_of(q, c);
    if (cli_get(q->args, "config") && say_none_of_file(q, config, c)) {
        config_destroy(&config);
        config = config_of(q, c);
    }
    struct job j = {.ranks_here = c->workers};
    bool ok = config && !job_open(&j, config, true) && !measure(q, &j, c);
    job_close(&j);
    config_destroy(&config);
    return ok;
}

// ---------------------------------------------------------------- all of them
static bool same_cost(const struct plan_candidate *a, const struct plan_candidate *b) {
    return !strcmp(a->topology, b->topology) && a->batch == b->batch && a->device_bytes == b->device_bytes &&
           a->host_bytes == b->host_bytes && a->disk_bytes == b->disk_bytes && a->wire_bytes == b->wire_bytes;
}

// Adds the batch with the most tokens per second, for one topology and one setting of the knobs.
static void add_best(const struct plan_question *q, struct plan_candidate c, struct plan *out) {
    struct plan_candidate best = {0};
    int64_t own = out->config->micro_batch;
    bool fixed = given(q, "train_micro_batch_size_per_gpu");
    // Tries powers of two, and the configuration's own batch in between.
    for (int64_t batch = fixed ? own : 1, next; fixed ? batch == own : batch <= q->most_batch; batch = next) {
        struct plan_candidate now = c;
        for (next = 1; next <= batch; next *= 2) continue;
        if (batch < own && own < next) next = own;
        now.batch = batch;
        if (!try(q, &now)) continue;
        if (!out->tried || now.excess < out->least.excess) out->least = now;
        out->tried = true;
        if (now.excess > 1) break;
        if (now.tokens_per_s > best.tokens_per_s) best = now;
    }
    if (!best.batch) return;
    for (int i = 0; i < out->count; i++)
        if (same_cost(&out->all[i], &best)) return;
    out->all = xrealloc(out->all, (size_t)(out->count + 1) * sizeof *out->all);
    out->all[out->count++] = best;
}

static void with_knobs(const struct plan_question *q, struct plan_candidate c, int knob, struct plan *out) {
    if (knob == PLAN_KNOBS) {
        add_best(q, c, out);
        return;
    }
    for (int v = 0; !plan_knobs[knob].values[v] || *plan_knobs[knob].values[v]; v++) {
        const char *value = plan_knobs[knob].values[v];
        bool disk = value && !strcmp(value, "nvme");
        c.knob[knob] = value;
        c.folder[knob] = disk && !folder_of(out->config, knob) ? HERE : NULL;
        with_knobs(q, c, knob + 1, out);
        if (given(q, plan_knobs[knob].path)) break;
    }
}

static int faster(const void *a, const void *b) {
    const struct plan_candidate *x = a, *y = b;
    if (x->tokens_per_s != y->tokens_per_s) return x->tokens_per_s < y->tokens_per_s ? 1 : -1;
    return x->device_bytes < y->device_bytes ? -1 : x->device_bytes > y->device_bytes;
}

// Returns the part of the free bytes that a plan may use: other programs take some of it before the plan runs.
static double less_reserve(double free_bytes) {
    return fmax(0, free_bytes - fmax(free_bytes * PLAN_RESERVE_SHARE, PLAN_RESERVE_BYTES));
}

// A plan is for this machine, unless it is for GPUs that this machine does not have.
static void limit_to_here(struct plan_question *q, const struct config *c) {
    bool here = !config_device(c)->gpu || device_gpus(c);
    struct memory_limit memory;
    if (q->host_bytes <= 0)
        q->host_bytes = here && !memory_limit_read("", &memory) ? less_reserve(memory.free_bytes) : INFINITY;
    if (q->disk_bytes > 0) return;
    q->disk_bytes = INFINITY;
    for (int k = KNOB_OPTIMIZER; k <= KNOB_PARAM && here; k++) {
        const char *folder = folder_of(c, k) ? folder_of(c, k) : HERE;
        struct statvfs s;
        bool writable = !access(folder, W_OK) && !statvfs(folder, &s);
        double room = writable ? (double)s.f_bavail * (double)s.f_frsize : 0;
        q->disk_bytes = fmin(q->disk_bytes, less_reserve(room));
    }
}

// Chooses the data that the command would train on: the demo's text is read byte by byte if the model has other
// tokens.
static void settle_data(struct plan *out) {
    struct config *c = out->config;
    bool readable = job_opens(c, NULL);
    if (!readable && !strcmp(c->data, "demo") && !strcmp(c->tokenizer, "auto")) {
        free(c->tokenizer);
        c->tokenizer = xstrdup("byte");
        out->as_bytes = readable = job_opens(c, NULL);
    }
    if (!readable) warn("the commands of this plan cannot start on this machine: %s", error_last());
    error_clear();
}

// Tries the requested topology, or all variants with a formula of their own (they keep different state on a rank).
static void with_topologies(const struct plan_question *q, struct plan *out) {
    if (q->topology) {
        struct plan_candidate c = {.workers = out->config->workers, .as_bytes = out->as_bytes};
        snprintf(c.topology, sizeof c.topology, "%s", q->topology);
        with_knobs(q, c, 0, out);
        return;
    }
    for (int r = 0; q->topologies->row[r]; r++) {
        const struct topology_row *row = q->topologies->row[r];
        for (int v = 0; v < (row->textbook > 0 ? row->textbook : 1); v++) {
            struct topology_variant name;
            struct plan_candidate c = {.workers = out->config->workers, .as_bytes = out->as_bytes};
            row->variant(v, &name);
            if (row->max_workers && out->config->workers > row->max_workers) continue;
            snprintf(c.topology, sizeof c.topology, "%s", name.name);
            with_knobs(q, c, 0, out);
        }
    }
}

// Reads the options that all plans share. A star's options apply to some plans only: if no topology is named, other
// topologies do not warn that they ignore them.
static struct config *read_common(const struct plan_question *q) {
    static const char star[] = "parameter_server.";
    const struct cli_args *a = q->args;
    const char *file = cli_get(a, "config");
    if (q->topology) return config_load(q->topologies, file, a->overrides, a->override_count);
    error_quiet(QUIET_WARNINGS);
    struct config *all = config_load(q->topologies, file, a->overrides, a->override_count);
    error_quiet(QUIET_NOT);
    if (!all) return NULL;
    struct config_override *others = xcalloc(a->override_count + 1, sizeof *others);
    size_t n = 0;
    for (size_t i = 0; i < a->override_count; i++)
        if (strncmp(a->overrides[i].path, star, strlen(star)) != 0) others[n++] = a->overrides[i];
    struct config *remarks = config_load(q->topologies, file, others, n);  // warns
    config_destroy(&remarks);
    free(others);
    return all;
}

int plan_search(struct plan_question *q, struct plan *out) {
    struct job j = {.ranks_here = 1};
    // If no topology is named, these flags apply only to the topologies that use them.
    for (size_t i = 0; !q->topology && i < q->args->override_count; i++) {
        struct config_override *o = &q->args->overrides[i];
        if (!strcmp(o->path, "parameter_server.servers") || !strcmp(o->path, "ring.collective"))
            o->flag = NULL;
    }
    *out = (struct plan){0};
    out->config = read_common(q);
    if (!out->config) return -1;
    device_resolve(out->config);
    int rc = job_open(&j, out->config, true);
    out->params = rc ? 0 : j.layout->params;
    job_close(&j);
    if (rc) return -1;
    limit_to_here(q, out->config);
    settle_data(out);
    error_quiet(1);
    with_topologies(q, out);
    error_quiet(0);
    error_clear();
    if (out->count) qsort(out->all, (size_t)out->count, sizeof *out->all, faster);
    if (!out->tried)
        return fail("plan: no topology can be planned with these options; --dry-run of one says why");
    return 0;
}

void plan_free(struct plan *p) {
    free(p->all);
    config_destroy(&p->config);
    *p = (struct plan){0};
}

char *plan_flags(const struct plan_candidate *c) {
    char *text =
        xasprintf("--topology %s --workers %d --batch %lld", c->topology, c->workers, (long long)c->batch);
    for (int k = 0; k < PLAN_KNOBS; k++) {
        if (!c->knob[k]) continue;
        char *more = xasprintf("%s --set %s=%s", text, plan_knobs[k].path, c->knob[k]);
        free(text);
        text = more;
        if (!c->folder[k]) continue;
        more = xasprintf("%s --set %s=%s", text, plan_knobs[k].folder_path, c->folder[k]);
        free(text);
        text = more;
    }
    char *all = xasprintf("%s%s", text, c->as_bytes ? " --tokenizer byte" : "");
    free(text);
    return all;
}

char *plan_line(const struct plan_question *q, const struct plan_candidate *c) {
    static const char *const own[] = {"topology", "workers", "batch", "quiet",
                                      NULL};  // set by plan_flags, or useless here
    char program[PROGRAM_WORD], *text = xasprintf("%s train", program_word(program));
    for (size_t i = 0; i < q->args->given_count; i++) {
        const struct cli_given *g = &q->args->given[i];
        bool skip =
            !g->option->path && strcmp(g->option->name, "config") && strcmp(g->option->name, "device-memory");
        for (const char *const *o = own; *o; o++) skip |= !strcmp(g->option->name, *o);
        if (skip) continue;
        char *word = g->option->metavar ? shell_word(g->value) : NULL;
        char *more = xasprintf("%s --%s%s%s", text, g->option->name, word ? " " : "", word ? word : "");
        free(word);
        free(text);
        text = more;
    }
    char *flags = plan_flags(c), *all = xasprintf("%s %s", text, flags);
    free(flags);
    free(text);
    return all;
}
