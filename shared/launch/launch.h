// Starts the processes of one job and watches them: none outlives the launcher, and the first that dies
// unexpectedly is named (role, rank, how, when, after which step) before the others are ended.
//
// Of a child that the others may do without (launch_child.expendable) the job is asked what becomes of it: where the
// others go on, or after Ctrl-C end in order, it is started again as long as restarts are left, and else stays away. What
// it fails at after it was started again is its own.
//
// With restarts (launch_restarts) a child that is killed is started again instead, and with it those that have ended
// well, as the job goes back to its last checkpoint; one that says itself that it has failed ends the job as ever.
//
// Children that live and die together (launch_options.together) are ended at once with the first that is killed, and all
// started again, when they are gone, as long as restarts are left.
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
struct last_word;

// Deaths by a signal that do not end the job.
struct launch_restarts {
    int count;  // so many times; 0: none. Deaths before the next life of the job has begun count once, but of one child.
    // Starts that child again, with launcher_start. 0, or -1 after logging.
    int (*again)(void *ctx, const char *role, int rank);
    // A child has died; why: in words. Comes before `again`. NULL: nobody is told, and no child is expendable. Of one that
    // is, the answer is expected on the link: "fate PID without" (the others go on), "fate PID anew" (the job goes back to
    // where all begin), or "fate PID ends REASON".
    void (*died)(void *ctx, int pid, const char *why);
    // Of children that live together, instead of both: all are gone, and it starts them again. 0, or -1 after logging.
    int (*anew)(void *ctx, const char *why);
};

struct launch_options {
    double grace_s;  // from SIGTERM to SIGKILL
    double
        silent_s;  // a child that says "alive PID" on the link (launcher_listen) is ended after so long without; 0: not
    // One that a signal has stopped for so long is killed, of those that live together, or once the first has ended well; 0: it
    // is not.
    double still_s;
    int together;
    int speaks_for_others;  // of children: an exit status above 128 is that of another process, killed by a signal (mpirun)
    // Last step known to be done, for messages; -1: none. May be NULL.
    int64_t (*last_step)(void *ctx);
    // Of a launcher that has others on other machines: called many times a second while children run. ends: NULL, or why this
    // launcher has its children ended, in words. Why the job ends, as the others say; NULL: it goes on. After Ctrl-C such a
    // launcher waits for what its children wait for elsewhere.
    const char *(*outside)(void *ctx, const char *ends);
    // Each line that is heard on the link, before it is obeyed. May be NULL.
    void (*said)(void *ctx, const char *line);
    struct launch_restarts restarts;
    void *ctx;
};

struct launch_child {
    const char *role;     // "server"; copied
    int rank;             // -1: the only one of its role
    const char *program;  // path
    char *const *argv;    // NULL-terminated, argv[0] included
    int keep_fd;          // a descriptor this child inherits beside the standard three; 0: none
    int orderly;          // after SIGTERM it finishes what is in hand and exits with 0, and the rest with it
    int expendable;       // the others may go on where it is killed
    int apart;            // in a process group of its own: a terminal's signals reach it from here alone
    int input_fd, output_fd;  // its standard two; 0: this process's
};

struct launcher *launcher_create(const struct launch_options *o);
int launcher_start(struct launcher *l, const struct launch_child *c);  // 0, or -1 after logging

// One line (without its newline) from descriptor fd, which a child writes to; 0, or -1 after logging when
// `deadline_s` passes, the writer closes it, a child dies, or Ctrl-C comes. The caller then waits. The only child, silent for
// that long, is waited for on, unless a signal has stopped it: with restarts it is killed then, and the next one asked instead.
int launcher_read_line(struct launcher *l, int fd, double deadline_s, char *line, int size);

// Where children look for the reason why all end; NULL: nowhere. From now on it is said there.
void launcher_tell(struct launcher *l, struct last_word *word);

// From now on lines from fd are heard: "life" (the job begins its next one, or its first), "fate PID .." (launch_restarts.died),
// and "lost PID NAME": this child stands still and the job has given it up (PID 0: whatever process has the name). It is killed,
// if it still runs. And "alive PID STEP" (launch_options.silent_s): the last step known to be done; -1: not known.
// The only child that runs now will say it, and so is each that is given keep_fd later: until its first word it may take
// its time, but not be stopped by a signal.
void launcher_listen(struct launcher *l, int fd);
// The same of one line that came in another way.
void launcher_hear(struct launcher *l, const char *line);
int64_t launcher_said_step(const struct launcher *l);  // -1: nobody has said it

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
