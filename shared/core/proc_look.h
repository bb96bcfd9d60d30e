// Facts from /proc about other processes of this machine.
#ifndef STARRING_SHARED_CORE_PROC_LOOK_H
#define STARRING_SHARED_CORE_PROC_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_look {
    pid_t parent;
    char state;     // 'R', 'S', 'D', 'T', ..; 'Z': it has ended, and its parent has not waited for it
    char name[32];  // the name, which the process may choose
};

// Returns 0, or -1 if there is no such process.
int proc_look(pid_t pid, struct proc_look *out);

// Whether a signal or a debugger has stopped the process. A process that is blocked but not stopped may be waiting
// for a file, for any time.
bool proc_is_stopped(pid_t pid);

// Visits all processes, in no order, until visit returns false.
void proc_each(bool (*visit)(void *ctx, pid_t pid), void *ctx);

#endif
