#include "shared/report/monitor.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/events.pb-c.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"
#include "shared/core/train_state.h"
#include "shared/report/metrics.h"

// ---------------------------------------------------------------- curve files
// Files that hold curves, point by point, as DeepSpeed's csv_monitor and `tensorboard` read them. Each point is one
// write, so a reader that follows the file never sees an incomplete one.
//
// CSV        "step,NAME", then a line for each step, with the line ends of Python's csv (RFC 4180). One curve per file.
// Events     Records, little-endian, of all curves:
//
//     | length, 8 bytes | masked crc32c of it, 4 | proto/events.proto's Event, length bytes | masked crc32c of them, 4
//     |
//
//            The mask (rotated right by 15 bits, plus 0xa282ead8) is TensorFlow's, core/lib/hash/crc32c.h and
//            core/lib/io/record_writer.cc; crc32c is Castagnoli's polynomial (RFC 3720, B.4).
//
// Errors    NULL after fail() if a file cannot be opened. -1 with errno if a line cannot be written.
#define LINE_MAX_BYTES  128
#define EVENT_MAX_BYTES 256
#define HEAD_BYTES      12
#define TAIL_BYTES      4

struct curve_file {
    struct log_file log;
    char *path;
};

static int curve_file_close(struct curve_file **pf) {
    struct curve_file *f = *pf;
    if (!f) return 0;
    int rc = log_file_close(&f->log);
    free(f->path);
    free(f);
    *pf = NULL;
    return rc;
}

// rc: result of opening the file or of writing its first bytes.
static struct curve_file *opened(struct curve_file *f, int rc) {
    if (rc) {
        fail("%s: %s", f->path, strerror(errno));
        curve_file_close(&f);
    }
    return f;
}

// Takes ownership of path. Returns NULL after logging.
static struct curve_file *open_at(char *path, bool (*keep)(void *ctx, const char *line), void *ctx) {
    struct curve_file *f = xcalloc(1, sizeof *f);
    f->path = path;
    return opened(f, log_file_open(&f->log, path, keep, ctx));
}

// ---------------------------------------------------------------- CSV
// Keeps the header, and for a resumed run the lines up to the first one of a step above *from.
static bool is_before(void *ctx, const char *line) {
    const int64_t *from = ctx;
    return strncmp(line, "step,", 5) == 0 || *from <= 0 || strtoll(line, NULL, 10) <= *from;
}

// Opens dir/NAME.csv for the tag "Train/Samples/lr"; NAME is the tag with '_' for '/' and ' '. Existing lines stay,
// and new ones are appended. from > 0: lines of later steps are removed, because the resumed run writes them again.
static struct curve_file *csv_file_open(const char *dir, const char *tag, int64_t from) {
    const char *slash = strrchr(tag, '/');
    char *path = xasprintf("%s/%s.csv", dir, tag), line[LINE_MAX_BYTES];
    for (char *p = path + strlen(dir) + 1; *p; p++)
        if (*p == '/' || *p == ' ') *p = '_';
    struct curve_file *f = open_at(path, is_before, &from);
    snprintf(line, sizeof line, "step,%s\r\n", slash ? slash + 1 : tag);
    return f && !f->log.end ? opened(f, log_file_add(&f->log, line, strlen(line))) : f;
}

static int csv_file_point(struct curve_file *f, int64_t step, double value) {
    char number[32], line[LINE_MAX_BYTES];
    if (isfinite(value) && (double)(float)value == value)
        shortest_f32(number, (float)value);  // a learning rate as the user wrote it: 0.001
    else if (isfinite(value))
        shortest_f64(number, value);
    else
        snprintf(number, sizeof number, "%f", value);  // nan, inf, -inf: as Python writes them
    snprintf(line, sizeof line, "%lld,%s\r\n", (long long)step, number);
    return log_file_add(&f->log, line, strlen(line));
}

// ---------------------------------------------------------------- events
static uint32_t crc32c(const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void put_little(uint8_t *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(x >> 8 * i);
}

static void put_crc(uint8_t *at, const void *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    put_little(at, (crc >> 15 | crc << 17) + 0xa282ead8u, 4);
}

static double wall_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int put_event(struct curve_file *f, Starring__Event *e) {
    uint8_t record[HEAD_BYTES + EVENT_MAX_BYTES + TAIL_BYTES];
    e->wall_time = wall_time();
    size_t n = starring__event__get_packed_size(e);
    assert(n <= EVENT_MAX_BYTES);
    put_little(record, n, 8);
    put_crc(record + 8, record, 8);
    starring__event__pack(e, record + HEAD_BYTES);
    put_crc(record + HEAD_BYTES + n, record + HEAD_BYTES, n);
    return log_file_add(&f->log, (char *)record, HEAD_BYTES + n + TAIL_BYTES);
}

// Creates events.out.tfevents.SECONDS.HOST.PID in dir, which exists. from > 0: marks the events from that step on in
// other files of the directory as invalid.
static struct curve_file *event_file_create(const char *dir, int64_t from) {
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    struct curve_file *f = open_at(
        xasprintf("%s/events.out.tfevents.%lld.%s.%d", dir, (long long)wall_time(), host, (int)getpid()),
        NULL, NULL);
    Starring__Event version = STARRING__EVENT__INIT, start = STARRING__EVENT__INIT;
    Starring__SessionLog session = STARRING__SESSION_LOG__INIT;
    version.what_case = STARRING__EVENT__WHAT_FILE_VERSION;
    version.file_version = (char *)"brain.Event:2";
    session.status = 1;
    start.step = from;
    start.what_case = STARRING__EVENT__WHAT_SESSION_LOG;
    start.session_log = &session;
    return f ? opened(f, put_event(f, &version) || (from > 0 && put_event(f, &start))) : NULL;
}

static int event_file_point(struct curve_file *f, const char *tag, int64_t step, double value) {
    Starring__Event e = STARRING__EVENT__INIT;
    Starring__ScalarSummary summary = STARRING__SCALAR_SUMMARY__INIT;
    Starring__ScalarValue scalar = STARRING__SCALAR_VALUE__INIT, *list[] = {&scalar};
    scalar.tag = (char *)tag;
    scalar.value_case = STARRING__SCALAR_VALUE__VALUE_SIMPLE_VALUE;
    scalar.simple_value = (float)value;
    summary.n_value = 1;
    summary.value = list;
    e.step = step;
    e.what_case = STARRING__EVENT__WHAT_SUMMARY;
    e.summary = &summary;
    return put_event(f, &e);
}

// ---------------------------------------------------------------- the monitor
enum curve { CURVE_LOSS, CURVE_LR, CURVE_SCALE, CURVES };
static const char *const tags[CURVES] = {"Train/Samples/train_loss", "Train/Samples/lr",
                                         "Train/Samples/loss_scale"};

struct monitor {
    struct curve_file *events;       // NULL: none, or closed after a failed write
    struct curve_file *csv[CURVES];  // the curves' files; NULL as above
    bool lost;                       // a write failed
    bool scale;                      // the run has a loss scale
    int64_t batch, skipped;          // sequences per step; steps whose samples are in no weights
};

static char *place_of(const struct monitor_config *c) {
    const char *path = c->output_path ? c->output_path : c->job_name[0] ? "" : ".";
    return xasprintf("%s%s%s", path, path[0] && c->job_name[0] ? "/" : "", c->job_name);
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
    // TensorBoard drops events at the first step of the new session too.
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

// Closes a file after a failed write: its curves stop. rc: the result of the write.
static void check(struct monitor *m, struct curve_file **f, int rc, int64_t step) {
    if (!rc) return;
    m->lost = true;
    fail(
        "%s: cannot write: %s: what it would say from step %lld on is lost; training continues, and ends with exit "
        "status %d",
        (*f)->path, strerror(errno), (long long)step, EXIT_RUN_FAILED);
    curve_file_close(f);
}

// Writes all values of the step's line in metrics.jsonl. A null value gives no point, except for a loss. Returns 0, or
// -1 with errno.
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
