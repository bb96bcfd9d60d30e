// Starts the processes of one job and watches them. No child outlives the launcher. The first child that dies
// unexpectedly is named (role, rank, how, when, after which step) before the others are ended.
//
// With launch_options.decided, each death by a signal is reported to the process that decides (verdict.h), and its
// verdict is carried out. Either the child is restarted, and if the whole job restarts so are children that have ended
// well; or the others continue without it; or the job ends. A child that exits with a failure ends the job, except one
// that was restarted while the others continued: its later failure does not end the job.
//
// Children with launch_options.together are all ended as soon as one of them is killed. If the verdict is a restart,
// all are restarted after the last has ended.
//
//   launcher_start ... launcher_start      children are running
//   launcher_wait                          until all have ended: SIGTERM to the rest on a failure, SIGKILL
//                                          after the grace period
//
// Ctrl-C      SIGTERM to the orderly children (launch_child.orderly), which end the job in order, or to all if there
//             are none. The others end with the job, or a grace period after the last orderly child. A second Ctrl-C
//             kills all. Nothing is printed: the caller knows when and how the job has ended.
//
// Ownership   The caller owns the launcher; launcher_destroy kills all that still run.
// Threads     One: the thread that creates it (the children's death signal is tied to it). From create to destroy
//             SIGINT, SIGTERM and SIGCHLD are blocked on this thread, and the launcher receives them.
// Blocking    launcher_read_line and launcher_wait block; both notice a child's death at once.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_H
#define STARRING_SHARED_LAUNCH_LAUNCH_H

#include <stdint.h>

#include "shared/launch/verdict.h"

struct launcher;

struct launch_options {
    double grace_s;  // time from SIGTERM to SIGKILL
    // A child that a signal has stopped for so long is killed: with `together` always, otherwise only after the first
    // child has ended well. 0: never.
    double stopped_s;
    int together;
    int speaks_for_others;  // children represent other processes: an exit status above 128 means that one was killed by
                            // a signal (mpirun)
    // Returns the last step known to be done, for messages; -1: none. May be NULL.
    int64_t (*last_step)(void *ctx);
    // Called many times a second while children run. Returns why the job ends, or NULL if it continues. ends: why this
    // launcher ends its children, or NULL.
    const char *(*poll)(void *ctx, const char *ends);
    int others;  // launchers on other machines: after Ctrl-C this one does not end children that wait for
                 // processes there
    // Returns whether a thread of this process still works for the job; called when no child is left. It is waited for
    // at most until the grace period ends. NULL: no such thread. If there is one, the deciding process gets the
    // report that no child is left.
    int (*background_work)(void *ctx);
    // The rendezvous where deaths are reported and verdicts are read; it outlives the launcher. decided 0: a death
    // ends the job.
    struct rendezvous *meet;
    int decided;
    // Starts all children; called again to restart all with `together`. Returns 0, or -1 after logging.
    int (*start)(void *ctx);
    void *ctx;
};

struct launch_child {
    const char *role;         // "server"; copied, as program and argv are, for a restart
    int rank;                 // -1: the only one of its role
    const char *program;      // path of the program
    char *const *argv;        // NULL-terminated, argv[0] included
    int keep_fd;              // a descriptor that this child inherits besides the standard three; 0: none
    int orderly;              // after SIGTERM it finishes its step and exits with 0, and the others with it
    int own_group;            // in its own process group: a terminal's signals reach it only through the
                              // launcher
    int input_fd, output_fd;  // its standard input and output; 0: this process's
};

// Runs the children from o.start until all have ended; o.poll receives the reason if they failed. The grace period
// is the deadline, at most GRACE_MAX_S. behind: as stop_answers. *launcher is valid from launch_options.start until
// this returns. *interrupted_by receives SIGINT, SIGTERM or 0. Returns the exit status. After a Ctrl-C another one is
// ignored, so that the run's files are written completely.
int launch_run(struct launch_options o, double deadline_s, const char *behind, struct launcher **launcher,
               int *interrupted_by);

struct launcher *launcher_create(const struct launch_options *o);
int launcher_start(struct launcher *l, const struct launch_child *c);  // Returns 0, or -1 after logging.

// Reads one line (without its newline) from descriptor fd, which a child writes to. Returns 0, or -1 after logging if
// the deadline passes, the writer closes fd, a child dies, or Ctrl-C arrives; the caller then calls launcher_wait. If
// only one child runs, the deadline starts again, unless a signal has stopped the child.
int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size);

// Returns the job's exit status: 0 if every child ended with 0; 2 if the first that failed ended with 2
// (configuration); 128 + signal after Ctrl-C or SIGTERM; else 1.
int launcher_wait(struct launcher *l);
int launcher_interrupted(const struct launcher *l);  // Returns SIGINT or SIGTERM; 0: neither has arrived.
// Ends all children as launcher_wait does after a failure.
void launcher_end_all(struct launcher *l);
void launcher_destroy(struct launcher **l);

// Returns the path of the running program (malloc'd), or NULL after logging.
char *launch_self(void);

#endif
