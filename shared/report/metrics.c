#include "shared/report/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/path.h"
#include "shared/core/regular_file.h"
#include "shared/core/run_file.h"

#define LINE_READ_BYTES 4096  // of a line that somebody else may have written

#define AT(m) FIGURE_AT(step_record, m)
static const struct figure of_steps[] = {
    {"step", NULL, "1, 2, ..; skipped steps count. Of `ps:async` worker 0's own steps", AT(step)},
    {"loss", "nats per token",
     "mean over the global batch before the step's update; of `ps:async` over worker 0's share", AT(loss),
     .type = "number or null"},
    {"grad_norm", NULL,
     "Euclidean norm of the whole gradient, unscaled, before clipping; null where none was computed",
     AT(grad_norm), .type = "number or null"},
    {"lr", NULL, "the step's learning rate", AT(lr)},
    {"loss_scale", NULL, "1.0 unless fp16", AT(loss_scale)},
    {"tokens", "tokens", "of the global batch. Of `ps:async` of all workers, since worker 0's line before",
     AT(tokens)},
    {"samples", "sequences",
     "of the whole job whose gradients are applied, this step's included: the schedule's progress. Of "
     "`ps:async` those in the weights that worker 0 computed on, and its own",
     AT(samples)},
    {"seconds", "s", "of this step, worker 0's clock", AT(seconds)},
    {"elapsed", "s",
     "from the beginning of the first step to the end of this one, without what is no training", AT(elapsed)},
    {"skipped", NULL, "true: the gradient was not finite and nothing was updated", AT(skipped)},
    {"memory_bytes", "bytes", "device memory in use on worker 0 after the step", AT(memory_bytes)},
    {"workers", "workers", "whose gradients this step's update is the mean of", AT(workers),
     FIGURE_IF(step_record, workers), .when = "ps:sync with `--elastic`"},
};
#undef AT
struct figure_rows step_figures(void) {
    return FIGURE_ROWS(of_steps);
}

struct metrics {
    int fd;  // -1: not made yet
    char *path;
    int failed;    // errno of the first write that did not succeed
    int64_t step;  // whose line that was
};

struct metrics *metrics_create(const char *dir, int64_t steps, double *elapsed) {
    struct metrics *m = xcalloc(1, sizeof *m);
    m->path = xasprintf("%s/metrics.jsonl", dir);
    m->fd = open(m->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    int copy = m->fd >= 0 && steps > 0 ? dup(m->fd) : -1;
    FILE *in = copy >= 0 ? fdopen(copy, "r") : NULL;
    char line[FIGURE_LINE_MAX];
    off_t kept = 0;
    *elapsed = 0;
    while (in && fgets(line, sizeof line, in) && strchr(line, '\n')) {
        cJSON *o = cJSON_Parse(line);
        double step = json_number(o, "step"), at = json_number(o, "elapsed");
        cJSON_Delete(o);
        if (!(step <= (double)steps)) break;
        kept += (off_t)strlen(line);
        if (isfinite(at)) *elapsed = at;
    }
    if (in) fclose(in);
    if (m->fd >= 0 && !ftruncate(m->fd, kept) && lseek(m->fd, kept, SEEK_SET) == kept) return m;
    fail("%s: %s", m->path, strerror(errno));
    if (m->fd >= 0) close(m->fd);
    free(m->path);
    free(m);
    return NULL;
}

// The first line that cannot be written is told at once: a run of days may still be ahead. Nothing is written behind it,
// for a line may be torn.
static void put_line(struct metrics *f, int64_t step, const char *line, int length) {
    if (f->failed) return;
    errno = ENOSPC;  // what a short write means
    if (write(f->fd, line, (size_t)length) == length) return;
    f->failed = errno;
    f->step = step;
    fail(
        "%s: cannot write: %s: the lines from step %lld on are lost; training goes on, and ends with exit status %d",
        f->path, strerror(f->failed), (long long)step, EXIT_RUN_FAILED);
}

void metrics_step(struct metrics *m, const struct step_record *r) {
    char line[FIGURE_LINE_MAX];
    int n = figures_line(line, step_figures(), r);
    put_line(m, r->step, line, n);
}

void metrics_mend(const char *dir, const struct step_record *r) {
    struct step_record mended = *r;
    struct metrics f = {.path = xasprintf("%s/metrics.jsonl", dir)};
    char why[FILE_WHY_MAX];
    FILE *in = file_open_stream(f.path, why);
    char line[FIGURE_LINE_MAX];
    double last = 0;
    while (in && fgets(line, sizeof line, in) && strchr(line, '\n')) {
        cJSON *o = cJSON_Parse(line);
        last = json_number(o, "step");
        mended.elapsed = json_number(o, "elapsed") + r->seconds;
        mended.memory_bytes = (size_t)json_number(o, "memory_bytes");
        cJSON_Delete(o);
    }
    if (in) fclose(in);
    if (in && last == (double)(r->step - 1)) {
        int n = figures_line(line, step_figures(), &mended);
        f.fd = open(f.path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
        if (f.fd >= 0) put_line(&f, r->step, line, n);
        if (f.fd >= 0) close(f.fd);
    }
    free(f.path);
}

int metrics_destroy(struct metrics **pm) {
    struct metrics *m = *pm;
    int rc = 0;
    if (!m) return 0;
    if (m->fd >= 0 && close(m->fd) && !m->failed) m->failed = errno;
    if (m->failed && m->step)
        rc = fail("%s: its lines from step %lld on are missing: %s", m->path, (long long)m->step,
                  strerror(m->failed));
    else if (m->failed)
        rc = fail("%s: %s", m->path, strerror(m->failed));
    free(m->path);
    free(m);
    *pm = NULL;
    return rc;
}

static void add_eval(struct metrics_totals *t, const cJSON *o) {
    t->val_loss = json_number(o, "val_loss");
    t->unigram_entropy = json_number(o, "unigram_entropy");
}

static void add_step(struct metrics_totals *t, const cJSON *o) {
    double tokens = json_number(o, "tokens"), step = json_number(o, "step");
    if (isfinite(step)) t->last_step = (int64_t)step;
    t->loss_last = json_number(o, "loss");
    double workers = json_number(o, "workers");
    if (workers > 0 && workers < INT32_MAX) t->contributions += (int64_t)workers;
    if (!t->steps) t->loss_first = t->loss_last;
    if (cJSON_IsTrue(json_item(o, "skipped"))) t->skipped++;
    if (isfinite(tokens)) t->tokens += (int64_t)tokens;
    double seconds = json_number(o, "seconds");
    // Behind the warm-up, which the mean leaves out.
    if (t->steps > 0) t->later_seconds += seconds;
    if (t->steps++ % t->kept_every != 0) return;
    // Of every step as long as there is room, then of every second, every fourth, ..: a bound, however long the run.
    if (t->kept == METRICS_SECONDS_MAX) {
        for (int64_t i = 0; i < t->kept / 2; i++) t->step_seconds[i] = t->step_seconds[2 * i];
        t->kept /= 2;
        t->kept_every *= 2;
    }
    if ((t->kept & (t->kept + 1)) == 0)  // doubles the room at 0, 1, 3, 7, ..
        t->step_seconds = xrealloc(t->step_seconds, (unsigned long)(2 * t->kept + 2) * sizeof(double));
    t->step_seconds[t->kept++] = seconds;
}

// Each line of dir/name goes to add. A last line that does not end is torn and left out.
static int read_lines(const char *dir, const char *name, struct metrics_totals *out,
                      void (*add)(struct metrics_totals *, const cJSON *)) {
    char *path = xasprintf("%s/%s", dir, name), why[FILE_WHY_MAX], line[LINE_READ_BYTES];
    FILE *f = file_open_stream(path, why);
    int rc = f ? 0 : fail("%s: %s", path, why);
    for (int64_t number = 1; !rc && fgets(line, sizeof line, f); number++) {
        if (*line == '\n') continue;
        bool whole = strchr(line, '\n') != NULL;
        if (!whole && feof(f)) {
            out->torn = name;
            break;
        }
        cJSON *o = whole ? cJSON_Parse(line) : NULL;
        if (!cJSON_IsObject(o))
            rc = fail("%s: line %lld is no JSON object", path, (long long)number);
        else
            add(out, o);
        cJSON_Delete(o);
    }
    if (f) fclose(f);
    free(path);
    return rc;
}

int metrics_read(const char *dir, struct metrics_totals *out) {
    *out = (struct metrics_totals){
        .kept_every = 1, .loss_first = NAN, .loss_last = NAN, .val_loss = NAN, .unigram_entropy = NAN};
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
    char *path = xasprintf("%s/metrics.jsonl", dir), why[FILE_WHY_MAX];
    int fd = file_open(path, NULL, why);
    free(path);
    if (fd < 0) return -1;
    char tail[4 * FIGURE_LINE_MAX + 1];
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
