// Where the time went: a rank's report and the summary.
#include <math.h>
#include <string.h>

#include "shared/report/summary_impl.h"

static const char *const names[] = {
    "data", "forward", "backward", "optimizer", "comm_exposed", "comm_overlapped", "wait", "host", "total"};
#define TIMES (sizeof names / sizeof names[0])

void summary_put_rank_times(cJSON *rank, const struct rank_report *r) {
    const struct time_split *t = &r->time;
    const double times[TIMES] = {t->data,      t->forward,      t->backward,
                                 t->optimizer, t->comm_exposed, t->comm_overlapped,
                                 t->wait,      t->host,         t->total};
    cJSON *time = cJSON_AddObjectToObject(rank, "time");
    for (size_t i = 0; i < TIMES; i++) json_put(time, names[i], times[i]);
    json_put(time, "check", r->time_check);
    json_put(time, "clock_error_s", (double)r->clock_error_ns * 1e-9);
}

static bool is_worker(const cJSON *rank) { return !strcmp(json_text(rank, "role", ""), "worker"); }

// Means over workers; of the checks the one that is off most, of the clocks' errors the largest.
void summary_put_times(cJSON *s, const cJSON *ranks) {
    double sum[TIMES] = {0}, check = 1, error = 0;
    int workers = 0;
    cJSON *each = cJSON_CreateArray();
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        if (!is_worker(r)) continue;
        const cJSON *time = json_item(r, "time");
        double own = json_number(time, "check");
        for (size_t i = 0; i < TIMES; i++) sum[i] += json_number(time, names[i]);
        if (fabs(own - 1) > fabs(check - 1)) check = own;
        error = fmax(error, json_number(time, "clock_error_s"));
        cJSON_AddItemToArray(each, cJSON_Duplicate(time, 1));
        workers++;
    }
    cJSON *mean = cJSON_AddObjectToObject(s, "time");
    for (size_t i = 0; i < TIMES; i++) json_put(mean, names[i], sum[i] / workers);
    json_put(mean, "check", check);
    json_put(mean, "clock_error_s", error);
    cJSON_AddItemToObject(s, "time_per_rank", each);
}
