#include "shared/evaluation/snapshots.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

#define STAGING_BYTES (4 << 20)

struct snapshot {
    struct snapshots *owner;
    struct snapshot *next;  // of those that are not finished
    struct snapshot_file *file;
    struct snapshot_info info;
    bool has_info;    // this rank writes the header
    int64_t version;  // that all keys are wanted at; -1: any
    bool finished;    // the mark is in the file, or it was given up
};

struct snapshots {
    struct snapshots_options o;
    const struct config *c;
    struct topology *t;  // gone before the last pieces are, maybe: what they need is kept here
    const struct layout *layout;
    bool on_arrival;  // t->plan.alone
    bool leads;       // rank 0
    struct device *dev;
    enum dtype dtype;
    char *dir;
    struct snapshots_gear own;  // where none was given
    struct stream *stream;
    struct event *ready, *written;
    double start_s, last_s;
    bool collected;  // the topology brings the weights
    struct arena arena;
    char *room;             // they gather there
    _Atomic bool taken;     // and are on their way into a file
    bool settled;           // the topology may be gone: it is asked for nothing more; guarded by mutex
    struct snapshot *open;  // newest first
    struct snapshot *last;  // of the end
    pthread_mutex_t mutex;  // of the list
    _Atomic bool warned;
};

// ---------------------------------------------------------------- files
static void give_up(struct snapshots *s, const char *why) {
    if (!atomic_exchange(&s->warned, true))
        warn("snapshot %s: it is left out, and training goes on; later failures are not reported", why);
}

static struct snapshot *open_snapshot(struct snapshots *s, const struct snapshot_info *info, int parts) {
    char *path = xasprintf("%s/step-%lld", s->dir, (long long)info->step), *why = NULL;
    struct snapshot_place place = {.path = path, .layout = s->layout, .dtype = s->dtype};
    struct snapshot_file *file = snapshot_file_create(&place, parts > 1 ? s->t->rank : 0, parts, &why);
    struct snapshot *one = NULL;
    if (file) {
        one = xcalloc(1, sizeof *one);
        *one =
            (struct snapshot){.owner = s, .file = file, .info = *info, .has_info = s->leads, .version = -1};
        pthread_mutex_lock(&s->mutex);
        one->next = s->open;
        s->open = one;
        pthread_mutex_unlock(&s->mutex);
    } else {
        give_up(s, why);
    }
    free(why);
    free(path);
    return one;
}

// On the snapshot stream's thread: behind all pieces.
static int finish_run(void *arg) {
    struct snapshot *one = arg;
    if (snapshot_file_finish(one->file, one->has_info ? &one->info : NULL))
        give_up(one->owner, snapshot_file_error(one->file));
    else
        one->finished = true;
    return 0;
}

// ---------------------------------------------------------------- pieces, on the snapshot stream's thread
struct piece {
    struct snapshot *one;
    int unit;
    struct weights_part part;
};

// From a device's own memory by way of the host's, a slice at a time.
static void write_from_device(const struct piece *p) {
    struct snapshots *s = p->one->owner;
    const struct weights_part *part = &p->part;
    size_t size = dtype_size(s->dtype);
    int64_t slice = (int64_t)(STAGING_BYTES / size);
    char *host = xcalloc(1, STAGING_BYTES);
    int rc = 0;
    for (int64_t at = part->begin; at < part->end && !rc; at += slice) {
        int64_t end = at + slice < part->end ? at + slice : part->end;
        dev_copy(s->stream, host, (const char *)part->weights + (size_t)(at - part->begin) * size,
                 (size_t)(end - at) * size);
        rc = stream_sync(s->stream);
        if (!rc) rc = snapshot_file_write(p->one->file, p->unit, at, end, host);
    }
    free(host);
}

// An error of the file stays with it: its finishing tells. What cannot be read for a snapshot cannot be for the next step.
static int piece_run(void *arg) {
    struct piece *p = arg;
    struct weights_part *part = &p->part;
    if (part->read) part->weights = part->read(part->ctx, p->unit);
    bool there = !part->read || part->weights;
    if (there && (part->read || dev_host_memory(p->one->owner->dev)))
        snapshot_file_write(p->one->file, p->unit, part->begin, part->end, part->weights);
    else if (there)
        write_from_device(p);
    free(p);
    return there ? 0 : -1;
}

// ---------------------------------------------------------------- by version, from the servers
static int64_t own_sequences(const struct config *c) { return c->micro_batch * c->accumulation; }

// The first multiple of eval_every that the servers have not reached yet. They answer when they have. On the snapshot
// stream's thread, but for the first time.
static void ask_ahead(struct snapshots *s, int64_t version) {
    int64_t per_step = s->c->train_batch / own_sequences(s->c);  // updates that make a global batch
    int64_t step = (version / per_step / s->c->eval_every + 1) * s->c->eval_every;
    struct snapshot_info info = {.step = step};
    struct snapshot *one = step < s->c->steps ? open_snapshot(s, &info, 1) : NULL;
    if (!one) return;
    one->version = step * per_step;
    pthread_mutex_lock(&s->mutex);
    if (!s->settled) topology_snapshot(s->t, one->version, one);
    pthread_mutex_unlock(&s->mutex);
}

static char *room_of(const struct snapshots *s, int u) {
    char *at = s->room;
    for (int i = 0; i < u; i++) at += (size_t)s->layout->units[i].n_pad * dtype_size(s->dtype);
    return at;
}

void *snapshot_room(const struct snapshot *one, int u, int64_t begin) {
    return room_of(one->owner, u) + (size_t)begin * dtype_size(one->owner->dtype);
}

bool snapshot_may_begin(const struct snapshot *one) { return !atomic_load(&one->owner->taken); }

// On the snapshot stream's thread.
static int write_collected(void *arg) {
    struct snapshot *one = arg;
    struct snapshots *s = one->owner;
    const struct layout *l = s->layout;
    for (int u = 0; u < l->count; u++) snapshot_file_write(one->file, u, 0, l->units[u].n_pad, room_of(s, u));
    finish_run(one);
    atomic_store(&s->taken, false);
    if (s->on_arrival && s->c->eval_every > 0) ask_ahead(s, one->info.updates);
    return 0;
}

void snapshot_collected(struct snapshot *one, int64_t least, int64_t most) {
    struct snapshots *s = one->owner;
    if (s->on_arrival) {
        one->info.updates = least;
        one->info.samples = least * own_sequences(s->c);
        one->info.seconds = now_seconds() - s->start_s;
    } else if (least != one->version || most != one->version) {
        char *why = xasprintf("%s: its weights are of versions %lld to %lld instead of %lld",
                              snapshot_file_path(one->file), (long long)least, (long long)most,
                              (long long)one->version);
        give_up(s, why);
        free(why);
        return;
    }
    atomic_store(&s->taken, true);
    stream_host(s->stream, "snapshot", write_collected, one);
}

// ---------------------------------------------------------------- the loop
// Removes what a start of the run that was killed has left without its end. That of the step that is gone on from is taken again.
static void remove_unfinished(const struct snapshots *s) {
    DIR *d = opendir(s->dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (strncmp(e->d_name, "step-", 5) != 0) continue;
        char *path = xasprintf("%s/%s", s->dir, e->d_name), *why = NULL;
        struct snapshot_info info;
        struct snapshot_place place = {.path = path, .layout = s->t->layout, .dtype = s->t->dtype};
        struct snapshot_file *file = snapshot_file_open(&place, &info, &why);
        if (!file && strtoll(e->d_name + 5, NULL, 10) != train_state_place(&s->t->start)) {
            warn("snapshot %s: it was being written when the run ended, and is left out", why);
            unlink(path);
        }
        snapshot_file_close(&file);
        free(path);
        free(why);
    }
    if (d) closedir(d);
}

void snapshots_begin(struct snapshots *s, double before_s) {
    if (!s) return;
    if (s->t->start.step > 0 && s->t->rank == 0) remove_unfinished(s);
    s->last_s = now_seconds();
    s->start_s = s->last_s - before_s;
    if (s->collected && s->t->plan.alone && s->t->rank == 0 && s->c->eval_every > 0)
        ask_ahead(s, s->t->plan.samples / own_sequences(s->c));
}

bool snapshots_wanted(const struct snapshots *s) {
    return s && s->t->rank == 0 && s->c->eval_every_seconds > 0 &&
           now_seconds() - s->last_s >= s->c->eval_every_seconds;
}

void snapshots_hold(struct snapshots *s) {
    if (s && s->written) stream_wait_event(s->t->compute, s->written);
}

// This rank's part, from where it lies: behind the updates that are on compute now.
static void take_part(struct snapshots *s, const struct snapshot_info *now) {
    struct snapshot *one = open_snapshot(s, now, s->t->size);
    if (!one) return;
    int count = s->t->layout->count;
    struct weights_part *parts = xcalloc((unsigned long)count, sizeof *parts);
    for (int u = 0; u < count; u++)
        topology_part(s->t, u, &parts[u]);  // may give compute something to wait for
    event_record(s->ready, s->t->compute);
    stream_wait_event(s->stream, s->ready);
    for (int u = 0; u < count; u++) {
        struct piece *p = xcalloc(1, sizeof *p);
        *p = (struct piece){one, u, parts[u]};
        stream_host(s->stream, "snapshot", piece_run, p);
    }
    free(parts);
    stream_host(s->stream, "snapshot", finish_run, one);
    event_record(s->written, s->stream);
}

void snapshots_step(struct snapshots *s, const struct snapshot_info *now, bool told) {
    if (!s || now->step >= s->c->steps) return;  // the last weights are written in their own way
    bool every = s->c->eval_every > 0 && now->step % s->c->eval_every == 0;
    if (!every && !told) return;
    s->last_s = now_seconds();
    if (!s->collected) take_part(s, now);
    if (!s->collected || s->t->rank != 0 || (s->t->plan.alone && !told)) return;
    struct snapshot *one = open_snapshot(s, now, 1);
    if (!one) return;
    if (!s->t->plan.alone) one->version = now->updates;
    topology_snapshot(s->t, s->t->plan.alone ? 0 : now->updates, one);
}

void snapshots_last_begin(struct snapshots *s, const struct snapshot_info *now) {
    if (s) s->last = open_snapshot(s, now, 1);
}

void snapshots_last_unit(struct snapshots *s, int u, const void *weights) {
    if (s && s->last) snapshot_file_write(s->last->file, u, 0, s->t->layout->units[u].n_pad, weights);
}

void snapshots_settle(struct snapshots *s) {
    if (!s) return;
    pthread_mutex_lock(&s->mutex);
    s->settled = true;
    pthread_mutex_unlock(&s->mutex);
    stream_sync(s->stream);
}

void snapshots_end(struct snapshots *s) {
    if (!s) return;
    if (s->last) finish_run(s->last);
    s->last = NULL;
    stream_sync(s->stream);
    pthread_mutex_lock(&s->mutex);
    for (struct snapshot *one = s->open, *next; one; one = next) {
        next = one->next;
        if (!one->finished) unlink(snapshot_file_path(one->file));
        snapshot_file_close(&one->file);
        free(one);
    }
    s->open = NULL;
    pthread_mutex_unlock(&s->mutex);
}

// ---------------------------------------------------------------- life
// One function that measures and carves.
static void *carve(struct arena *a, const struct config *c, const struct layout *l, int rank,
                   bool device_memory) {
    bool any = c->eval_batches != 0 && (c->eval_every > 0 || c->eval_every_seconds > 0);
    if (!any || rank != 0 || !config_ranks(c, "server")) return NULL;
    return arena_take(a, device_memory ? MEM_HOST : MEM_CHECKPOINT, (size_t)l->padded * dtype_size(c->dtype));
}

void snapshots_predict(const struct config *c, const struct layout *l, int rank, bool device_memory,
                       size_t bytes[MEM_CLASSES]) {
    struct arena a;
    arena_init(&a, NULL);
    carve(&a, c, l, rank, device_memory);
    for (int class = 0; class < MEM_CLASSES; class ++) bytes[class] += a.bytes[class];
}

int snapshots_gear_create(struct snapshots_gear *g, struct device *dev) {
    *g = (struct snapshots_gear){.stream = stream_create(dev, "snapshot")};
    if (g->stream) g->ready = event_create(dev);
    if (g->ready) g->written = event_create(dev);
    return g->written ? 0 : -1;
}

void snapshots_gear_destroy(struct snapshots_gear *g) {
    event_destroy(&g->ready);
    event_destroy(&g->written);
    if (g->stream) stream_destroy(&g->stream);
}

struct snapshots *snapshots_create(const struct snapshots_options *o) {
    const struct config *c = o->config;
    struct topology *t = o->topology;
    if (!o->dir || c->eval_batches == 0) return NULL;
    struct snapshots *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->c = c;
    s->t = t;
    s->dev = t->dev;
    s->dtype = t->dtype;
    s->collected = !t->ops->part;
    s->layout = t->layout;
    s->on_arrival = t->plan.alone;
    s->leads = t->rank == 0;
    s->dir = xasprintf("%s/snapshots", o->dir);
    pthread_mutex_init(&s->mutex, NULL);
    arena_init(&s->arena, t->dev);
    if (s->collected) s->room = carve(&s->arena, c, t->layout, t->rank, !dev_host_memory(t->dev));
    bool there = !s->arena.failed && (!mkdir(s->dir, 0777) || errno == EEXIST);
    if (!there)
        warn("%s: %s: nothing will be evaluated", s->dir,
             s->arena.failed ? dev_error(t->dev) : strerror(errno));
    const struct snapshots_gear *gear = o->gear;
    if (there && !gear && !snapshots_gear_create(&s->own, t->dev)) gear = &s->own;
    if (there && gear) {
        s->stream = gear->stream;
        s->ready = gear->ready;
        s->written = gear->written;
    }
    if (!s->stream) snapshots_destroy(&s);
    return s;
}

void snapshots_destroy(struct snapshots **at) {
    struct snapshots *s = *at;
    if (!s) return;
    if (s->stream) snapshots_end(s);
    snapshots_gear_destroy(&s->own);
    arena_release(&s->arena);
    pthread_mutex_destroy(&s->mutex);
    free(s->dir);
    free(s);
    *at = NULL;
}
