// A device's report: what it is, how its operations are carried out, and remarks for people. Part of
// kernels/backend.h, which includes it.
#ifndef STARRING_KERNELS_DEVICE_REPORT_H
#define STARRING_KERNELS_DEVICE_REPORT_H

#include <stddef.h>
#include <stdint.h>

struct device;

// Remarks for people on how the device does its work, each once. A warning says that something runs in
// another way than expected (a fallback); other remarks are facts. They do not contain the device's label, so
// that equal remarks of several ranks are equal texts.
enum dev_note_kind { DEV_NOTE_FACT, DEV_NOTE_WARNING };
#define DEV_NOTES_MAX 64          // the last says that there were more
int dev_notes(struct device *d);  // so far
// The i-th, below dev_notes; owned by the device, until it closes. kind may be NULL.
const char *dev_note(struct device *d, int i, enum dev_note_kind *kind);

// The ways in which an operation has been carried out so far: both if shapes differ, 0 if none has run.
enum device_by {
    DEVICE_BY_LIBRARY = 1,  // cuDNN; an epilogue of cuBLASLt's
    DEVICE_BY_OWN = 2       // a kernel of our own
};

// How a device's operations have been carried out so far.
struct device_work {
    unsigned attention_forward, attention_backward, gelu, bias_grad;  // enum device_by
    // cuDNN's backward of attention: sequences an execution handles and its workspace, of the shape with the
    // largest one. 0: none has run.
    int64_t slice_sequences;
    size_t slice_workspace_bytes;
};

// Bytes in use beyond the ledger's and workspace_bytes are the context (kernels, stacks) and what libraries
// hold.
struct device_facts {
    char name[256];
    char bus_id[32];  // PCI: which GPU of the machine it is
    int index;
    int sm_version;  // 90: compute capability 9.0
    int multiprocessors;
    int driver_version, runtime_version;  // 13000: 13.0
    size_t l2_bytes;
    size_t memory_bytes, used_bytes, free_bytes;  // as cudaMemGetInfo: used by all programs
    size_t workspace_bytes;            // ours, outside of the ledger: scratch of libraries and kernels
    size_t blas_version, dnn_version;  // dnn 0: cuDNN is not there, attention is our own
    const char *dnn_missing;           // why; NULL when it is there
    struct device_work work;
    int note_count;  // dev_note's
    const char *notes[DEV_NOTES_MAX];
};

// Includes the device's remarks so far; the device owns their texts. Returns 0, or -1 if the device has no
// facts (host backends) or failed.
int dev_facts(struct device *d, struct device_facts *out);

#endif
