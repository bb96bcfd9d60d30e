#include "shared/report/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/statistics.h"
#include "shared/core/error.h"
#include "shared/core/message_fault.h"
#include "shared/core/topology_row.h"
#include "shared/core/trouble.h"
#include "shared/core/version.h"
#include "shared/evaluation/evals.h"
#include "shared/report/metrics.h"
#include "shared/report/run_file.h"
#include "shared/report/run_state.h"
#include "shared/report/summary_impl.h"
#include "shared/state/staleness.h"

static void put_classes(cJSON *o, const char *key, const size_t bytes[MEM_CLASSES]) {
    cJSON *classes = cJSON_AddObjectToObject(o, key);
    for (int c = 0; c < MEM_CLASSES; c++)
        json_put(classes, mem_class_name((enum mem_class)c), (double)bytes[c]);
}

static void put_staleness(cJSON *o, const struct staleness *s) {
    cJSON *item = cJSON_AddObjectToObject(o, "staleness");
    cJSON *histogram = cJSON_AddArrayToObject(item, "histogram");
    int last = -1;
    for (int i = 0; i < 64; i++)
        if (s->count[i]) last = i;
    for (int i = 0; i <= last; i++) cJSON_AddItemToArray(histogram, cJSON_CreateNumber((double)s->count[i]));
    json_put(item, "max", (double)s->max);
    json_put(item, "mean", s->mean);
    cJSON *spread = cJSON_AddObjectToObject(item, "spread");
    json_put(spread, "mean", s->spread_mean);
    json_put(spread, "max", (double)s->spread_max);
    json_put(spread, "steps", (double)s->spreads);
}

static void put_facts(cJSON *o, const struct run_facts *f) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)f->weights_hash);
    cJSON *run = cJSON_AddObjectToObject(o, "run");
    json_put(run, "params", (double)f->params);
    json_put(run, "flops_per_token", f->flops.model.full);
    json_put(run, "flops_per_token_causal", f->flops.model.causal);
    json_put(run, "recomputed_flops_per_token", f->flops.again.full);
    json_put(run, "recomputed_flops_per_token_causal", f->flops.again.causal);
    json_put(run, "wall_seconds", f->wall_seconds);
    json_put_text(run, "launch", f->launch);
    json_put_text(run, "medium", f->medium);
    json_put_text(run, "weights_hash", f->has_hash ? hash : NULL);
    cJSON_AddBoolToObject(run, "interrupted", f->interrupted);
    json_put(run, "resumed_from", f->resumed_from > 0 ? (double)f->resumed_from : NAN);
    json_put(run, "place", f->place > 0 ? (double)f->place : NAN);
    cJSON_AddStringToObject(run, "data", f->data);
    json_put_text(run, "revision", starring_revision);
    if (f->products) cJSON_AddItemToObject(run, "products", cJSON_Duplicate(f->products, 1));
    cJSON *head = cJSON_AddObjectToObject(run, "head");
    json_put(head, "chunk_rows", (double)f->head.rows);
    json_put(head, "chunks", (double)f->head.chunks);
    cJSON_AddBoolToObject(head, "apart", f->head.apart);
    if (f->cpu_kernel) {
        cJSON *kernel = cJSON_AddObjectToObject(run, "cpu_kernel");
        cJSON_AddStringToObject(kernel, "product", f->cpu_kernel);
        cJSON_AddStringToObject(kernel, "built_for", cpu_kernel_vectors());
    }
}

// What was said again, and what was done to messages on their way (trouble.fault).
static void put_messages(cJSON *o, const struct rank_report *r) {
    static const char *const names[WIRE_FAULTS] = {"messages", "lost", "twice", "overtaken"};
    cJSON *repeated = cJSON_AddObjectToObject(o, "repeated");
    json_put(repeated, "messages", (double)r->repeats);
    json_put(repeated, "bytes", (double)r->repeated_bytes);
    if (!r->faults[FAULT_MESSAGES]) return;
    cJSON *faults = cJSON_AddObjectToObject(o, "faults");
    for (int i = 0; i < WIRE_FAULTS; i++) json_put(faults, names[i], (double)r->faults[i]);
}

const char *summary_job_name(uint64_t job, char name[SUMMARY_JOB_MAX]) {
    snprintf(name, SUMMARY_JOB_MAX, "%016llx", (unsigned long long)job);
    return name;
}

int summary_write_rank(const char *dir, const struct rank_report *r, const struct run_facts *facts) {
    char job[SUMMARY_JOB_MAX];
    cJSON *o = cJSON_CreateObject();
    json_put(o, "rank", r->rank);
    json_put_text(o, "job", r->job ? summary_job_name(r->job, job) : NULL);
    cJSON_AddStringToObject(o, "role", r->role);
    put_classes(o, "predicted", r->memory.predicted_bytes);
    put_classes(o, "peak", r->peak_bytes);
    json_put(o, "formula_bytes", (double)r->memory.formula_bytes);
    json_put(o, "transport_peak_bytes", (double)r->transport_peak_bytes);
    json_put(o, "rss_bytes", (double)r->rss_bytes);
    json_put(o, "late_allocations", (double)r->late_allocations);
    summary_put_wire(o, r);
    json_put(o, "control_sent_per_step", r->control_sent_per_step);
    json_put(o, "control_received_per_step", r->control_received_per_step);
    summary_put_rank_times(o, r);
    summary_put_rank_checkpoints(o, &r->checkpoints);
    put_staleness(o, &r->staleness);
    summary_put_cost(o, r);
    summary_put_server_time(o, r);
    summary_put_replica(o, r);
    summary_put_across(o, r);
    summary_put_offload(o, r);
    put_messages(o, r);
    summary_put_device(o, r);
    if (facts) put_facts(o, facts);
    char *text = cJSON_Print(o);
    char *name = xasprintf("ranks/%s-%d.json", r->role, r->rank);
    int rc = run_file_write(dir, name, text);
    free(name);
    free(text);
    cJSON_Delete(o);
    return rc;
}

static cJSON *read_json(const char *dir, const char *name, bool quiet) {
    char *text = run_file_read(dir, name, quiet);
    if (!text) return NULL;
    cJSON *o = json_parse(text, strlen(text));
    free(text);
    if (!o) fail("%s/%s is no JSON document", dir, name);
    return o;
}

// Reports collected from many machines may be of several jobs: the first one says which counts.
static bool is_of_job(const cJSON *ranks, const cJSON *report) {
    const cJSON *first = json_item(ranks->child, "job"), *job = json_item(report, "job");
    return !first || !job || cJSON_Compare(first, job, 1);
}

// The reports of `count` ranks of a role, appended to ranks; names of those not there to missing.
static void read_ranks(const char *dir, const char *role, int count, cJSON *ranks, cJSON *missing) {
    for (int r = 0; r < count; r++) {
        char *name = xasprintf("ranks/%s-%d.json", role, r);
        cJSON *o = read_json(dir, name, true);
        if (o && is_of_job(ranks, o)) {
            cJSON_AddItemToArray(ranks, o);
        } else {
            cJSON_AddItemToArray(missing, cJSON_CreateString(name));
            cJSON_Delete(o);
        }
        free(name);
    }
}

struct cJSON *summary_reports(const struct config *c, const char *dir, struct cJSON *missing) {
    cJSON *ranks = cJSON_CreateArray();
    for (const struct topology_role *r = c->row->roles; r->name; r++)
        read_ranks(dir, r->name, config_ranks(c, r->name), ranks, missing);
    return ranks;
}

bool summary_interrupted(const struct cJSON *summary) {
    return !strcmp(json_text(summary, "state", ""), run_phase_word(RUN_INTERRUPTED));
}

// As the configuration has it; nothing where there was none.
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
    cJSON_AddStringToObject(s, "topology", c->topology);
    if (c->row->describe) c->row->describe(c, s);
    json_put(s, "workers", c->workers);
    json_put(s, "servers", config_ranks(c, "server"));
    cJSON_AddStringToObject(s, "dtype", dtype_name(c->dtype));
    cJSON_AddStringToObject(s, "device", config_device(c)->name);
    cJSON_AddStringToObject(s, "model", c->model);
    json_put(s, "seed", (double)c->seed);
    json_put(s, "train_batch_size", (double)c->train_batch);
    json_put(s, "micro_batch_size", (double)c->micro_batch);
    json_put(s, "gradient_accumulation_steps", (double)c->accumulation);
    json_put(s, "seq_len", (double)c->seq);
    json_put(s, "steps", (double)m->last_step);
    json_put(s, "steps_planned", (double)c->steps);
    json_put(s, "skipped", (double)m->skipped);
    put_trouble(s, c);
    cJSON *loss = cJSON_AddObjectToObject(s, "loss");
    json_put(loss, "first", m->loss_first);
    json_put(loss, "last", m->loss_last);
}

// What worker 0 alone knows moves from its report to the top; nulls where it left no report.
static struct run_flops put_run(cJSON *s, cJSON *ranks) {
    static const char *const keys[] = {"launch",   "medium",       "params",      "cpu_kernel",
                                       "products", "weights_hash", "data",        "wall_seconds",
                                       "head",     "revision",     "resumed_from"};
    cJSON *first = cJSON_GetArrayItem(ranks, 0);
    cJSON *run = cJSON_DetachItemFromObjectCaseSensitive(first, "run");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        cJSON *v = run ? cJSON_DetachItemFromObjectCaseSensitive(run, keys[i]) : NULL;
        cJSON_AddItemToObject(s, keys[i], v ? v : cJSON_CreateNull());
    }
    struct run_flops flops = {
        {json_number(run, "flops_per_token"), json_number(run, "flops_per_token_causal")},
        {json_number(run, "recomputed_flops_per_token"),
         json_number(run, "recomputed_flops_per_token_causal")}};
    const cJSON *place = json_item(run, "place");  // workers that share a budget: no one's own lines tell
    bool interrupted = cJSON_IsTrue(json_item(run, "interrupted"));
    if (cJSON_IsNumber(place)) cJSON_ReplaceItemInObjectCaseSensitive(s, "steps", cJSON_Duplicate(place, 1));
    if (interrupted || cJSON_IsNumber(place))
        summary_put_state(s, run_phase_word(interrupted ? RUN_INTERRUPTED : RUN_COMPLETE));
    cJSON_Delete(run);
    return flops;
}

static void copy_keys(cJSON *to, const cJSON *from, const char *const *keys) {
    for (; *keys; keys++) {
        const cJSON *v = json_item(from, *keys);
        cJSON_AddItemToObject(to, *keys, v ? cJSON_Duplicate(v, 1) : cJSON_CreateNull());
    }
}

static void put_ranks(cJSON *s, const struct config *c, const cJSON *ranks) {
    static const char *const memory_keys[] = {"rank",
                                              "role",
                                              "predicted",
                                              "peak",
                                              "formula_bytes",
                                              "rss_bytes",
                                              "transport_peak_bytes",
                                              "late_allocations",
                                              NULL};
    static const char *const wire_keys[] = {"rank",
                                            "role",
                                            "sent_per_step",
                                            "received_per_step",
                                            "predicted_sent",
                                            "predicted_received",
                                            "control_sent_per_step",
                                            "control_received_per_step",
                                            "repeated",
                                            "phases",
                                            NULL};
    cJSON *memory = cJSON_AddArrayToObject(s, "memory"), *wire = cJSON_AddArrayToObject(s, "wire");
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        const char *role = json_text(r, "role", "");
        cJSON *m = cJSON_CreateObject(), *w = cJSON_CreateObject();
        copy_keys(m, r, memory_keys);
        cJSON_AddStringToObject(m, "formula", c->row->formula(c, role).memory);
        const cJSON *device = json_item(r, "device");
        if (device) cJSON_AddItemToObject(m, "device", cJSON_Duplicate(device, 1));
        cJSON_AddItemToArray(memory, m);
        copy_keys(w, r, wire_keys);
        cJSON_AddStringToObject(w, "formula", c->row->formula(c, role).wire);
        const cJSON *replica = json_item(r, "replica"), *faults = json_item(r, "faults");
        if (replica) cJSON_AddItemToObject(w, "replica", cJSON_Duplicate(replica, 1));
        if (json_item(r, "across"))
            cJSON_AddItemToObject(w, "across", cJSON_Duplicate(json_item(r, "across"), 1));
        const cJSON *offload = json_item(r, "offload");
        if (offload) cJSON_AddItemToObject(w, "offload", cJSON_Duplicate(offload, 1));
        if (faults) cJSON_AddItemToObject(w, "faults", cJSON_Duplicate(faults, 1));
        cJSON_AddItemToArray(wire, w);
    }
}

static bool is_worker(const cJSON *rank) { return !strcmp(json_text(rank, "role", ""), "worker"); }

// Each worker's, and the spread of versions over the steps of all.
static void put_workers_staleness(cJSON *out, const cJSON *ranks) {
    cJSON *workers = cJSON_AddArrayToObject(out, "workers"), *spread = cJSON_AddObjectToObject(out, "spread");
    double sum = 0, steps = 0, max = 0;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!is_worker(r)) continue;
        cJSON *one = cJSON_Duplicate(json_item(r, "staleness"), 1);
        const cJSON *own = json_item(one, "spread");
        double n = own ? json_number(own, "steps") : 0;
        if (n > 0) sum += n * json_number(own, "mean");
        if (n > 0) max = fmax(max, json_number(own, "max"));
        steps += n;
        cJSON_AddItemToArray(workers, one);
    }
    json_put(spread, "mean", steps > 0 ? sum / steps : 0);
    json_put(spread, "max", max);
}

static void put_all_staleness(cJSON *s, const cJSON *ranks) {
    double count[64] = {0}, max = 0, sum = 0, all = 0;
    int bins = 0;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!is_worker(r)) continue;
        const cJSON *one = json_item(r, "staleness");
        const cJSON *histogram = json_item(one, "histogram"), *bin;
        double n = 0;
        int i = 0;
        cJSON_ArrayForEach(bin, histogram) {
            if (i == 64) break;
            count[i++] += bin->valuedouble;
            n += bin->valuedouble;
        }
        if (i > bins) bins = i;
        if (n > 0) sum += n * json_number(one, "mean");
        all += n;
        max = fmax(max, json_number(one, "max"));
    }
    cJSON *out = cJSON_AddObjectToObject(s, "staleness");
    cJSON_AddItemToObject(out, "histogram", cJSON_CreateDoubleArray(count, bins));
    json_put(out, "max", max);
    json_put(out, "mean", all > 0 ? sum / all : 0);
    put_workers_staleness(out, ranks);
}

static void put_words(cJSON *s, const struct optimizer *o) {
    static const char *const words[][2] = {
        {"memory",
         "bytes of device memory by class; predicted before the run, peak counted by the ledger; the class "
         "pinned is page-locked host memory, offload host memory for state that is kept out of the device's; neither "
         "belongs to a total of device memory"},
        {"devices",
         "bytes of each GPU after the last step: used as cudaMemGetInfo says, ledger and workspaces of all "
         "its ranks, other = used - ledger - workspaces: context, libraries, other programs; null when that "
         "is less than nothing, as ranks look at different moments"},
        {"rss_bytes", "peak of the process's resident bytes; ranks that are threads share one process"},
        {"late_allocations", "device allocations after the first step"},
        {"transport_peak_bytes", "frames held in flight by the star, apart from the ledger"},
        {"wire",
         "payload bytes per step of one rank; control is everything else (headers, scalars, barriers)"},
        {"time",
         "seconds of all steps, mean over workers: data + forward + backward + optimizer + comm_exposed + wait + "
         "host = total. wait: compute stood still for a transfer that some rank was not ready for; comm_exposed: "
         "for one that all were; host: for nothing of the kind; comm_overlapped, beside these: transfers under "
         "way while compute was busy; check: the parts / the loop's own clock, of the worker that is off most; "
         "clock_error_s: of times that ranks on several hosts told each other, at most"},
        {"server_time",
         "seconds of a server's shard threads, added, from the first gradient to the last answer: receive + sum + "
         "hold + wait + update + reply = total. hold: idle, with gradients of a step that waits for more of them "
         "or for the scheduler's decision; wait: idle with nothing"},
        {"medium",
         "what payloads take between ranks: shm (shared memory), tcp, threads (of one process), nccl, mpi (what "
         "Open MPI chose by itself), none (one rank)"},
        {"tokens_per_second", "tokens_applied / seconds, without the tail: of the time in which all work"},
        {"tokens_applied", "tokens of all workers whose gradients were applied; skipped steps are not"},
        {"seconds",
         "from the beginning of the first worker's first step to the end of the last worker's last one, without what "
         "was no training"},
        {"totals",
         "all roles added up: bytes of device memory (ledger) and of frames held, resident bytes (rss: peaks, each "
         "process once; pss: of all processes of the job behind the last step, launchers too, shared pages once), bytes a step, CPU seconds of the training part (each process once); busiest: the largest of one rank"},
        {"revision", "of the sources; null: not built from a git checkout"},
        {"loss", "nats per token, mean over the global batch"},
        {"val_loss", "nats per token on held-out text, of the last snapshot that was evaluated"},
        {"time_to_loss",
         "where val_loss first was target_loss, on the straight line between the two snapshots around it; null: it never "
         "was, or there is no target"},
        {"unigram_entropy", "nats per token: the loss of a model that knows only the token frequencies"},
        {"flops_per_token", "forward and backward, attention in full: " FLOPS_FULL},
        {"flops_per_token_causal", "the same with causal attention, half of it: " FLOPS_CAUSAL},
        {"recomputed_flops_per_token", "computed again; in no MFU but in hardware_flops_per_second"},
        {"mfu_datasheet", "flops_per_second / datasheet_flops_per_second; mfu_datasheet_causal: causal"},
        {"datasheet_flops_per_second", "the vendors' dense 16-bit rates of all GPUs of the run, added up"},
        {"staleness", "updates applied between the weights a gradient was computed on and its own update"},
        {"weights_hash", "xxh64 of the final weights in logical tensor order, without gaps and padding"},
        {"cpu_kernel",
         "product: how the workers' CPUs multiplied matrices, the one choice that bits depend on "
         "(cpu.kernel); built_for: vector instructions of the program, on which they do not; null: not on "
         "CPUs"},
        {"products",
         "which algorithms the matrix products of worker 0's GPU take (cuda.products); file: of the "
         "measured table; hash: of its entries that apply; ignored: entries of other GPUs or versions; "
         "shapes: of this run, of which chosen by the table, unknown to it, refused by the library; null: "
         "not on GPUs"},
        {"head",
         "the logits of a micro-batch pass in chunks of chunk_rows rows; apart: each micro-batch adds its "
         "chunks in a buffer of its own before it adds them to the gradient (shared/model/head_plan.h)"},
    };
    cJSON *units = cJSON_AddObjectToObject(s, "units");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cJSON_AddStringToObject(units, words[i][0], words[i][1]);
    char *formula = xasprintf(
        "P parameters, N workers, S servers, %s: the textbook's bytes, without activations", o->textbook);
    cJSON_AddStringToObject(units, "formula", formula);
    free(formula);
}

// The last evaluation, and when the loss which was aimed at was reached.
static void put_learning(cJSON *s, const struct config *c, const char *dir, const struct metrics_totals *m) {
    struct evals evals = {0};
    struct eval_point p;
    json_put(s, "val_loss", m->val_loss);
    json_put(s, "unigram_entropy", m->unigram_entropy);
    json_put(s, "target_loss", c->target_loss > 0 ? c->target_loss : NAN);
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

static cJSON *build(const char *dir, const struct config *c, struct metrics_totals *m) {
    cJSON *s = cJSON_CreateObject(), *missing = cJSON_CreateArray(),
          *ranks = summary_reports(c, dir, missing);
    // A run that had no step left to do has no lines of its own.
    double before = json_number(json_item(cJSON_GetArrayItem(ranks, 0), "run"), "resumed_from");
    if (before > (double)m->last_step) m->last_step = (int64_t)before;
    put_description(s, c, m);
    struct run_flops flops = put_run(s, ranks);
    summary_put_totals(s, c, ranks);
    put_learning(s, c, dir, m);
    summary_put_speed(s, c, m, &flops);
    put_ranks(s, c, ranks);
    summary_put_devices(s, ranks);
    summary_put_mfu(s, c->dtype);
    summary_put_times(s, ranks);
    if (c->recovery.checkpoint_every > 0) summary_put_checkpoints(s, dir, ranks);
    if (c->recovery.restart > 0) summary_put_lives(s, dir);
    if (c->recovery.elastic) summary_put_away(s, dir, c->workers, m);
    summary_put_server_times(s, ranks);
    if (c->row->reports_staleness) {
        put_all_staleness(s, ranks);
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
    if (!s) return NULL;
    char *text = cJSON_Print(s);
    if (run_file_write(dir, "summary.json", text)) {
        cJSON_Delete(s);
        s = NULL;
    }
    free(text);
    return s;
}
