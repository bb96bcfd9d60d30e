// Facts from /proc about other processes of this machine.
#ifndef STARRING_SHARED_CORE_PROC_LOOK_H
#define STARRING_SHARED_CORE_PROC_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_look {
    pid_t parent;
    char state;     // 'R', 'S', 'D', 'T', ..; 'Z': it has ended, and its parent has not asked how
    char name[32];  // what it is called, which it may choose
};

// 0, or -1: there is no such process.
int proc_look(pid_t pid, struct proc_look *out);

// Whether a signal, or a debugger, has stopped it. A process that stands still otherwise may wait for a file, for as long as
// that takes.
bool proc_is_stopped(pid_t pid);

// All processes, in no order, until visit returns false.
void proc_each(bool (*visit)(void *ctx, pid_t pid), void *ctx);

#endif
