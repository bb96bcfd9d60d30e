#include "shared/monitor/monitor.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/core/train_state.h"
#include "shared/monitor/curve_file.h"
#include "shared/report/metrics.h"

enum curve { CURVE_LOSS, CURVE_LR, CURVE_SCALE, CURVES };
static const char *const tags[CURVES] = {"Train/Samples/train_loss", "Train/Samples/lr",
                                         "Train/Samples/loss_scale"};

struct monitor {
    struct curve_file *events;       // NULL: none, or no longer
    struct curve_file *csv[CURVES];  // the same
    bool lost;                       // something could not be written
    bool scale;                      // there is a loss scale to show
    int64_t batch, skipped;          // sequences of a step; steps whose samples are in no weights
};

static char *place_of(const struct monitor_config *c) {
    return xasprintf("%s%s%s", c->output_path ? c->output_path : "", c->output_path ? "/" : "", c->job_name);
}

static char *make_place(const struct monitor_config *c, const char *section) {
    char *path = place_of(c);
    if (!dir_make(path)) return path;
    fail("%s.output_path, job_name: %s cannot be made: %s", section, path, strerror(errno));
    free(path);
    return NULL;
}

static int open_files(struct monitor *m, const struct config *c, int64_t from) {
    char *csv = c->csv_monitor.enabled ? make_place(&c->csv_monitor, "csv_monitor") : NULL;
    int rc = c->csv_monitor.enabled && !csv ? -1 : 0;
    for (int i = 0; i < CURVES && csv && !rc; i++)
        if ((i != CURVE_SCALE || m->scale) && !(m->csv[i] = csv_file_open(csv, tags[i], from))) rc = -1;
    free(csv);
    if (rc || !c->tensorboard.enabled) return rc;
    char *events = make_place(&c->tensorboard, "tensorboard");
    // TensorBoard drops events at the first step of the new session as well.
    m->events = events ? event_file_create(events, from ? from + 1 : 0) : NULL;
    free(events);
    return m->events ? 0 : -1;
}

int monitor_check(const struct config *c) {
    const struct {
        const struct monitor_config *monitor;
        const char *key;
    } all[] = {{&c->tensorboard, "tensorboard.output_path"}, {&c->csv_monitor, "csv_monitor.output_path"}};
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *path = place_of(all[i].monitor);
        if (all[i].monitor->enabled && dir_possible(path, all[i].key)) rc = -1;
        free(path);
    }
    return rc;
}

int monitor_create(const struct config *c, const struct train_state *start, struct monitor **out) {
    *out = NULL;
    if (!c->tensorboard.enabled && !c->csv_monitor.enabled) return 0;
    struct monitor *m = xcalloc(1, sizeof *m);
    m->scale = c->scaler.enabled;
    m->batch = c->train_batch;
    m->skipped = start->step - start->updates;
    int64_t from = start->samples + m->skipped * m->batch;
    int rc = open_files(m, c, from);
    if (rc) monitor_destroy(&m);
    *out = m;
    return rc;
}

// The curves of a file that could not be written stop. rc: of what was written.
static void check(struct monitor *m, struct curve_file **f, int rc, int64_t step) {
    if (!rc) return;
    m->lost = true;
    fail(
        "%s: cannot write: %s: what it would say from step %lld on is lost; training goes on, and ends with exit "
        "status %d",
        curve_file_path(*f), strerror(errno), (long long)step, EXIT_RUN_FAILED);
    curve_file_close(f);
}

// All of the step's line in metrics.jsonl; what is null there is no point, but for a loss. 0, or -1 with errno.
static int put_events(struct curve_file *events, const struct step_record *r, int64_t x) {
    const struct figure_rows rows = step_figures();
    int rc = 0;
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count && !rc; f++) {
        bool is_loss = !strcmp(f->key, "loss");
        double value = figure_value(f, r);
        char tag[64];
        snprintf(tag, sizeof tag, "Train/Samples/%s", is_loss ? "train_loss" : f->key);
        if (figure_is_there(f, r) && (is_loss || isfinite(value)))
            rc = event_file_point(events, tag, x, value);
    }
    return rc;
}

void monitor_step(struct monitor *m, const struct step_record *r) {
    const double values[CURVES] = {r->loss, r->lr, r->loss_scale};
    if (r->skipped) m->skipped++;
    int64_t x = r->samples + m->skipped * m->batch;
    for (int i = 0; i < CURVES; i++)
        if (m->csv[i]) check(m, &m->csv[i], csv_file_point(m->csv[i], x, values[i]), r->step);
    if (m->events) check(m, &m->events, put_events(m->events, r, x), r->step);
}

int monitor_destroy(struct monitor **pm) {
    struct monitor *m = *pm;
    if (!m) return 0;
    int rc = curve_file_close(&m->events);
    for (int i = 0; i < CURVES; i++) rc |= curve_file_close(&m->csv[i]);
    if (rc) fail("a monitor's file: %s", strerror(errno));
    if (m->lost) rc = -1;
    free(m);
    *pm = NULL;
    return rc;
}
