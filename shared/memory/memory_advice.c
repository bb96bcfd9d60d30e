#include "shared/memory/memory_advice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/core/unit.h"

// The most counts of workers that are tried one by one; beyond, each half of the one before.
#define WORKERS_MAX 64

struct proposal {
    struct config c;  // texts are the original's
    char flags[320];
    double bytes;  // of a worker where that is limited, else on the first GPU, or without one on the host
};

// One advice being made.
struct search {
    const struct memory_question *of;
    struct layout *other;  // the job's, padded for another number of workers; NULL: not needed yet
};

static struct layout *padded_for(struct search *q, int workers) {
    const struct layout *l = q->of->job->layout;
    if (l->world == workers) return q->of->job->layout;
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
    struct job j = *q->of->job;
    struct memory_need need;
    p->c.train_batch = p->c.micro_batch * p->c.accumulation * p->c.workers;
    j.config = &p->c;
    if (!q->of->part->role) j.ranks_here = p->c.workers;
    j.layout = padded_for(q, p->c.workers);
    int rc = memory_need_of(&j, q->of->part, &need);
    const struct memory_sum *of = q->of->room->device.free_bytes >= 0 ? &need.device
                                  : need.gpus                         ? &need.gpu[0]
                                                                      : &need.host;
    p->bytes = of->predicted_bytes + of->allowed_bytes;
    return !rc && !memory_compare(&need, q->of->room).limit;
}

static void add_flag(struct proposal *p, const char *flag) {
    size_t n = strlen(p->flags);
    snprintf(p->flags + n, sizeof p->flags - n, "%s%s", n ? " " : "", flag);
}

// Each: the mildest change of its kind that makes p fit, or the strongest one. Whether it fits.
static bool with_workers(struct search *q, struct proposal *p) {
    char flag[32];
    // Under mpirun, and for a role alone, how many ranks there are is decided elsewhere.
    if (q->of->part->role || p->c.workers == 1) return false;
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

// The same bits, for more time.
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

// Likewise. A disk is not proposed: which, only the user knows.
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

// Workers last: fewer of them is a different experiment.
static bool (*const changes[])(struct search *, struct proposal *) = {
    with_stage, with_recomputation, with_offload, with_batch, with_bf16, with_workers};
#define CHANGES (sizeof changes / sizeof *changes)

static void say(char **text, const struct proposal *p) {
    char bytes[24], *more;
    more = xasprintf("%s  %s (%s)\n", *text, p->flags, format_bytes(bytes, p->bytes));
    free(*text);
    *text = more;
}

char *memory_advice(const struct memory_question *q) {
    char *text = xstrdup("  What would fit, by prediction:\n");
    struct search search = {.of = q};
    int found = 0;
    for (size_t i = 0; i < CHANGES; i++) {
        struct proposal p = {.c = *q->job->config};
        if (!changes[i](&search, &p)) continue;
        say(&text, &p);
        found++;
    }
    struct proposal all = {.c = *q->job->config};
    for (size_t i = 0; i < CHANGES && !found; i++)
        if (changes[i](&search, &all)) {
            say(&text, &all);
            found++;
        }
    layout_destroy(&search.other);
    if (!found) {
        free(text);
        text = xstrdup(
            "  No stage, recomputation, offload, micro-batch, dtype or number of workers of this run fits here: take a smaller "
            "--model, a shorter --seq, or more machines\n");
    }
    char *whole = xasprintf("%s  --dry-run predicts it without training\n", text);
    free(text);
    return whole;
}
