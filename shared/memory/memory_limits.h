// How much memory this machine still gives a program, asked before any is taken: MemAvailable of
// /proc/meminfo, and the limit of every control group that the process is in, from its own up to the root.
//
// All files are read below a root directory ("" is the machine itself), so that tests bring their own.
// A file that is missing, says "max" or makes no sense limits nothing.
#ifndef STARRING_SHARED_MEMORY_MEMORY_LIMITS_H
#define STARRING_SHARED_MEMORY_MEMORY_LIMITS_H

struct memory_limit {
    double free_bytes;  // what may still be taken, file cache that the kernel would give up included; >= 0
    char name[384];     // "MemAvailable", or "memory.max of the control group /user.slice"
};

// MemAvailable: the kernel's own estimate of what can be taken without swapping. 0, or -1 where it is
// unknown.
int memory_limit_of_machine(const char *root, struct memory_limit *out);
// The tightest of the control groups. Version 2: memory.max - memory.current + reclaimable file cache;
// version 1: memory.limit_in_bytes - memory.usage_in_bytes + reclaimable file cache. 0, or -1: none limits.
int memory_limit_of_groups(const char *root, struct memory_limit *out);
// The tighter of the two. 0, or -1: nothing is known to limit.
int memory_limit_read(const char *root, struct memory_limit *out);

#endif
