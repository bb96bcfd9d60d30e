#include "shared/launch/away.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/config.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/run_file.h"

#define FILE_NAME "away.jsonl"

static char *line_of(const struct away *a) {
    cJSON *o = cJSON_CreateObject();
    json_put(o, "step", (double)a->step);
    json_put(o, "worker", a->worker);
    cJSON_AddBoolToObject(o, "away", a->away);
    json_put_text(o, "cause", a->cause);
    json_put_text(o, "why", a->why);
    char *text = cJSON_PrintUnformatted(o), *line = text ? xasprintf("%s\n", text) : NULL;
    cJSON_Delete(o);
    free(text);
    return line;
}

void away_add(const char *dir, const struct away *a) {
    char *line = line_of(a);
    if (line) run_file_add(dir, FILE_NAME, line);
    free(line);
}

void away_forget(const char *dir) {
    char *path = xasprintf("%s/" FILE_NAME, dir);
    unlink(path);
    free(path);
}

// Which line named a worker last, 1, 2, ..; 0: none did. away: what it said.
struct last_seen {
    int64_t line;
    bool away;
};

// Where the last line of the worker that stays says that it is away, another one says that it is back, in the order of those.
static void bring_back(FILE *out, struct last_seen all[CONFIG_ELASTIC_MAX], int64_t step) {
    for (;;) {
        int next = -1;
        for (int w = 0; w < CONFIG_ELASTIC_MAX; w++)
            if (all[w].away && (next < 0 || all[w].line < all[next].line)) next = w;
        if (next < 0) return;
        char *line = line_of(&(struct away){.step = step, .worker = next});
        if (line) fputs(line, out);
        free(line);
        all[next].away = false;
    }
}

void away_cut(const char *dir, int64_t steps) {
    char *text = run_file_lines(dir, FILE_NAME), *rest = text, *kept = NULL, *why = NULL;
    struct last_seen seen[CONFIG_ELASTIC_MAX] = {0};
    size_t size = 0;
    FILE *out = text ? open_memstream(&kept, &size) : NULL;
    if (!out) {
        free(text);
        return;
    }
    int64_t count = 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        cJSON *o = cJSON_Parse(line);
        double step = json_number(o, "step"), worker = json_number(o, "worker");
        if (isfinite(step) && step <= (double)steps && worker >= 0 && worker < CONFIG_ELASTIC_MAX) {
            seen[(int)worker] = (struct last_seen){++count, cJSON_IsTrue(json_item(o, "away"))};
            fprintf(out, "%s\n", line);
        }
        cJSON_Delete(o);
    }
    bring_back(out, seen, steps + 1);
    char *path = xasprintf("%s/" FILE_NAME, dir);
    if (fclose(out) || disk_write_file(path, kept, &why))
        warn("%s: absences of steps that are done again stay there; the job goes on", why ? why : path);
    free(path);
    free(why);
    free(kept);
    free(text);
}
