#include "shared/report/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"

#define AT(m) FIGURE_AT(step_record, m)
static const struct figure of_steps[] = {
    {"step", NULL, "1, 2, ..; skipped steps count. In `ps:async`: worker 0's own steps", AT(step)},
    {"loss", "nats per token",
     "mean loss before the step's update, over the samples that `explained.loss_of` of summary.json "
     "names: the global batch; in `ps:async`, `gossip` and with `--local-steps` worker 0's own "
     "samples; in `ps:backup` and `ps:quorum` those of the workers whose gradients arrived in time",
     AT(loss), .type = "number or null"},
    {"grad_norm", NULL,
     "Euclidean norm of the whole gradient, unscaled, before clipping; null: none was computed",
     AT(grad_norm), .type = "number or null"},
    {"lr", NULL, "the step's learning rate", AT(lr)},
    {"loss_scale", NULL, "1.0 unless fp16", AT(loss_scale)},
    {"tokens", "tokens",
     "of the global batch, without padding. In `ps:async`: of all workers, since worker 0's previous "
     "line",
     AT(tokens)},
    {"samples", "sequences",
     "samples of the whole job whose gradients are applied, including this step's. In `ps:async`: "
     "those in the weights that worker 0 computed on, and its own",
     AT(samples)},
    {"seconds", "s", "duration of this step by worker 0's clock", AT(seconds)},
    {"elapsed", "s",
     "from the start of the first step to the end of this one, without the "
     "time in which the run was held",
     AT(elapsed)},
    {"skipped", NULL, "the gradient was not finite, and nothing was updated", AT(skipped)},
    {"memory_bytes", "bytes", "device memory in use on worker 0 after the step", AT(memory_bytes)},
    {"workers", "workers", "workers whose gradients are in this step's update", AT(workers),
     FIGURE_IF(step_record, workers), .when = "ps:sync with `--elastic`"},
};
#undef AT
struct figure_rows step_figures(void) {
    return FIGURE_ROWS(of_steps);
}

struct metrics {
    struct log_file file;
    char *path;
    int64_t lost;  // step of the first line that could not be written; 0: none
};

// ---------------------------------------------------------------- writing
struct before {
    double steps, *elapsed;
    double last;  // step of the last kept line; 0: none
};

static bool is_before(void *ctx, const char *line) {
    struct before *b = ctx;
    cJSON *o = cJSON_Parse(line);
    double step = json_number(o, "step"), at = json_number(o, "elapsed");
    cJSON_Delete(o);
    if (!(step <= b->steps)) return false;
    if (isfinite(at)) *b->elapsed = at;
    b->last = step;
    return true;
}

struct metrics *metrics_create(const char *dir, int64_t steps, double *elapsed) {
    struct metrics *m = xcalloc(1, sizeof *m);
    m->path = xasprintf("%s/metrics.jsonl", dir);
    *elapsed = 0;
    struct before b = {(double)steps, elapsed, 0};
    struct stat st;
    bool goes_on = stat(m->path, &st) == 0 && st.st_size > 0;
    if (!log_file_open(&m->file, m->path, is_before, &b)) {
        if (goes_on && b.last < b.steps)
            warn(
                "%s is damaged after step %.0f: the lines of steps %.0f to %.0f are lost, and the curve has a gap there. The "
                "state is not concerned",
                m->path, b.last, b.last + 1, b.steps);
        return m;
    }
    fail("%s: %s", m->path, strerror(errno));
    free(m->path);
    free(m);
    return NULL;
}

// The first failed write is reported at once: the run may go on for days.
void metrics_step(struct metrics *m, const struct step_record *r) {
    char line[FIGURE_LINE_MAX];
    int n = figures_line(line, step_figures(), r);
    if (m->lost || !log_file_add(&m->file, line, (size_t)n)) return;
    m->lost = r->step;
    fail(
        "%s: cannot write: %s: the lines from step %lld on are lost; training continues, and ends with exit status %d",
        m->path, strerror(errno), (long long)r->step, EXIT_RUN_FAILED);
}

int metrics_destroy(struct metrics **pm) {
    struct metrics *m = *pm;
    if (!m) return 0;
    int rc = log_file_close(&m->file);
    if (rc && m->lost)
        fail("%s: its lines from step %lld on are missing: %s", m->path, (long long)m->lost, strerror(errno));
    else if (rc)
        fail("%s: %s", m->path, strerror(errno));
    free(m->path);
    free(m);
    *pm = NULL;
    return rc;
}

// ---------------------------------------------------------------- reading
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
    // Steps after the first, which warms up: the mean leaves that one out.
    if (t->steps > 0) t->later_seconds += seconds;
    if (t->steps++ % t->kept_every != 0) return;
    // Keeps every step while there is room, then every second, every fourth, ..: bounded memory for any run length.
    if (t->kept == METRICS_SECONDS_MAX) {
        for (int64_t i = 0; i < t->kept / 2; i++) t->step_seconds[i] = t->step_seconds[2 * i];
        t->kept /= 2;
        t->kept_every *= 2;
    }
    if ((t->kept & (t->kept + 1)) == 0)  // doubles the room at 0, 1, 3, 7, ..
        t->step_seconds = xrealloc(t->step_seconds, (unsigned long)(2 * t->kept + 2) * sizeof(double));
    t->step_seconds[t->kept++] = seconds;
}

// Calls add for each line of dir/name. An incomplete last line is skipped.
static int read_lines(const char *dir, const char *name, struct metrics_totals *out,
                      void (*add)(struct metrics_totals *, const cJSON *)) {
    char *path = xasprintf("%s/%s", dir, name), why[FILE_WHY_MAX];
    struct log_reader lines;
    int rc = log_reader_open(&lines, path, why) ? fail("%s: %s", path, why) : 0;
    for (const char *line; !rc && (line = log_reader_next(&lines));) {
        if (!*line) continue;
        cJSON *o = cJSON_Parse(line);
        if (!cJSON_IsObject(o))
            rc = fail("%s: line %lld is no JSON object", path, (long long)lines.number);
        else
            add(out, o);
        cJSON_Delete(o);
    }
    if (lines.torn) out->torn = name;
    log_reader_close(&lines);
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
        if (strchr(p, '\n')) step = strtoll(p + 8, NULL, 10);  // whole lines only
    }
    return step;
}
