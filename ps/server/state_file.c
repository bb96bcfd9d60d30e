#include "ps/server/state_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/start_point.h"
#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "shared/core/background.h"
#include "shared/core/error.h"

#define SLICE (1 << 20)  // elements: whoever asks to stop waits for one

struct state_file {
    struct state_file_options o;
    int states;
    struct key_table *table;  // NULL: the keys are all equally far
    struct part_file *part;
    int ranges;  // written
};

int *state_file_keys(const struct shard_map *map, int rank, int *count) {
    int *keys = xcalloc((unsigned long)map->count + 1, sizeof *keys);
    *count = 0;
    for (int key = map->count - 1; key >= 0; key--)
        if (map->parts[key].shard / map->threads == rank) keys[(*count)++] = key;
    return keys;
}

static struct state_range *ranges_of(const struct state_file *f, const int *keys, int count) {
    struct state_range *r = xcalloc((unsigned long)count * (unsigned long)(1 + f->states) + 1, sizeof *r);
    int n = 0;
    for (int i = 0; i < count; i++) {
        const struct partition *p = &f->o.map->parts[keys[i]];
        for (int kind = STATE_MASTER; kind <= f->states; kind++)
            r[n++] = (struct state_range){.unit = p->unit, .kind = kind, .begin = p->begin, .end = p->end};
    }
    return r;
}

static void free_file(struct state_file **at) {
    key_table_destroy(&(*at)->table);
    free(*at);
    *at = NULL;
}

// Of the step of the run, which is a whole round's last one where there are rounds.
static char *partial_of(const struct state_file_options *o) {
    return checkpoint_partial(o->run_dir, CHECKPOINT_ALL, o->step * config_round(o->config), o->life);
}

struct state_file *state_file_create(const struct state_file_options *o, char **error) {
    struct state_file *f = xcalloc(1, sizeof *f);
    struct part_extra extra[KEY_TABLE_EXTRAS];
    char who[32];
    int count;
    int *keys = state_file_keys(o->map, o->rank, &count);
    f->o = *o;
    f->states = o->config->optimizer.row->states;
    if (consistency_of(o->config).row->on_arrival) f->table = key_table_create(o->map, count, o->config);
    if (f->table) key_table_extras(f->table, extra);
    snprintf(who, sizeof who, "server-%d", o->rank);
    char *dir = partial_of(o);
    struct state_range *ranges = ranges_of(f, keys, count);
    f->part = part_file_create(&(struct part_options){.dir = dir,
                                                      .participant = who,
                                                      .layout = o->layout,
                                                      .ranges = ranges,
                                                      .count = count * (1 + f->states),
                                                      .extra = f->table ? extra : NULL,
                                                      .extras = f->table ? KEY_TABLE_EXTRAS : 0},
                               error);
    free(ranges);
    free(dir);
    free(keys);
    if (!f->part) free_file(&f);
    return f;
}

static int write_range(struct state_file *f, const struct partition *p, const float *data,
                       const _Atomic int *stop) {
    int range = f->ranges++, rc = 0;
    for (int64_t at = p->begin; at < p->end && !rc; at += SLICE) {
        int64_t end = p->end - at < SLICE ? p->end : at + SLICE;
        if (stop && *stop) return -1;
        rc = part_file_write(f->part, range, at, end, data + (at - p->begin));
    }
    return rc;
}

int state_file_write(struct state_file *f, const struct key_counts *k, const struct server_buffers *buf,
                     const _Atomic int *stop) {
    const struct partition *p = &f->o.map->parts[k->key];
    if (f->table) key_table_add(f->table, k);
    int rc = write_range(f, p, buf->master, stop);
    for (int i = 0; i < f->states && !rc; i++) rc = write_range(f, p, buf->state[i], stop);
    return rc;
}

int64_t state_file_bytes(const struct state_file *f) { return part_file_bytes(f->part); }

int state_file_finish(struct state_file **f, char **error) {
    int rc = part_file_finish(&(*f)->part, error);
    free_file(f);
    return rc;
}

void state_file_discard(struct state_file **f, const char *why) {
    if (!*f) return;
    part_file_discard(&(*f)->part, why);
    free_file(f);
}

void state_file_refuse(const struct state_file_options *o, const char *why) {
    char who[32], *dir = partial_of(o);
    snprintf(who, sizeof who, "server-%d", o->rank);
    part_file_refuse(dir, who, why);
    free(dir);
}

// ---------------------------------------------------------------- reading
int state_file_read(const struct state_read *r, struct checkpoint *c, const _Atomic int *stop) {
    int count, rc = 0, *keys = state_file_keys(r->map, r->rank, &count);
    for (int i = 0; i < count && !rc; i++) {
        const struct partition *p = &r->map->parts[keys[i]];
        const struct server_buffers *buf = &r->buffers[keys[i]];
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
    free(keys);
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
    if (rc == 0) rc = state_file_read(&l->o, c, background_flag(l->reader));
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
