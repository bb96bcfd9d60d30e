// Errors and messages to people.
//
// Functions return 0 or -1; the place that knows calls fail() once, callers pass the -1 on. fail()
// prints "starring: error: [label] text" to stderr and keeps the text for this thread. Every message
// names the file, key, rank or step, and what to do.
#ifndef STARRING_SHARED_CORE_ERROR_H
#define STARRING_SHARED_CORE_ERROR_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define EXIT_RUN_FAILED 1
#define EXIT_USAGE      2

// Advice for where the kernel starts no process or thread.
#define ERROR_RAISE_THREADS \
    "raise the limit of this user's processes and threads (ulimit -u; of a container or a service: pids.max), or end some of them"

// The name that messages of this thread begin with ("worker 1", "rank 0"; "" for the launcher). The text is
// copied.
void error_set_label(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *error_label(void);

// Logs an error; always returns -1, so that a failing function can end in `return fail(...)`.
// (The name is in parentheses because cmocka has a macro of the same name.)
int(fail)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// The text of this thread's last fail(), "" when none; valid until the next one.
const char *error_last(void);
void error_clear(void);
// Makes text this thread's last error, without printing: another thread has logged it.
void error_take_over(const char *text);
// Whether this thread prints all, or less. Texts of errors are kept all the same.
enum error_quiet {
    QUIET_NOT,
    QUIET_ALL,       // nothing: tests of bad input, and ranks of which another speaks
    QUIET_REMARKS,   // warnings and errors (--quiet, of the configuration)
    QUIET_WARNINGS,  // errors alone: a process that another has started, which has warned of all that both see
};
int error_quiet(int what);  // what it was before

// One write for each message, so that lines of several threads and processes do not interleave. A function that takes messages
// (shared/core/output.h) gets them instead; where it says false they are written after all. NULL: there is none.
void error_write(const char *line, size_t bytes);
void error_taken_by(bool (*take)(const char *line, size_t bytes));

void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// malloc and friends that end the program with a message when the host is out of memory (host
// bookkeeping only: device memory goes through shared/core/arena.h, which reports instead).
void *xcalloc(unsigned long count, unsigned long bytes);
void *xrealloc(void *p, unsigned long bytes);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Seconds of a monotonic clock; a condition whose waits go by it, and the moment so many seconds from now.
double now_seconds(void);
void cond_init(pthread_cond_t *c);
struct timespec moment_in(double seconds);

#endif
