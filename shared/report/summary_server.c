// Where the time of a parameter server went (server_time of a rank's report): in its report, in the summary, for people.
#include "shared/core/text.h"
#include "shared/report/summary_impl.h"

static const char *const names[] = {"receive", "sum", "hold", "wait", "update", "reply", "total"};
#define NAMES (sizeof names / sizeof names[0])

void summary_put_server_time(struct cJSON *rank, const struct rank_report *r) {
    const struct server_time *t = &r->server_time;
    const double seconds[NAMES] = {t->receive, t->sum, t->hold, t->wait, t->update, t->reply, t->total};
    if (!t->threads) return;
    cJSON *item = cJSON_AddObjectToObject(rank, "server_time");
    json_put(item, "threads", t->threads);
    for (size_t i = 0; i < NAMES; i++) json_put(item, names[i], seconds[i]);
}

void summary_put_server_times(struct cJSON *summary, const struct cJSON *ranks) {
    cJSON *list = NULL;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        const cJSON *time = json_item(r, "server_time");
        if (!time) continue;
        if (!list) list = cJSON_AddArrayToObject(summary, "server_time");
        cJSON *one = cJSON_Duplicate(time, 1);
        json_put(one, "rank", json_number(r, "rank"));
        cJSON_AddItemToArray(list, one);
    }
}

void summary_print_server_times(FILE *f, const struct cJSON *summary) {
    const cJSON *r;
    double steps = summary_own_steps(summary);
    cJSON_ArrayForEach(r, json_item(summary, "server_time")) {
        fprintf(f, "  server %2.0f   ", json_number(r, "rank"));
        for (size_t i = 0; i + 1 < NAMES; i++)
            fprintf(f, "%s %.2f%s", names[i], json_number(r, names[i]) / steps * 1e3,
                    i + 2 < NAMES ? ", " : "");
        if (json_number(r, "threads") > 1) fprintf(f, " (%.0f threads added)", json_number(r, "threads"));
        fputc('\n', f);
    }
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
            fprintf(f, "  across  %2.0f %12s %12s %12s %12s   to other groups of %.0f; without groups %s\n",
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
