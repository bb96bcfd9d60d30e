// A role begins anew, as the same process: it executes its program with its own arguments. So every epoch of a job
// starts from clean processes, and nothing has to undo half a step. The same holds as for a process that is killed and
// started again: threads end where they are, descriptors, mappings and what a GPU holds are given up by
// the kernel, files are as the last write left them. The number of the process stays: its launcher still waits
// for it, and a run directory that it has taken is its own.
#ifndef STARRING_PS_NET_REJOIN_H
#define STARRING_PS_NET_REJOIN_H

#include "ps/job/ps.h"
#include "ps/net/wire.h"

// The incarnation that this process had before it began anew; 0: it has not.
uint64_t rejoin_was(void);
// Whether h ends the epoch of that job.
bool rejoin_asked(uint64_t job, const struct wire_header *h);
// Any thread; incarnation: this process's; why: for people. Does not return where the process begins anew. -1 after
// logging: it was asked to leave meanwhile (o->stop), there are no restarts, or they are used up.
int rejoin_now(const struct ps_role_options *o, uint64_t incarnation, const char *why);

#endif
