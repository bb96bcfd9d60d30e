// The memory that all processes of a job hold of this machine's memory together: its ranks, and what has started them (with a star's scheduler
// in it), so that one topology's helpers count as another's do. A page that several of them have touched is divided among
// them (the kernel's PSS), and so counts once.
#ifndef STARRING_SHARED_REPORT_JOB_RESIDENT_H
#define STARRING_SHARED_REPORT_JOB_RESIDENT_H

#include <stddef.h>

struct job_resident {
    size_t pss_bytes;
    int processes;  // that were counted; 0: nothing is known
};

// Now, from any process of the job: its own, those of this program and of mpirun above it, and all of theirs below. Reads
// files of /proc, and the kernel walks the pages of all of them. 0, or -1: the kernel does not tell.
int job_resident_read(struct job_resident *out);

#endif
