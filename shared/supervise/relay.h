// What a supervisor's children print passes through a thread of it, which goes on reading whatever becomes of standard
// output: who reads it may leave (| head -1), its disk may be full. Nobody who trains is held up by that, or fails.
//
// Three ways: the ranks' standard output and their messages go on at once. What mpirun itself says is held for a
// little: when a job ends badly it describes at length what the supervisor has said in a line.
#ifndef STARRING_SHARED_SUPERVISE_RELAY_H
#define STARRING_SHARED_SUPERVISE_RELAY_H

#include <stdbool.h>

struct relay;

enum relay_way { RELAY_OUT, RELAY_ERR, RELAY_HELD, RELAY_WAYS };

// Signals that are blocked in the caller are so in the thread. NULL after logging.
struct relay *relay_start(void);
// Where a child writes; closed by exec.
int relay_end_of(const struct relay *r, enum relay_way way);
// Standard output or the messages have taken nothing for a while, and what is to be written waits: whoever prints may
// stand still without being dead.
bool relay_is_stuck(const struct relay *r);
// Passes on what has been held, or drops it: all that there is by now, and, until the next call, what still comes.
void relay_held(struct relay *r, bool show);
// Passes on what is there and ends. 0, or -1 after logging: standard output could not be written. That its reader has
// left is said as a warning, when it is noticed.
int relay_stop(struct relay **r);

#endif
