// The resident memory of all processes of a job on this machine. It counts the ranks and their launcher (which
// contains a star's scheduler), and so the helper processes of every topology. A page that several processes share is
// divided among them (the kernel's PSS), so it counts once.
#ifndef STARRING_SHARED_REPORT_JOB_RESIDENT_H
#define STARRING_SHARED_REPORT_JOB_RESIDENT_H

#include <stddef.h>

struct job_resident {
    size_t pss_bytes;
    int processes;  // processes counted; 0: unknown
};

// Measures now. Any process of the job may call it. It counts the caller, the processes of this program and of mpirun
// above it, and all of theirs below. Reads files of /proc; the kernel walks all their pages. Returns 0, or -1: the
// kernel does not report it.
int job_resident_read(struct job_resident *out);

#endif
