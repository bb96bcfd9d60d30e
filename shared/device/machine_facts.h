// Facts about a rank's machine and process, for reports. Runs on two machines do not compare two topologies, and
// ranks that are threads share one process's memory and CPU time.
#ifndef STARRING_SHARED_DEVICE_MACHINE_FACTS_H
#define STARRING_SHARED_DEVICE_MACHINE_FACTS_H

#include <stddef.h>
#include <stdint.h>

struct machine_facts {
    char host[256];
    char boot_id[64];     // distinguishes two machines of one name; "": unknown
    char processor[128];  // the name in /proc/cpuinfo; "": none
    int cores;            // online ones
    int processors;       // those that this process may use (shared/core/system.h)
    int numa_nodes;       // 0: unknown
    int numa_node;        // 1 + the node of all processors that it may use; 0: several nodes
    size_t memory_bytes;  // 0: unknown
    int64_t pid;
};

void machine_facts_read(struct machine_facts *out);

#endif
