#include "ps/checkpoint/loader.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ps/checkpoint/start_point.h"
#include "ps/trust/descriptors.h"
#include "shared/core/error.h"

struct loader {
    struct state_read o;
    char *path;
    uint64_t seal;
    pthread_t thread;
    bool started;
    _Atomic int quit, state;  // what is below is complete before state says so
    struct key_rows rows;
    int64_t step;
    char error[WIRE_TEXT_MAX];
};

static int load(struct loader *l) {
    struct checkpoint *c = checkpoint_open(l->path);
    int rc = c ? start_point_check(c, l->seal) : -1;
    if (rc == 0) l->step = start_point_step(l->o.config, c);
    if (rc == 0) rc = key_rows_read(&l->rows, c, l->o.config, l->o.map);
    if (rc == 0) rc = state_file_read(&l->o, c);
    checkpoint_close(&c);
    return rc;
}

static void *loader_main(void *arg) {
    struct loader *l = arg;
    descriptors_apart();
    error_set_label("server %d", l->o.rank);
    error_quiet(1);  // the main thread speaks for the server
    int rc = load(l);
    if (rc != 0)
        snprintf(
            l->error, sizeof l->error,
            "cannot go on from a checkpoint: %.300s (every server reads it from the directory that the scheduler "
            "names: on many machines one that they share)",
            error_last());
    atomic_store(&l->state, rc ? LOADER_FAILED : LOADER_DONE);
    return NULL;
}

struct loader *loader_create(const struct state_read *o, const char *path, uint64_t seal) {
    struct loader *l = xcalloc(1, sizeof *l);
    l->o = *o;
    l->o.stop = &l->quit;
    l->path = xstrdup(path);
    l->seal = seal;
    l->started = pthread_create(&l->thread, NULL, loader_main, l) == 0;
    if (l->started) return l;
    fail("cannot start the thread that reads %s", path);
    loader_destroy(&l);
    return NULL;
}

enum loader_state loader_state(struct loader *l) { return (enum loader_state)atomic_load(&l->state); }
const struct key_rows *loader_rows(const struct loader *l) { return &l->rows; }
int64_t loader_step(const struct loader *l) { return l->step; }
const char *loader_error(const struct loader *l) { return l->error; }

void loader_stop(struct loader *l) {
    if (!l) return;
    atomic_store(&l->quit, 1);
    if (l->started) pthread_join(l->thread, NULL);
    l->started = false;
}

void loader_destroy(struct loader **at) {
    struct loader *l = *at;
    if (!l) return;
    loader_stop(l);
    key_rows_free(&l->rows);
    free(l->path);
    free(l);
    *at = NULL;
}
