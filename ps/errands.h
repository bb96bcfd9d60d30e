// Work on files for a thread that must answer others (the scheduler, a server's shards), on a thread of its own, one errand
// behind the other: a file system may stand still for as long as it likes, and the asking thread answers meanwhile. It asks,
// and looks whether it is done.
//
// Threads     All functions: the owner's (errands_ask: any). Errands run on the other one, which has descriptors of its own
//             (ps/trust/descriptors.h): connections of strangers may use up the process's.
// Blocking    errands_wait, and errands_destroy until all that was asked is done. Nothing else.
#ifndef STARRING_PS_ERRANDS_H
#define STARRING_PS_ERRANDS_H

#include <stdbool.h>
#include <stdint.h>

struct errands;
struct errands *errands_create(void);  // NULL after logging
void errands_destroy(struct errands **e);

// what(arg), then release(arg) unless it is NULL. Returns its number: 1, 2, ..
uint64_t errands_ask(struct errands *e, void (*what)(void *arg), void *arg, void (*release)(void *arg));
uint64_t errands_asked(struct errands *e);  // the number of the last one; 0: there was none
// Whether that one is done, and all before it. What it has written may then be read.
bool errands_done(struct errands *e, uint64_t number);
bool errands_wait(struct errands *e, uint64_t number, double seconds);  // so long at most
// For how long the one in hand has been under way, in seconds, and its number; 0: there is none.
double errands_age(struct errands *e, double now, uint64_t *number);

#endif
