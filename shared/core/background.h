// Work that may block, on a thread of its own, and the program's output, which may block too.
//
// A file system or a terminal may block for any time; the thread that asks must
// answer others meanwhile, or train. Jobs run one after the other, and the asking thread polls whether they are
// done. Users: the scheduler's files, checkpoints that a server writes and reads, logs of single updates, and
// messages on standard error.
//
// Threads     Any thread may call all functions, except create and destroy, which the owner calls. A job never
//             holds a lock for long that a thread which must answer others also takes.
// Descriptors The jobs' thread has its own descriptor table with only the standard streams, because connections of
//             strangers may use up the table of the process. Where the kernel or a container forbids this, it shares
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
// Returns whether that job and all earlier ones are done. Their files may then be read.
bool background_done(struct background *b, uint64_t number);
// The same; waits at most `seconds`.
bool background_wait(struct background *b, uint64_t number, double seconds);
// Returns for how many seconds the current job has been running, or 0 if there is none. *number receives its
// number.
double background_age(struct background *b, double now, uint64_t *number);

// background_quit sets a flag. A job that can end early polls it through background_flag, and decides what it does
// then.
void background_quit(struct background *b);
const _Atomic int *background_flag(const struct background *b);
// Gives the calling thread, and threads that it starts later, a descriptor table of their own. The table keeps the
// standard streams and the descriptors of `keep`, under the same numbers.
void background_own_descriptors(const int *keep, int count);
// Returns the error of the first job that failed, or NULL. The text is valid until background_destroy.
const char *background_why(struct background *b);

// ---------------------------------------------------------------- output
// Standard output and standard error, which may fail or block. Output may be closed, left by its reader, or on a
// full disk; standard error may block. None of these ends a run, because the results are in files.

// The first call of main. Opens descriptors 0, 1 and 2 on /dev/null where the shell closed them (>&-). Otherwise
// the next file opened would get such a number, and printed text would land in it.
void output_open_streams(void);

// The last call of main. Returns the exit status, given the command's status. Output lost on a full disk is an
// error and must not look like success. A reader that left on purpose (`| head -1`) causes only a warning, if a run
// had more to print.
int output_end(int status, bool run);

// From output_thread_begin to output_thread_end one thread writes all messages of this process.
// Standard error may block (a pipe that nobody reads, Ctrl-S, a file on a slow disk);
// the threads that print do not wait for it. A message that does not fit the queue is dropped and counted. If no
// thread can be started, nothing changes.
void output_thread_begin(void);
void output_thread_end(void);  // after everything is written
// Waits until everything is written, at most `seconds`. For use before a call that never returns.
void output_thread_wait(double seconds);

#endif
