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
#include "shared/launch/rank_env.h"
#include "shared/model/recompute.h"
#include "shared/model/spec.h"
#include "shared/predict/memory_limits.h"

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

// ---------------------------------------------------------------- the figures of a candidate
#define AT(m)      FIGURE_AT(plan_candidate, m)
#define SUM(m)     FIGURE_AT(plan_candidate, forecast.m), .predicted = true
#define OFFLOAD(m) SUM(offload.m)
static const struct figure of_plans[] = {
    {"topology", NULL, "as in `--topology`", AT(topology), .type = "string", .title = "topology"},
    {"recompute", NULL, "what the backward computes again: `none`, `cheap`, `block`", AT(is[KNOB_RECOMPUTE]),
     .type = "string", .title = "recompute"},
    {"offload_optimizer", NULL, "where the optimizer's state is: `none` (the device), `cpu`, `nvme`",
     AT(is[KNOB_OPTIMIZER]), .type = "string", .title = "optimizer"},
    {"offload_param", NULL, "where the weights are: `none` (the device), `cpu`, `nvme`", AT(is[KNOB_PARAM]),
     .type = "string", .title = "param"},
    {"micro_batch_size", "sequences", "of one worker's micro-batch", AT(batch), .title = "batch"},
    {"tokens_per_step", "tokens", "of the global batch", AT(forecast.tokens)},
    {"device_bytes", "bytes",
     "of a worker's device: the ledger, and on a GPU an upper bound of what the ledger does not count",
     SUM(device_bytes), .type = "integer", .title = "device"},
    {"host_bytes", "bytes",
     "of the host, all roles together, with upper bounds of what the ledger does not count", SUM(host_bytes),
     .type = "integer", .title = "host, all"},
    {"disk_bytes", "bytes", "of all workers", SUM(disk_bytes), .type = "integer", .title = "disk, all"},
    {"server_bytes", "bytes", "of the largest server's ledger; 0: there are no servers", SUM(server_bytes),
     .type = "integer"},
    {"wire_bytes_per_step", "bytes", "of the busiest rank, sent or received, the larger", SUM(wire_bytes),
     .title = "wire/step"},
    {"offload_per_step", NULL, "what a worker moves between device and host, and between host and disk",
     .kind = FIGURE_OBJECT},
    {"offload_per_step.down", "bytes", "from the device to the host", OFFLOAD(down)},
    {"offload_per_step.up", "bytes", "from the host to the device", OFFLOAD(up)},
    {"offload_per_step.read", "bytes", "from disk", OFFLOAD(read)},
    {"offload_per_step.written", "bytes", "to disk", OFFLOAD(written)},
    {"step_seconds", "s", "the larger of computing and the wire, and then the update", AT(step.total_s),
     .title = "step s"},
    {"compute_seconds", "s", "without what is computed again", AT(step.compute_s)},
    {"recompute_seconds", "s", NULL, AT(step.again_s)},
    {"wire_seconds", "s", NULL, AT(step.wire_s)},
    {"update_seconds", "s", "after the last gradient: of memory, the host's link and the disk",
     AT(step.update_s)},
    {"bound", NULL, "what takes longest: `compute`, `wire`, `memory`, `host link` or `disk`", AT(step.bound),
     .type = "string", .title = "bound by"},
    {"tokens_per_second", "tokens/s", "`tokens_per_step` / `step_seconds`", AT(tokens_per_s),
     .title = "tokens/s"},
    {"options", NULL, "to type after those given", .type = "string"},
    {"command", NULL, "the whole command that trains so", .type = "string"},
};
static const struct figure of_documents[] = {
    {"model", NULL, "as in `--model`", .type = "string"},
    {"params", NULL, "parameters, without padding", .type = "integer"},
    {"dtype", NULL, "`fp32`, `bf16` or `fp16`", .type = "string"},
    {"workers", NULL, "ranks that compute", .type = "integer"},
    {"seq_len", "tokens", "of a sequence", .type = "integer"},
    {"device_memory_bytes", "bytes", "limit of a worker's device memory", .type = "integer"},
    {"host_memory_bytes", "bytes", "limit of all roles' memory of the host; null: none",
     .type = "integer or null"},
    {"disk_limit_bytes", "bytes", "limit of all workers' disk; null: none", .type = "number or null"},
    {"rates", NULL, "what times are computed with", .type = "object"},
    {"rates.*", "per s", "FLOP or bytes, as the option of the same name sets it", .type = "number"},
    {"plans", NULL, "those that fit, fastest first", .type = "list"},
    {"least", NULL, "the plan that exceeds its limits least", .type = "object", .when = "none fits"},
    {"least.*", NULL, "as in `plans[]`", .type = "string, integer, number or object"},
    {"least.offload_per_step.*", "bytes", "as in `plans[]`", .type = "integer"},
};
struct figure_rows plan_head_figures(void) {
    return FIGURE_ROWS(of_documents);
}
struct figure_rows plan_figures(void) {
    return FIGURE_ROWS(of_plans);
}

// ---------------------------------------------------------------- one candidate
// Returns the time of a step: the forecast's FLOP and bytes, divided by rates.
static struct plan_step step_of(const struct config *c, const struct forecast_sums *f,
                                const struct plan_rates *r) {
    const struct offload_traffic *o = &f->offload;
    bool on_host = c->offload_optimizer.device != OFFLOAD_NONE, one_memory = !config_device(c)->gpu;
    // The update reads and writes the states in the memory that holds them.
    double memory = 2 * f->updated_bytes / (on_host ? r->host_memory : r->device_memory);
    double link = (double)(o->down > o->up ? o->down : o->up) / r->host_link;
    double disk = (double)(o->read + o->written) / r->disk;
    struct plan_step s = {.compute_s = f->flop / r->flops,
                          .again_s = f->recomputed_flop / r->flops + f->recomputed_bytes / r->device_memory,
                          .wire_s = f->wire_bytes / r->wire,
                          .update_s = fmax(one_memory ? memory + link : fmax(memory, link), disk)};
    double compute = s.compute_s + s.again_s, overlapped = fmax(compute, s.wire_s);
    s.total_s = overlapped + s.update_s;
    if (s.update_s > overlapped)
        s.bound = disk >= link && disk >= memory ? "disk" : link >= memory ? "host link" : "memory";
    else
        s.bound = s.wire_s > compute ? "wire" : "compute";
    return s;
}

static int predict(const struct plan_question *q, const struct job *j, struct plan_candidate *c) {
    const struct forecast_sums *f = &c->forecast;
    struct forecast all;
    if (forecast_of(j, &all)) return -1;
    c->forecast = all.sums;
    forecast_free(&all);
    read_knobs(j->config, c->is);
    c->step = step_of(j->config, f, &q->rates);
    c->tokens_per_s = (double)f->tokens / c->step.total_s;
    c->excess = fmax(f->device_bytes / q->device_bytes, f->host_bytes / q->host_bytes);
    if (f->disk_bytes > 0) c->excess = fmax(c->excess, f->disk_bytes / q->disk_bytes);
    return 0;
}

// Returns the configuration of a candidate: the caller's options, then the candidate's keys. NULL: it was refused.
static struct config *config_of(const struct plan_question *q, const struct plan_candidate *c) {
    char batch[24], workers[24];
    size_t n = q->args->override_count;
    struct config_override *all = xcalloc(n + 3 + 2 * PLAN_KNOBS, sizeof *all);
    memcpy(all, q->args->overrides, n * sizeof *all);
    snprintf(batch, sizeof batch, "%lld", (long long)c->batch);
    snprintf(workers, sizeof workers, "%d", c->workers);
    all[n++] = (struct config_override){.path = "topology", .value = c->topology};
    all[n++] = (struct config_override){.path = "workers", .value = workers};
    all[n++] = (struct config_override){.path = "train_micro_batch_size_per_gpu", .value = batch};
    for (int k = 0; k < PLAN_KNOBS; k++) {
        if (c->knob[k]) all[n++] = (struct config_override){.path = plan_knobs[k].path, .value = c->knob[k]};
        if (c->folder[k])
            all[n++] = (struct config_override){.path = plan_knobs[k].folder_path, .value = c->folder[k]};
    }
    struct config *config = config_load(q->topologies, cli_get(q->args, "config"), all, n);
    free(all);
    if (!config) return NULL;
    device_resolve(config);
    if (config->row->resolve) config->row->resolve(config, &(struct rank_env){0});
    if (config_check_launch(config)) config_destroy(&config);
    return config;
}

// Sets knobs that the candidate leaves out to "none", if the caller's file would set them to something else, or if the
// configuration was refused (config NULL). Returns whether it changed any.
static bool override_file_knobs(const struct plan_question *q, const struct config *config,
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
static bool try_candidate(const struct plan_question *q, struct plan_candidate *c) {
    struct config *config = config_of(q, c);
    if (cli_get(q->args, "config") && override_file_knobs(q, config, c)) {
        config_destroy(&config);
        config = config_of(q, c);
    }
    struct job j = {.ranks_here = c->workers};
    bool ok = config && !job_open(&j, config, true) && !predict(q, &j, c);
    job_close(&j);
    config_destroy(&config);
    return ok;
}

// ---------------------------------------------------------------- all of them
static bool same_cost(const struct plan_candidate *a, const struct plan_candidate *b) {
    const struct forecast_sums *x = &a->forecast, *y = &b->forecast;
    return !strcmp(a->topology, b->topology) && a->batch == b->batch && x->device_bytes == y->device_bytes &&
           x->host_bytes == y->host_bytes && x->disk_bytes == y->disk_bytes && x->wire_bytes == y->wire_bytes;
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
        if (!try_candidate(q, &now)) continue;
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

static void try_knobs(const struct plan_question *q, struct plan_candidate c, int knob, struct plan *out) {
    if (knob == PLAN_KNOBS) {
        add_best(q, c, out);
        return;
    }
    for (int v = 0; !plan_knobs[knob].values[v] || *plan_knobs[knob].values[v]; v++) {
        const char *value = plan_knobs[knob].values[v];
        bool disk = value && !strcmp(value, "nvme");
        c.knob[knob] = value;
        c.folder[knob] = disk && !folder_of(out->config, knob) ? HERE : NULL;
        try_knobs(q, c, knob + 1, out);
        if (given(q, plan_knobs[knob].path)) break;
    }
}

static int faster(const void *a, const void *b) {
    const struct plan_candidate *x = a, *y = b;
    if (x->tokens_per_s != y->tokens_per_s) return x->tokens_per_s < y->tokens_per_s ? 1 : -1;
    double of_x = x->forecast.device_bytes, of_y = y->forecast.device_bytes;
    return of_x < of_y ? -1 : of_x > of_y;
}

// Returns how many of the free bytes a plan may use: other programs may take some of them before the plan runs.
static double without_reserve(double free_bytes) {
    return fmax(0, free_bytes - fmax(free_bytes * PLAN_RESERVE_SHARE, PLAN_RESERVE_BYTES));
}

// Sets the limits that the caller did not name to this machine's free memory and disk. If the plan is for GPUs that this
// machine does not have, it is for another machine, and there are no such limits.
static void limit_to_here(struct plan_question *q, const struct config *c) {
    bool here = !config_device(c)->gpu || device_gpus(c);
    struct memory_limit memory;
    if (q->host_bytes <= 0)
        q->host_bytes =
            here && !memory_limit_read("", &memory) ? without_reserve(memory.free_bytes) : INFINITY;
    if (q->disk_bytes > 0) return;
    q->disk_bytes = INFINITY;
    for (int k = KNOB_OPTIMIZER; k <= KNOB_PARAM && here; k++) {
        const char *folder = folder_of(c, k) ? folder_of(c, k) : HERE;
        struct statvfs s;
        bool writable = !access(folder, W_OK) && !statvfs(folder, &s);
        double room = writable ? (double)s.f_bavail * (double)s.f_frsize : 0;
        q->disk_bytes = fmin(q->disk_bytes, without_reserve(room));
    }
}

// Chooses the data that the printed commands train on: the demo's text, byte by byte if the model has another tokenizer.
static void choose_data(struct plan *out) {
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

// Tries the requested topology, or all variants with different memory formulas (they keep different state on a rank).
static void try_topologies(const struct plan_question *q, struct plan *out) {
    if (q->topology) {
        struct plan_candidate c = {.workers = out->config->workers, .as_bytes = out->as_bytes};
        snprintf(c.topology, sizeof c.topology, "%s", q->topology);
        try_knobs(q, c, 0, out);
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
            try_knobs(q, c, 0, out);
        }
    }
}

// Reads the options that all plans share. If no topology is named, a star's options apply to some plans only: the other
// plans do not warn that they ignore them.
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
    out->frozen_params = rc ? 0 : j.layout->frozen;
    job_close(&j);
    if (rc) return -1;
    limit_to_here(q, out->config);
    choose_data(out);
    error_quiet(1);
    try_topologies(q, out);
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
        text_add(&text, " --set %s=%s", plan_knobs[k].path, c->knob[k]);
        if (c->folder[k]) text_add(&text, " --set %s=%s", plan_knobs[k].folder_path, c->folder[k]);
    }
    if (c->as_bytes) text_add(&text, " --tokenizer byte");
    return text;
}

char *plan_line(const struct plan_question *q, const struct plan_candidate *c) {
    static const char *const own[] = {"topology", "workers", "batch", "quiet",
                                      NULL};  // plan_flags sets these, or they have no meaning for a plan
    char program[PROGRAM_WORD], *text = xasprintf("%s train", program_word(program));
    for (size_t i = 0; i < q->args->given_count; i++) {
        const struct cli_given *g = &q->args->given[i];
        bool skip =
            !g->option->path && strcmp(g->option->name, "config") && strcmp(g->option->name, "device-memory");
        for (const char *const *o = own; *o; o++) skip |= !strcmp(g->option->name, *o);
        if (skip) continue;
        char *word = g->option->metavar ? shell_word(g->value) : NULL;
        text_add(&text, " --%s%s%s", g->option->name, word ? " " : "", word ? word : "");
        free(word);
    }
    char *flags = plan_flags(c);
    text_add(&text, " %s", flags);
    free(flags);
    return text;
}
