// The talk of a launched job's scheduler with its launcher, a line each, over a socket that the launcher
// keeps while schedulers come and go:
//
//     scheduler -> launcher   tcp://127.0.0.1:5555      it listens there
//                             life                      an epoch begins
//                             lost 77 worker 1          silent for too long: to be ended, if it only stands still
//                             alive 70 41               70: its own process; every heartbeat. 41 steps are known to be
//                                                       done (-1: it is not known). 0: it beats no more, has done
//                                                       its part, and leaves when its messages are taken
//                             fate 77 without           what becomes of the job, of whose process 77 the launcher has
//                                                       said that it has died: without, anew, ends REASON (launch.h)
//     launcher -> scheduler   dead 77 worker 1 (pid 77) was killed by signal 9 (Killed)
//
// Never blocks. A job without a launcher has none (fd 0).
#ifndef STARRING_PS_SCHEDULER_LAUNCHER_LINK_H
#define STARRING_PS_SCHEDULER_LAUNCHER_LINK_H

#include "ps/net/wire.h"

struct launcher_link {
    int fd;
    char text[2 * WIRE_TEXT_MAX];  // received so far of the next line
    size_t length;
};

void launcher_link_life(const struct launcher_link *l);
void launcher_link_alive(const struct launcher_link *l, int64_t steps);
void launcher_link_leaves(const struct launcher_link *l);
void launcher_link_lost(const struct launcher_link *l, int pid, const char *name);
void launcher_link_fate(const struct launcher_link *l, int pid, const char *fate, const char *reason);
// Whether the launcher has said that process *pid has died, and why in words. To be called until it has not.
bool launcher_link_dead(struct launcher_link *l, int *pid, char why[WIRE_TEXT_MAX]);

#endif
