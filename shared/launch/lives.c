#include "shared/launch/lives.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/run_file.h"
#include "shared/core/text.h"

#define FILE_NAME "lives.jsonl"

static char *line_of(const struct life *life) {
    char job[24], utc[32];
    const char *slash = life->checkpoint ? strrchr(life->checkpoint, '/') : NULL;
    snprintf(job, sizeof job, "%016" PRIx64, life->job);
    cJSON *o = cJSON_CreateObject();
    json_put(o, "start", life->start);
    json_put(o, "epoch", life->epoch);
    json_put_text(o, "job", life->job ? job : NULL);
    json_put_text(o, "started", format_utc(utc, time(NULL)));
    json_put_text(o, "resumed_from", slash ? slash + 1 : life->checkpoint);
    json_put(o, "restarts", life->restarts);
    if (life->counted)
        json_put(o, "steps_lost", (double)life->lost);
    else
        cJSON_AddNullToObject(o, "steps_lost");
    json_put_text(o, "why", life->why);
    char *text = cJSON_PrintUnformatted(o), *line = text ? xasprintf("%s\n", text) : NULL;
    cJSON_Delete(o);
    free(text);
    return line;
}

void lives_add(const char *dir, const struct life *life) {
    char *line = line_of(life);
    if (line) run_file_add(dir, FILE_NAME, line);
    free(line);
}

static void take_life(void *ctx, const cJSON *o) {
    double epoch = json_number(o, "epoch"), restarts = json_number(o, "restarts"),
           start = json_number(o, "start");
    if (epoch >= 1 && epoch < INT32_MAX && restarts >= 0 && restarts < INT32_MAX)
        *(struct life *)ctx = (struct life){.start = start >= 1 && start < INT32_MAX ? (int)start : 1,
                                            .epoch = (uint32_t)epoch,
                                            .job = strtoull(json_text(o, "job", "0"), NULL, 16),
                                            .restarts = (int)restarts};
}

struct life lives_last(const char *dir) {
    struct life last = {0};
    run_file_each(dir, FILE_NAME, take_life, &last);
    return last;
}

void lives_forget(const char *dir) {
    char *path = xasprintf("%s/" FILE_NAME, dir);
    unlink(path);
    free(path);
}
