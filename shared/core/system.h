// Facts of the machine and its processes: processors, control groups, /proc.
#ifndef STARRING_SHARED_CORE_SYSTEM_H
#define STARRING_SHARED_CORE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

// Returns the number of processors that this process may use, at least 1: those of its mask, or as many whole processors
// as the tightest quota of its control groups allows (cpu.max, or cpu.cfs_quota_us), if these are fewer.
int processors_given(void);
// Returns the tightest quota of the groups below root ("": the machine), in processors; 0: none.
double processors_quota(const char *root);

// Returns whether the launcher (mpirun, srun) has bound this rank to processors of its own: its mask is narrower than its
// parent's.
bool processors_bound(void);
// Returns how many processors each of `ranks` ranks on this machine gets, at least 1: an equal share of the mask, or the
// whole mask if the rank is bound. A quota is always divided by the ranks.
int processors_share(int ranks, bool bound);
int processors_share_of(int mask, double quota, int ranks, bool bound);  // the arithmetic of processors_share

// Returns the number of NUMA nodes of the machine, or 0 if the kernel does not report them. *node receives 1 + the
// node that contains the whole mask, or 0 if no single node does.
int processors_numa_nodes(int *node);

// ---------------------------------------------------------------- control groups
// The control groups of this process, versions 1 and 2, from its own group up to the root of the mount.
//
// All files are read below a root directory ("" is the machine), so that tests can supply their own. A missing or
// malformed file counts as no group.

// second: version 2. folder: the directory of its files, for control_groups_open. name: the name to print.
typedef void control_group_visit(void *ctx, bool second, const char *folder, const char *name);
// controller: its name in version 1, "memory" or "cpu".
void control_groups_each(const char *root, const char *controller, control_group_visit *visit, void *ctx);
// Opens root + folder + "/" + name, or root + folder if name is NULL.
FILE *control_groups_open(const char *root, const char *folder, const char *name);

// ---------------------------------------------------------------- other processes
// Facts from /proc.

struct proc_look {
    pid_t parent;
    char state;     // 'R', 'S', 'D', 'T', ..; 'Z': it has ended, and its parent has not waited for it
    char name[32];  // the name, which the process may choose
};

// Returns 0, or -1 if there is no such process.
int proc_look(pid_t pid, struct proc_look *out);

// Returns whether a signal or a debugger has stopped the process. A process that is blocked but not stopped may wait
// for a file, for any time.
bool proc_is_stopped(pid_t pid);

// Visits all processes, in no order, until visit returns false.
void proc_each(bool (*visit)(void *ctx, pid_t pid), void *ctx);

#endif
