#include "shared/device/device_facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/system.h"
#include "shared/core/text.h"

// Formats a version of CUDA, which is 1000 * major + 10 * minor.
static const char *cuda_version(char text[16], int version) {
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

// by: enum device_by.
static void put_by(cJSON *j, const char *key, unsigned by, const char *library, const char *own) {
    char text[40];
    bool both = by == (DEVICE_BY_LIBRARY | DEVICE_BY_OWN);
    snprintf(text, sizeof text, "%s%s%s", by & DEVICE_BY_LIBRARY ? library : "", both ? " and " : "",
             by & DEVICE_BY_OWN ? own : "");
    json_put_text(j, key, text);
}

static void put_work(cJSON *j, const struct device_work *w) {
    put_by(j, "attention_forward", w->attention_forward, "cudnn", "own");
    put_by(j, "attention_backward", w->attention_backward, "cudnn", "own");
    bool sliced = w->slice_sequences != 0;
    json_put(j, "attention_slice_sequences", sliced ? (double)w->slice_sequences : NAN);
    json_put(j, "attention_slice_workspace_bytes", sliced ? (double)w->slice_workspace_bytes : NAN);
    put_by(j, "gelu", w->gelu, "fused", "apart");
    put_by(j, "bias_grad", w->bias_grad, "epilogue", "kernel");
}

struct cJSON *device_facts_json(const struct device_facts *f) {
    char text[16];
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "name", f->name);
    cJSON_AddStringToObject(j, "bus_id", f->bus_id);
    cJSON_AddNumberToObject(j, "index", f->index);
    snprintf(text, sizeof text, "%d.%d", f->sm_version / 10, f->sm_version % 10);
    cJSON_AddStringToObject(j, "compute_capability", text);
    cJSON_AddNumberToObject(j, "multiprocessors", f->multiprocessors);
    cJSON_AddNumberToObject(j, "l2_bytes", (double)f->l2_bytes);
    cJSON_AddNumberToObject(j, "memory_bytes", (double)f->memory_bytes);
    cJSON_AddStringToObject(j, "driver", cuda_version(text, f->driver_version));
    cJSON_AddStringToObject(j, "runtime", cuda_version(text, f->runtime_version));
    cJSON_AddNumberToObject(j, "cublaslt", (double)f->cublas_version);
    json_put(j, "cudnn", f->cudnn_version ? (double)f->cudnn_version : NAN);
    if (f->cudnn_missing) cJSON_AddStringToObject(j, "cudnn_missing", f->cudnn_missing);
    put_work(j, &f->work);
    cJSON *notes = cJSON_AddArrayToObject(j, "notes");
    for (int i = 0; i < f->note_count; i++) cJSON_AddItemToArray(notes, cJSON_CreateString(f->notes[i]));
    return j;
}

static const char *text_of(const cJSON *j, const char *key) { return json_text(j, key, "not run"); }

void device_work_print(FILE *f, const cJSON *device) {
    char bytes[24];
    double slice = json_number(device, "attention_slice_sequences");
    double room = json_number(device, "attention_slice_workspace_bytes");
    fprintf(f, "attention forward %s, backward %s", text_of(device, "attention_forward"),
            text_of(device, "attention_backward"));
    if (isfinite(slice) && isfinite(room))
        fprintf(f, " (slices of %.0f sequences, workspace %s)", slice, format_bytes(bytes, room));
    fprintf(f, "; GELU %s; bias gradients %s\n", text_of(device, "gelu"), text_of(device, "bias_grad"));
}

const char *device_facts_line(char text[DEVICE_FACTS_LINE], const struct device_facts *f) {
    char driver[16], runtime[16], dnn[48] = "no cuDNN (attention is our own kernel)";
    if (f->cudnn_version) snprintf(dnn, sizeof dnn, "cuDNN %zu", f->cudnn_version);
    snprintf(text, DEVICE_FACTS_LINE, "%s (%s), sm_%d, driver %s, CUDA %s, cuBLASLt %zu, %s", f->name,
             f->bus_id, f->sm_version, cuda_version(driver, f->driver_version),
             cuda_version(runtime, f->runtime_version), f->cublas_version, dnn);
    return text;
}

void device_notes_print(struct device *d, int *printed) {
    for (int count = dev_notes(d); *printed < count; ++*printed) {
        enum dev_note_kind kind;
        const char *text = dev_note(d, *printed, &kind);
        if (kind == DEV_NOTE_WARNING)
            warn("%s: %s", dev_backend(d)->name, text);
        else
            info("%s: %s", dev_backend(d)->name, text);
    }
}

int device_memory_read(struct device *d, struct device_memory *out) {
    struct device_facts f;
    struct mem_usage usage;
    if (dev_facts(d, &f)) return -1;
    dev_usage(d, &usage);
    *out = (struct device_memory){.ledger_bytes = mem_device_bytes(usage.current_bytes),
                                  .workspace_bytes = f.workspace_bytes,
                                  .used_bytes = f.used_bytes,
                                  .free_bytes = f.free_bytes,
                                  .total_bytes = f.memory_bytes};
    return 0;
}

double device_memory_other(double used_bytes, double ledger_bytes, double workspace_bytes) {
    double other = used_bytes - ledger_bytes - workspace_bytes;
    return other >= 0 ? other : NAN;
}

void device_memory_print(FILE *f, double used_bytes, double total_bytes, double ledger_bytes,
                         double workspace_bytes) {
    char a[24], b[24], c[24], d[24], e[24];
    double other = device_memory_other(used_bytes, ledger_bytes, workspace_bytes);
    format_bytes(a, used_bytes), format_bytes(b, total_bytes);
    format_bytes(c, ledger_bytes), format_bytes(d, workspace_bytes);
    if (isfinite(other))
        fprintf(f, "in use %s of %s = %s counted + %s workspaces + %s " DEVICE_MEMORY_OTHER "\n", a, b, c, d,
                format_bytes(e, other));
    else
        fprintf(f,
                "in use %s of %s; %s counted, %s workspaces, read at different moments: " DEVICE_MEMORY_OTHER
                " not known\n",
                a, b, c, d);
}

// ---------------------------------------------------------------- datasheets
// Dense rates: NVIDIA prints most of them with 2:4 sparsity, which is twice as much. Boards of one name differ in
// clocks and power (PCIe, NVL, laptops), and a MIG slice is less than a board. A name counts only if it identifies
// the board.
static const struct peak {
    const char *name;
    bool prefix;  // any suffix of the name is accepted
    double flops;
    const char *source;
} peaks[] = {
    {"NVIDIA A100", true, 312e12, "NVIDIA A100 datasheet"},
    {"NVIDIA H100 80GB HBM3", false, 989.4e12, "NVIDIA H100 architecture whitepaper, SXM5"},
    {"NVIDIA H100 PCIe", false, 756e12, "NVIDIA H100 architecture whitepaper, PCIe"},
    {"NVIDIA H200", false, 989.4e12, "NVIDIA H200 datasheet, SXM (1,979 with sparsity)"},
    {"NVIDIA B200", false, 2250e12, "NVIDIA Blackwell architecture brief, HGX B200"},
    {"NVIDIA L40S", false, 362.05e12, "NVIDIA L40S datasheet"},
    {"NVIDIA GeForce RTX 4090", false, 165.2e12, "NVIDIA Ada GPU architecture whitepaper, fp32 accumulation"},
};

double datasheet_flops(const char *device_name, enum dtype dt, const char **source) {
    *source = "the table of datasheets has 16-bit rates only";
    if (dt != DT_BF16 && dt != DT_F16) return 0;
    *source = "the table of datasheets does not have this device";
    if (strstr(device_name, "MIG")) return 0;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        const struct peak *p = &peaks[i];
        bool same =
            p->prefix ? !strncmp(device_name, p->name, strlen(p->name)) : !strcmp(device_name, p->name);
        if (!same) continue;
        *source = p->source;
        return p->flops;
    }
    return 0;
}

// ---------------------------------------------------------------- the machine
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
