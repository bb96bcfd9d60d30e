#include "shared/monitor/event_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/events.pb-c.h"
#include "shared/core/error.h"

#define EVENT_MAX_BYTES 256
#define HEAD_BYTES      12
#define TAIL_BYTES      4

struct event_file {
    int fd;
    char *path;
};

uint32_t crc32c(const void *data, size_t bytes) {
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

static int put_event(struct event_file *f, Starring__Event *e) {
    uint8_t record[HEAD_BYTES + EVENT_MAX_BYTES + TAIL_BYTES];
    e->wall_time = wall_time();
    size_t n = starring__event__get_packed_size(e), all = HEAD_BYTES + n + TAIL_BYTES;
    assert(n <= EVENT_MAX_BYTES);
    put_little(record, n, 8);
    put_crc(record + 8, record, 8);
    starring__event__pack(e, record + HEAD_BYTES);
    put_crc(record + HEAD_BYTES + n, record + HEAD_BYTES, n);
    errno = ENOSPC;  // what a short write means
    return write(f->fd, record, all) == (ssize_t)all ? 0 : -1;
}

static int put_start(struct event_file *f, int64_t from) {
    Starring__Event version = STARRING__EVENT__INIT, start = STARRING__EVENT__INIT;
    Starring__SessionLog session = STARRING__SESSION_LOG__INIT;
    version.what_case = STARRING__EVENT__WHAT_FILE_VERSION;
    version.file_version = (char *)"brain.Event:2";
    if (put_event(f, &version)) return -1;
    if (from <= 0) return 0;
    session.status = 1;
    start.step = from;
    start.what_case = STARRING__EVENT__WHAT_SESSION_LOG;
    start.session_log = &session;
    return put_event(f, &start);
}

struct event_file *event_file_create(const char *dir, int64_t from) {
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    struct event_file *f = xcalloc(1, sizeof *f);
    f->path =
        xasprintf("%s/events.out.tfevents.%lld.%s.%d", dir, (long long)wall_time(), host, (int)getpid());
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd >= 0 && !put_start(f, from)) return f;
    fail("%s: %s", f->path, strerror(errno));
    event_file_close(&f);
    return NULL;
}

int event_file_scalar(struct event_file *f, const char *tag, int64_t step, double value) {
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

const char *event_file_path(const struct event_file *f) { return f->path; }

int event_file_close(struct event_file **pf) {
    struct event_file *f = *pf;
    if (!f) return 0;
    int rc = f->fd >= 0 ? close(f->fd) : 0;
    free(f->path);
    free(f);
    *pf = NULL;
    return rc;
}
