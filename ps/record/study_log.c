#include "ps/record/study_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/regular_file.h"

#define WAITING_MOST ((size_t)16 << 20)  // bytes

struct study_log {
    struct background *writer;
    char *path;
    FILE *file;
    int error;              // of opening and closing
    bool torn;              // a line may be: nothing follows it
    pthread_mutex_t mutex;  // guards what follows
    char *lines;            // that the writer has not taken yet
    size_t length, room;
    int64_t step;  // of the first of them
    int lost;      // errno; 0: nothing is
    int64_t lost_step;
};

// ---------------------------------------------------------------- on the writer's thread
static int open_file(void *arg) {
    struct study_log *l = arg;
    l->file = file_create_stream(l->path);
    l->error = l->file ? 0 : errno;
    return 0;
}

static int write_lines(void *arg) {
    struct study_log *l = arg;
    pthread_mutex_lock(&l->mutex);
    char *lines = l->lines;
    size_t length = l->length;
    int64_t step = l->step;
    l->lines = NULL;
    l->length = l->room = 0;
    pthread_mutex_unlock(&l->mutex);
    errno = ENOSPC;  // what a short write means
    if (!l->torn && (fwrite(lines, 1, length, l->file) != length || fflush(l->file))) {
        int error = errno;
        l->torn = true;
        pthread_mutex_lock(&l->mutex);
        l->lost = error;
        l->lost_step = step;
        pthread_mutex_unlock(&l->mutex);
    }
    free(lines);
    return 0;
}

static int close_file(void *arg) {
    struct study_log *l = arg;
    l->error = l->file && fclose(l->file) ? errno : 0;
    return 0;
}

static void wait_for(struct study_log *l, int (*what)(void *)) {
    uint64_t number = background_ask(l->writer, what, l, NULL);
    while (!background_wait(l->writer, number, 1)) continue;
}

// ---------------------------------------------------------------- who has it
static void log_free(struct study_log *l) {
    background_destroy(&l->writer);
    pthread_mutex_destroy(&l->mutex);
    free(l->lines);
    free(l->path);
    free(l);
}

struct study_log *study_log_open(const char *path) {
    struct study_log *l = xcalloc(1, sizeof *l);
    l->path = xstrdup(path);
    pthread_mutex_init(&l->mutex, NULL);
    l->writer = background_create("writes the log of updates", error_label());
    l->error = EAGAIN;
    if (l->writer) wait_for(l, open_file);
    if (!l->error) return l;
    int error = l->error;
    log_free(l);
    errno = error;
    return NULL;
}

void study_log_add(struct study_log *l, const char *line, int64_t step) {
    size_t bytes = strlen(line);
    pthread_mutex_lock(&l->mutex);
    bool ask = !l->length, fits = l->length + bytes <= WAITING_MOST;
    if (!l->lost && fits) {
        if (ask) l->step = step;
        if (l->length + bytes > l->room) {
            l->room = 2 * (l->length + bytes);
            l->lines = xrealloc(l->lines, l->room);
        }
        memcpy(l->lines + l->length, line, bytes);
        l->length += bytes;
    } else if (!l->lost) {
        l->lost = ENOBUFS;
        l->lost_step = step;
    }
    ask = ask && l->length;
    pthread_mutex_unlock(&l->mutex);
    if (ask) background_ask(l->writer, write_lines, l, NULL);
}

int study_log_lost(struct study_log *l, int64_t *step) {
    pthread_mutex_lock(&l->mutex);
    int lost = l->lost;
    *step = l->lost_step;
    pthread_mutex_unlock(&l->mutex);
    return lost;
}

int study_log_close(struct study_log **at, int64_t *step) {
    struct study_log *l = *at;
    wait_for(l, close_file);
    int error = l->lost ? l->lost : l->error;
    *step = l->lost ? l->lost_step : 0;
    log_free(l);
    *at = NULL;
    return error;
}
