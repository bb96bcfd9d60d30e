#include "ps/server/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/start_point.h"
#include "shared/core/background.h"
#include "shared/core/error.h"

#define SLICE (1 << 20)  // elements: whoever asks to stop waits for one

// In the order of a keeper's file: from its beginning to its end.
int loader_read(const struct state_read *r, struct checkpoint *c, const _Atomic int *stop) {
    int rc = 0;
    for (int key = r->map->count - 1; key >= 0 && !rc; key--) {
        const struct partition *p = &r->map->parts[key];
        const struct server_buffers *buf = &r->buffers[key];
        if (p->shard / r->map->threads != r->rank) continue;
        for (int kind = STATE_MASTER; kind <= r->config->optimizer.row->states && !rc; kind++) {
            float *out = kind == STATE_MASTER ? buf->master : buf->state[kind - STATE_OPTIMIZER];
            for (int64_t at = p->begin; at < p->end && !rc; at += SLICE) {
                int64_t end = p->end - at < SLICE ? p->end : at + SLICE;
                rc = stop && *stop
                         ? fail("interrupted while it read %s", checkpoint_path(c))
                         : checkpoint_read(c, r->layout, p->unit, kind, at, end, out + (at - p->begin));
            }
        }
    }
    return rc;
}

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
    if (rc == 0) rc = loader_read(&l->o, c, background_flag(l->reader));
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
    if ((l->reader = background_create("reads the checkpoint", label)))
        background_ask(l->reader, load, l, NULL);
    else
        loader_destroy(&l);
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
