// How much memory this machine can still give a program. It is read before any is allocated: MemAvailable of
// /proc/meminfo, and the limit of every control group of the process, from its own up to the root.
//
// All files are read below a root directory ("" is the machine), so that tests can supply their own. A file that is
// missing, malformed or "max" sets no limit.
#ifndef STARRING_SHARED_PREDICT_MEMORY_LIMITS_H
#define STARRING_SHARED_PREDICT_MEMORY_LIMITS_H

struct memory_limit {
    double free_bytes;  // what can still be allocated, including file cache that the kernel would free; >= 0
    char name[384];     // "MemAvailable", or "memory.max of the control group /user.slice"
};

// Reads MemAvailable: the kernel's estimate of what can be allocated without swapping. Returns 0, or -1 if it is
// unknown.
int memory_limit_of_machine(const char *root, struct memory_limit *out);
// Reads the tightest limit of the control groups. Version 2: memory.max - memory.current + reclaimable file cache;
// version 1: memory.limit_in_bytes - memory.usage_in_bytes + reclaimable file cache. Returns 0, or -1 if there is
// no limit.
int memory_limit_of_groups(const char *root, struct memory_limit *out);
// Reads the tighter of the two. Returns 0, or -1 if no limit is known.
int memory_limit_read(const char *root, struct memory_limit *out);

#endif
