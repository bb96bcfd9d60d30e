#include "shared/core/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Per thread, because a rank is a thread: each rank has its own name and last error.
static _Thread_local struct {
    char label[48];
    char last[2048];
    int quiet;
} self;

void error_set_label(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(self.label, sizeof self.label, fmt, args);
    va_end(args);
}
const char *error_label(void) { return self.label; }
const char *error_last(void) { return self.last; }
void error_take_over(const char *text) { snprintf(self.last, sizeof self.last, "%s", text); }
void error_clear(void) { self.last[0] = '\0'; }
int error_quiet(int what) {
    int before = self.quiet;
    self.quiet = what;
    return before;
}

// Names in messages may come from a file of unknown origin. Control characters (ESC, and C2 80 to C2 9F in UTF-8) become
// '?', so that they cannot control the terminal.
static void disarm(char *line) {
    for (unsigned char *c = (unsigned char *)line; *c; c++) {
        bool c1 = *c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        if (c1 || (*c < ' ' && *c != '\n' && *c != '\t') || *c == 0x7f) *c = '?';
        if (c1) *++c = '?';
    }
}

#define LINE_MAX_BYTES 2400

static bool (*_Atomic taken_by)(const char *line, size_t bytes);

void error_taken_by(bool (*take)(const char *line, size_t bytes)) { atomic_store(&taken_by, take); }

static void say(const char *kind, const char *text) {
    bool quiet[] = {[QUIET_NOT] = false,
                    [QUIET_ALL] = true,
                    [QUIET_REMARKS] = !*kind,
                    [QUIET_WARNINGS] = strcmp(kind, "error: ") != 0};
    if (quiet[self.quiet]) return;
    char line[LINE_MAX_BYTES];
    int n = self.label[0] ? snprintf(line, sizeof line, "starring: %s[%s] %s\n", kind, self.label, text)
                          : snprintf(line, sizeof line, "starring: %s%s\n", kind, text);
    if (n >= (int)sizeof line) line[(n = (int)sizeof line - 1) - 1] = '\n';
    disarm(line);
    bool (*take)(const char *, size_t) = atomic_load(&taken_by);
    if (take && take(line, (size_t)n)) return;
    fwrite(line, 1, (size_t)n, stderr);
    fflush(stderr);
}

int fail(const char *fmt, ...) {
    char text[sizeof self.last];  // the arguments may quote the last error
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    error_take_over(text);
    say("error: ", text);
    return -1;
}

void warn(const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    say("warning: ", text);
}

void info(const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    say("", text);
}

static void *must(void *p, unsigned long bytes) {
    if (!p) {
        fprintf(stderr, "starring: error: out of host memory (asked for %lu bytes)\n", bytes);
        exit(EXIT_RUN_FAILED);
    }
    return p;
}

void *xcalloc(unsigned long count, unsigned long bytes) {
    return must(calloc(count ? count : 1, bytes ? bytes : 1), count * bytes);
}

void *xrealloc(void *p, unsigned long bytes) { return must(realloc(p, bytes ? bytes : 1), bytes); }

char *xstrdup(const char *s) { return must(strdup(s), strlen(s)); }

char *xasprintf(const char *fmt, ...) {
    char *out = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&out, fmt, ap);
    va_end(ap);
    return must(n < 0 ? NULL : out, 0);
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cond_init(pthread_cond_t *c) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec time_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}
