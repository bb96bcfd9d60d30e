#include "shared/command/dry_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/predict/memory_check.h"
#include "shared/report/summary.h"

static void print_offload(FILE *f, const cJSON *o) {
    char a[24], b[24];
    if (!o) return;
    fprintf(f, "  host       %10s down, %s up per step\n", format_bytes(a, json_number(o, "predicted_down")),
            format_bytes(b, json_number(o, "predicted_up")));
    if (json_number(o, "predicted_read") > 0)
        fprintf(f, "  disk       %10s read, %s written per step\n",
                format_bytes(a, json_number(o, "predicted_read")),
                format_bytes(b, json_number(o, "predicted_written")));
}

// last: the last of the ranks from `rank` on with the same prediction.
static void put_rank(cJSON *doc, const struct config *c, const char *role, int rank, int last,
                     const struct prediction *p) {
    cJSON *m = cJSON_CreateObject(), *w = cJSON_CreateObject();
    cJSON_AddNumberToObject(m, "rank", rank);
    if (last > rank) cJSON_AddNumberToObject(m, "last", last);
    cJSON_AddStringToObject(m, "role", role);
    cJSON *classes = cJSON_AddObjectToObject(m, "predicted");
    for (int k = 0; k < MEM_CLASSES; k++)
        cJSON_AddNumberToObject(classes, mem_class_name((enum mem_class)k),
                                (double)p->memory.predicted_bytes[k]);
    cJSON_AddNumberToObject(m, "predicted_bytes", (double)mem_device_bytes(p->memory.predicted_bytes));
    cJSON_AddNumberToObject(m, "pinned_bytes", (double)p->memory.predicted_bytes[MEM_HOST]);
    cJSON_AddNumberToObject(m, "offload_bytes", (double)p->memory.predicted_bytes[MEM_OFFLOAD]);
    if (c->row->allowance)
        cJSON_AddNumberToObject(m, "transport_bound_bytes", floor(c->row->allowance(c, role, p).held_bytes));
    cJSON_AddNumberToObject(m, "formula_bytes", (double)p->memory.formula_bytes);
    cJSON_AddStringToObject(m, "formula", c->row->formula(c, role).memory);
    cJSON_AddItemToArray(cJSON_GetObjectItem(doc, "memory"), m);
    cJSON_AddNumberToObject(w, "rank", rank);
    cJSON_AddStringToObject(w, "role", role);
    int64_t later = wire_later_steps(&p->wire, c->steps);
    cJSON_AddNumberToObject(w, "predicted_sent",
                            wire_mean(p->wire.sent_per_step, p->wire.later.sent_per_step, c->steps, later));
    cJSON_AddNumberToObject(
        w, "predicted_received",
        wire_mean(p->wire.received_per_step, p->wire.later.received_per_step, c->steps, later));
    cJSON_AddStringToObject(w, "formula", c->row->formula(c, role).wire);
    if (p->wire.messages_per_step) cJSON_AddNumberToObject(w, "messages", (double)p->wire.messages_per_step);
    if (p->wire.group) {
        cJSON *across = cJSON_AddObjectToObject(w, "across");
        cJSON_AddNumberToObject(across, "group", p->wire.group);
        cJSON_AddNumberToObject(across, "predicted_sent", (double)p->wire.across_sent_per_step);
        cJSON_AddNumberToObject(across, "predicted_received", (double)p->wire.across_received_per_step);
        cJSON_AddNumberToObject(across, "predicted_sent_ungrouped",
                                (double)p->wire.flat_across_sent_per_step);
        cJSON_AddNumberToObject(across, "messages", (double)p->wire.messages_across_per_step);
    }
    if (p->wire.local_sent_per_step || p->wire.local_received_per_step) {
        cJSON *local = cJSON_AddObjectToObject(w, "local");
        cJSON_AddNumberToObject(local, "predicted_sent", (double)p->wire.local_sent_per_step);
        cJSON_AddNumberToObject(local, "predicted_received", (double)p->wire.local_received_per_step);
    }
    const struct offload_traffic *t = &p->wire.offload;
    if (t->down || t->up || t->read || t->written) {
        cJSON *o = cJSON_AddObjectToObject(w, "offload");
        cJSON_AddNumberToObject(o, "predicted_down", (double)t->down);
        cJSON_AddNumberToObject(o, "predicted_up", (double)t->up);
        cJSON_AddNumberToObject(o, "predicted_read", (double)t->read);
        cJSON_AddNumberToObject(o, "predicted_written", (double)t->written);
    }
    cJSON_AddItemToArray(cJSON_GetObjectItem(doc, "wire"), w);
}

// Adds a row of the textbook: the formula's result for another topology with the same P, N and dtype.
static int put_textbook(cJSON *doc, const struct job *j, const struct topology_row *row, int variant,
                        const char *role) {
    struct config c = *j->config;  // the original owns the strings
    struct prediction p = {0};
    struct topology_variant v;
    c.row = row;
    c.variant = variant;
    c.offload_optimizer = c.offload_param = (struct offload_config){0};  // not supported by every stage
    row->variant(variant, &v);
    if (row->predict(&c, j->layout, role, 0, &p)) return -1;
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "topology", v.name);
    cJSON_AddStringToObject(line, "role", role);
    cJSON_AddStringToObject(line, "formula", row->formula(&c, role).memory);
    cJSON_AddNumberToObject(line, "formula_bytes", (double)p.memory.formula_bytes);
    cJSON_AddNumberToObject(line, "predicted_sent",
                            wire_mean(p.wire.sent_per_step, p.wire.later.sent_per_step, c.steps,
                                      wire_later_steps(&p.wire, c.steps)));
    cJSON_AddItemToArray(cJSON_GetObjectItem(doc, "textbook"), line);
    return 0;
}

static int build(cJSON *doc, const struct job *j) {
    const struct config *c = j->config;
    cJSON_AddStringToObject(doc, "topology", c->topology);
    cJSON_AddStringToObject(doc, "model", c->model);
    cJSON_AddStringToObject(doc, "dtype", dtype_name(c->dtype));
    cJSON_AddStringToObject(doc, "device", config_device(c)->name);
    cJSON_AddNumberToObject(doc, "params", (double)j->layout->params);
    cJSON_AddNumberToObject(doc, "workers", c->workers);
    cJSON_AddNumberToObject(doc, "servers", config_ranks(c, "server"));
    cJSON_AddNumberToObject(doc, "micro_batch_size", (double)c->micro_batch);
    cJSON_AddNumberToObject(doc, "seq_len", (double)c->seq);
    cJSON_AddNumberToObject(doc, "tokens_per_step", (double)(c->train_batch * c->seq));
    cJSON_AddArrayToObject(doc, "memory");
    cJSON_AddArrayToObject(doc, "wire");
    cJSON_AddArrayToObject(doc, "textbook");
    for (const struct topology_role *role = c->row->roles; role->name; role++)
        for (int r = 0, alike, count = config_ranks(c, role->name); r < count; r += alike) {
            struct prediction p;
            if (prediction_of_rank(j, role->name, r, &p)) return -1;
            alike = prediction_alike(&p, count - r);
            put_rank(doc, c, role->name, r, r + alike - 1, &p);
        }
    // The textbook: every variant with a formula of its own, the last topology of the table first.
    const struct topology_table *t = c->topologies;
    int rows = 0;
    while (t->row[rows]) rows++;
    while (rows-- > 0)
        for (int v = 0; v < t->row[rows]->textbook; v++)
            for (const struct topology_role *role = t->row[rows]->roles; role->name; role++)
                if (put_textbook(doc, j, t->row[rows], v, role->name)) return -1;
    return 0;
}

static const char *word(const cJSON *o, const char *key) { return json_text(o, key, ""); }

// Ranks that differ only in their number share a row: "worker 0-63".
static bool same_row(const cJSON *m1, const cJSON *w1, const cJSON *m2, const cJSON *w2) {
    return !strcmp(word(m1, "role"), word(m2, "role")) &&
           cJSON_Compare(cJSON_GetObjectItem(m1, "predicted"), cJSON_GetObjectItem(m2, "predicted"), 1) &&
           json_number(w1, "predicted_sent") == json_number(w2, "predicted_sent") &&
           json_number(w1, "predicted_received") == json_number(w2, "predicted_received");
}

// Pinned memory belongs to the host: it has its own line after the classes that add up to the total.
static void print_classes(FILE *f, const cJSON *m) {
    char text[24];
    const cJSON *class;
    cJSON_ArrayForEach(class, cJSON_GetObjectItem(m, "predicted")) {
        bool beside = !strcmp(class->string, mem_class_name(MEM_HOST)) ||
                      !strcmp(class->string, mem_class_name(MEM_OFFLOAD));
        if (class->valuedouble <= 0 || beside) continue;
        fprintf(f, "    %-13s%10s   %.0f bytes\n", class->string, format_bytes(text, class->valuedouble),
                class->valuedouble);
    }
    if (json_number(m, "pinned_bytes") > 0)
        fprintf(f, "  pinned     %10s   %.0f bytes of page-locked host memory, beside the device's\n",
                format_bytes(text, json_number(m, "pinned_bytes")), json_number(m, "pinned_bytes"));
    if (json_number(m, "transport_bound_bytes") > 0)
        fprintf(
            f,
            "  held       %10s   at most, beside these: gradients until their turn, answers until they are sent\n",
            format_bytes(text, json_number(m, "transport_bound_bytes")));
    if (json_number(m, "offload_bytes") > 0)
        fprintf(f, "  offload    %10s   %.0f bytes of host memory for what is kept out of the device's\n",
                format_bytes(text, json_number(m, "offload_bytes")), json_number(m, "offload_bytes"));
}

static void print_traffic(FILE *f, const cJSON *w) {
    char a[24], b[24];
    const cJSON *across = json_item(w, "across");
    if (json_item(w, "messages"))
        fprintf(f, "  messages   %10.0f sent per step\n", json_number(w, "messages"));
    if (across)
        fprintf(f, "  across     %10s in %.0f messages out of a group of %.0f; %s without groups\n",
                format_bytes(a, json_number(across, "predicted_sent")), json_number(across, "messages"),
                json_number(across, "group"),
                format_bytes(b, json_number(across, "predicted_sent_ungrouped")));
}

static void print_rows(FILE *f, const cJSON *doc) {
    char a[24], b[24];
    const cJSON *m = cJSON_GetObjectItem(doc, "memory")->child, *w = cJSON_GetObjectItem(doc, "wire")->child;
    while (m) {
        const cJSON *m2 = m->next, *w2 = w->next, *last = m;
        while (m2 && same_row(m, w, m2, w2)) {
            last = m2;
            m2 = m2->next;
            w2 = w2->next;
        }
        fprintf(f, "\n%s %.0f", word(m, "role"), json_number(m, "rank"));
        double end = json_item(last, "last") ? json_number(last, "last") : json_number(last, "rank");
        if (end > json_number(m, "rank")) fprintf(f, "-%.0f, each", end);
        fprintf(f, "\n  memory     %10s   textbook %s = %s, without activations\n",
                format_bytes(a, json_number(m, "predicted_bytes")), word(m, "formula"),
                format_bytes(b, json_number(m, "formula_bytes")));
        print_classes(f, m);
        fprintf(f, "  sent       %10s per step (%s)\n  received   %10s per step\n",
                format_bytes(a, json_number(w, "predicted_sent")), word(w, "formula"),
                format_bytes(b, json_number(w, "predicted_received")));
        print_traffic(f, w);
        print_offload(f, json_item(w, "offload"));
        const cJSON *local = json_item(w, "local");
        if (local)
            fprintf(f, "  local      %10s out, %s in per step, in shared memory\n",
                    format_bytes(a, json_number(local, "predicted_sent")),
                    format_bytes(b, json_number(local, "predicted_received")));
        m = m2;
        w = w2;
    }
}

static void print(FILE *f, const cJSON *doc, const struct config *c) {
    char a[32], b[24];
    fprintf(f, "%s: %s parameters, %s, %s, %.0f worker%s", word(doc, "model"),
            format_count(a, (int64_t)json_number(doc, "params")), word(doc, "dtype"), word(doc, "topology"),
            json_number(doc, "workers"), json_number(doc, "workers") > 1 ? "s" : "");
    if (json_number(doc, "servers") > 0)
        fprintf(f, ", %.0f server%s", json_number(doc, "servers"),
                json_number(doc, "servers") > 1 ? "s" : "");
    fprintf(f, ", micro-batch %.0f x %s%.0f tokens; nothing is trained\n",
            json_number(doc, "micro_batch_size"), c->documents == DOCUMENTS_WHOLE ? "up to " : "",
            json_number(doc, "seq_len"));
    print_rows(f, doc);
    fputs("\nAll ranks on this machine:\n", f);
    memory_check_print(f, doc);
    if (config_device(c)->gpu)
        fprintf(
            f,
            "\n"
            "Beside this each rank takes of its GPU what cannot be predicted: scratch of cuBLASLt, cuDNN and\n"
            "kernels (8 MiB per stream, 32 MiB more for products, and what attention asks for), CUDA's context, NCCL.\n"
            "The GPU line of a run says how much it was.\n");
    fprintf(f, "\nThe textbook, per rank, for these P, N and dtype (%s; no activations):\n",
            c->optimizer.row->textbook);
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(doc, "textbook"))
        fprintf(f, "  %-8s %-7s %-11s %10s   sent %10s per step\n", word(row, "topology"), word(row, "role"),
                word(row, "formula"), format_bytes(a, json_number(row, "formula_bytes")),
                format_bytes(b, json_number(row, "predicted_sent")));
}

// ---------------------------------------------------------------- as JSON
// Prints one entry per rank. A row may cover several ranks: ranks[i] gives the ranks of rows[i].
static void print_each(FILE *f, const cJSON *rows, const cJSON *ranks) {
    const char *comma = "";
    const cJSON *row = rows->child, *of = ranks->child;
    for (; row; row = row->next, of = of->next) {
        int first = (int)json_number(of, "rank"),
            last = json_item(of, "last") ? (int)json_number(of, "last") : first;
        cJSON *rest = cJSON_Duplicate(row, 1);
        cJSON_DeleteItemFromObject(rest, "rank");
        cJSON_DeleteItemFromObject(rest, "last");
        char *text = cJSON_PrintUnformatted(rest);
        for (int rank = first; rank <= last; rank++, comma = ",")
            fprintf(f, "%s\n\t\t{\"rank\":%d,%s", comma, rank, text + 1);
        free(text);
        cJSON_Delete(rest);
    }
    fputs("]", f);
}

// The table has one row for equal ranks; the JSON has one entry per rank. Entries are created while printing, because
// a job may have 65,536.
static void print_json(FILE *f, cJSON *doc) {
    static const char *const names[] = {"memory", "wire"};
    cJSON *rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = cJSON_DetachItemFromObject(doc, names[i]);
        cJSON_AddArrayToObject(doc, names[i]);
    }
    char *text = cJSON_Print(doc), *at = text;
    for (int i = 0; i < 2; i++) {
        char *mark = xasprintf("\"%s\":\t[", names[i]), *found = strstr(at, mark);
        char *behind = found + strlen(mark);
        fwrite(at, 1, (size_t)(behind - at), f);
        print_each(f, rows[i], rows[0]);
        at = behind + 1;
        free(mark);
    }
    fprintf(f, "%s\n", at);
    free(text);
    cJSON_Delete(rows[0]);
    cJSON_Delete(rows[1]);
}

int dry_run(const struct job *j, const struct memory_part *part, FILE *f, bool as_json) {
    cJSON *doc = cJSON_CreateObject();
    int rc = build(doc, j);
    if (!rc) rc = memory_check_put(doc, j, part);
    if (!rc && as_json)
        print_json(f, doc);
    else if (!rc)
        print(f, doc, j->config);
    cJSON_Delete(doc);
    return rc;
}
