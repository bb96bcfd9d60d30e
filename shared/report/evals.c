#include "shared/report/evals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"

static int64_t whole(const cJSON *o, const char *key) {
    double x = json_number(o, key);
    return x >= 0 && x < 9e15 ? (int64_t)x : 0;
}

int evals_read(const char *dir, struct evals *out) {
    *out = (struct evals){0};
    char *text = has_file(dir, "evals.jsonl") ? run_file_read(dir, "evals.jsonl", false) : xstrdup("");
    char *rest = text;
    int rc = text ? 0 : -1, number = 0;
    for (char *line; !rc && (line = strsep(&rest, "\n"));) {
        number++;
        if (!*line || !rest) continue;
        cJSON *o = cJSON_Parse(line);
        if (!isfinite(json_number(o, "step")))
            rc = fail("%s/evals.jsonl: line %d is no evaluation", dir, number);
        else
            evals_add(out, &(struct eval_record){.step = whole(o, "step"),
                                                 .samples = whole(o, "samples"),
                                                 .updates = whole(o, "updates"),
                                                 .seconds = json_number(o, "seconds"),
                                                 .val_loss = json_number(o, "val_loss"),
                                                 .unigram_entropy = json_number(o, "unigram_entropy"),
                                                 .tokens = whole(o, "tokens")});
        cJSON_Delete(o);
    }
    free(text);
    if (rc) evals_free(out);
    return rc;
}

void evals_add(struct evals *e, const struct eval_record *r) {
    int at = e->count;  // searched from the end, since files are sorted or nearly so
    while (at > 0 && e->all[at - 1].step >= r->step) at--;
    bool there = at < e->count && e->all[at].step == r->step;
    if (!there) {
        e->all = xrealloc(e->all, (unsigned long)(e->count + 1) * sizeof *e->all);
        memmove(&e->all[at + 1], &e->all[at], (size_t)(e->count - at) * sizeof *e->all);
        e->count++;
    }
    e->all[at] = *r;
}

static struct eval_point at(const struct eval_record *r) {
    return (struct eval_point){(double)r->step, (double)r->samples, (double)r->updates, r->seconds,
                               r->val_loss};
}

static double along(double from, double to, double share) { return from + share * (to - from); }

bool evals_reach(const struct evals *e, double target, struct eval_point *out) {
    const struct eval_record *before = NULL;
    for (int i = 0; i < e->count; i++) {
        const struct eval_record *r = &e->all[i];
        if (!isfinite(r->val_loss)) continue;
        if (r->val_loss > target) {
            before = r;
            continue;
        }
        *out = at(r);
        if (!before) return true;
        struct eval_point a = at(before), b = *out;
        double share = (a.val_loss - target) / (a.val_loss - b.val_loss);
        *out = (struct eval_point){along(a.step, b.step, share), along(a.samples, b.samples, share),
                                   along(a.updates, b.updates, share), along(a.seconds, b.seconds, share),
                                   target};
        return true;
    }
    return false;
}

#define AT(m) FIGURE_AT(eval_record, m)
static const struct figure of_evaluations[] = {
    {"step", NULL, "the step after which the snapshot was taken. In `ps:async`: global batches of the job",
     AT(step)},
    {"samples", "sequences", "samples of the whole job whose gradients were in the weights", AT(samples)},
    {"updates", NULL, "updates applied until then. In `ps:async` every key had at least this many",
     AT(updates)},
    {"seconds", "s", "training time until then; in the last line until the last worker had ended its steps",
     AT(seconds)},
    {"val_loss", "nats per token", "mean loss on held-out text", AT(val_loss), .type = "number or null"},
    {"unigram_entropy", "nats per token", "the loss of a model that knows only the token frequencies",
     AT(unigram_entropy), .type = "number or null"},
    {"tokens", "tokens",
     "tokens that were predicted: as much of the held-out text as `eval_batches` asks for", AT(tokens)},
};
#undef AT
struct figure_rows eval_figures(void) {
    return FIGURE_ROWS(of_evaluations);
}

int evals_write(const char *dir, const struct evals *e) {
    size_t length = 0;
    char *text = xcalloc((unsigned long)e->count + 1, FIGURE_LINE_MAX);
    for (int i = 0; i < e->count; i++)
        length += (size_t)figures_line(text + length, eval_figures(), &e->all[i]);
    int rc = run_file_write(dir, "evals.jsonl", text);
    free(text);
    return rc;
}

void evals_free(struct evals *e) {
    free(e->all);
    *e = (struct evals){0};
}
