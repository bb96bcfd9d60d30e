// What the whole job took and did, all roles added up: the busiest rank alone hides that one topology holds and sends
// more than another.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/device/machine_facts.h"
#include "shared/report/summary_impl.h"

// ---------------------------------------------------------------- a rank's report
static void put_machine(cJSON *o, const struct machine_facts *m) {
    cJSON *item = cJSON_AddObjectToObject(o, "machine");
    json_put_text(item, "host", m->host);
    json_put_text(item, "processor", m->processor);
    json_put(item, "cores", m->cores);
    json_put(item, "memory_bytes", m->memory_bytes ? (double)m->memory_bytes : NAN);
}

static void put_scheduler(cJSON *o, const struct helper_figures *h) {
    if (!h->known) return;
    cJSON *item = cJSON_AddObjectToObject(o, "scheduler");
    json_put(item, "cpu_seconds", h->cpu_s);
    json_put(item, "rss_bytes", h->rss_bytes);
    json_put(item, "control_sent", h->control_sent);
    json_put(item, "control_received", h->control_received);
}

void summary_put_cost(struct cJSON *rank, const struct rank_report *r) {
    struct machine_facts m;
    const struct rank_span *s = &r->span;
    bool trained = s->begin_ns > 0;
    machine_facts_read(&m);
    json_put(rank, "updates", (double)r->updates);
    json_put(rank, "samples_per_update", (double)r->samples_per_update);
    json_put(rank, "samples_counted", r->samples_counted ? (double)r->samples_counted : NAN);
    if (r->shares) {
        json_put(rank, "batches", (double)r->batches);
        json_put(rank, "skipped", (double)r->skipped);
        json_put(rank, "tail_batches", (double)r->tail_batches);
        json_put(rank, "tail_seconds", r->tail_seconds);
    }
    cJSON *clock = cJSON_AddObjectToObject(rank, "clock");
    json_put_text(clock, "boot_id", m.boot_id);
    json_put(clock, "begin_ns", trained ? (double)s->begin_ns : NAN);
    json_put(clock, "end_ns", trained ? (double)s->end_ns : NAN);
    json_put(clock, "aside_seconds", s->aside_s);
    cJSON *process = cJSON_AddObjectToObject(rank, "process");
    json_put(process, "pid", (double)m.pid);
    json_put(process, "cpu_begin_ns", trained ? (double)s->cpu_begin_ns : NAN);
    json_put(process, "cpu_end_ns", trained ? (double)s->cpu_end_ns : NAN);
    if (r->resident.processes) {
        cJSON *job = cJSON_AddObjectToObject(rank, "job_resident");
        json_put(job, "pss_bytes", (double)r->resident.pss_bytes);
        json_put(job, "processes", r->resident.processes);
    }
    put_machine(rank, &m);
    put_scheduler(rank, &r->scheduler);
}

// ---------------------------------------------------------------- all of them
// Ranks that are threads share a process: its resident bytes count once, and so does the CPU time from the first of them
// to begin to the last to end.
struct process {
    const char *boot_id;
    double pid, rss_bytes, cpu_begin_ns, cpu_end_ns;
};

struct totals {
    double memory, transport, pinned, offload, rss, pss, cpu_s;
    double sent, received, control_sent, control_received;
};

static double largest(double a, double b) { return b > a ? b : a; }

static struct process *process_of(struct process *all, int *count, const cJSON *rank) {
    const char *boot_id = json_text(json_item(rank, "clock"), "boot_id", "");
    double pid = json_number(json_item(rank, "process"), "pid");
    for (int i = 0; i < *count; i++)
        if (all[i].pid == pid && !strcmp(all[i].boot_id, boot_id)) return &all[i];
    all[*count] =
        (struct process){.boot_id = boot_id, .pid = pid, .cpu_begin_ns = INFINITY, .cpu_end_ns = -INFINITY};
    return &all[(*count)++];
}

static void add_process(struct process *all, int *count, const cJSON *rank) {
    struct process *p = process_of(all, count, rank);
    const cJSON *process = json_item(rank, "process");
    double begin = json_number(process, "cpu_begin_ns"), end = json_number(process, "cpu_end_ns");
    p->rss_bytes = largest(p->rss_bytes, json_number(rank, "rss_bytes"));
    if (!(end >= begin)) return;
    p->cpu_begin_ns = fmin(p->cpu_begin_ns, begin);
    p->cpu_end_ns = fmax(p->cpu_end_ns, end);
}

static double class_bytes(const cJSON *rank, enum mem_class c) {
    double bytes = json_number(json_item(rank, "peak"), mem_class_name(c));
    return isfinite(bytes) ? bytes : 0;
}

static void add_rank(struct totals *all, struct totals *busiest, const cJSON *rank) {
    double ledger = summary_device_bytes(json_item(rank, "peak"));
    double frames = json_number(rank, "transport_peak_bytes");
    const struct {
        double *sum, *most, value;
    } figures[] = {
        {&all->memory, &busiest->memory, ledger},
        {&all->transport, &busiest->transport, frames},
        {&all->pinned, &busiest->pinned, class_bytes(rank, MEM_HOST)},
        {&all->offload, &busiest->offload, class_bytes(rank, MEM_OFFLOAD)},
        {&all->sent, &busiest->sent, json_number(rank, "sent_per_step")},
        {&all->received, &busiest->received, json_number(rank, "received_per_step")},
        {&all->control_sent, &busiest->control_sent, json_number(rank, "control_sent_per_step")},
        {&all->control_received, &busiest->control_received, json_number(rank, "control_received_per_step")},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        *figures[i].sum += figures[i].value;
        *figures[i].most = largest(*figures[i].most, figures[i].value);
    }
}

// NAN: worker 0 did not see all of the ranks' processes, as of several hosts, or of roles that were started one by one.
static double resident_of_job(const cJSON *ranks, const struct process *processes, int count) {
    const cJSON *r, *seen = NULL;
    cJSON_ArrayForEach(r, ranks) if (!seen) seen = json_item(r, "job_resident");
    for (int i = 1; i < count; i++)
        if (strcmp(processes[i].boot_id, processes[0].boot_id)) return NAN;
    return json_number(seen, "processes") >= count ? json_number(seen, "pss_bytes") : NAN;
}

static void add_processes(struct totals *all, struct totals *busiest, const cJSON *ranks) {
    struct process *processes = xcalloc((unsigned long)cJSON_GetArraySize(ranks) + 1, sizeof *processes);
    int count = 0;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) add_process(processes, &count, r);
    for (int i = 0; i < count; i++) {
        const struct process *p = &processes[i];
        double cpu_s = p->cpu_end_ns >= p->cpu_begin_ns ? (p->cpu_end_ns - p->cpu_begin_ns) * 1e-9 : 0;
        all->rss += p->rss_bytes;
        all->cpu_s += cpu_s;
        busiest->rss = largest(busiest->rss, p->rss_bytes);
        busiest->cpu_s = largest(busiest->cpu_s, cpu_s);
    }
    all->pss = resident_of_job(ranks, processes, count);
    free(processes);
}

static void add_scheduler(struct totals *all, const cJSON *ranks, double steps) {
    const cJSON *r, *found = NULL;
    cJSON_ArrayForEach(r, ranks) if (!found) found = json_item(r, "scheduler");
    if (!found) return;
    all->rss += json_number(found, "rss_bytes");
    all->cpu_s += json_number(found, "cpu_seconds");
    if (!(steps > 0)) return;
    all->control_sent += json_number(found, "control_sent") / steps;
    all->control_received += json_number(found, "control_received") / steps;
}

static void put_figures(cJSON *s, const char *key, const struct totals *t) {
    cJSON *o = cJSON_AddObjectToObject(s, key);
    json_put(o, "memory_bytes", t->memory);
    json_put(o, "transport_bytes", t->transport);
    json_put(o, "pinned_bytes", t->pinned);
    json_put(o, "offload_bytes", t->offload);
    json_put(o, "rss_bytes", t->rss);
    json_put(o, "sent_per_step", t->sent);
    json_put(o, "received_per_step", t->received);
    json_put(o, "control_sent_per_step", t->control_sent);
    json_put(o, "control_received_per_step", t->control_received);
    json_put(o, "cpu_seconds", t->cpu_s);
}

static bool is(const cJSON *rank, const char *role) { return !strcmp(json_text(rank, "role", ""), role); }

// Updates of the whole job: what every key of every server has had applied, or what a loop has counted where there is
// no server. NAN: no report says.
static double updates_applied(const cJSON *ranks, double *samples_per_update) {
    double least = NAN;
    const cJSON *r, *first = NULL;
    cJSON_ArrayForEach(r, ranks) {
        if (!first && is(r, "worker")) first = r;
        if (!is(r, "server")) continue;
        double updates = json_number(r, "updates");
        least = isnan(least) ? updates : fmin(least, updates);
        *samples_per_update = json_number(r, "samples_per_update");
    }
    if (!isnan(least)) return least;
    *samples_per_update = json_number(first, "samples_per_update");
    return json_number(first, "updates");
}

// NAN: as many as its updates say. Worker 0 was there from the first step on.
static double samples_counted(const cJSON *ranks) {
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (is(r, "worker") && json_number(r, "rank") == 0) return json_number(r, "samples_counted");
    }
    return NAN;
}

// From the first worker's first step to the last worker's last one, where they share a clock; else the longest of them.
static double training_seconds(const cJSON *ranks) {
    double begin = INFINITY, end = -INFINITY, aside = 0, longest = NAN;
    const char *boot_id = NULL;
    bool one_clock = true;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!is(r, "worker")) continue;
        const cJSON *clock = json_item(r, "clock");
        double from = json_number(clock, "begin_ns"), to = json_number(clock, "end_ns");
        double own_aside = json_number(clock, "aside_seconds"), own = (to - from) * 1e-9 - own_aside;
        const char *id = json_text(clock, "boot_id", "");
        one_clock = one_clock && *id && (!boot_id || !strcmp(boot_id, id));
        boot_id = id;
        begin = fmin(begin, from);
        end = fmax(end, to);
        aside = largest(aside, own_aside);
        if (!(own <= longest)) longest = own;
    }
    return one_clock && end > begin ? (end - begin) * 1e-9 - aside : longest;
}

// One budget of batches for all workers: who did how many, how many updated nothing, of which metrics.jsonl knows worker 0's
// alone, and what was done when not all had work. Returns the tail's batches; NAN: there is no such budget.
static double put_tail(cJSON *summary, const cJSON *ranks, double *seconds) {
    double batches = 0, skipped = 0;
    cJSON *each = NULL;
    const cJSON *r;
    *seconds = 0;
    cJSON_ArrayForEach(r, ranks) {
        if (!json_item(r, "batches")) continue;
        if (!each) each = cJSON_AddArrayToObject(summary, "batches");
        cJSON_AddItemToArray(each, cJSON_CreateNumber(json_number(r, "batches")));
        batches += json_number(r, "tail_batches");
        skipped += json_number(r, "skipped");
        *seconds = largest(*seconds, json_number(r, "tail_seconds"));
    }
    if (!each) return NAN;
    // NAN: reports of an earlier version, which do not say it.
    if (isfinite(skipped))
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(summary, "skipped"), skipped);
    json_put(summary, "tail_batches", batches);
    json_put(summary, "tail_seconds", *seconds);
    return batches;
}

void summary_put_totals(struct cJSON *summary, const struct config *c, const struct cJSON *ranks) {
    struct totals all = {0}, busiest = {0};
    double per_update = NAN, updates = updates_applied(ranks, &per_update), seconds = training_seconds(ranks);
    double counted = samples_counted(ranks);
    double samples = isnan(counted) ? updates * per_update : counted, tokens = samples * (double)c->seq;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) add_rank(&all, &busiest, r);
    add_processes(&all, &busiest, ranks);
    add_scheduler(&all, ranks, summary_own_steps(summary));
    json_put(summary, "updates_applied", updates);
    json_put(summary, "samples_applied", samples);
    json_put(summary, "tokens_applied", tokens);
    json_put(summary, "seconds", seconds);
    double tail_s, tail = put_tail(summary, ranks, &tail_s) * per_update * (double)c->seq;
    if (tail < tokens && tail_s < seconds) {
        tokens -= tail;
        seconds -= tail_s;
    }
    json_put(summary, "tokens_per_second", seconds > 0 ? tokens / seconds : NAN);
    put_figures(summary, "totals", &all);
    json_put(cJSON_GetObjectItem(summary, "totals"), "pss_bytes", all.pss);
    put_figures(summary, "busiest", &busiest);
    const cJSON *machine = json_item(cJSON_GetArrayItem(ranks, 0), "machine");
    cJSON_AddItemToObject(summary, "machine", machine ? cJSON_Duplicate(machine, 1) : cJSON_CreateNull());
}

void summary_print_totals(FILE *f, const struct cJSON *summary) {
    char a[24], b[24], c[24], d[24], e[24];
    const cJSON *all = json_item(summary, "totals"), *most = json_item(summary, "busiest");
    if (!all) return;
    double pss = json_number(all, "pss_bytes");  // of one process there is none: its peak is no part of that
    fprintf(f, "\n%-12s %12s %12s %12s %12s %12s %8s\n", "whole job", "memory", "frames held", "resident",
            "sent/step", "recv/step", "CPU s");
    for (int i = 0; i < 2; i++) {
        const cJSON *o = i ? most : all;
        fprintf(f, "  %-10s %12s %12s %12s %12s %12s %8.2f\n", i ? "busiest" : "all roles",
                format_bytes(a, json_number(o, "memory_bytes")),
                format_bytes(e, json_number(o, "transport_bytes")),
                isfinite(pss) && i ? "-" : format_bytes(b, isfinite(pss) ? pss : json_number(o, "rss_bytes")),
                format_bytes(c, json_number(o, "sent_per_step")),
                format_bytes(d, json_number(o, "received_per_step")), json_number(o, "cpu_seconds"));
    }
}
