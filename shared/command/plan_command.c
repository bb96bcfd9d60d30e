// `starring plan`: what fits a device's memory, fastest first.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/predict/plan_search.h"

#define ROWS 12  // rows of the table without --all

// ---------------------------------------------------------------- options
static int read_bytes(const struct cli_args *a, const char *name, double *out) {
    size_t bytes = 0;
    if (cli_bytes(a, name, 0, &bytes)) return -1;
    *out = (double)bytes;
    return 0;
}

static int read_question(const struct cli_args *a, struct plan_question *q) {
    long most = 0;
    const char *device = cli_get(a, "device");
    if (read_bytes(a, "device-memory", &q->device_bytes) || read_bytes(a, "host-memory", &q->host_bytes) ||
        read_bytes(a, "disk", &q->disk_bytes) || cli_integer(a, "most-batch", 1, 1 << 20, 64, &most))
        return -1;
    q->most_batch = most;
    if (q->device_bytes <= 0)
        return fail("plan: --device-memory SIZE is missing: how much one worker's device has, as 6G");
    // Rates without an option depend on the device: CPU or GPU.
    bool gpu = false;
    for (int d = 0; d < DEVICE_KINDS && device; d++)
        if (!strcmp(device, device_rows[d].name)) gpu = device_rows[d].gpu;
    for (const struct plan_rate *r = plan_rates_list; r->option; r++) {
        double x;
        if (cli_number(a, r->option, 1e-6, 1e9, gpu ? r->gpu : r->cpu, &x)) return -1;
        plan_rate_set(&q->rates, r, x * r->per_unit);
    }
    return 0;
}

// ---------------------------------------------------------------- as JSON
static cJSON *candidate_json(const struct plan_question *q, const struct plan_candidate *c) {
    cJSON *o = cJSON_CreateObject();
    char *flags = plan_flags(c), *line = plan_line(q, c);
    cJSON_AddStringToObject(o, "topology", c->topology);
    for (int k = 0; k < PLAN_KNOBS; k++) cJSON_AddStringToObject(o, plan_knobs[k].name, c->is[k]);
    json_put(o, "micro_batch_size", (double)c->batch);
    json_put(o, "tokens_per_step", (double)c->tokens);
    json_put(o, "device_bytes", c->device_bytes);
    json_put(o, "host_bytes", c->host_bytes);
    json_put(o, "disk_bytes", c->disk_bytes);
    json_put(o, "server_bytes", c->server_bytes);
    json_put(o, "wire_bytes_per_step", c->wire_bytes);
    cJSON *offload = cJSON_AddObjectToObject(o, "offload_per_step");
    json_put(offload, "down", (double)c->offload.down);
    json_put(offload, "up", (double)c->offload.up);
    json_put(offload, "read", (double)c->offload.read);
    json_put(offload, "written", (double)c->offload.written);
    json_put(o, "step_seconds", c->step.total_s);
    json_put(o, "compute_seconds", c->step.compute_s);
    json_put(o, "recompute_seconds", c->step.again_s);
    json_put(o, "wire_seconds", c->step.wire_s);
    json_put(o, "update_seconds", c->step.update_s);
    json_put_text(o, "bound", c->step.bound);
    json_put(o, "tokens_per_second", c->tokens_per_s);
    cJSON_AddStringToObject(o, "options", flags);
    cJSON_AddStringToObject(o, "command", line);
    free(flags);
    free(line);
    return o;
}

static void print_json(const struct plan_question *q, const struct plan *p) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "model", p->config->model);
    json_put(o, "params", (double)p->params);
    cJSON_AddStringToObject(o, "dtype", dtype_name(p->config->dtype));
    json_put(o, "workers", p->config->workers);
    json_put(o, "seq_len", (double)p->config->seq);
    json_put(o, "device_memory_bytes", q->device_bytes);
    json_put(o, "host_memory_bytes", floor(q->host_bytes));  // null: not limited
    json_put(o, "disk_limit_bytes", q->disk_bytes);
    cJSON *rates = cJSON_AddObjectToObject(o, "rates");
    for (const struct plan_rate *r = plan_rates_list; r->option; r++)
        json_put(rates, r->option, plan_rate_of(&q->rates, r));
    cJSON *all = cJSON_AddArrayToObject(o, "plans");
    for (int i = 0; i < p->count; i++) cJSON_AddItemToArray(all, candidate_json(q, &p->all[i]));
    if (!p->count) cJSON_AddItemToObject(o, "least", candidate_json(q, &p->least));
    json_print(stdout, o);
    cJSON_Delete(o);
}

// ---------------------------------------------------------------- as a table
static const char *limit_of(char text[24], double bytes) {
    return isinf(bytes) ? "any" : format_bytes(text, bytes);
}

static void print_head(const struct plan_question *q, const struct plan *p) {
    char count[32], bytes[24], host[24], disk[24];
    printf("%s: %s parameters, %s, %d worker%s, sequences of %lld tokens\n", p->config->model,
           format_count(count, p->params), dtype_name(p->config->dtype), p->config->workers,
           p->config->workers > 1 ? "s" : "", (long long)p->config->seq);
    printf(
        "Limits: device memory %s for each worker; of all roles together, servers and scheduler too, host memory %s and disk "
        "%s (unless named: what is free here, less 5%% and at least 1 GiB)\n",
        format_bytes(bytes, q->device_bytes), limit_of(host, q->host_bytes), limit_of(disk, q->disk_bytes));
    printf(
        "Memory and bytes are predictions, exact; times divide them by these rates, which options change:\n ");
    for (const struct plan_rate *r = plan_rates_list; r->option; r++)
        printf(" --%s %g %s%s", r->option, plan_rate_of(&q->rates, r) / r->per_unit, r->unit,
               r[1].option ? "," : "\n\n");
}

static const char *or_dash(const char *is) { return strcmp(is, "none") ? is : "-"; }

// "0.0123", "42.1", "1,643".
static const char *figure(char text[32], double x) {
    if (x >= 100) return format_count(text, llround(x));
    snprintf(text, 32, "%.3g", x);
    return text;
}

static void print_table(const struct plan_question *q, const struct plan *p, bool all) {
    int rows = all || p->count < ROWS ? p->count : ROWS;
    print_head(q, p);
    printf("%4s  %-9s %5s  %-9s %-9s %-7s %10s %10s %10s %10s %10s %12s  %s\n", "", "topology", "batch",
           "recompute", "optimizer", "param", "device", "host, all", "disk, all", "wire/step", "step s",
           "tokens/s", "bound by");
    for (int i = 0; i < rows; i++) {
        const struct plan_candidate *c = &p->all[i];
        char device[24], host[24], disk[24], wire[24], seconds[32], tokens[32];
        printf("%4d  %-9s %5lld  %-9s %-9s %-7s %10s %10s %10s %10s %10s %12s  %s\n", i + 1, c->topology,
               (long long)c->batch, or_dash(c->is[0]), or_dash(c->is[1]), or_dash(c->is[2]),
               format_bytes(device, c->device_bytes), format_bytes(host, c->host_bytes),
               c->disk_bytes > 0 ? format_bytes(disk, c->disk_bytes) : "-", format_bytes(wire, c->wire_bytes),
               figure(seconds, c->step.total_s), figure(tokens, c->tokens_per_s), c->step.bound);
    }
    if (rows < p->count) printf("  and %d more that fit: --all\n", p->count - rows);
    char *line = plan_line(q, &p->all[0]);
    printf(
        "\nThe first: %s\n%s%s", line, p->count > 1 ? "The others': with --json\n" : "",
        p->as_bytes
            ? "--tokenizer byte: the demo's text has no tokens of this model; --data FILE trains on your own\n"
            : "");
    free(line);
}

static void say_none(const struct plan_question *q, const struct plan *p) {
    char limit[3][24], least[3][24], *flags = plan_flags(&p->least);
    fail(
        "plan: nothing fits %s of device memory for each worker, and %s of host memory and %s of disk for all roles "
        "together; nearest, with %s, %s and %s, is %s. Take a shorter --seq, a smaller --model, more --workers with less "
        "each, or name what another machine has: --host-memory, --disk",
        format_bytes(limit[0], q->device_bytes), limit_of(limit[1], q->host_bytes),
        limit_of(limit[2], q->disk_bytes), format_bytes(least[0], p->least.device_bytes),
        format_bytes(least[1], p->least.host_bytes), format_bytes(least[2], p->least.disk_bytes), flags);
    free(flags);
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    struct plan_question q = {.topologies = t, .args = a, .topology = cli_get(a, "topology")};
    struct plan p = {0};
    int status = EXIT_USAGE;
    if (!read_question(a, &q) && !plan_search(&q, &p)) {
        bool json = cli_get(a, "json") != NULL;
        status = p.count ? 0 : EXIT_RUN_FAILED;
        if (json) print_json(&q, &p);
        if (!json && p.count) print_table(&q, &p, cli_get(a, "all") != NULL);
        if (!p.count) say_none(&q, &p);
    }
    plan_free(&p);
    return status;
}

int plan_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_plan, t, argc, argv, run);
}
