// What a rank sent and received per step beside its prediction, and, where steps behind some update move other bytes
// (1-bit Adam), the same of each phase; what leaves a group of ranks, and what servers replicate.
#include "shared/core/text.h"
#include "shared/report/summary_impl.h"

// A direction's bytes: predicted per step of both phases, and what the counter holds at the end and held between them.
struct way {
    uint64_t predicted, predicted_later;
    double total, before;
};

static struct way way_of(uint64_t predicted, uint64_t later, double per_step, uint64_t before,
                         int64_t steps) {
    return (struct way){predicted, later, per_step * (double)steps, (double)before};
}

static void put_phase(cJSON *phases, const char *name, int64_t steps, const struct way ways[2]) {
    bool later = cJSON_GetArraySize(phases) > 0;
    static const char *const keys[2][2] = {{"predicted_sent", "sent_per_step"},
                                           {"predicted_received", "received_per_step"}};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", name);
    json_put(o, "steps", (double)steps);
    for (int i = 0; i < 2; i++) {
        const struct way *w = &ways[i];
        double bytes = later ? w->total - w->before : w->before;
        json_put(o, keys[i][0], (double)(later ? w->predicted_later : w->predicted));
        json_put(o, keys[i][1], steps > 0 ? bytes / (double)steps : 0);
    }
    cJSON_AddItemToArray(phases, o);
}

void summary_put_wire(struct cJSON *rank, const struct rank_report *r) {
    const struct wire_prediction *p = &r->wire;
    int64_t steps = r->steps, later = r->wire_later.steps;
    // Where no step was left to do nothing was sent.
    json_put(rank, "predicted_sent",
             steps > 0 ? wire_mean(p->sent_per_step, p->later.sent_per_step, steps, later) : 0);
    json_put(rank, "predicted_received",
             steps > 0 ? wire_mean(p->received_per_step, p->later.received_per_step, steps, later) : 0);
    json_put(rank, "sent_per_step", r->sent_per_step);
    json_put(rank, "received_per_step", r->received_per_step);
    if (!later) return;
    const struct way ways[2] = {
        way_of(p->sent_per_step, p->later.sent_per_step, r->sent_per_step, r->wire_later.sent, steps),
        way_of(p->received_per_step, p->later.received_per_step, r->received_per_step, r->wire_later.received,
               steps)};
    cJSON *phases = cJSON_AddArrayToObject(rank, "phases");
    put_phase(phases, "warm-up", steps - later, ways);
    put_phase(phases, "compressed", later, ways);
}

void summary_print_phases(FILE *f, const struct cJSON *wire) {
    char a[24], b[24], c[24], d[24];
    const cJSON *p;
    cJSON_ArrayForEach(p, json_item(wire, "phases")) fprintf(
        f, "  %-10s %12s %12s %12s %12s   (%.0f steps)\n", json_text(p, "name", ""),
        format_bytes(a, json_number(p, "predicted_sent")), format_bytes(b, json_number(p, "sent_per_step")),
        format_bytes(c, json_number(p, "predicted_received")),
        format_bytes(d, json_number(p, "received_per_step")), json_number(p, "steps"));
}

// ---------------------------------------------------------------- what leaves a group of ranks (reduce_group)
void summary_put_across(struct cJSON *rank, const struct rank_report *r) {
    if (!r->wire.group) return;
    cJSON *item = cJSON_AddObjectToObject(rank, "across");
    json_put(item, "group", r->wire.group);
    json_put(item, "sent_per_step", r->across_sent_per_step);
    json_put(item, "received_per_step", r->across_received_per_step);
    json_put(item, "predicted_sent", (double)r->wire.across_sent_per_step);
    json_put(item, "predicted_received", (double)r->wire.across_received_per_step);
    json_put(item, "predicted_sent_ungrouped", (double)r->wire.flat_across_sent_per_step);
}

void summary_print_across(FILE *f, const struct cJSON *summary) {
    char a[24], b[24], c[24], d[24], e[24];
    const cJSON *w;
    cJSON_ArrayForEach(w, json_item(summary, "wire")) {
        const cJSON *x = json_item(w, "across");
        if (x)
            fprintf(f, "  across  %2.0f %12s %12s %12s %12s   out of its group of %.0f; without groups %s\n",
                    json_number(w, "rank"), format_bytes(a, json_number(x, "predicted_sent")),
                    format_bytes(b, json_number(x, "sent_per_step")),
                    format_bytes(c, json_number(x, "predicted_received")),
                    format_bytes(d, json_number(x, "received_per_step")), json_number(x, "group"),
                    format_bytes(e, json_number(x, "predicted_sent_ungrouped")));
    }
}

// ---------------------------------------------------------------- what servers replicate
void summary_put_replica(struct cJSON *rank, const struct rank_report *r) {
    if (!r->wire.replica_sent_per_step && !r->wire.replica_received_per_step) return;
    cJSON *item = cJSON_AddObjectToObject(rank, "replica");
    json_put(item, "sent_per_step", r->replica_sent_per_step);
    json_put(item, "received_per_step", r->replica_received_per_step);
    json_put(item, "predicted_sent", (double)r->wire.replica_sent_per_step);
    json_put(item, "predicted_received", (double)r->wire.replica_received_per_step);
    cJSON_AddStringToObject(item, "formula", WIRE_REPLICA_FORMULA);
}

void summary_print_replicas(FILE *f, const struct cJSON *summary) {
    char a[24], b[24], c[24], d[24];
    const cJSON *w;
    cJSON_ArrayForEach(w, json_item(summary, "wire")) {
        const cJSON *r = json_item(w, "replica");
        if (r)
            fprintf(f, "  replica %2.0f %12s %12s %12s %12s\n", json_number(w, "rank"),
                    format_bytes(a, json_number(r, "predicted_sent")),
                    format_bytes(b, json_number(r, "sent_per_step")),
                    format_bytes(c, json_number(r, "predicted_received")),
                    format_bytes(d, json_number(r, "received_per_step")));
    }
}
