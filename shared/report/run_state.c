#include "shared/report/run_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

#define STATE_FILE "state.json"

struct process {
    int64_t pid, start_ticks;
    char host[256], boot_id[64];
};

static const char *const words[] = {"unknown", "running", "dead", "complete", "interrupted", "failed"};

const char *run_phase_word(enum run_phase p) { return words[p]; }

// Returns when the process started, in clock ticks since boot (proc(5), field 22 of stat); -1: there is none, or it is
// a zombie.
static int64_t start_ticks(int64_t pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    path_first_line(path, line, sizeof line);
    char *field = strrchr(line, ')');  // the name before it may contain spaces
    if (!field || !field[1] || field[2] == 'Z' || field[2] == 'X') return -1;
    field += 2;
    for (int i = 3; i < 22 && field; i++) {
        field = strchr(field, ' ');
        if (field) field++;
    }
    return field ? strtoll(field, NULL, 10) : -1;
}

static void myself(struct process *p) {
    *p = (struct process){.pid = getpid(), .start_ticks = start_ticks(getpid())};
    gethostname(p->host, sizeof p->host - 1);
    path_first_line("/proc/sys/kernel/random/boot_id", p->boot_id, sizeof p->boot_id);
}

static void text_of(const cJSON *o, const char *key, char *out, size_t size) {
    snprintf(out, size, "%s", json_text(o, key, ""));
}

static int64_t integer_of(const cJSON *o, const char *key) {
    double x = json_number(o, key);
    return x >= 0 && x < 9e15 ? (int64_t)x : -1;
}

void run_state_read(const char *dir, struct run_state *out) {
    char word[32];
    *out = (struct run_state){.phase = RUN_UNKNOWN, .pid = -1};
    char *text = run_file_read(dir, STATE_FILE, true);
    cJSON *o = text ? json_parse(text, strlen(text)) : NULL;
    free(text);
    if (!o) return;
    struct process p = {.pid = integer_of(o, "pid"), .start_ticks = integer_of(o, "start_ticks")};
    text_of(o, "state", word, sizeof word);
    text_of(o, "host", p.host, sizeof p.host);
    text_of(o, "boot_id", p.boot_id, sizeof p.boot_id);
    text_of(o, "started", out->started, sizeof out->started);
    text_of(o, "ended", out->ended, sizeof out->ended);
    text_of(o, "why", out->why, sizeof out->why);
    memcpy(out->host, p.host, sizeof out->host);
    out->pid = p.pid;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(word, words[i])) out->phase = (enum run_phase)i;
    // "running" without an identifiable process is treated as unknown.
    if (out->phase == RUN_RUNNING && (p.pid <= 0 || !*p.host)) out->phase = RUN_UNKNOWN;
    cJSON_Delete(o);
    if (out->phase != RUN_RUNNING) return;
    // The process that wrote "running" may have ended, and another one may have its pid.
    struct process me;
    myself(&me);
    out->elsewhere = strcmp(me.host, p.host) != 0;
    if (out->elsewhere) return;
    bool alive = !strcmp(me.boot_id, p.boot_id) && p.start_ticks >= 0 && start_ticks(p.pid) == p.start_ticks;
    out->own = alive && p.pid == me.pid;
    if (!alive) out->phase = RUN_DEAD;
}

// Returns the new content of the file (malloc'd).
static char *state_text(enum run_phase phase, const char *started, const char *ended, const char *why) {
    struct process p;
    myself(&p);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "state", words[phase]);
    cJSON_AddNumberToObject(o, "pid", (double)p.pid);
    cJSON_AddStringToObject(o, "host", p.host);
    cJSON_AddStringToObject(o, "boot_id", p.boot_id);
    cJSON_AddNumberToObject(o, "start_ticks", (double)p.start_ticks);
    cJSON_AddStringToObject(o, "started", started);
    json_put_text(o, "ended", ended);
    json_put_text(o, "why", why);
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    return text;
}

static int write_state(const char *dir, char *text) {
    int rc = run_file_write(dir, STATE_FILE, text);
    free(text);
    return rc;
}

int run_state_begin(const char *dir) {
    char now[32];
    return write_state(dir, state_text(RUN_RUNNING, format_utc(now, time(NULL)), NULL, NULL));
}

void run_state_adopt(const char *dir) {
    char now[32], *text = state_text(RUN_RUNNING, format_utc(now, time(NULL)), NULL, NULL);
    run_file_try(dir, STATE_FILE, text);
    free(text);
}

int run_state_end(const char *dir, enum run_phase phase, const char *why) {
    struct run_state s;
    char now[32];
    run_state_read(dir, &s);
    if (s.phase != RUN_RUNNING || !s.own) return 0;
    return write_state(dir, state_text(phase, s.started, format_utc(now, time(NULL)), why));
}

int run_state_end_for(const char *dir, int64_t pid, enum run_phase phase, const char *why) {
    struct run_state s;
    char now[32];
    run_state_read(dir, &s);
    if (s.phase != RUN_DEAD || s.pid != pid) return 0;
    return write_state(dir, state_text(phase, s.started, format_utc(now, time(NULL)), why));
}
