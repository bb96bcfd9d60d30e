// A GPU's facts about itself, for documents and tables, and how its memory is accounted for.
#ifndef STARRING_SHARED_DEVICE_DEVICE_FACTS_H
#define STARRING_SHARED_DEVICE_DEVICE_FACTS_H

#include <stdio.h>

#include "kernels/backend.h"

struct cJSON;

// Name, place, compute capability, sizes in bytes, versions of driver and libraries; cudnn null with
// cudnn_missing (why) where cuDNN was not found; by what attention, GELU and bias gradients have been
// computed so far (null: by nothing), and the device's remarks. No memory in use: that changes. The caller
// owns it.
struct cJSON *device_facts_json(const struct device_facts *f);
// A line of such a document: "attention forward cudnn, backward cudnn (slices of 4 sequences, workspace 264
// MiB); GELU fused; bias gradients kernel".
void device_work_print(FILE *f, const struct cJSON *device);
// "NVIDIA H200 (0000:18:00.0), sm_90, driver 13.0, CUDA 13.0, cuBLASLt 130000, cuDNN 91300". Returns text.
#define DEVICE_FACTS_LINE 512
const char *device_facts_line(char text[DEVICE_FACTS_LINE], const struct device_facts *f);

// The vendor's promise: the dense 16-bit matrix rate, the denominator of MFU as the literature uses it. Flops a second of
// bf16 and fp16 products with fp32 accumulation, without sparsity, for the device of this name (as cudaGetDeviceProperties
// gives it); *source: where the figure is from. 0: not in the table, *source says why. Constant texts.
double datasheet_flops(const char *device_name, enum dtype dt, const char **source);

// Says the remarks (dev_note) from *said on to stderr, warnings as such; *said is how many have been said,
// 0 at first. Where several ranks would say the same, rank 0 speaks.
void device_notes_say(struct device *d, int *said);

// A device's memory at one moment, as cudaMemGetInfo tells and as we count it. Bytes.
struct device_memory {
    size_t ledger_bytes;                         // dev_alloc's, device memory alone, now
    size_t workspace_bytes;                      // ours, outside of the ledger
    size_t used_bytes, free_bytes, total_bytes;  // of the whole device, by all programs
};
// From the device itself. 0, or -1 where it has nothing to tell.
int device_memory_read(struct device *d, struct device_memory *out);
// Bytes in use beyond the ledger and the workspaces: the context (kernels, stacks), what libraries hold,
// and other programs. Ranks that share a device add up their ledgers and workspaces first. NAN where less is
// in use than that, as ranks read it at different moments.
#define DEVICE_MEMORY_OTHER "context, libraries and other programs"
double device_memory_other(double used_bytes, double ledger_bytes, double workspace_bytes);
// A line: "in use 5 MiB of 1 GiB = 3 MiB counted + 1 MiB workspaces + 1 MiB context, libraries and other
// programs".
void device_memory_print(FILE *f, double used_bytes, double total_bytes, double ledger_bytes,
                         double workspace_bytes);

#endif
