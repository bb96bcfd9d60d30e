// Work that may block, on a thread of its own, and the program's output, which may block too.
//
// A file system or a terminal may block for any time, while the calling thread must answer messages or train. So jobs run
// on another thread, one after the other, and the calling thread polls whether they are done. Users: the scheduler's
// files, checkpoints that a server writes and reads, logs of single updates, and messages on standard error.
//
// Threads     Any thread may call all functions, except create and destroy, which the owner calls. If a job takes a lock
//             that a thread which answers messages also takes, it holds the lock only briefly.
// Descriptors The jobs' thread has its own descriptor table with only the standard streams, because connections from
//             unknown programs may use up the table of the process. If the kernel or a container forbids this, it shares
//             the table of the process.
// Blocking    background_wait; background_destroy, until all jobs are done. No other function blocks.
#ifndef STARRING_SHARED_CORE_BACKGROUND_H
#define STARRING_SHARED_CORE_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

struct background;
// purpose: for the error message if no thread can be started ("writes checkpoints"); NULL: nothing is logged.
// label: the prefix of the jobs' messages (error_set_label). Returns NULL if there is no thread.
struct background *background_create(const char *purpose, const char *label);
void background_destroy(struct background **b);  // *b may be NULL

// Queues a job. run(arg) returns 0, or -1 after fail(). Then release(arg) is called, unless release is NULL.
// Returns the job's number: 1, 2, ..
uint64_t background_submit(struct background *b, int (*run)(void *arg), void *arg,
                           void (*release)(void *arg));
uint64_t background_submitted(struct background *b);  // number of the last job; 0: none
// Returns whether the job of this number and all earlier jobs are done. Their files may then be read.
bool background_done(struct background *b, uint64_t number);
// The same; waits at most `seconds`.
bool background_wait(struct background *b, uint64_t number, double seconds);
// Returns for how many seconds the current job has been running, or 0 if there is none. *number receives its
// number.
double background_age(struct background *b, double now, uint64_t *number);

// background_quit sets a flag. A job that can end early polls it through background_flag.
void background_quit(struct background *b);
const _Atomic int *background_flag(const struct background *b);
// Gives the calling thread, and threads that it starts later, a descriptor table of their own. The table keeps the
// standard streams and the descriptors of `keep`, under the same numbers.
void background_own_descriptors(const int *keep, int count);
// Returns the error of the first job that failed, or NULL. The text is valid until background_destroy.
const char *background_why(struct background *b);

// ---------------------------------------------------------------- output
// Standard output and standard error may fail or block: the shell has closed them, their reader has exited, or the disk is
// full. None of this ends a run, because the results are in files.

// Main calls it first. Opens descriptors 0, 1 and 2 on /dev/null where the shell closed them (>&-). Otherwise
// the next file opened would get such a number, and printed text would be written to it.
void output_open_streams(void);

// Main calls it last, with the command's exit status, and returns its result. Output that was lost on a full disk is an
// error and must not look like success. If a run had more to print for a reader that has exited on purpose (`| head -1`),
// it only prints a warning.
int output_end(int status, bool run);

// From output_thread_begin to output_thread_end one thread writes all messages of this process.
// Standard error may block (a pipe that nobody reads, Ctrl-S, a file on a slow disk);
// the threads that print do not wait for it. A message that does not fit the queue is dropped and counted. If no
// thread can be started, nothing changes.
void output_thread_begin(void);
void output_thread_end(void);  // after everything is written
// Waits until everything is written, at most `seconds`. Call it before a call that never returns (exec).
void output_thread_wait(double seconds);

#endif
