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
    figures_put(o, plan_figures(), c);
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
    json_put(o, "host_memory_bytes", floor(q->host_bytes));  // null if memory is not limited
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
    char count[96], bytes[24], host[24], disk[24];
    printf("%s: %s, %s, %d worker%s, sequences of %lld tokens\n", p->config->model,
           format_params(count, p->params, p->frozen_params), dtype_name(p->config->dtype),
           p->config->workers, p->config->workers > 1 ? "s" : "", (long long)p->config->seq);
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

// Prints one cell: numbers and bytes to the right, texts to the left; c NULL: its title.
static void print_cell(const struct figure *f, const struct plan_candidate *c) {
    char cell[FIGURE_CELL];
    const char *text = f->title;
    double x = c ? figure_value(f, c) : NAN;
    bool is_text = f->kind == FIGURE_TEXT || f->kind == FIGURE_CHARS;
    const void *at = (const char *)c + f->at;
    if (c) text = f->kind == FIGURE_CHARS ? at : is_text ? *(const char *const *)at : figure_cell(cell, f, x);
    if (c && (is_text ? !strcmp(text, "none") : !(x > 0))) text = "-";
    printf(is_text ? "  %-9s" : " %10s", text);
}

static void print_table(const struct plan_question *q, const struct plan *p, bool all) {
    const struct figure_rows rows = plan_figures();
    int count = all || p->count < ROWS ? p->count : ROWS;
    print_head(q, p);
    for (int i = -1; i < count; i++) {
        if (i < 0)
            fputs("    ", stdout);
        else
            printf("%4d", i + 1);
        for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++)
            if (f->title) print_cell(f, i < 0 ? NULL : &p->all[i]);
        putchar('\n');
    }
    if (count < p->count) printf("  and %d more that fit: --all\n", p->count - count);
    char *line = plan_line(q, &p->all[0]);
    printf(
        "\nThe first: %s\n%s%s", line, p->count > 1 ? "The others': with --json\n" : "",
        p->as_bytes
            ? "--tokenizer byte: the demo's text has no tokens of this model; --data FILE trains on your own\n"
            : "");
    free(line);
}

static void report_none_fits(const struct plan_question *q, const struct plan *p) {
    char limit[3][24], least[3][24], *flags = plan_flags(&p->least);
    fail(
        "plan: nothing fits %s of device memory for each worker, and %s of host memory and %s of disk for all roles "
        "together; nearest, with %s, %s and %s, is %s. Take a shorter --seq, a smaller --model, more --workers with less "
        "each, or name what another machine has: --host-memory, --disk",
        format_bytes(limit[0], q->device_bytes), limit_of(limit[1], q->host_bytes),
        limit_of(limit[2], q->disk_bytes), format_bytes(least[0], p->least.forecast.device_bytes),
        format_bytes(least[1], p->least.forecast.host_bytes),
        format_bytes(least[2], p->least.forecast.disk_bytes), flags);
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
        if (!p.count) report_none_fits(&q, &p);
    }
    plan_free(&p);
    return status;
}

int plan_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_plan, t, argc, argv, run);
}
