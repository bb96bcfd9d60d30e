#include "ps/checkpoint/loader.h"

#include <stdio.h>
#include <stdlib.h>

#include "ps/checkpoint/start_point.h"
#include "shared/core/background.h"
#include "shared/core/error.h"

struct loader {
    struct state_read o;
    char *path;
    uint64_t seal;
    struct background *reader;
    struct key_rows rows;
    int64_t step;
};

static int load(void *loader) {
    struct loader *l = loader;
    error_quiet(QUIET_ALL);  // the main thread speaks for the server
    struct checkpoint *c = checkpoint_open(l->path);
    int rc = c ? start_point_check(c, l->seal) : -1;
    if (rc == 0) l->step = start_point_step(l->o.config, c);
    if (rc == 0) rc = key_rows_read(&l->rows, c, l->o.config, l->o.map);
    if (rc == 0) rc = state_file_read(&l->o, c);
    checkpoint_close(&c);
    if (rc == 0) return 0;
    char *why = xstrdup(error_last());
    fail(
        "cannot go on from a checkpoint: %.300s (every server reads it from the directory that the scheduler "
        "names: on many machines one that they share)",
        why);
    free(why);
    return -1;
}

struct loader *loader_create(const struct state_read *o, const char *path, uint64_t seal) {
    char label[32];
    struct loader *l = xcalloc(1, sizeof *l);
    snprintf(label, sizeof label, "server %d", o->rank);
    l->o = *o;
    l->path = xstrdup(path);
    l->seal = seal;
    if ((l->reader = background_create("reads the checkpoint", label))) {
        l->o.stop = background_flag(l->reader);
        background_ask(l->reader, load, l, NULL);
    } else {
        loader_destroy(&l);
    }
    return l;
}

enum loader_state loader_state(struct loader *l) {
    if (!background_done(l->reader, 1)) return LOADER_READS;
    return background_why(l->reader) ? LOADER_FAILED : LOADER_DONE;
}
const struct key_rows *loader_rows(const struct loader *l) { return &l->rows; }
int64_t loader_step(const struct loader *l) { return l->step; }
const char *loader_error(struct loader *l) { return background_why(l->reader); }

void loader_stop(struct loader *l) {
    if (!l || !l->reader) return;
    background_quit(l->reader);
    while (!background_wait(l->reader, 1, 1)) continue;
}

void loader_destroy(struct loader **at) {
    struct loader *l = *at;
    if (!l) return;
    loader_stop(l);
    background_destroy(&l->reader);
    key_rows_free(&l->rows);
    free(l->path);
    free(l);
    *at = NULL;
}
