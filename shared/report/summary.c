// Writes a rank's report, and merges all ranks' reports, config.json and metrics.jsonl into summary.json.
#include "shared/report/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/numbers.h"
#include "shared/core/topology_row.h"
#include "shared/core/trouble.h"
#include "shared/device/device_facts.h"
#include "shared/report/evals.h"
#include "shared/report/figures.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "shared/state/staleness.h"
#include "shared/time/stall_report.h"

int summary_write_rank(const char *dir, const struct rank_report *r, const struct run_facts *facts) {
    cJSON *o = cJSON_CreateObject();
    rank_figures_put(o, r);
    if (facts) figures_put(cJSON_AddObjectToObject(o, "run"), run_figures(), facts);
    char *text = cJSON_Print(o), *name = xasprintf("ranks/%s-%d.json", r->role, r->rank);
    int rc = run_file_write(dir, name, text);
    free(name);
    free(text);
    cJSON_Delete(o);
    return rc;
}

struct cJSON *summary_reports(const struct config *c, const char *dir, struct cJSON *missing) {
    cJSON *ranks = cJSON_CreateArray();
    for (const struct topology_role *role = c->row->roles; role->name; role++)
        for (int r = 0; r < config_ranks(c, role->name); r++) {
            char *name = xasprintf("ranks/%s-%d.json", role->name, r), *text = run_file_read(dir, name, true);
            cJSON *o = text ? json_parse(text, strlen(text)) : NULL;
            if (text && !o) fail("%s/%s is no JSON document", dir, name);
            // Reports collected from many machines may belong to several jobs: the first report decides which job
            // counts.
            const cJSON *first = json_item(ranks->child, "job"), *job = json_item(o, "job");
            if (o && (!first || !job || cJSON_Compare(first, job, 1))) {
                cJSON_AddItemToArray(ranks, o);
            } else {
                cJSON_AddItemToArray(missing, cJSON_CreateString(name));
                cJSON_Delete(o);
            }
            free(text);
            free(name);
        }
    return ranks;
}

bool summary_interrupted(const struct cJSON *summary) {
    return !strcmp(json_text(summary, "state", ""), run_phase_word(RUN_INTERRUPTED));
}

static bool has_role(const cJSON *rank, const char *role) {
    return !strcmp(json_text(rank, "role", ""), role);
}

// ---------------------------------------------------------------- the run
// As in the configuration; nothing if there was none.
static void put_trouble(cJSON *s, const struct config *c) {
    char *text = config_to_json(c), *words = trouble_text(c->straggle, c->delay),
         *fault = message_fault_text(c->fault);
    cJSON *all = words || fault ? cJSON_Parse(text) : NULL;
    cJSON *trouble = cJSON_DetachItemFromObjectCaseSensitive(all, "trouble");
    if (trouble) {
        if (words) cJSON_AddStringToObject(trouble, "text", words);
        if (fault) cJSON_AddStringToObject(trouble, "fault_text", fault);
        cJSON_AddItemToObject(s, "trouble", trouble);
    }
    cJSON_Delete(all);
    free(words);
    free(fault);
    free(text);
}

static void put_description(cJSON *s, const struct config *c, const struct metrics_totals *m) {
    enum run_phase phase = m->last_step < c->steps ? RUN_INTERRUPTED : RUN_COMPLETE;
    cJSON_AddStringToObject(s, "state", run_phase_word(phase));
    figures_put(s, summary_figures(), c);
    if (c->row->describe) c->row->describe(c, s);
    json_put(s, "steps", (double)m->last_step);
    json_put(s, "skipped", (double)m->skipped);
    put_trouble(s, c);
    cJSON *loss = cJSON_GetObjectItem(s, "loss");
    json_put(loss, "first", m->loss_first);
    json_put(loss, "last", m->loss_last);
}

static void set_state(cJSON *s, const char *word) {
    cJSON_ReplaceItemInObjectCaseSensitive(s, "state", cJSON_CreateString(word));
}

// Copies worker 0's facts from its report to the top; null if it left no report.
static void put_run(cJSON *s, const cJSON *ranks) {
    const cJSON *run = json_item(cJSON_GetArrayItem(ranks, 0), "run");
    const struct figure_rows rows = run_figures();
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        const cJSON *v = json_item(run, f->key);
        if (f->in & IN_TOP) cJSON_AddItemToObject(s, f->key, v ? cJSON_Duplicate(v, 1) : cJSON_CreateNull());
    }
    const cJSON *place = json_item(run, "place");  // set where workers share a budget
    bool interrupted = cJSON_IsTrue(json_item(run, "interrupted"));
    if (cJSON_IsNumber(place)) cJSON_ReplaceItemInObjectCaseSensitive(s, "steps", cJSON_Duplicate(place, 1));
    if (interrupted || cJSON_IsNumber(place))
        set_state(s, run_phase_word(interrupted ? RUN_INTERRUPTED : RUN_COMPLETE));
}

// The last evaluation, and when the target loss was reached.
static void put_learning(cJSON *s, const struct config *c, const char *dir, const struct metrics_totals *m) {
    struct evals evals = {0};
    struct eval_point p;
    json_put(s, "val_loss", m->val_loss);
    json_put(s, "unigram_entropy", m->unigram_entropy);
    if (c->target_loss > 0 && !evals_read(dir, &evals) && evals_reach(&evals, c->target_loss, &p)) {
        cJSON *o = cJSON_AddObjectToObject(s, "time_to_loss");
        json_put(o, "step", p.step);
        json_put(o, "samples", p.samples);
        json_put(o, "updates", p.updates);
        json_put(o, "seconds", p.seconds);
        json_put(o, "val_loss", p.val_loss);
    } else {
        cJSON_AddNullToObject(s, "time_to_loss");
    }
    evals_free(&evals);
}

// ---------------------------------------------------------------- totals of the whole job
// Ranks that are threads share a process. Its resident bytes count once, and so does its CPU time from the first
// rank's begin to the last rank's end.
struct process {
    const char *boot_id;
    double pid, rss_bytes, cpu_begin_ns, cpu_end_ns;
};

static double number_or_0(const cJSON *o, const char *key) {
    double x = json_number(o, key);
    return isfinite(x) ? x : 0;
}

// Finds the rank's process in `all`, or adds it, and merges the rank's figures.
static void add_process(struct process *all, int *count, const cJSON *rank) {
    const cJSON *process = json_item(rank, "process");
    const char *boot_id = json_text(json_item(rank, "clock"), "boot_id", "");
    double pid = json_number(process, "pid"), begin = json_number(process, "cpu_begin_ns"),
           end = json_number(process, "cpu_end_ns");
    int i = 0;
    while (i < *count && (all[i].pid != pid || strcmp(all[i].boot_id, boot_id) != 0)) i++;
    struct process *p = &all[i];
    if (i == *count) {
        *p = (struct process){
            .boot_id = boot_id, .pid = pid, .cpu_begin_ns = INFINITY, .cpu_end_ns = -INFINITY};
        ++*count;
    }
    p->rss_bytes = fmax(p->rss_bytes, json_number(rank, "rss_bytes"));
    if (!(end >= begin)) return;
    p->cpu_begin_ns = fmin(p->cpu_begin_ns, begin);
    p->cpu_end_ns = fmax(p->cpu_end_ns, end);
}

// NAN: worker 0 did not see all ranks' processes, because they are on several hosts or were started one by one.
static double resident_of_job(const cJSON *ranks, const struct process *processes, int count) {
    const cJSON *r, *seen = NULL;
    cJSON_ArrayForEach(r, ranks) if (!seen) seen = json_item(r, "job_resident");
    for (int i = 1; i < count; i++)
        if (strcmp(processes[i].boot_id, processes[0].boot_id)) return NAN;
    return json_number(seen, "processes") >= count ? json_number(seen, "pss_bytes") : NAN;
}

// Adds the figures of the processes, and those of the scheduler, which has no report, to the ranks' totals.
static void put_processes(cJSON *totals, cJSON *busiest, const cJSON *ranks, double steps) {
    struct process *processes = xcalloc((unsigned long)cJSON_GetArraySize(ranks) + 1, sizeof *processes);
    int count = 0;
    const cJSON *r, *scheduler = NULL;
    cJSON_ArrayForEach(r, ranks) {
        add_process(processes, &count, r);
        if (!scheduler) scheduler = json_item(r, "scheduler");
    }
    double rss = number_or_0(scheduler, "rss_bytes"), cpu_s = number_or_0(scheduler, "cpu_seconds"),
           rss_most = 0, cpu_most_s = 0;
    for (int i = 0; i < count; i++) {
        const struct process *p = &processes[i];
        double own_s = p->cpu_end_ns >= p->cpu_begin_ns ? (p->cpu_end_ns - p->cpu_begin_ns) * 1e-9 : 0;
        rss += p->rss_bytes;
        cpu_s += own_s;
        rss_most = fmax(rss_most, p->rss_bytes);
        cpu_most_s = fmax(cpu_most_s, own_s);
    }
    json_put(totals, "rss_bytes", rss);
    json_put(totals, "pss_bytes", resident_of_job(ranks, processes, count));
    json_put(totals, "cpu_seconds", cpu_s);
    json_put(busiest, "rss_bytes", rss_most);
    json_put(busiest, "cpu_seconds", cpu_most_s);
    free(processes);
    static const char *const control[][2] = {{"control_sent", "control_sent_per_step"},
                                             {"control_received", "control_received_per_step"}};
    for (int i = 0; i < 2 && steps > 0; i++) {
        cJSON *sum = cJSON_GetObjectItem(totals, control[i][1]);
        if (sum) cJSON_SetNumberValue(sum, sum->valuedouble + number_or_0(scheduler, control[i][0]) / steps);
    }
}

// Returns the updates of the whole job: the least that any server has applied to all its keys, or the loop's count
// where there is no server. NAN: no report has it.
static double updates_applied(const cJSON *ranks, double *samples_per_update) {
    double least = NAN;
    const cJSON *r, *first = NULL;
    cJSON_ArrayForEach(r, ranks) {
        if (!first && has_role(r, "worker")) first = r;
        if (!has_role(r, "server")) continue;
        double updates = json_number(r, "updates");
        least = isnan(least) ? updates : fmin(least, updates);
        *samples_per_update = json_number(r, "samples_per_update");
    }
    if (!isnan(least)) return least;
    *samples_per_update = json_number(first, "samples_per_update");
    return json_number(first, "updates");
}

// NAN: compute it from the updates. Worker 0 was present from the first step on. For servers, the samples in every
// key.
static double samples_counted(const cJSON *ranks) {
    double least = NAN;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        bool counts = has_role(r, "server") || (has_role(r, "worker") && json_number(r, "rank") == 0);
        if (counts) least = fmin(least, json_number(r, "samples_counted"));
    }
    return least;
}

// From the start of the first worker's first step to the end of the last worker's last one if they share a clock; else
// the longest training time of a worker.
static double training_seconds(const cJSON *ranks) {
    double begin = INFINITY, end = -INFINITY, pause = 0, longest = NAN;
    const char *boot_id = NULL;
    bool one_clock = true;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!has_role(r, "worker")) continue;
        const cJSON *clock = json_item(r, "clock");
        double from = json_number(clock, "begin_ns"), to = json_number(clock, "end_ns");
        double own_pause = json_number(clock, "aside_seconds"), own = (to - from) * 1e-9 - own_pause;
        const char *id = json_text(clock, "boot_id", "");
        one_clock = one_clock && *id && (!boot_id || !strcmp(boot_id, id));
        boot_id = id;
        begin = fmin(begin, from);
        end = fmax(end, to);
        pause = fmax(pause, own_pause);
        if (!(own <= longest)) longest = own;
    }
    return one_clock && end > begin ? (end - begin) * 1e-9 - pause : longest;
}

// Returns the mean tokens of a sequence. Usually that is worker 0's figure. Where workers share a budget, it is the
// mean over all workers' batches of of_batch sequences, and replaces the figure at the top. A report of an earlier
// version has none.
static double tokens_of_sequence(cJSON *s, const struct config *c, const cJSON *ranks, double of_batch) {
    double each = json_number(s, "tokens_per_sequence"), tokens = 0, batches = 0;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!json_item(r, "tokens")) continue;
        tokens += json_number(r, "tokens");
        batches += json_number(r, "batches") - json_number(r, "skipped");
    }
    if (!isfinite(each)) return c->documents == DOCUMENTS_WHOLE ? 0 : (double)c->seq;
    if (!(tokens > 0)) return each;
    each = tokens / (batches * of_batch);
    cJSON_ReplaceItemInObjectCaseSensitive(s, "tokens_per_sequence", cJSON_CreateNumber(each));
    return each;
}

static bool is_role_on(const cJSON *rank, const char *role, const char *host) {
    return has_role(rank, role) && !strcmp(json_text(json_item(rank, "machine"), "host", "?"), host);
}

// Writes the ranks of a role on a host, sorted by number: "workers 0-2 5", or "worker 1"; nothing if there are none.
static void print_role_on(FILE *f, const cJSON *ranks, const char *role, const char *host, bool *any) {
    int count = 0, last = -2;
    bool run = false;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) count += is_role_on(r, role, host);
    if (!count) return;
    fprintf(f, "%s%s%s", *any ? ", " : "", role, count > 1 ? "s" : "");
    *any = true;
    cJSON_ArrayForEach(r, ranks) {
        int rank = (int)json_number(r, "rank");
        if (!is_role_on(r, role, host)) continue;
        if (run && rank != last + 1) fprintf(f, "-%d", last);
        if (rank != last + 1) fprintf(f, " %d", rank);
        run = rank == last + 1;
        last = rank;
    }
    if (run) fprintf(f, "-%d", last);
}

// How the ranks were started, and which role was on which machine. If another program started the ranks, the scheduler
// is on worker 0's machine. For roles that were started one by one this is unknown.
static void put_placement(cJSON *s, const struct config *c, const cJSON *ranks) {
    const char *by = json_text(s, "launch", NULL);
    if (!by) return;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    cJSON *hosts = cJSON_CreateObject();
    const cJSON *r, *host;
    bool others = strcmp(by, "processes") && strcmp(by, "threads");
    cJSON_ArrayForEach(r, ranks) {
        const char *name = json_text(json_item(r, "machine"), "host", "?");
        if (!cJSON_HasObjectItem(hosts, name)) cJSON_AddNullToObject(hosts, name);
    }
    int machines = cJSON_GetArraySize(hosts);
    fprintf(f, "%s, on %d machine%s: ", by, machines, machines == 1 ? "" : "s");
    cJSON_ArrayForEach(host, hosts) {
        bool any = host == hosts->child && c->row->scheduled && others;
        fprintf(f, "%s%s: %s", host == hosts->child ? "" : "; ", host->string, any ? "scheduler" : "");
        for (const struct topology_role *role = c->row->roles; role->name; role++)
            print_role_on(f, ranks, role->name, host->string, &any);
    }
    fclose(f);
    cJSON_AddStringToObject(s, "placement", text);
    cJSON_Delete(hosts);
    free(text);
}

static void put_totals(cJSON *s, const struct config *c, const cJSON *ranks) {
    double per_update = NAN, updates = updates_applied(ranks, &per_update), seconds = training_seconds(ranks);
    double counted = samples_counted(ranks);
    double samples = isnan(counted) ? updates * per_update : counted,
           of_batch = (double)(c->micro_batch * c->accumulation);
    double each = tokens_of_sequence(s, c, ranks, of_batch);
    double tokens = nearbyint(samples * each);
    put_processes(cJSON_GetObjectItem(s, "totals"), cJSON_GetObjectItem(s, "busiest"), ranks,
                  summary_own_steps(s));
    json_put(s, "updates_applied", updates);
    json_put(s, "samples_applied", samples);
    json_put(s, "tokens_applied", tokens);
    json_put(s, "seconds", seconds);
    // Where workers share a budget, rates leave out the tail, in which not all of them work.
    double tail_s = json_number(s, "tail_seconds"), tail = json_number(s, "tail_batches") * of_batch * each;
    if (tail < tokens && tail_s < seconds) {
        tokens -= tail;
        seconds -= tail_s;
    }
    json_put(s, "tokens_per_second", seconds > 0 ? tokens / seconds : NAN);
    const cJSON *machine = json_item(cJSON_GetArrayItem(ranks, 0), "machine");
    cJSON_AddItemToObject(s, "machine", machine ? cJSON_Duplicate(machine, 1) : cJSON_CreateNull());
    put_placement(s, c, ranks);
}

// ---------------------------------------------------------------- per rank
static void put_peer(cJSON *list, const struct stall_reports *m, size_t i, double seconds) {
    if (!(seconds > 0)) return;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    json_put_text(o, "role", m->roles[i]);
    json_put(o, "rank", m->ranks[i]);
    json_put(o, "seconds", seconds);
}

static void replace(cJSON *o, const char *name, double value) {
    cJSON_ReplaceItemInObject(o, name, cJSON_CreateNumber(value));
}

// Moves parts of worker i's exposed time: time in which another rank stood still becomes waiting for that rank; time
// in which this rank stood still becomes host time. all (count): the seconds that workers waited for each rank so far.
static void assign_waits(const struct stall_reports *m, size_t i, cJSON *time, double *all) {
    const struct stall_report *own = m->all[i];
    if (!own) return;
    double *blamed = xcalloc(m->count + 1, sizeof *blamed), moved = 0;
    size_t parts;
    struct blame *list = stall_blame(m->all, m->count, i, &parts);
    for (size_t k = 0; k < parts; k++) {
        double seconds = (double)(list[k].end - list[k].begin) * 1e-9;
        blamed[list[k].rank] += seconds;
        if (list[k].instead >= 0) blamed[list[k].instead] -= seconds;
    }
    free(list);
    double still = blamed[i], exposed = json_number(time, "comm_exposed");
    blamed[i] = 0;
    cJSON *peers = cJSON_AddArrayToObject(time, "waited_for");
    for (size_t r = 0; r < m->count; r++) {
        double seconds = blamed[r];
        moved += blamed[r];
        bool worker = !strcmp(m->roles[r], "worker");
        if (worker && m->ranks[r] >= 0 && m->ranks[r] < own->ranks) seconds += own->waited[m->ranks[r]];
        put_peer(peers, m, r, seconds);
        all[r] += seconds;
    }
    moved = fmin(moved, exposed);
    still = fmin(still, exposed - moved);
    replace(time, "comm_exposed", exposed - moved - still);
    replace(time, "wait", json_number(time, "wait") + moved);
    replace(time, "host", json_number(time, "host") + still);
    free(blamed);
}

// For each worker: completes the times in its report (joined later). Also writes the mean time that workers waited for
// each rank, and how long each rank stood still.
static void put_times(cJSON *s, cJSON *ranks) {
    double check = 1;
    int workers = 0;
    size_t next = 0;
    struct stall_reports *m = stall_reports_read(ranks);
    double *all = xcalloc(m->count + 1, sizeof *all);
    cJSON *each = cJSON_AddArrayToObject(s, "time_per_rank"), *mean = cJSON_GetObjectItem(s, "time"), *r;
    cJSON_ArrayForEach(r, ranks) {
        size_t at = next++;
        cJSON *time = cJSON_GetObjectItem(r, "time");
        if (!has_role(r, "worker") || !time) continue;
        assign_waits(m, at, time, all);
        double own = json_number(time, "check");
        if (fabs(own - 1) > fabs(check - 1)) check = own;
        cJSON_AddItemToArray(each, cJSON_Duplicate(time, 1));
        workers++;
    }
    json_put(mean, "check", check);
    cJSON *waited = cJSON_AddArrayToObject(mean, "waited_for"),
          *still = cJSON_AddArrayToObject(s, "stood_still");
    for (size_t i = 0; i < m->count; i++) {
        put_peer(waited, m, i, all[i] / workers);
        put_peer(still, m, i, m->all[i] ? m->all[i]->stood_still : 0);
    }
    stall_reports_free(&m);
    free(all);
}

double summary_own_steps(const cJSON *s) {
    double before = json_number(s, "resumed_from");
    return json_number(s, "steps") - (isfinite(before) ? before : 0);
}

// ---------------------------------------------------------------- speed
// Nearest-rank percentile of sorted values.
static double percentile(const double *sorted, int64_t n, double p) {
    return n ? sorted[(int64_t)(p * (double)(n - 1) + 0.5)] : NAN;
}

double summary_rate(const struct metrics_totals *m, double tokens_per_step) {
    int64_t warm = m->steps > 1;  // the first step warms up caches and libraries
    double total_s = warm ? m->later_seconds : m->steps ? m->step_seconds[0] : 0;
    return total_s > 0 ? tokens_per_step * (double)(m->steps - warm) / total_s : NAN;
}

#define SPREAD_LEAST 5  // fewer steps do not show a spread

// (p95 - p5) / median of the steps after the first, which warms up: above a quarter, times are uncertain. Sorts them.
static double spread_of(const struct metrics_totals *m) {
    int64_t n = m->kept - 1;
    if (n < SPREAD_LEAST) return NAN;
    double *later = m->step_seconds + 1;
    sort_ascending(later, (size_t)n);
    double median = 0.5 * (later[(n - 1) / 2] + later[n / 2]);
    return median > 0 ? (percentile(later, n, 0.95) - percentile(later, n, 0.05)) / median : NAN;
}

static void put_speed(cJSON *s, const struct metrics_totals *m) {
    double rate = json_number(s, "tokens_per_second"), full = json_number(s, "flops_per_token"),
           causal = json_number(s, "flops_per_token_causal"), spread = spread_of(m);
    json_put(s, "flops_per_second", rate * full);
    json_put(s, "flops_per_second_causal", rate * causal);
    json_put(s, "hardware_flops_per_second", rate * (full + json_number(s, "recomputed_flops_per_token")));
    json_put(s, "hardware_flops_per_second_causal",
             rate * (causal + json_number(s, "recomputed_flops_per_token_causal")));
    if (m->kept) sort_ascending(m->step_seconds, (size_t)m->kept);
    cJSON *step = cJSON_GetObjectItem(s, "step_seconds");
    json_put(step, "median", percentile(m->step_seconds, m->kept, 0.5));
    json_put(step, "p5", percentile(m->step_seconds, m->kept, 0.05));
    json_put(step, "p95", percentile(m->step_seconds, m->kept, 0.95));
    json_put(step, "spread", spread);
}

// ---------------------------------------------------------------- GPUs: each once, with its ranks
static const char *text_of(const cJSON *o, const char *key) { return json_text(o, key, ""); }

// Merges the notes of the ranks of one device: each different note once.
static void add_work(cJSON *known, const cJSON *d) {
    static const char *const keys[] = {"attention_forward", "attention_backward", "gelu", "bias_grad"};
    char both[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *a = text_of(known, keys[i]), *b = text_of(d, keys[i]);
        if (!b[0] || !strcmp(a, b)) continue;
        snprintf(both, sizeof both, "%s%s%s", a, a[0] ? ", " : "", b);
        cJSON_ReplaceItemInObjectCaseSensitive(known, keys[i], cJSON_CreateString(both));
    }
    cJSON *notes = cJSON_GetObjectItemCaseSensitive(known, "notes");
    const cJSON *note, *other;
    cJSON_ArrayForEach(note, json_item(d, "notes")) {
        bool known_note = false;
        cJSON_ArrayForEach(other, notes) known_note |= !strcmp(other->valuestring, note->valuestring);
        if (!known_note) cJSON_AddItemToArray(notes, cJSON_CreateString(note->valuestring));
    }
}

// Memory in use is the whole device's, whichever rank reads it. The largest reading counts, because libraries may take
// more between two readings.
static void add_device(cJSON *devices, const cJSON *rank) {
    char name[40];
    const cJSON *d = json_item(rank, "device");
    if (!d) return;
    cJSON *known = devices->child;
    while (known && (strcmp(text_of(known, "host"), text_of(d, "host")) != 0 ||
                     strcmp(text_of(known, "bus_id"), text_of(d, "bus_id")) != 0))
        known = known->next;
    if (!known) {
        known = cJSON_Duplicate(d, 1);
        cJSON_AddArrayToObject(known, "ranks");
        cJSON_AddItemToArray(devices, known);
    } else {
        replace(known, "ledger_bytes", json_number(known, "ledger_bytes") + json_number(d, "ledger_bytes"));
        replace(known, "workspace_bytes",
                json_number(known, "workspace_bytes") + json_number(d, "workspace_bytes"));
        replace(known, "used_bytes", fmax(json_number(known, "used_bytes"), json_number(d, "used_bytes")));
        add_work(known, d);
        replace(known, "free_bytes", fmin(json_number(known, "free_bytes"), json_number(d, "free_bytes")));
    }
    snprintf(name, sizeof name, "%s %.0f", text_of(rank, "role"), json_number(rank, "rank"));
    cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(known, "ranks"), cJSON_CreateString(name));
}

static void put_devices(cJSON *summary, const cJSON *ranks) {
    cJSON *devices = cJSON_CreateArray(), *d;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) add_device(devices, r);
    cJSON_ArrayForEach(d, devices) {
        double other = device_memory_other(json_number(d, "used_bytes"), json_number(d, "ledger_bytes"),
                                           json_number(d, "workspace_bytes"));
        cJSON_AddNumberToObject(d, "other_bytes", other);
        cJSON_AddStringToObject(d, "other", DEVICE_MEMORY_OTHER);
    }
    if (cJSON_GetArraySize(devices))
        cJSON_AddItemToObject(summary, "devices", devices);
    else
        cJSON_Delete(devices);
}

// Writes the sum of the GPUs' datasheet rates, and the run's share of it for both countings of attention; null if a
// GPU is not in the table.
static void put_mfu(cJSON *summary, enum dtype dt) {
    double peak = 0;
    const char *source;
    const cJSON *d;
    cJSON_ArrayForEach(d, json_item(summary, "devices")) {
        double flops = datasheet_flops(text_of(d, "name"), dt, &source);
        peak = flops > 0 ? peak + flops : NAN;
    }
    if (!(peak > 0)) peak = NAN;
    json_put(summary, "datasheet_flops_per_second", peak);
    json_put(summary, "mfu_datasheet", json_number(summary, "flops_per_second") / peak);
    json_put(summary, "mfu_datasheet_causal", json_number(summary, "flops_per_second_causal") / peak);
}

// ---------------------------------------------------------------- checkpoints
bool summary_unkept(const struct cJSON *summary) {
    return !strcmp(json_text(summary, "state", ""), STATE_UNKEPT);
}

// All ranks wait for the slowest one. If all steps are done and no checkpoint exists, the state says so; not if a
// resumed star found all steps done, because then nothing was to be kept.
static void put_checkpoints(cJSON *s, const char *dir, const cJSON *ranks) {
    double slowed = 0;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) slowed = fmax(slowed, figure_number(r, "checkpoints.slowed_seconds"));
    cJSON *o = cJSON_GetObjectItem(s, "checkpoints");
    double written = json_number(o, "written"), failed = json_number(o, "failed"),
           seconds = json_number(o, "seconds_writing"), kept = written + failed;
    json_put_text(o, "why", json_text(json_item(cJSON_GetArrayItem(ranks, 0), "checkpoints"), "why", NULL));
    json_put(o, "bytes_per_second", seconds > 0 ? json_number(o, "bytes") / seconds : NAN);
    json_put(cJSON_GetObjectItem(o, "step_slowed_seconds"), "mean", kept > 0 ? slowed / kept : NAN);
    bool complete = !strcmp(json_text(s, "state", ""), run_phase_word(RUN_COMPLETE));
    bool due = failed > 0 || summary_own_steps(s) > 0;
    if (complete && due && !written && checkpoint_latest_step(dir) < 0) set_state(s, STATE_UNKEPT);
}

// ---------------------------------------------------------------- starts of the job, and absent workers
struct history_sums {
    // `count` and `lost`: of the command's last start; `earlier*`: of the starts before. A death's lost steps are done
    // again in the same start. When a start is ended, its steps after the last checkpoint are done again in the next
    // start.
    int start, count, earlier;
    double lost, earlier_lost;  // NAN: unknown
    cJSON *away;
    double last;  // the run's last step
};

static void end_absence(cJSON *list, cJSON *o, double to, bool returned) {
    if (to < json_number(o, "from_step")) {
        cJSON_Delete(cJSON_DetachItemViaPointer(list, o));
        return;
    }
    cJSON_ReplaceItemInObject(o, "to_step", cJSON_CreateNumber(to));
    cJSON_ReplaceItemInObject(o, "returned", cJSON_CreateBool(returned));
}

static void add_start(struct history_sums *p, const struct history_row *r) {
    double lost = r->counted ? (double)r->lost : NAN, step = (double)r->step;
    if (r->start != p->start) {
        p->earlier += p->count;
        p->earlier_lost += p->lost + (p->start ? lost : 0);
        p->count = 0;
        p->lost = 0;
        p->start = r->start;
    } else {
        p->lost += lost;
    }
    p->count++;
    // All workers are present from its first step on.
    for (cJSON *o = p->away->child, *next; o && r->step; o = next) {
        next = o->next;
        double to = json_number(o, "to_step");
        if (!(to < step)) end_absence(p->away, o, step - 1, true);
    }
}

static void add_absence(struct history_sums *p, const struct history_row *r) {
    double step = (double)r->step;
    bool away = r->kind == HISTORY_ABSENT;
    cJSON *o = p->away->child;
    while (o && (json_number(o, "worker") != r->worker || !cJSON_IsNull(json_item(o, "to_step"))))
        o = o->next;
    if (o && !away) end_absence(p->away, o, fmin(step - 1, p->last), step <= p->last);
    if (o || !away || step > p->last) return;
    cJSON_AddItemToArray(p->away, o = cJSON_CreateObject());
    json_put(o, "worker", r->worker);
    json_put(o, "from_step", step);
    cJSON_AddNullToObject(o, "to_step");
    cJSON_AddFalseToObject(o, "returned");
    json_put_text(o, "cause", r->cause);
    json_put_text(o, "why", r->why);
}

static void add_history_row(void *ctx, const struct history_row *r) {
    if (r->kind == HISTORY_START)
        add_start(ctx, r);
    else
        add_absence(ctx, r);
}

static void put_starts(cJSON *s, const struct history_sums *p) {
    cJSON *o = p->count ? cJSON_AddObjectToObject(s, "lives") : NULL;
    if (!o) return;
    json_put(o, "start", p->start);
    json_put(o, "count", p->count);
    json_put(o, "steps_lost", p->lost);
    json_put(o, "earlier", p->earlier);
    json_put(o, "earlier_steps_lost", p->earlier_lost);
}

// Writes null if the steps' own lines show absences that are not in the history (a scheduler without the directory).
// Takes ownership of the list.
static void put_absences(cJSON *s, cJSON *list, int64_t workers, const struct metrics_totals *m) {
    double last = (double)m->last_step, missed = 0, absent = (double)(m->steps * workers - m->contributions);
    cJSON *o, *next;
    for (o = list->child; o; o = next) {
        next = o->next;
        if (cJSON_IsNull(json_item(o, "to_step"))) end_absence(list, o, last, false);
    }
    cJSON_ArrayForEach(o, list) missed += json_number(o, "to_step") - json_number(o, "from_step") + 1;
    // With backup or quorum, some of the missing workers were only late.
    bool known = !m->contributions || (json_item(s, "late_steps") ? missed <= absent : missed == absent);
    cJSON_AddItemToObject(s, "away", known ? list : cJSON_CreateNull());
    if (!known) cJSON_Delete(list);
}

static void put_history(cJSON *s, const struct config *c, const char *dir, const struct metrics_totals *m) {
    struct history_sums p = {.away = cJSON_CreateArray(), .last = (double)m->last_step};
    history_each(dir, add_history_row, &p);
    if (c->recovery.restart > 0) put_starts(s, &p);
    if (c->recovery.elastic)
        put_absences(s, p.away, c->workers, m);
    else
        cJSON_Delete(p.away);
}

// ---------------------------------------------------------------- staleness
// Over all workers' updates, and each worker's own.
static void put_staleness(cJSON *s, const cJSON *ranks) {
    double count[64] = {0}, sum = 0, all = 0, spread = 0, steps = 0;
    int bins = 0;
    cJSON *out = cJSON_GetObjectItem(s, "staleness"), *workers = cJSON_AddArrayToObject(out, "workers");
    const cJSON *r, *bin;
    cJSON_ArrayForEach(r, ranks) {
        if (!has_role(r, "worker")) continue;
        const cJSON *one = json_item(r, "staleness");
        double n = 0, own = figure_number(one, "spread.steps");
        int i = 0;
        cJSON_ArrayForEach(bin, json_item(one, "histogram")) {
            if (i == 64) break;
            count[i++] += bin->valuedouble;
            n += bin->valuedouble;
        }
        if (i > bins) bins = i;
        if (n > 0) sum += n * json_number(one, "mean");
        if (own > 0) spread += own * figure_number(one, "spread.mean");
        if (own > 0) steps += own;
        all += n;
        cJSON_AddItemToArray(workers, cJSON_Duplicate(one, 1));
    }
    cJSON_AddItemToObject(out, "histogram", cJSON_CreateDoubleArray(count, bins));
    json_put(out, "mean", all > 0 ? sum / all : 0);
    json_put(cJSON_GetObjectItem(out, "spread"), "mean", steps > 0 ? spread / steps : 0);
}

// ---------------------------------------------------------------- the whole document
// Writes the meanings of the top-level keys, and of the formulas' letters.
static void put_words(cJSON *s, const struct optimizer *o) {
    cJSON *units = cJSON_AddObjectToObject(s, "units"), *rows = figures_of_summary();
    const cJSON *r;
    cJSON_ArrayForEach(r, rows) {
        const char *key = json_text(r, "key", ""), *unit = json_text(r, "unit", NULL),
                   *meaning = json_text(r, "meaning", NULL);
        if (strpbrk(key, ".[") || !meaning || !json_item(s, key)) continue;
        char *words = unit ? xasprintf("%s: %s", unit, meaning) : xstrdup(meaning);
        cJSON_AddStringToObject(units, key, words);
        free(words);
    }
    cJSON_Delete(rows);
    char *formula = xasprintf(
        "P parameters, N workers, S servers, %s: the textbook's bytes, without activations", o->textbook);
    cJSON_AddStringToObject(units, "formula", formula);
    free(formula);
}

static cJSON *build(const char *dir, const struct config *c, struct metrics_totals *m) {
    cJSON *s = cJSON_CreateObject(), *missing = cJSON_CreateArray(),
          *ranks = summary_reports(c, dir, missing);
    // A resumed run that had no step left has no lines of its own.
    double before = json_number(json_item(cJSON_GetArrayItem(ranks, 0), "run"), "resumed_from");
    if (before > (double)m->last_step) m->last_step = (int64_t)before;
    put_description(s, c, m);
    put_run(s, ranks);
    put_learning(s, c, dir, m);
    put_times(s, ranks);
    figures_join(s, rank_figures(), ranks);
    put_totals(s, c, ranks);
    put_speed(s, m);
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) rank_figures_list(s, c, r);
    put_devices(s, ranks);
    put_mfu(s, c->dtype);
    if (c->recovery.checkpoint_every > 0) put_checkpoints(s, dir, ranks);
    put_history(s, c, dir, m);
    if (c->row->reports_staleness) {
        put_staleness(s, ranks);
        staleness_merge_studies(cJSON_GetObjectItem(s, "staleness"), dir, c->ps.servers);
    }
    if (cJSON_GetArraySize(missing))
        cJSON_AddItemToObject(s, "missing_reports", missing);
    else
        cJSON_Delete(missing);
    put_words(s, c->optimizer.row);
    cJSON_Delete(ranks);
    return s;
}

void summary_warn_missing(const struct cJSON *summary, const char *dir) {
    const cJSON *missing = cJSON_GetObjectItem(summary, "missing_reports");
    if (!missing) return;
    char *names = cJSON_PrintUnformatted(missing);
    warn("%s: these ranks left no report for this job: %s", dir, names);
    free(names);
}

struct cJSON *summary_build(const struct topology_table *t, const char *dir) {
    struct metrics_totals totals;
    char *path = xasprintf("%s/config.json", dir);
    struct config *c = config_load(t, path, NULL, 0);
    free(path);
    if (!c) return NULL;
    cJSON *s = NULL;
    if (!metrics_read(dir, &totals)) {
        s = build(dir, c, &totals);
        metrics_totals_free(&totals);
    }
    config_destroy(&c);
    return s;
}

struct cJSON *summary_merge(const struct topology_table *t, const char *dir) {
    cJSON *s = summary_build(t, dir);
    char *text = s ? cJSON_Print(s) : NULL;
    if (s && run_file_write(dir, "summary.json", text)) {
        cJSON_Delete(s);
        s = NULL;
    }
    free(text);
    return s;
}
