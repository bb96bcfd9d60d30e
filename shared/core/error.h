// Errors and other messages on standard error.
//
// Functions return 0 or -1. The function that knows the reason calls fail() once; its callers pass the -1 on.
// fail() prints "starring: error: [label] text" to stderr and keeps the text for this thread. Every message names
// the file, key, rank or step, and what to do.
#ifndef STARRING_SHARED_CORE_ERROR_H
#define STARRING_SHARED_CORE_ERROR_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define EXIT_RUN_FAILED 1
#define EXIT_USAGE      2

// Advice for the error that the kernel refuses a new process or thread.
#define ERROR_RAISE_THREADS \
    "raise the limit of this user's processes and threads (ulimit -u; of a container or a service: pids.max), or end some of them"

// Sets the name at the start of this thread's messages ("worker 1", "rank 0"; "" for the launcher). The text is
// copied.
void error_set_label(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *error_label(void);

// Logs an error. Always returns -1, so that a failing function can end in `return fail(...)`.
// (The name is in parentheses because cmocka has a macro of the same name.)
int(fail)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// Returns the text of this thread's last fail(), or "". It is valid until the next fail().
const char *error_last(void);
void error_clear(void);
// Makes text this thread's last error without printing it: another thread has logged it.
void error_take_over(const char *text);
// How much this thread prints. The texts of errors are kept in every case.
enum error_quiet {
    QUIET_NOT,
    QUIET_ALL,       // prints nothing: tests of bad input, and ranks whose messages another rank prints
    QUIET_REMARKS,   // prints warnings and errors (--quiet, or its configuration key)
    QUIET_WARNINGS,  // prints errors only: a process whose parent has already printed the warnings
};
int error_quiet(int what);  // returns the earlier value

// Each message is written with one call, so that lines of several threads and processes do not interleave.
// error_taken_by sets a function that receives the messages instead (shared/core/background.h; NULL: none). If this
// function returns false, the message is written as usual.
void error_taken_by(bool (*take)(const char *line, size_t bytes));

void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// malloc and its relatives. They end the program with a message when the host is out of memory. They are for small data
// on the host only: shared/core/arena.h allocates device memory and reports failures.
void *xcalloc(unsigned long count, unsigned long bytes);
void *xrealloc(void *p, unsigned long bytes);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Return the seconds of a monotonic clock; initialize a condition variable that uses this clock; return the time `seconds`
// from now.
double now_seconds(void);
void cond_init(pthread_cond_t *c);
struct timespec time_after(double seconds);

#endif
