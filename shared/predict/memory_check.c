#include "shared/predict/memory_check.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/core/unit.h"
#include "shared/device/device_choice.h"

// ---------------------------------------------------------------- what is left, and whether a need exceeds it
void memory_left_read(const char *root, const struct config *c, int gpus, struct memory_left *out) {
    const char *why;
    const struct backend *b = gpus ? backend_find(config_device(c)->name, &why) : NULL;
    *out = (struct memory_left){.host_known = !memory_limit_read(root, &out->host), .host = out->host};
    out->gpus = b && config_device(c)->gpu ? gpus : 0;
    out->device.free_bytes = c->device_bytes ? (double)c->device_bytes : -1;
    snprintf(out->device.name, sizeof out->device.name, "memory.device_bytes of each worker");
    for (int i = 0; i < out->gpus; i++) {
        struct device_options o = {.threads = 1, .index = i, .label = "memory"};
        struct memory_limit *gpu = &out->gpu[i];
        struct device *d = NULL;
        struct device_facts facts;
        gpu->free_bytes = -1;
        snprintf(gpu->name, sizeof gpu->name, "GPU %d", i);
        if (dev_open(b, &o, &d)) continue;
        if (!dev_facts(d, &facts)) {
            gpu->free_bytes = (double)facts.free_bytes;
            snprintf(gpu->name, sizeof gpu->name, "free memory of GPU %d, %s", i, facts.name);
        }
        dev_close(&d);
    }
}

bool memory_exceeds(const struct memory_sum *wanted, const struct memory_limit *limit) {
    return limit->free_bytes >= 0 && wanted->predicted_bytes + wanted->allowed_bytes > limit->free_bytes;
}

struct memory_excess memory_compare(const struct memory_need *need, const struct memory_left *room) {
    if (memory_exceeds(&need->device, &room->device))
        return (struct memory_excess){&room->device, need->device};
    if (room->host_known && memory_exceeds(&need->host, &room->host))
        return (struct memory_excess){&room->host, need->host};
    for (int i = 0; i < need->gpus && i < room->gpus; i++)
        if (memory_exceeds(&need->gpu[i], &room->gpu[i]))
            return (struct memory_excess){&room->gpu[i], need->gpu[i]};
    return (struct memory_excess){0};
}

// ---------------------------------------------------------------- what to change in a run that does not fit
// Up to this number, fewer workers are tried one by one; above it, each try has half of the workers.
#define WORKERS_MAX 64

struct proposal {
    struct config c;  // the texts are the original's
    char flags[320];
    // The need of a worker if its device is limited; else on the first GPU, or on the host if there is no GPU.
    double bytes;
};

// One search for advice.
struct search {
    const struct job *job;
    const struct memory_ranks *part;
    const struct memory_left *room;
    struct layout *other;  // the job's layout, padded for another number of workers; NULL: not needed yet
};

static struct layout *padded_for(struct search *q, int workers) {
    const struct layout *l = q->job->layout;
    if (l->world == workers) return q->job->layout;
    if (!q->other) {
        q->other = xcalloc(1, sizeof *q->other);
        *q->other = *l;
        q->other->units = xcalloc((unsigned long)l->count, sizeof *l->units);
        memcpy(q->other->units, l->units, (size_t)l->count * sizeof *l->units);
    }
    if (q->other->world != workers) layout_finish(q->other, workers);
    return q->other;
}

static bool fits(struct search *q, struct proposal *p) {
    struct job j = *q->job;
    struct memory_need need;
    p->c.train_batch = p->c.micro_batch * p->c.accumulation * p->c.workers;
    j.config = &p->c;
    if (!q->part->role) j.ranks_here = p->c.workers;
    j.layout = padded_for(q, p->c.workers);
    int rc = memory_need_of(&j, q->part, &need);
    const struct memory_sum *of = q->room->device.free_bytes >= 0 ? &need.device
                                  : need.gpus                     ? &need.gpu[0]
                                                                  : &need.host;
    p->bytes = of->predicted_bytes + of->allowed_bytes;
    return !rc && !memory_compare(&need, q->room).limit;
}

static void add_flag(struct proposal *p, const char *flag) {
    size_t n = strlen(p->flags);
    snprintf(p->flags + n, sizeof p->flags - n, "%s%s", n ? " " : "", flag);
}

// Each function makes one kind of change to p: the smallest that makes it fit, or else the largest. Returns whether p fits.
static bool with_workers(struct search *q, struct proposal *p) {
    char flag[32];
    // Under mpirun, and for a single role, the number of ranks is decided elsewhere.
    if (q->part->role || p->c.workers == 1) return false;
    struct proposal before = *p;
    bool ok = false;
    for (int n = p->c.workers; !ok && n > 1;) {
        n = n > WORKERS_MAX ? n / 2 : n - 1;
        p->c.workers = n;
        ok = fits(q, p);
    }
    if (ok)
        snprintf(flag, sizeof flag, "--workers %d", p->c.workers), add_flag(p, flag);
    else
        *p = before;
    return ok;
}

static bool with_stage(struct search *q, struct proposal *p) {
    char flag[64];
    struct topology_variant v;
    const struct topology_row *row = p->c.row;
    int last = row->textbook - 1;
    if (!row->takes_stage || p->c.variant == last) return false;
    bool ok = false;
    while (!ok && p->c.variant < last) {
        p->c.variant++;
        ok = fits(q, p);
    }
    row->variant(p->c.variant, &v);
    snprintf(flag, sizeof flag, "--topology %s", v.name);
    add_flag(p, flag);
    return ok;
}

static bool with_batch(struct search *q, struct proposal *p) {
    char flag[48];
    if (p->c.micro_batch == 1) return false;
    bool ok = false;
    while (!ok && p->c.micro_batch > 1) {
        p->c.micro_batch /= 2;
        ok = fits(q, p);
    }
    snprintf(flag, sizeof flag, "--batch %lld", (long long)p->c.micro_batch);
    add_flag(p, flag);
    return ok;
}

static bool with_bf16(struct search *q, struct proposal *p) {
    if (p->c.dtype != DT_F32) return false;
    p->c.dtype = DT_BF16;
    add_flag(p, "--dtype bf16");
    return fits(q, p);
}

// Proposes recomputation: the same bits, in more time.
static bool with_recomputation(struct search *q, struct proposal *p) {
    if (p->c.recompute.kind != RECOMPUTE_NONE) return false;
    p->c.recompute.kind = RECOMPUTE_CHEAP;
    bool ok = fits(q, p);
    if (!ok) p->c.recompute.kind = RECOMPUTE_BLOCK;
    ok = ok || fits(q, p);
    add_flag(p, ok && p->c.recompute.kind == RECOMPUTE_CHEAP
                    ? "--set activation_checkpointing.recompute=cheap"
                    : "--set activation_checkpointing.recompute=block");
    return ok;
}

// Proposes to offload the optimizer's state, then weights as well, to host memory: the same bits, in more time. A disk
// is not proposed: only the user knows which one.
static bool with_offload(struct search *q, struct proposal *p) {
    if (!p->c.row->takes_stage || p->c.variant == 0 || p->c.offload_optimizer.device) return false;
    p->c.offload_optimizer.device = OFFLOAD_CPU;
    add_flag(p, "--set zero_optimization.offload_optimizer.device=cpu");
    bool ok = fits(q, p);
    if (ok || p->c.variant < 3 || p->c.offload_param.device) return ok;
    p->c.offload_param.device = OFFLOAD_CPU;
    add_flag(p, "--set zero_optimization.offload_param.device=cpu");
    return fits(q, p);
}

// In the order in which they are tried. Fewer workers come last, because that is a different experiment.
static bool (*const changes[])(struct search *, struct proposal *) = {
    with_stage, with_recomputation, with_offload, with_batch, with_bf16, with_workers};
#define CHANGES (sizeof changes / sizeof *changes)

static void add_proposal(char **text, const struct proposal *p) {
    char bytes[24];
    text_add(text, "  %s (%s)\n", p->flags, format_bytes(bytes, p->bytes));
}

// Returns lines (malloc'd), each with a newline: what fits with one change, else with several, else that nothing
// does. Each proposal has been predicted.
static char *advice_for(const struct job *j, const struct memory_ranks *part,
                        const struct memory_left *room) {
    char *text = xstrdup("  What would fit, by prediction:\n");
    struct search search = {.job = j, .part = part, .room = room};
    int found = 0;
    for (size_t i = 0; i < CHANGES; i++) {
        struct proposal p = {.c = *j->config};
        if (!changes[i](&search, &p)) continue;
        add_proposal(&text, &p);
        found++;
    }
    struct proposal all = {.c = *j->config};
    for (size_t i = 0; i < CHANGES && !found; i++)
        if (changes[i](&search, &all)) {
            add_proposal(&text, &all);
            found++;
        }
    layout_destroy(&search.other);
    if (!found) {
        free(text);
        text = xstrdup(
            "  No stage, recomputation, offload, micro-batch, dtype or number of workers of this run fits here: take a smaller "
            "--model, a shorter --seq, or more machines\n");
    }
    text_add(&text, "  --dry-run predicts it without training\n");
    return text;
}

// ---------------------------------------------------------------- texts
static char *figures(const struct memory_excess *s, const char *what) {
    char all[24], predicted[24], allowed[24], left[24];
    format_bytes(all, s->wanted.predicted_bytes + s->wanted.allowed_bytes);
    format_bytes(predicted, s->wanted.predicted_bytes);
    format_bytes(allowed, s->wanted.allowed_bytes);
    format_bytes(left, s->limit->free_bytes);
    return xasprintf(
        "%s needs %s here (%s predicted, %s allowed for program, "
        "libraries, loading, frames and records), and %s are left (%s)",
        what, all, predicted, allowed, left, s->limit->name);
}

// Returns "worker 0 needs 7.00 GiB of its device (master 3.00 GiB, ..), and memory.device_bytes allows 6.00 GiB".
static char *device_figures(const struct memory_excess *s, const struct memory_need *n) {
    char all[24], one[24], limit[24];
    char *classes = xstrdup("");
    for (int c = 0; c < MEM_CLASSES; c++) {
        if (!n->device_classes[c] || mem_class_is_host((enum mem_class)c)) continue;
        text_add(&classes, "%s%s %s", *classes ? ", " : "", mem_class_name((enum mem_class)c),
                 format_bytes(one, (double)n->device_classes[c]));
    }
    char *text = xasprintf(
        "worker %d needs %s (%.0f bytes) of its device (%s), and memory.device_bytes (--device-memory) allows %s (%.0f bytes)",
        n->device_rank, format_bytes(all, s->wanted.predicted_bytes), s->wanted.predicted_bytes, classes,
        format_bytes(limit, s->limit->free_bytes), s->limit->free_bytes);
    free(classes);
    return text;
}

static int device_answer(const struct config *c, const struct memory_excess *s, const struct memory_need *n,
                         const char *advice) {
    char program[PROGRAM_WORD], *text = device_figures(s, n), *model = shell_word(c->model);
    int rc = 0;
    if (c->memory_check == MEMORY_CHECK_OFF)
        warn("%s; memory.check is off: an allocation beyond the limit will fail", text);
    else
        rc = fail(
            "%s\n%s  %s plan --model %s --workers %d --seq %lld --dtype %s --device-memory %lld names the offloads and "
            "recomputation that fit, fastest first",
            text, advice, program_word(program), model, c->workers, (long long)c->seq, dtype_name(c->dtype),
            (long long)c->device_bytes);
    free(model);
    free(text);
    return rc;
}

static int answer(const struct config *c, const struct memory_excess *s, const char *what,
                  const char *advice) {
    if (!s->limit) return 0;
    char *text = figures(s, what);
    int rc = 0;
    if (c->memory_check == MEMORY_CHECK_OFF)
        warn("%s; memory.check is off: the system may end it", text);
    else
        rc = fail("%s\n%s  --set memory.check=off starts it all the same", text, advice);
    free(text);
    return rc;
}

int memory_check(const struct config *c, const struct memory_need *need, const char *what) {
    struct memory_left room;
    memory_left_read("", c, need->gpus, &room);
    struct memory_excess s = memory_compare(need, &room);
    return answer(c, &s, what, "");
}

// The needs of some ranks of the job, and what this machine has for them.
struct memory_here {
    struct memory_ranks here;  // the ranks, with the number of this machine's GPUs
    struct memory_need need;
    struct memory_left room;
};

static int memory_here_read(const struct job *j, const struct memory_ranks *part, struct memory_here *o) {
    o->here = *part;
    o->here.gpus = device_gpus(j->config);
    if (memory_need_of(j, &o->here, &o->need)) return -1;
    memory_left_read("", j->config, o->need.gpus, &o->room);
    return 0;
}

int memory_check_run(const struct job *j, const struct memory_ranks *part) {
    struct memory_here o;
    if (memory_here_read(j, part, &o)) return -1;
    struct memory_excess s = memory_compare(&o.need, &o.room);
    if (!s.limit) return 0;
    char *advice = j->config->memory_check == MEMORY_CHECK_OFF ? NULL : advice_for(j, &o.here, &o.room);
    int rc = s.limit == &o.room.device ? device_answer(j->config, &s, &o.need, advice)
                                       : answer(j->config, &s, "the run", advice);
    free(advice);
    return rc;
}

// ---------------------------------------------------------------- --dry-run
static void put_one(cJSON *list, const struct memory_sum *wanted, const struct memory_limit *limit) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "limit", limit->name);
    cJSON_AddNumberToObject(o, "predicted_bytes", wanted->predicted_bytes);
    cJSON_AddNumberToObject(o, "allowed_bytes", wanted->allowed_bytes);
    cJSON_AddNumberToObject(o, "available_bytes", limit->free_bytes);
    cJSON_AddBoolToObject(o, "fits", !memory_exceeds(wanted, limit));
    cJSON_AddItemToArray(list, o);
}

int memory_check_put(struct cJSON *doc, const struct job *j, const struct memory_ranks *part) {
    struct memory_here seen;
    if (memory_here_read(j, part, &seen)) return -1;
    cJSON *o = cJSON_AddObjectToObject(doc, "here"), *limits = cJSON_AddArrayToObject(o, "limits");
    if (seen.room.device.free_bytes >= 0) put_one(limits, &seen.need.device, &seen.room.device);
    if (seen.room.host_known) put_one(limits, &seen.need.host, &seen.room.host);
    for (int i = 0; i < seen.need.gpus && i < seen.room.gpus; i++)
        if (seen.room.gpu[i].free_bytes >= 0) put_one(limits, &seen.need.gpu[i], &seen.room.gpu[i]);
    cJSON_AddBoolToObject(o, "fits", !memory_compare(&seen.need, &seen.room).limit);
    // It is no error if the data is missing: the prediction may be for another machine, which has it.
    json_put_text(o, "missing", job_opens(j->config, j) ? NULL : error_last());
    error_clear();
    return 0;
}

void memory_check_print(FILE *f, const struct cJSON *doc) {
    const cJSON *one, *here = json_item(doc, "here");
    char a[24], b[24], c[24];
    cJSON_ArrayForEach(one, json_item(here, "limits")) {
        fprintf(f, "  %s predicted + %s allowed for what the ledger does not count, %s left (%s): %s\n",
                format_bytes(a, json_number(one, "predicted_bytes")),
                format_bytes(b, json_number(one, "allowed_bytes")),
                format_bytes(c, json_number(one, "available_bytes")), json_text(one, "limit", ""),
                cJSON_IsTrue(json_item(one, "fits")) ? "fits" : "does not fit");
    }
    const char *missing = json_text(here, "missing", NULL);
    if (missing) fprintf(f, "  it would not start here: %s\n", missing);
}
