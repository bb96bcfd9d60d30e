// Starts the processes of one job and watches them: none outlives the launcher, and the first that dies
// unexpectedly is named (role, rank, how, when, after which step) before the others are ended.
//
//   launcher_start ... launcher_start      children are running
//   launcher_wait                          until all have ended: SIGTERM to the rest on a failure, SIGKILL
//                                          after the grace period
//
// Ctrl-C      SIGTERM to the children that end the job in order when asked (launch_child.orderly), or to all
//             where none does; the others end with the job, or after a grace period behind the last of those.
//             A second one kills all. Nothing is printed: the caller knows when and how the job has ended.
//
// Ownership   The caller owns the launcher; launcher_destroy kills whatever still runs.
// Threads     One: the thread that creates it (the children's death signal is tied to it). From create to
//             destroy SIGINT, SIGTERM and SIGCHLD are blocked on this thread and taken from here.
// Blocking    launcher_read_line and launcher_wait block; both notice a child's death at once.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_H
#define STARRING_SHARED_LAUNCH_LAUNCH_H

#include <stdint.h>

struct launcher;

struct launch_options {
    double grace_s;  // from SIGTERM to SIGKILL
    // Last step known to be done, for messages; -1: none. May be NULL.
    int64_t (*last_step)(void *ctx);
    void *ctx;
};

struct launch_child {
    const char *role;     // "server"; copied
    int rank;             // -1: the only one of its role
    const char *program;  // path
    char *const *argv;    // NULL-terminated, argv[0] included
    int keep_fd;          // a descriptor this child inherits beside the standard three; 0: none
    int orderly;          // after SIGTERM it finishes what is in hand and exits with 0, and the rest with it
};

struct launcher *launcher_create(const struct launch_options *o);
int launcher_start(struct launcher *l, const struct launch_child *c);  // 0, or -1 after logging

// One line (without its newline) from descriptor fd, which a child writes to; 0, or -1 after logging when
// `deadline_s` passes, the writer closes it, a child dies, or Ctrl-C comes. The caller then waits.
int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size);

// The job's exit status: 0 when every child ended with 0; 2 when the first that failed ended with 2
// (configuration); 128 + signal when they did not because of Ctrl-C or SIGTERM; else 1.
int launcher_wait(struct launcher *l);
int launcher_interrupted(const struct launcher *l);  // SIGINT or SIGTERM, 0: neither has come
// Ends all children as launcher_wait does after a failure.
void launcher_end_all(struct launcher *l);
void launcher_destroy(struct launcher **l);

// Path of the running program (malloc'd), or NULL after logging.
char *launch_self(void);

#endif
