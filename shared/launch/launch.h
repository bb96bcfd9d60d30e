// Starts the processes of one job and watches them: none outlives the launcher, and the first that dies
// unexpectedly is named (role, rank, how, when, after which step) before the others are ended.
//
// With somebody who decides (launch_options.decided) each death by a signal is told to him, and his verdict is carried out: a child is
// started again, and with it those that have ended well where all begin anew; or the others go on without it; or the job ends. One
// that says itself that it has failed ends the job as ever; what it fails at after it was started again while the others went on is
// its own.
//
// Children that live and die together (launch_options.together) are ended at once with the first that is killed; where the verdict
// is that they are started again, all are when they are gone.
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

#include "shared/launch/verdict.h"

struct launcher;

struct launch_options {
    double grace_s;  // from SIGTERM to SIGKILL
    // One that a signal has stopped for so long is killed, of those that live together, or once the first has ended well; 0: it
    // is not.
    double still_s;
    int together;
    int speaks_for_others;  // of children: an exit status above 128 is that of another process, killed by a signal (mpirun)
    // Last step known to be done, for messages; -1: none. May be NULL.
    int64_t (*last_step)(void *ctx);
    // Called many times a second while children run: says why the job ends, as others know; NULL: it goes on. ends: NULL, or why this launcher has its children ended, in words.
    const char *(*outside)(void *ctx, const char *ends);
    int others;  // launchers on other machines: after Ctrl-C this one waits for what its children wait for elsewhere
    // Whether a thread of this process is still at work for the job; asked once no child is left. It is not waited for beyond the
    // grace where the job is ended. NULL: there is none. Where it is, who decides hears that no child is left.
    int (*beside)(void *ctx);
    // Where deaths are told to whoever decides about them, and his verdicts are looked for; it outlives the launcher. decided 0: a
    // death is the job's end.
    struct rendezvous *meet;
    int decided;
    // Starts all children; those that live together again when they are gone, as is decided. 0, or -1 after logging.
    int (*start)(void *ctx);
    void *ctx;
};

struct launch_child {
    const char *role;     // "server"; copied, as program and argv are: it is started again with them
    int rank;             // -1: the only one of its role
    const char *program;  // path
    char *const *argv;    // NULL-terminated, argv[0] included
    int keep_fd;          // a descriptor this child inherits beside the standard three; 0: none
    int orderly;          // after SIGTERM it finishes what is in hand and exits with 0, and the rest with it
    int apart;            // in a process group of its own: a terminal's signals reach it from here alone
    int input_fd, output_fd;  // its standard two; 0: this process's
};

// The whole of a run: o.start, until all have ended, and o.outside hears why where they have failed. The grace is the deadline, or less.
// behind: stop_answers'. *launcher: from launch_options.start on, until this returns. *interrupted_by: SIGINT, SIGTERM or 0. Returns the
// exit status; one Ctrl-C more does not cut short what is written of the run then.
int launch_run(struct launch_options o, double deadline_s, const char *behind, struct launcher **launcher,
               int *interrupted_by);

struct launcher *launcher_create(const struct launch_options *o);
int launcher_start(struct launcher *l, const struct launch_child *c);  // 0, or -1 after logging

// One line (without its newline) from descriptor fd, which a child writes to; 0, or -1 after logging when
// `deadline_s` passes, the writer closes it, a child dies, or Ctrl-C comes. The caller then waits. The only child, silent for
// that long, is waited for on, unless a signal has stopped it.
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
