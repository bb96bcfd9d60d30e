// The machine and the process that a rank runs in, for reports: runs of two machines are no comparison of two
// topologies, and ranks that are threads share one process's memory and CPU time.
#ifndef STARRING_SHARED_DEVICE_MACHINE_FACTS_H
#define STARRING_SHARED_DEVICE_MACHINE_FACTS_H

#include <stddef.h>
#include <stdint.h>

struct machine_facts {
    char host[256];
    char boot_id[64];     // tells two machines of one name apart; "" where the kernel does not say
    char processor[128];  // as /proc/cpuinfo names it; "" where it does not
    int cores;            // that are online
    int processors;       // of these, what this process may use (shared/core/processors.h)
    int numa_nodes;       // 0: not known
    int numa_node;        // 1 + the one that all it may use lie in; 0: in several
    size_t memory_bytes;  // 0: not known
    int64_t pid;
};

void machine_facts_read(struct machine_facts *out);

#endif
