// How many processors this process may use: its affinity mask, and the quota of its control groups.
#ifndef STARRING_SHARED_CORE_PROCESSORS_H
#define STARRING_SHARED_CORE_PROCESSORS_H

#include <stdbool.h>

// At least 1: those of the mask, or as many whole ones as the tightest quota pays for (cpu.max, or cpu.cfs_quota_us).
int processors_given(void);
// The quota of the groups below root ("": the machine's), in processors; 0: there is none.
double processors_quota(const char *root);

// Whether the program that started this process as one rank of many has bound it to processors of its own, as mpirun and srun
// may: its mask is narrower than its parent's.
bool processors_bound(void);
// Of one of so many ranks of this machine: of the mask its part, or all where it is bound; a quota is always shared. At least 1.
int processors_share(int ranks, bool bound);
int processors_share_of(int mask, double quota, int ranks, bool bound);  // the arithmetic of it

// NUMA nodes of the machine; 0 where the kernel does not say. *node: 1 + the one that the whole mask lies in; 0: in several.
int processors_numa_nodes(int *node);

#endif
