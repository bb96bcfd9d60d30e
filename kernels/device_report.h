// A device's report: what it is, how its operations are computed, and remarks to print. kernels/backend.h
// includes this file.
#ifndef STARRING_KERNELS_DEVICE_REPORT_H
#define STARRING_KERNELS_DEVICE_REPORT_H

#include <stddef.h>
#include <stdint.h>

struct device;

// Printed remarks on how the device works, each text once. A warning means that something runs in another way
// than expected (a fallback); other remarks are facts. A remark does not contain the device's label, so equal
// remarks of several ranks have equal texts.
enum dev_note_kind { DEV_NOTE_FACT, DEV_NOTE_WARNING };
#define DEV_NOTES_MAX 64          // the last remark is that there were more
int dev_notes(struct device *d);  // so far
// The i-th remark, i < dev_notes. The device owns it until it closes. kind may be NULL.
const char *dev_note(struct device *d, int i, enum dev_note_kind *kind);

// The code that has computed an operation so far: both bits if shapes differ, 0 if it has not run.
enum device_by {
    DEVICE_BY_LIBRARY = 1,  // cuDNN, or an epilogue of cuBLASLt
    DEVICE_BY_OWN = 2       // a kernel of our own
};

// How a device's operations have been computed so far.
struct device_work {
    unsigned attention_forward, attention_backward, gelu, bias_grad;  // enum device_by
    // cuDNN's backward of attention: sequences per execution and its workspace, for the shape with the largest
    // workspace. 0: it has not run.
    int64_t slice_sequences;
    size_t slice_workspace_bytes;
};

// Used bytes beyond the ledger and workspace_bytes are the CUDA context (kernels, stacks) and memory of
// libraries.
struct device_facts {
    char name[256];
    char bus_id[32];  // PCI address: which GPU of the machine it is
    int index;
    int sm_version;  // 90: compute capability 9.0
    int multiprocessors;
    int driver_version, runtime_version;  // 13000: 13.0
    size_t l2_bytes;
    size_t memory_bytes, used_bytes, free_bytes;  // as cudaMemGetInfo: used by all programs
    size_t workspace_bytes;            // ours, outside the ledger: scratch of libraries and kernels
    size_t blas_version, dnn_version;  // dnn 0: no cuDNN; our own attention is used
    const char *dnn_missing;           // why there is no cuDNN; NULL if there is
    struct device_work work;
    int note_count;  // number of notes
    const char *notes[DEV_NOTES_MAX];
};

// Includes the device's remarks so far; the device owns their texts. Returns 0, or -1 if the device has no
// facts (host backends) or has failed.
int dev_facts(struct device *d, struct device_facts *out);

#endif
