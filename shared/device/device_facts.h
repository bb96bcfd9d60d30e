// Facts for documents and tables: a GPU's, how its memory is used, and the machine's.
#ifndef STARRING_SHARED_DEVICE_DEVICE_FACTS_H
#define STARRING_SHARED_DEVICE_DEVICE_FACTS_H

#include <stdio.h>

#include "kernels/backend.h"

struct cJSON;

// Returns a GPU's name, bus id, compute capability, sizes in bytes, and versions of driver and libraries (if cuDNN was not
// found, cudnn is null and cudnn_missing is the reason). Also which code has computed attention, GELU and bias gradients
// so far (null: none yet), and the device's remarks. Memory in use is omitted, because it changes. The caller owns the
// result.
struct cJSON *device_facts_json(const struct device_facts *f);
// Prints a line of such a document: "attention forward cudnn, backward cudnn (slices of 4 sequences, workspace 264
// MiB); GELU fused; bias gradients kernel".
void device_work_print(FILE *f, const struct cJSON *device);
// Writes "NVIDIA H200 (0000:18:00.0), sm_90, driver 13.0, CUDA 13.0, cuBLASLt 130000, cuDNN 91300". Returns text.
#define DEVICE_FACTS_LINE 512
const char *device_facts_line(char text[DEVICE_FACTS_LINE], const struct device_facts *f);

// The datasheet's dense 16-bit matrix rate, which the literature uses as the denominator of MFU. Returns flops per
// second of bf16 and fp16 products with fp32 accumulation, without sparsity, for the device of this name (as
// cudaGetDeviceProperties gives it). *source receives the source of the figure. Returns 0 if the table has none;
// then *source is the reason. The texts are constant.
double datasheet_flops(const char *device_name, enum dtype dt, const char **source);

// Prints the device's remarks (dev_note) to stderr that have not been printed yet, warnings as warnings. *printed counts
// the printed ones, 0 at first. If several ranks would print the same, only rank 0 calls it.
void device_notes_print(struct device *d, int *printed);

// A device's memory at one time, from cudaMemGetInfo and from our counts. Bytes.
struct device_memory {
    size_t ledger_bytes;     // device memory that dev_alloc has allocated
    size_t workspace_bytes;  // workspaces of this program, which the ledger does not count
    size_t used_bytes, free_bytes, total_bytes;  // of the whole device, by all programs
};
// Reads it from the device. Returns 0, or -1 if the device has no such facts.
int device_memory_read(struct device *d, struct device_memory *out);
// Returns the bytes in use beyond the ledger and the workspaces: the context (kernels, stacks), memory of
// libraries, and other programs. Ranks that share a device first add up their ledgers and workspaces. Returns NAN
// if less than these is in use, which happens when ranks read at different times.
#define DEVICE_MEMORY_OTHER "context, libraries and other programs"
double device_memory_other(double used_bytes, double ledger_bytes, double workspace_bytes);
// Prints a line: "in use 5 MiB of 1 GiB = 3 MiB counted + 1 MiB workspaces + 1 MiB context, libraries and other
// programs".
void device_memory_print(FILE *f, double used_bytes, double total_bytes, double ledger_bytes,
                         double workspace_bytes);

// ---------------------------------------------------------------- the machine
// Facts about a rank's machine and process, for reports. Runs on two machines do not compare two topologies, and ranks
// that are threads share one process's memory and CPU time.
struct machine_facts {
    char host[256];
    char boot_id[64];     // distinguishes two machines of one name; "": unknown
    char processor[128];  // the name in /proc/cpuinfo; "": none
    int cores;            // logical processors that are online
    int processors;       // those that this process may use (shared/core/system.h)
    int numa_nodes;       // 0: unknown
    int numa_node;        // 1 + the node of all processors that it may use; 0: several nodes
    size_t memory_bytes;  // 0: unknown
    int64_t pid;
};

void machine_facts_read(struct machine_facts *out);

#endif
