// A role begins anew, as the same process: it executes its program with its own arguments. So every epoch of a job
// starts from clean processes, and nothing has to undo half a step. The same holds as for a process that is killed and
// started again: threads end where they are, descriptors, mappings and what a GPU holds are given up by
// the kernel, files are as the last write left them. The number of the process stays: its launcher still waits
// for it, and a run directory that it has taken is its own.
#ifndef STARRING_PS_NET_REJOIN_H
#define STARRING_PS_NET_REJOIN_H

#include "ps/job/ps.h"

// Any thread; why: for people. Does not return where the process begins anew. -1 after logging: it was asked to leave
// meanwhile (o->stop), or there are no restarts. (How many lives a job has, the scheduler counts.)
int rejoin_now(const struct ps_role_options *o, const char *why);

#endif
