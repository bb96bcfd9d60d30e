#include "shared/report/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/report/run_file.h"

#define LINE_MAX_BYTES 512

struct lines {
    int fd;  // -1: not made yet
    char *path;
    int failed;  // errno of the first write that did not succeed
};

struct metrics {
    struct lines steps;
};

static int lines_open(struct lines *f) {
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return f->fd >= 0 ? 0 : -1;
}

struct metrics *metrics_create(const char *dir) {
    struct metrics *m = xcalloc(1, sizeof *m);
    m->steps.path = xasprintf("%s/metrics.jsonl", dir);
    if (!lines_open(&m->steps)) return m;
    fail("%s: %s", m->steps.path, strerror(errno));
    free(m->steps.path);
    free(m);
    return NULL;
}

// With a point or an exponent, so that readers that guess types take every line's number for a float.
const char *metrics_number(char text[METRICS_NUMBER_MAX], double x) {
    if (!isfinite(x)) return memcpy(text, "null", 5);
    int n = snprintf(text, METRICS_NUMBER_MAX - 2, "%.17g", x);
    if (!strpbrk(text, ".e")) memcpy(text + n, ".0", 3);
    return text;
}

static void put_line(struct lines *f, const char *line, int length) {
    if (f->failed) return;
    errno = ENOSPC;  // what a short write means
    if (write(f->fd, line, (size_t)length) != length) f->failed = errno;
}

void metrics_step(struct metrics *m, const struct step_record *r) {
    char line[LINE_MAX_BYTES], loss[METRICS_NUMBER_MAX], norm[METRICS_NUMBER_MAX], lr[METRICS_NUMBER_MAX],
        scale[METRICS_NUMBER_MAX], seconds[METRICS_NUMBER_MAX], elapsed[METRICS_NUMBER_MAX];
    int n =
        snprintf(line, sizeof line,
                 "{\"step\":%lld,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"loss_scale\":%s,\"tokens\":%"
                 "lld,\"samples\":%lld,\"seconds\":%s,\"elapsed\":%s,\"skipped\":%s,\"memory_bytes\":%zu}\n",
                 (long long)r->step, metrics_number(loss, r->loss), metrics_number(norm, r->grad_norm),
                 metrics_number(lr, r->lr), metrics_number(scale, r->loss_scale), (long long)r->tokens,
                 (long long)r->samples, metrics_number(seconds, r->seconds),
                 metrics_number(elapsed, r->elapsed), r->skipped ? "true" : "false", r->memory_bytes);
    put_line(&m->steps, line, n);
}

static int lines_close(struct lines *f) {
    if (f->fd >= 0 && close(f->fd) && !f->failed) f->failed = errno;
    int rc = f->failed ? fail("%s: %s", f->path, strerror(f->failed)) : 0;
    free(f->path);
    return rc;
}

int metrics_destroy(struct metrics **pm) {
    struct metrics *m = *pm;
    if (!m) return 0;
    int rc = lines_close(&m->steps);
    free(m);
    *pm = NULL;
    return rc;
}

static void add_eval(struct metrics_totals *t, const cJSON *o) {
    t->val_loss = json_number(o, "val_loss");
    t->unigram_entropy = json_number(o, "unigram_entropy");
}

static void add_step(struct metrics_totals *t, const cJSON *o) {
    double tokens = json_number(o, "tokens");
    t->loss_last = json_number(o, "loss");
    if (!t->steps) t->loss_first = t->loss_last;
    if (cJSON_IsTrue(json_item(o, "skipped"))) t->skipped++;
    if (isfinite(tokens)) t->tokens += (int64_t)tokens;
    if ((t->steps & (t->steps + 1)) == 0)  // doubles the room at 0, 1, 3, 7, ..
        t->step_seconds = xrealloc(t->step_seconds, (unsigned long)(2 * t->steps + 2) * sizeof(double));
    t->step_seconds[t->steps++] = json_number(o, "seconds");
}

// Each line of dir/name goes to add. A last line that does not end is torn and left out.
static int read_lines(const char *dir, const char *name, struct metrics_totals *out,
                      void (*add)(struct metrics_totals *, const cJSON *)) {
    char *text = run_file_read(dir, name, false);
    if (!text) return -1;
    int rc = 0, line_number = 0;
    char *rest = text;
    for (char *line; !rc && (line = strsep(&rest, "\n"));) {
        line_number++;
        if (!*line) continue;
        if (!rest) {
            out->torn = true;
            break;
        }
        cJSON *o = cJSON_Parse(line);
        if (!cJSON_IsObject(o))
            rc = fail("%s/%s: line %d is no JSON object", dir, name, line_number);
        else
            add(out, o);
        cJSON_Delete(o);
    }
    free(text);
    return rc;
}

int metrics_read(const char *dir, struct metrics_totals *out) {
    *out =
        (struct metrics_totals){.loss_first = NAN, .loss_last = NAN, .val_loss = NAN, .unigram_entropy = NAN};
    struct stat about;
    char *steps = xasprintf("%s/metrics.jsonl", dir);
    if (!stat(steps, &about))
        out->written_s = (double)about.st_mtim.tv_sec + 1e-9 * (double)about.st_mtim.tv_nsec;
    int rc = read_lines(dir, "metrics.jsonl", out, add_step);
    if (!rc && has_file(dir, "evals.jsonl")) rc = read_lines(dir, "evals.jsonl", out, add_eval);
    free(steps);
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
    for (char *p = tail; (p = strstr(p, "{\"step\":")); p++) {
        if (strchr(p, '\n')) step = strtoll(p + 8, NULL, 10);  // whole lines
    }
    return step;
}
