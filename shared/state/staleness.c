#include "shared/state/staleness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"

// ---------------------------------------------------------------- counts of staleness (ranks/staleness-R.json)
// Adds the counters of one list to those of another, element by element.
static void add_tallies(cJSON *into, cJSON *from) {
    static const char *const sums[] = {"count", "sum", "updates"};
    cJSON *a = into->child;
    for (const cJSON *b = from ? from->child : NULL; a && b; a = a->next, b = b->next) {
        for (int i = 0; i < 3; i++) {
            cJSON *x = cJSON_GetObjectItemCaseSensitive(a, sums[i]);
            if (x) cJSON_SetNumberValue(x, x->valuedouble + json_number(b, sums[i]));
        }
        cJSON *max = cJSON_GetObjectItemCaseSensitive(a, "max");
        if (max && json_number(b, "max") > max->valuedouble) cJSON_SetNumberValue(max, json_number(b, "max"));
    }
}

static void put_units(cJSON *staleness, const cJSON *units) {
    cJSON *out = cJSON_AddArrayToObject(staleness, "units");
    const cJSON *u;
    cJSON_ArrayForEach(u, units) {
        double n = json_number(u, "count");
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "unit", json_text(u, "unit", ""));
        json_put(o, "mean", n > 0 ? json_number(u, "sum") / n : 0);
        json_put(o, "max", json_number(u, "max"));
        cJSON_AddItemToArray(out, o);
    }
}

static void put_series(cJSON *staleness, const cJSON *points) {
    cJSON *out = cJSON_AddArrayToObject(staleness, "series");
    const cJSON *p;
    cJSON_ArrayForEach(p, points) {
        double n = json_number(p, "count"), pair[2];
        if (!(n > 0)) continue;
        pair[0] = json_number(p, "updates") / n;
        pair[1] = json_number(p, "sum") / n;
        cJSON_AddItemToArray(out, cJSON_CreateDoubleArray(pair, 2));
    }
}

void staleness_merge_studies(struct cJSON *staleness, const char *dir, int servers) {
    cJSON *all = NULL;
    for (int r = 0; r < servers; r++) {
        char *name = xasprintf("ranks/staleness-%d.json", r), *text = run_file_read(dir, name, true);
        cJSON *one = text ? json_parse(text, strlen(text)) : NULL;
        free(text);
        free(name);
        if (all && one) {
            add_tallies(cJSON_GetObjectItem(all, "units"), cJSON_GetObjectItem(one, "units"));
            add_tallies(cJSON_GetObjectItem(all, "points"), cJSON_GetObjectItem(one, "points"));
        }
        if (all)
            cJSON_Delete(one);
        else
            all = one;
    }
    put_units(staleness, json_item(all, "units"));
    put_series(staleness, json_item(all, "points"));
    cJSON_Delete(all);
}

// ---------------------------------------------------------------- logs
struct source {
    struct log_reader lines;
    long long time_ns;
};

static void next_line(struct source *s) {
    const char *line = log_reader_next(&s->lines), *at = line ? strstr(line, "\"time_ns\":") : NULL;
    if (at)
        s->time_ns = atoll(at + strlen("\"time_ns\":"));
    else
        log_reader_close(&s->lines);
}

static char *log_of(const char *dir, int shard) { return xasprintf("%s/ranks/updates-%d.jsonl", dir, shard); }

int staleness_merge_logs(const char *dir, int shards) {
    char *path = xasprintf("%s/updates.jsonl", dir);
    struct new_file n;
    struct source *all = xcalloc((unsigned long)shards, sizeof *all), *s;
    int rc = 0;
    for (int i = 0; i < shards && !rc; i++) {
        char *name = log_of(dir, i), why[FILE_WHY_MAX];
        // A server on another machine writes its log there, so it is not an error if the file does not exist here.
        if (log_reader_open(&all[i].lines, name, why) && errno != ENOENT)
            rc = fail("--log-updates: %s: %s", name, why);
        next_line(&all[i]);
        free(name);
    }
    if (!rc) {
        bool good = new_file_begin(&n, path, false);
        while (good) {
            s = NULL;  // the log whose next line is the earliest
            for (int i = 0; i < shards; i++)
                if (all[i].lines.file && (!s || all[i].time_ns < s->time_ns)) s = &all[i];
            if (!s) break;
            good = fprintf(n.file, "%s\n", s->lines.line) >= 0;
            next_line(s);
        }
        if (new_file_end(&n, good))
            rc = fail("%s: cannot be written: %s: its lines remain in %s/ranks/updates-*.jsonl", path,
                      strerror(errno), dir);
    }
    for (int i = 0; i < shards && !rc; i++) {  // all lines are in the merged file
        char *name = log_of(dir, i);
        unlink(name);
        free(name);
    }
    for (int i = 0; i < shards; i++) log_reader_close(&all[i].lines);
    free(all);
    free(path);
    return rc;
}
