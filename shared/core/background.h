// Work apart from the thread that asks for it. A file system, or a terminal, may stand still for as long as it likes; the
// asking thread answers others meanwhile, or trains. So jobs are done one behind the other on a thread of their own, and the
// asking thread looks whether they are done. The users: the scheduler's files, what a server writes and reads of
// checkpoints, logs of single updates, and messages on standard error.
//
// Threads     All functions: any thread, but create and destroy, which are the owner's. A job touches nothing that a thread which
//             must answer others locks for longer than a moment.
// Descriptors The jobs' thread has a table of its own with the standard streams alone: connections of strangers may use up the
//             process's. Where the kernel or a container forbids that, it has the process's.
// Blocking    background_wait, and background_destroy until all that was asked for is done. Nothing else.
#ifndef STARRING_SHARED_CORE_BACKGROUND_H
#define STARRING_SHARED_CORE_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

struct background;
// purpose: for the error where no thread can be had, "writes checkpoints"; NULL: nothing is logged then. label: the name that
// the jobs' messages begin with (error_set_label). NULL: there is no thread.
struct background *background_create(const char *purpose, const char *label);
void background_destroy(struct background **b);  // NULL inside is allowed

// run(arg) returns 0, or -1 after fail(); then release(arg), unless that is NULL. Returns the job's number: 1, 2, ..
uint64_t background_ask(struct background *b, int (*run)(void *arg), void *arg, void (*release)(void *arg));
uint64_t background_asked(struct background *b);  // the number of the last one; 0: there was none
// Whether that one is done, and all before it. Its files may then be read.
bool background_done(struct background *b, uint64_t number);
bool background_wait(struct background *b, uint64_t number, double seconds);  // so long at most
// For how long the job in hand has been under way, in seconds, and its number; 0: there is none.
double background_age(struct background *b, double now, uint64_t *number);

// Jobs that can end early look at the flag; what they do then is theirs.
void background_quit(struct background *b);
const _Atomic int *background_flag(const struct background *b);
// Gives the calling thread, and those that it starts, a table of descriptors of their own, with the standard streams and those of
// `keep` in it, under their numbers.
void background_own_descriptors(const int *keep, int count);
// The error of the first job that failed, or NULL. It stays until background_destroy.
const char *background_why(struct background *b);

#endif
