// GPUs in the summary. A rank reports what it took of its device and what is in use of all of it; ranks that
// share a device are put together here. Below them what lies on the host instead of a device, and what moves between them.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/text.h"
#include "shared/device/datasheet.h"
#include "shared/report/summary_impl.h"

static const char *text(const cJSON *o, const char *key) { return json_text(o, key, ""); }

static void set(cJSON *o, const char *key, double x) {
    cJSON_ReplaceItemInObjectCaseSensitive(o, key, cJSON_CreateNumber(x));
}

void summary_put_device(struct cJSON *rank, const struct rank_report *r) {
    char host[256] = "";
    if (!r->on_gpu) return;
    gethostname(host, sizeof host - 1);
    cJSON *d = device_facts_json(&r->device);
    cJSON_AddStringToObject(d, "host", host);
    cJSON_AddNumberToObject(d, "ledger_bytes", (double)r->device_memory.ledger_bytes);
    cJSON_AddNumberToObject(d, "workspace_bytes", (double)r->device_memory.workspace_bytes);
    cJSON_AddNumberToObject(d, "used_bytes", (double)r->device_memory.used_bytes);
    cJSON_AddNumberToObject(d, "free_bytes", (double)r->device_memory.free_bytes);
    cJSON_AddItemToObject(rank, "device", d);
}

static cJSON *find(cJSON *devices, const cJSON *d) {
    cJSON *known;
    cJSON_ArrayForEach(known, devices) if (!strcmp(text(known, "host"), text(d, "host")) &&
                                           !strcmp(text(known, "bus_id"), text(d, "bus_id"))) return known;
    return NULL;
}

// What ranks of one device say differently is all said, each remark once.
static void add_work(cJSON *known, const cJSON *d) {
    static const char *const keys[] = {"attention_forward", "attention_backward", "gelu", "bias_grad"};
    char both[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *a = text(known, keys[i]), *b = text(d, keys[i]);
        if (!b[0] || !strcmp(a, b)) continue;
        snprintf(both, sizeof both, "%s%s%s", a, a[0] ? ", " : "", b);
        cJSON_ReplaceItemInObjectCaseSensitive(known, keys[i], cJSON_CreateString(both));
    }
    cJSON *notes = cJSON_GetObjectItemCaseSensitive(known, "notes");
    const cJSON *note, *other;
    cJSON_ArrayForEach(note, json_item(d, "notes")) {
        bool told = false;
        cJSON_ArrayForEach(other, notes) told |= !strcmp(other->valuestring, note->valuestring);
        if (!told) cJSON_AddItemToArray(notes, cJSON_CreateString(note->valuestring));
    }
}

// In use is the whole device's, whoever reads it: the largest reading, as libraries may take more between
// two.
static void add_rank(cJSON *devices, const cJSON *rank) {
    char name[40];
    const cJSON *d = json_item(rank, "device");
    if (!d) return;
    cJSON *known = find(devices, d);
    if (!known) {
        known = cJSON_Duplicate(d, 1);
        cJSON_AddArrayToObject(known, "ranks");
        cJSON_AddItemToArray(devices, known);
    } else {
        set(known, "ledger_bytes", json_number(known, "ledger_bytes") + json_number(d, "ledger_bytes"));
        set(known, "workspace_bytes",
            json_number(known, "workspace_bytes") + json_number(d, "workspace_bytes"));
        set(known, "used_bytes", fmax(json_number(known, "used_bytes"), json_number(d, "used_bytes")));
        add_work(known, d);
        set(known, "free_bytes", fmin(json_number(known, "free_bytes"), json_number(d, "free_bytes")));
    }
    snprintf(name, sizeof name, "%s %.0f", text(rank, "role"), json_number(rank, "rank"));
    cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(known, "ranks"), cJSON_CreateString(name));
}

void summary_put_devices(struct cJSON *summary, const struct cJSON *ranks) {
    cJSON *devices = cJSON_CreateArray(), *d;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) add_rank(devices, r);
    cJSON_ArrayForEach(d, devices) {
        double other = device_memory_other(json_number(d, "used_bytes"), json_number(d, "ledger_bytes"),
                                           json_number(d, "workspace_bytes"));
        cJSON_AddNumberToObject(d, "other_bytes", other);
        cJSON_AddStringToObject(d, "other", DEVICE_MEMORY_OTHER);
    }
    if (cJSON_GetArraySize(devices))
        cJSON_AddItemToObject(summary, "devices", devices);
    else
        cJSON_Delete(devices);
}

void summary_put_flops(cJSON *s, const struct run_flops *flops) {
    double rate = json_number(s, "tokens_per_second");
    const struct token_flops *model = &flops->model, *again = &flops->again;
    json_put(s, "flops_per_token", model->full);
    json_put(s, "flops_per_token_causal", model->causal);
    json_put(s, "flops_per_second", rate * model->full);
    json_put(s, "flops_per_second_causal", rate * model->causal);
    json_put(s, "recomputed_flops_per_token", again->full);
    json_put(s, "recomputed_flops_per_token_causal", again->causal);
    json_put(s, "hardware_flops_per_second", rate * (model->full + again->full));
    json_put(s, "hardware_flops_per_second_causal", rate * (model->causal + again->causal));
}

void summary_put_mfu(struct cJSON *summary, enum dtype dt) {
    double peak = 0;
    const char *source;
    const cJSON *d;
    cJSON_ArrayForEach(d, json_item(summary, "devices")) {
        double flops = datasheet_flops(text(d, "name"), dt, &source);
        peak = flops > 0 ? peak + flops : NAN;
    }
    if (!(peak > 0)) peak = NAN;
    json_put(summary, "datasheet_flops_per_second", peak);
    json_put(summary, "mfu_datasheet", json_number(summary, "flops_per_second") / peak);
    json_put(summary, "mfu_datasheet_causal", json_number(summary, "flops_per_second_causal") / peak);
}

void summary_print_devices(FILE *f, const struct cJSON *summary) {
    const cJSON *gpu;
    cJSON_ArrayForEach(gpu, json_item(summary, "devices")) {
        fprintf(f, "\n%s  %s, %s, compute capability %s, driver %s, CUDA %s\n",
                gpu == json_item(summary, "devices")->child ? "GPU       " : "          ", text(gpu, "name"),
                text(gpu, "bus_id"), text(gpu, "compute_capability"), text(gpu, "driver"),
                text(gpu, "runtime"));
        fputs("  ", f);
        device_memory_print(f, json_number(gpu, "used_bytes"), json_number(gpu, "memory_bytes"),
                            json_number(gpu, "ledger_bytes"), json_number(gpu, "workspace_bytes"));
        fputs("  ", f);
        device_work_print(f, gpu);
        fputs("  ranks on it:", f);
        const cJSON *rank, *note;
        cJSON_ArrayForEach(rank, json_item(gpu, "ranks"))
            fprintf(f, " %s%s", cJSON_GetStringValue(rank), rank->next ? "," : "\n");
        cJSON_ArrayForEach(note, json_item(gpu, "notes"))
            fprintf(f, "  note: %s\n", cJSON_GetStringValue(note));
    }
}

// ---------------------------------------------------------------- beside the devices
static double of_class(const cJSON *classes, enum mem_class c) {
    const cJSON *v = json_item(classes, mem_class_name(c));
    return v ? v->valuedouble : 0;
}

double summary_device_bytes(const struct cJSON *classes) {
    double sum = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, classes) sum += v->valuedouble;
    return sum - of_class(classes, MEM_HOST) - of_class(classes, MEM_OFFLOAD);
}

static void print_class(FILE *f, const cJSON *s, enum mem_class class, const char *title) {
    char a[24], b[24];
    const cJSON *r;
    bool any = false;
    cJSON_ArrayForEach(r, json_item(s, "memory")) {
        double predicted = of_class(json_item(r, "predicted"), class);
        double peak = of_class(json_item(r, "peak"), class);
        if (predicted + peak <= 0) continue;
        if (!any) fprintf(f, "\n%-12s %12s %12s\n", title, "predicted", "measured");
        any = true;
        fprintf(f, "  %-7s %2.0f %12s %12s\n", json_text(r, "role", "-"), json_number(r, "rank"),
                format_bytes(a, predicted), format_bytes(b, peak));
    }
}

void summary_print_beside(FILE *f, const struct cJSON *summary) {
    print_class(f, summary, MEM_HOST, "pinned host");
    print_class(f, summary, MEM_OFFLOAD, "offloaded");
}

void summary_put_offload(struct cJSON *rank, const struct rank_report *r) {
    const struct offload_traffic *p = &r->wire.offload;
    const struct {
        const char *name, *predicted;
        double measured;
        uint64_t planned;
    } rows[] = {{"down_per_step", "predicted_down", r->down_per_step, p->down},
                {"up_per_step", "predicted_up", r->up_per_step, p->up},
                {"read_per_step", "predicted_read", r->read_per_step, p->read},
                {"written_per_step", "predicted_written", r->written_per_step, p->written}};
    if (!p->down && !p->up && !p->read && !p->written) return;
    cJSON *o = cJSON_AddObjectToObject(rank, "offload");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_put(o, rows[i].predicted, (double)rows[i].planned);
        json_put(o, rows[i].name, rows[i].measured);
    }
}

static void print_pair(FILE *f, const cJSON *w, const char *way, const char *first, const char *second) {
    static const char *const names[][2] = {{"predicted_down", "down_per_step"},
                                           {"predicted_up", "up_per_step"},
                                           {"predicted_read", "read_per_step"},
                                           {"predicted_written", "written_per_step"}};
    const cJSON *o = json_item(w, "offload");
    int at = *way == 'd' ? 2 : 0;
    char a[24], b[24], c[24], d[24];
    if (json_number(o, names[at][0]) + json_number(o, names[at + 1][0]) <= 0) return;
    fprintf(f, "  %-7s %2.0f %12s %12s %12s %12s   %s: %s, %s\n", json_text(w, "role", "-"),
            json_number(w, "rank"), format_bytes(a, json_number(o, names[at][0])),
            format_bytes(b, json_number(o, names[at][1])), format_bytes(c, json_number(o, names[at + 1][0])),
            format_bytes(d, json_number(o, names[at + 1][1])), way, first, second);
}

void summary_print_offload(FILE *f, const struct cJSON *summary) {
    const cJSON *w;
    bool any = false;
    cJSON_ArrayForEach(w, json_item(summary, "wire")) {
        if (!json_item(w, "offload")) continue;
        if (!any)
            fprintf(f, "\noffload/step %12s %12s %12s %12s\n", "predicted", "measured", "predicted",
                    "measured");
        any = true;
        print_pair(f, w, "host", "down", "up");
        print_pair(f, w, "disk", "read", "written");
    }
}
