#include "shared/device/machine_facts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/file.h"
#include "shared/core/system.h"

// x86 has "model name". Other processors have no line with the same meaning everywhere; the first of these is used.
static void processor_name(char *out, size_t size) {
    static const char *const names[] = {"model name", "Model", "cpu model", "Hardware"};
    char line[512];
    out[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !out[0]; i++) {
        FILE *f = fopen("/proc/cpuinfo", "r");
        while (f && !out[0] && fgets(line, sizeof line, f)) {
            char *colon = strchr(line, ':');
            if (strncmp(line, names[i], strlen(names[i])) != 0 || !colon) continue;
            colon += 1 + strspn(colon + 1, " \t");
            colon[strcspn(colon, "\n")] = 0;
            snprintf(out, size, "%s", colon);
        }
        if (f) fclose(f);
    }
}

void machine_facts_read(struct machine_facts *out) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cores = sysconf(_SC_NPROCESSORS_ONLN);
    *out = (struct machine_facts){
        .pid = getpid(), .cores = cores > 0 ? (int)cores : 1, .processors = processors_given()};
    out->numa_nodes = processors_numa_nodes(&out->numa_node);
    gethostname(out->host, sizeof out->host - 1);
    path_first_line("/proc/sys/kernel/random/boot_id", out->boot_id, sizeof out->boot_id);
    processor_name(out->processor, sizeof out->processor);
    if (pages > 0 && page > 0) out->memory_bytes = (size_t)pages * (size_t)page;
}
