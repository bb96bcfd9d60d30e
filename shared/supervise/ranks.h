// mpirun's ranks as their supervisor sees them, on this machine: which processes they are, what they have said of
// themselves (stop.h), and whether they live. One that a signal has stopped for the deadline counts as dead; one that
// does nothing and is not stopped may stand in a file, and is waited for.
#ifndef STARRING_SHARED_SUPERVISE_RANKS_H
#define STARRING_SHARED_SUPERVISE_RANKS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum ranks_are {
    RANKS_AT_WORK,
    RANKS_LOST,     // one was killed, or one, or mpirun, stands still: ranks_say. For good
    RANKS_FAILED,   // one has ended with an error; others may still be on their way
    RANKS_USELESS,  // and what is left of them waits in MPI_Init for one that will not come
    RANKS_ENDED,    // all, whatever mpirun does
};

struct ranks;

// deadline_s: how long a process may be stopped. here: all are to run on this machine.
struct ranks *ranks_create(int count, double deadline_s, bool here);
void ranks_destroy(struct ranks **r);

void ranks_begin(struct ranks *r, pid_t mpirun);  // of a life of the job
// One of the ranks' signals.
void ranks_hear(struct ranks *r, int number, const siginfo_t *info);
// Looks at all processes. Signals that ranks have sent before are to be heard after this and before ranks_are: a rank says
// that it has ended before it is gone. excused: silence is no sign now, as after this process itself has stood still.
void ranks_look(struct ranks *r, bool excused);
enum ranks_are ranks_are(struct ranks *r);

bool ranks_all_seen(const struct ranks *r);  // as many as there should be, here
// The status of the first that ended with an error, of all that have ended: 0.
int ranks_status(const struct ranks *r);
// Why they are as they are has been said, by a rank or by ranks_say.
bool ranks_are_explained(const struct ranks *r);
pid_t ranks_first_pid(const struct ranks *r);       // of rank 0; 0: not seen
bool ranks_first_has_ended(const struct ranks *r);  // rank 0, by itself: it has said what there was to say
// Sends it to all; how many there are.
int ranks_signal(struct ranks *r, int number);
// A sentence without its end: "rank 1 (pid 7) was killed by signal 9 (Killed)".
void ranks_say(const struct ranks *r, char *why, size_t size);

#endif
