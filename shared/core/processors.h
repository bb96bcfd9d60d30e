// The number of processors that this process may use: affinity mask and quota of control groups.
#ifndef STARRING_SHARED_CORE_PROCESSORS_H
#define STARRING_SHARED_CORE_PROCESSORS_H

#include <stdbool.h>

// Returns at least 1: the processors of the mask, or the whole processors that the tightest quota allows, if these
// are fewer (cpu.max, or cpu.cfs_quota_us).
int processors_given(void);
// Returns the tightest quota of the groups below root ("": the machine), in processors; 0: none.
double processors_quota(const char *root);

// Whether the launcher (mpirun, srun) has bound this rank to processors of its own: its mask is narrower than its
// parent's.
bool processors_bound(void);
// Returns the processors of one of `ranks` ranks of this machine, at least 1: its share of the mask, or the whole
// mask if it is bound. A quota is always shared.
int processors_share(int ranks, bool bound);
int processors_share_of(int mask, double quota, int ranks, bool bound);  // the arithmetic of processors_share

// Returns the number of NUMA nodes of the machine, or 0 if the kernel does not report them. *node receives 1 + the
// node that contains the whole mask, or 0 if no single node does.
int processors_numa_nodes(int *node);

#endif
