#include "shared/launch/away.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/report/run_file.h"

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

// In one write: a line is there as a whole, or not at all.
int away_add(const char *dir, const struct away *a) {
    char *path = xasprintf("%s/" FILE_NAME, dir), *line = line_of(a);
    size_t size = line ? strlen(line) : 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    int rc = fd >= 0 && size && write(fd, line, size) == (ssize_t)size
                 ? 0
                 : fail("%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(line);
    free(path);
    return rc;
}

void away_forget(const char *dir) {
    char *path = xasprintf("%s/" FILE_NAME, dir);
    unlink(path);
    free(path);
}

static void append(char **all, char *line) {
    char *longer = xasprintf("%s%s\n", *all, line);
    free(*all);
    *all = longer;
}

// Where the last line of the worker that stays says that it is away, another one says that it is back.
static void bring_back(char **all, const int64_t *worker_of, const bool *away, int count, int64_t step) {
    for (int i = 0; i < count; i++) {
        bool last = true;
        for (int k = i + 1; k < count; k++) last = last && worker_of[k] != worker_of[i];
        if (!last || !away[i]) continue;
        char *line = line_of(&(struct away){.step = step, .worker = (int)worker_of[i]});
        line[strlen(line) - 1] = 0;
        append(all, line);
        free(line);
    }
}

int away_cut(const char *dir, int64_t steps) {
    char *text = run_file_read(dir, FILE_NAME, true), *rest = text, *kept = xstrdup("");
    int count = 0;
    if (!text) {
        free(kept);
        return 0;
    }
    int64_t *worker_of = xcalloc(strlen(text) + 1, sizeof *worker_of);
    bool *away = xcalloc(strlen(text) + 1, sizeof *away);
    for (char *line; (line = strsep(&rest, "\n"));) {
        cJSON *o = cJSON_Parse(line);
        double step = json_number(o, "step"), worker = json_number(o, "worker");
        bool stays = isfinite(step) && isfinite(worker) && step <= (double)steps;
        if (stays) {
            worker_of[count] = (int64_t)worker;
            away[count++] = cJSON_IsTrue(json_item(o, "away"));
            append(&kept, line);
        }
        cJSON_Delete(o);
    }
    bring_back(&kept, worker_of, away, count, steps + 1);
    int rc = run_file_write(dir, FILE_NAME, kept);
    free(worker_of);
    free(away);
    free(kept);
    free(text);
    return rc;
}
