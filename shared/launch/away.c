#include "shared/launch/away.h"

#include <cjson/cJSON.h>
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

// The lines that stay, and what they say last of each worker.
struct cut {
    double steps;
    char *kept;
    int64_t lines;
    struct {
        int64_t line;  // that named it last, 1, 2, ..; 0: none did
        bool away;     // what it said
    } last[CONFIG_ELASTIC_MAX];
};

static void keep_line(struct cut *c, char *line) {
    char *longer = xasprintf("%s%s", c->kept, line ? line : "");
    free(c->kept);
    free(line);
    c->kept = longer;
}

static void take_line(void *ctx, const cJSON *o) {
    struct cut *c = ctx;
    double step = json_number(o, "step"), worker = json_number(o, "worker");
    if (!(step <= c->steps) || !(worker >= 0 && worker < CONFIG_ELASTIC_MAX)) return;
    c->last[(int)worker].line = ++c->lines;
    c->last[(int)worker].away = cJSON_IsTrue(json_item(o, "away"));
    char *text = cJSON_PrintUnformatted(o);
    keep_line(c, text ? xasprintf("%s\n", text) : NULL);
    cJSON_free(text);
}

void away_cut(const char *dir, int64_t steps) {
    struct cut c = {.steps = (double)steps, .kept = xstrdup("")};
    char *path = xasprintf("%s/" FILE_NAME, dir), *why = NULL;
    bool there = run_file_each(dir, FILE_NAME, take_line, &c);
    // Where the last line of a worker that stays says that it is away, another one says that it is back, in the order of those.
    for (int next = 0; there && next >= 0;) {
        next = -1;
        for (int w = 0; w < CONFIG_ELASTIC_MAX; w++)
            if (c.last[w].away && (next < 0 || c.last[w].line < c.last[next].line)) next = w;
        if (next < 0) break;
        keep_line(&c, line_of(&(struct away){.step = steps + 1, .worker = next}));
        c.last[next].away = false;
    }
    if (there && new_file_write(path, c.kept, NEW_FILE_ON_DISK, &why))
        warn("%s: absences of steps that are done again stay there; the job goes on", why);
    free(path);
    free(why);
    free(c.kept);
}
