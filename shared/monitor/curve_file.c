#include "shared/monitor/curve_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/events.pb-c.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define LINE_MAX_BYTES  128
#define EVENT_MAX_BYTES 256
#define HEAD_BYTES      12
#define TAIL_BYTES      4

struct curve_file {
    int fd;
    char *path;
};

// path is the file's from now on.
static struct curve_file *open_at(char *path, int flags) {
    struct curve_file *f = xcalloc(1, sizeof *f);
    f->path = path;
    f->fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    return f;
}

// rc: of what its beginning wrote, or that it could not be opened.
static struct curve_file *opened(struct curve_file *f, int rc) {
    if (rc) {
        fail("%s: %s", f->path, strerror(errno));
        curve_file_close(&f);
    }
    return f;
}

static int put(struct curve_file *f, const void *bytes, size_t n) {
    errno = ENOSPC;  // what a short write means
    return write(f->fd, bytes, n) == (ssize_t)n ? 0 : -1;
}

const char *curve_file_path(const struct curve_file *f) { return f->path; }

int curve_file_close(struct curve_file **pf) {
    struct curve_file *f = *pf;
    if (!f) return 0;
    int rc = f->fd >= 0 ? close(f->fd) : 0;
    free(f->path);
    free(f);
    *pf = NULL;
    return rc;
}

// ---------------------------------------------------------------- CSV
// The lines up to the first of a step above `from`, in bytes; 0 of a file without a whole line.
static off_t kept_bytes(int fd, int64_t from) {
    int copy = dup(fd);
    FILE *in = copy >= 0 ? fdopen(copy, "r") : NULL;
    char line[LINE_MAX_BYTES];
    off_t kept = 0;
    while (in && fgets(line, sizeof line, in) && strchr(line, '\n')) {
        if (kept && from > 0 && strtoll(line, NULL, 10) > from) break;
        kept += (off_t)strlen(line);
    }
    if (in) fclose(in);
    return kept;
}

struct curve_file *csv_file_open(const char *dir, const char *tag, int64_t from) {
    const char *slash = strrchr(tag, '/');
    char *path = xasprintf("%s/%s.csv", dir, tag), line[LINE_MAX_BYTES];
    for (char *p = path + strlen(dir) + 1; *p; p++)
        if (*p == '/' || *p == ' ') *p = '_';
    struct curve_file *f = open_at(path, O_RDWR);
    if (f->fd < 0) return opened(f, -1);
    off_t kept = kept_bytes(f->fd, from);
    if (ftruncate(f->fd, kept) || lseek(f->fd, kept, SEEK_SET) != kept) return opened(f, -1);
    snprintf(line, sizeof line, "step,%s\r\n", slash ? slash + 1 : tag);
    return opened(f, kept ? 0 : put(f, line, strlen(line)));
}

int csv_file_point(struct curve_file *f, int64_t step, double value) {
    char number[32], line[LINE_MAX_BYTES];
    if (isfinite(value) && (double)(float)value == value)
        shortest_f32(number, (float)value);  // a learning rate as it was written: 0.001
    else if (isfinite(value))
        shortest_f64(number, value);
    else
        snprintf(number, sizeof number, "%f", value);  // nan, inf, -inf: as Python writes them
    snprintf(line, sizeof line, "%lld,%s\r\n", (long long)step, number);
    return put(f, line, strlen(line));
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
    return put(f, record, HEAD_BYTES + n + TAIL_BYTES);
}

struct curve_file *event_file_create(const char *dir, int64_t from) {
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    struct curve_file *f = open_at(
        xasprintf("%s/events.out.tfevents.%lld.%s.%d", dir, (long long)wall_time(), host, (int)getpid()),
        O_WRONLY | O_APPEND);
    Starring__Event version = STARRING__EVENT__INIT, start = STARRING__EVENT__INIT;
    Starring__SessionLog session = STARRING__SESSION_LOG__INIT;
    version.what_case = STARRING__EVENT__WHAT_FILE_VERSION;
    version.file_version = (char *)"brain.Event:2";
    session.status = 1;
    start.step = from;
    start.what_case = STARRING__EVENT__WHAT_SESSION_LOG;
    start.session_log = &session;
    return opened(f, f->fd < 0 || put_event(f, &version) || (from > 0 && put_event(f, &start)));
}

int event_file_point(struct curve_file *f, const char *tag, int64_t step, double value) {
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
