#include "shared/run/metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/run/run_dir.h"

#define LINE_MAX_BYTES 512
#define NUMBER_MAX     32

struct metrics {
    int fd;
    char *path;
    int failed;  // errno of the first write that did not succeed
};

struct metrics *metrics_create(const char *dir) {
    struct metrics *m = xcalloc(1, sizeof *m);
    m->path = xasprintf("%s/metrics.jsonl", dir);
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (m->fd >= 0) return m;
    fail("%s: %s", m->path, strerror(errno));
    free(m->path);
    free(m);
    return NULL;
}

static const char *number(char text[NUMBER_MAX], double x) {
    if (isfinite(x))
        snprintf(text, NUMBER_MAX, "%.17g", x);
    else
        memcpy(text, "null", 5);
    return text;
}

static void put_line(struct metrics *m, const char *line, int length) {
    if (m->failed) return;
    errno = ENOSPC;  // what a short write means
    if (write(m->fd, line, (size_t)length) != length) m->failed = errno;
}

void metrics_step(struct metrics *m, const struct step_record *r) {
    char line[LINE_MAX_BYTES], loss[NUMBER_MAX], norm[NUMBER_MAX], lr[NUMBER_MAX], scale[NUMBER_MAX],
        seconds[NUMBER_MAX];
    int n = snprintf(line, sizeof line,
                     "{\"step\":%lld,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"loss_scale\":%s,\"tokens\":%"
                     "lld,\"seconds\":%s,\"skipped\":%s,\"memory_bytes\":%zu}\n",
                     (long long)r->step, number(loss, r->loss), number(norm, r->grad_norm), number(lr, r->lr),
                     number(scale, r->loss_scale), (long long)r->tokens, number(seconds, r->seconds),
                     r->skipped ? "true" : "false", r->memory_bytes);
    put_line(m, line, n);
}

void metrics_eval(struct metrics *m, int64_t step, double val_loss, double unigram_entropy) {
    char line[LINE_MAX_BYTES], loss[NUMBER_MAX], entropy[NUMBER_MAX];
    int n = snprintf(line, sizeof line, "{\"eval_step\":%lld,\"val_loss\":%s,\"unigram_entropy\":%s}\n",
                     (long long)step, number(loss, val_loss), number(entropy, unigram_entropy));
    put_line(m, line, n);
}

int metrics_destroy(struct metrics **pm) {
    struct metrics *m = *pm;
    if (!m) return 0;
    if (close(m->fd) && !m->failed) m->failed = errno;
    int rc = m->failed ? fail("%s: %s", m->path, strerror(m->failed)) : 0;
    free(m->path);
    free(m);
    *pm = NULL;
    return rc;
}

static double get(const cJSON *o, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

static void add_line(struct metrics_totals *t, const cJSON *o) {
    if (cJSON_HasObjectItem(o, "eval_step")) {
        t->val_loss = get(o, "val_loss");
        t->unigram_entropy = get(o, "unigram_entropy");
        return;
    }
    t->loss_last = get(o, "loss");
    if (!t->steps) t->loss_first = t->loss_last;
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "skipped"))) t->skipped++;
    t->tokens += (int64_t)get(o, "tokens");
    if ((t->steps & (t->steps + 1)) == 0)  // doubles the room at 0, 1, 3, 7, ..
        t->step_seconds = xrealloc(t->step_seconds, (unsigned long)(2 * t->steps + 2) * sizeof(double));
    t->step_seconds[t->steps++] = get(o, "seconds");
}

int metrics_read(const char *dir, struct metrics_totals *out) {
    *out =
        (struct metrics_totals){.loss_first = NAN, .loss_last = NAN, .val_loss = NAN, .unigram_entropy = NAN};
    char *text = run_dir_read(dir, "metrics.jsonl", false);
    if (!text) return -1;
    int rc = 0, line_number = 0;
    char *rest = text;
    for (char *line; !rc && (line = strsep(&rest, "\n"));) {
        line_number++;
        if (!*line) continue;
        cJSON *o = cJSON_Parse(line);
        if (!cJSON_IsObject(o))
            rc = fail("%s/metrics.jsonl: line %d is no JSON object", dir, line_number);
        else
            add_line(out, o);
        cJSON_Delete(o);
    }
    free(text);
    if (rc) metrics_totals_free(out);
    return rc;
}

void metrics_totals_free(struct metrics_totals *t) {
    free(t->step_seconds);
    t->step_seconds = NULL;
}

int64_t metrics_last_step(const char *dir) {
    char *path = xasprintf("%s/metrics.jsonl", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    free(path);
    if (fd < 0) return -1;
    char tail[4 * LINE_MAX_BYTES + 1];
    off_t size = lseek(fd, 0, SEEK_END);
    off_t from = size > (off_t)sizeof tail - 1 ? size - (off_t)sizeof tail + 1 : 0;
    ssize_t got = pread(fd, tail, sizeof tail - 1, from);
    close(fd);
    tail[got > 0 ? got : 0] = 0;
    int64_t step = -1;
    for (char *p = tail; (p = strstr(p, "{\"step\":")); p++) step = strtoll(p + 8, NULL, 10);
    return step;
}
