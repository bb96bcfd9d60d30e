#include "shared/train/saver.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/state/checkpoint.h"
#include "shared/state/part_file.h"

#define STAGING_BYTES (4 << 20)
#define STALL_LEAST_S 10.0  // without a byte of any participant, until a checkpoint is given up
#define NOTICEABLE_S  1e-3  // of waiting

struct saver {
    struct saver_options o;
    const struct config *c;
    struct topology *t;
    struct device *dev;
    struct saver_gear own;  // where none was given
    const struct saver_gear *gear;
    char participant[32];
    struct state_range *ranges;  // of this rank, where they lie
    int count;
    size_t bytes;
    const char **participants;  // worker 0: of the run
    int participant_count;
    cJSON *identity;  // worker 0: of the manifest
    bool held;        // the next updates have not been told to wait yet
    double hold_begin_s;
    _Atomic int quit;
    struct checkpoint_report report;  // the stream's threads write it
};

// One checkpoint on its way.
struct save {
    struct saver *s;
    struct train_state state;
    int64_t own_number;
    char *why;  // there is no file of this rank; NULL: there is
};

// ---------------------------------------------------------------- what it costs
static void slowed(struct saver *s, double seconds) {
    if (seconds < NOTICEABLE_S) return;
    s->report.slowed++;
    s->report.slowed_seconds += seconds;
    s->report.slowed_most = fmax(s->report.slowed_most, seconds);
}

static int hold_begins(void *arg) {
    ((struct saver *)arg)->hold_begin_s = now_seconds();
    return 0;
}

static int hold_ends(void *arg) {
    struct saver *s = arg;
    slowed(s, now_seconds() - s->hold_begin_s);
    return 0;
}

// ---------------------------------------------------------------- a rank's file, on the checkpoint stream's thread
static size_t bytes_of(const struct state_range *r) { return (size_t)(r->end - r->begin) * sizeof(float); }

// From a device's own memory, a slice at a time.
static int write_slices(struct saver *s, struct part_file *f, int range) {
    const struct state_range *r = &s->ranges[range];
    int64_t slice = STAGING_BYTES / (int64_t)sizeof(float);
    int rc = 0;
    for (int64_t at = r->begin; at < r->end && !rc; at += slice) {
        int64_t end = at + slice < r->end ? at + slice : r->end;
        dev_copy(s->gear->stream, s->gear->staging, r->data + (at - r->begin),
                 (size_t)(end - at) * sizeof(float));
        rc = stream_sync(s->gear->stream) || part_file_write(f, range, at, end, s->gear->staging) ? -1 : 0;
    }
    return rc;
}

static void write_ranges(struct saver *s, struct part_file *f) {
    const float *copy = s->gear->copy;
    int rc = 0;
    for (int i = 0; i < s->count && !rc; i++) {
        const struct state_range *r = &s->ranges[i];
        if (s->gear->staging && !r->read) {
            rc = write_slices(s, f, i);
        } else {
            const float *data = copy ? copy : r->read ? r->read(r->ctx, r) : r->data;
            rc = data ? part_file_write(f, i, r->begin, r->end, data) : -1;
        }
        if (copy) copy += r->end - r->begin;
    }
}

static char *write_file(const struct save *v) {
    struct saver *s = v->s;
    const struct part_extra number = {s->t->own_number.name, &v->own_number, 1};
    char *why = NULL, *dir = checkpoint_partial(s->o.dir, v->state.step, s->o.life);
    double start_s = now_seconds();
    struct part_file *f = part_file_create(&(struct part_options){.dir = dir,
                                                                  .participant = s->participant,
                                                                  .layout = s->t->layout,
                                                                  .ranges = s->ranges,
                                                                  .count = s->count,
                                                                  .extra = &number,
                                                                  .extras = number.name && s->count > 0},
                                           &why);
    free(dir);
    if (!f) return why;
    double bytes = (double)part_file_bytes(f);
    write_ranges(s, f);
    if (part_file_finish(&f, &why)) return why;
    s->report.bytes += bytes;
    s->report.seconds_writing += now_seconds() - start_s;
    return NULL;
}

static int write_run(void *arg) {
    struct save *v = arg;
    v->why = write_file(v);
    if (v->why)
        v->s->report.failed++;  // worker 0 says it
    else
        v->s->report.written++;
    return 0;
}

// ---------------------------------------------------------------- the checkpoint, on worker 0
// Its own file's failure is known here also where no word of it could be left.
static void say_failed(const struct save *v, const char *why) {
    snprintf(v->s->report.why, sizeof v->s->report.why, "%s", v->why ? v->why : why);
    long long step = v->state.step, kept = checkpoint_latest_step(v->s->o.dir);
    if (!v->why)
        warn("%s; training goes on", why);
    else if (kept >= 0)
        warn("the checkpoint of step %lld was given up: %s; step-%lld is kept; training goes on", step,
             v->why, kept);
    else
        warn("the checkpoint of step %lld was given up: %s; no earlier one is there; training goes on", step,
             v->why);
}

static int complete_run(void *arg) {
    struct save *v = arg;
    struct saver *s = v->s;
    const struct config *c = s->c;
    _Atomic int own_failed = 1;
    char *why = NULL;
    struct checkpoint_commit commit = {.run_dir = s->o.dir,
                                       .life = s->o.life,
                                       .participants = s->participants,
                                       .count = s->participant_count,
                                       .train = &v->state,
                                       .identity = s->identity,
                                       .dtype = dtype_name(c->dtype),
                                       .optimizer = c->optimizer.row->name,
                                       .states = c->optimizer.row->states,
                                       .stall_seconds = fmax(STALL_LEAST_S, 1e-3 * (double)c->deadline_ms)};
    if (!checkpoint_complete(&commit, v->why ? &own_failed : &s->quit, &why)) {
        checkpoint_rotate(s->o.dir, (int)c->recovery.checkpoint_keep,
                          c->recovery.checkpoint_keep_every * c->recovery.checkpoint_every);
    } else {
        say_failed(v, why);
        s->report.written -= v->why ? 0 : 1;
        s->report.failed += v->why ? 0 : 1;
    }
    free(why);
    return 0;
}

static int forget_run(void *arg) {
    struct save *v = arg;
    free(v->why);
    free(v);
    return 0;
}

// ---------------------------------------------------------------- the loop
bool saver_due(const struct saver *s, int64_t step, bool leaving) {
    bool ends = s && !s->t->plan.alone && (leaving || step + 1 == s->c->steps);
    return ends || (s && (step + 1) % s->c->recovery.checkpoint_every == 0);
}

void saver_gate(struct saver *s) {
    if (!s || s->t->rank != 0) return;
    double start_s = now_seconds();
    stream_sync(s->gear->stream);
    slowed(s, now_seconds() - start_s);
}

void saver_hold(struct saver *s) {
    if (!s || !s->held) return;
    s->held = false;
    stream_host(s->t->compute, "checkpoint", hold_begins, s);
    stream_wait_event(s->t->compute, s->gear->free);
    stream_host(s->t->compute, "checkpoint", hold_ends, s);
}

// Of ranges that are not in memory, on the checkpoint stream's thread.
static int read_aside(void *arg) {
    struct saver *s = arg;
    float *to = s->gear->copy;
    for (int i = 0; i < s->count; to += s->ranges[i].end - s->ranges[i].begin, i++) {
        const struct state_range *r = &s->ranges[i];
        const float *data = r->read ? r->read(r->ctx, r) : NULL;
        if (r->read && !data) return -1;
        if (data) memcpy(to, data, bytes_of(r));
    }
    return 0;
}

static void copy_aside(struct saver *s) {
    float *to = s->gear->copy;
    for (int i = 0; i < s->count; to += s->ranges[i].end - s->ranges[i].begin, i++)
        if (!s->ranges[i].read) dev_copy(s->gear->stream, to, s->ranges[i].data, bytes_of(&s->ranges[i]));
    stream_host(s->gear->stream, "checkpoint", read_aside, s);
}

void saver_keep(struct saver *s, const struct train_state *now) {
    if (!s) return;
    const struct saver_gear *g = s->gear;
    struct save *v = xcalloc(1, sizeof *v);
    *v = (struct save){.s = s, .state = *now, .own_number = s->t->own_number.value};
    event_record(g->ready, s->t->compute);
    stream_wait_event(g->stream, g->ready);
    if (g->copy) {
        copy_aside(s);
        event_record(g->free, g->stream);
    }
    stream_host(g->stream, "checkpoint", write_run, v);
    if (!g->copy) event_record(g->free, g->stream);
    if (s->t->rank == 0) stream_host(g->stream, "checkpoint", complete_run, v);
    stream_host(g->stream, "checkpoint", forget_run, v);
    s->held = s->count > 0;
}

void saver_quit(struct saver *s) {
    if (s) atomic_store(&s->quit, 1);
}

void saver_settle(struct saver *s) {
    if (s) stream_sync(s->gear->stream);
}

size_t saver_state_bytes(const struct saver *s) { return s ? s->bytes : 0; }

struct checkpoint_report saver_report(const struct saver *s) {
    return s ? s->report : (struct checkpoint_report){0};
}

// ---------------------------------------------------------------- gear
// One function that measures and carves.
static void carve(struct saver_gear *g, const struct config *c, size_t state_bytes, bool device_memory) {
    enum mem_class class = device_memory ? MEM_HOST : MEM_CHECKPOINT;
    bool aside = c->recovery.checkpoint_background;
    if (c->recovery.checkpoint_every <= 0 || !state_bytes) return;
    g->copy = aside ? arena_take(&g->arena, class, state_bytes) : NULL;
    g->staging = !aside && device_memory ? arena_take(&g->arena, MEM_HOST, STAGING_BYTES) : NULL;
}

void saver_predict(const struct config *c, size_t state_bytes, bool device_memory,
                   size_t bytes[MEM_CLASSES]) {
    struct saver_gear g = {0};
    arena_init(&g.arena, NULL);
    carve(&g, c, state_bytes, device_memory);
    for (int class = 0; class < MEM_CLASSES; class ++) bytes[class] += g.arena.bytes[class];
}

int saver_gear_create(struct saver_gear *g, const struct config *c, size_t state_bytes, struct device *dev) {
    *g = (struct saver_gear){0};
    if (c->recovery.checkpoint_every <= 0) return 0;
    arena_init(&g->arena, dev);
    carve(g, c, state_bytes, !dev_host_memory(dev));
    g->stream = stream_create(dev, "checkpoint");
    if (g->stream) g->ready = event_create(dev);
    if (g->ready) g->free = event_create(dev);
    return g->free && !g->arena.failed ? 0 : -1;
}

void saver_gear_destroy(struct saver_gear *g) {
    event_destroy(&g->ready);
    event_destroy(&g->free);
    if (g->stream) stream_destroy(&g->stream);
    arena_release(&g->arena);
}

// ---------------------------------------------------------------- life
static void list_ranges(struct saver *s) {
    struct state_range r;
    while (!topology_state(s->t, s->count, &r)) s->count++;
    s->ranges = xcalloc((size_t)s->count + 1, sizeof *s->ranges);
    for (int i = 0; i < s->count; i++) {
        topology_state(s->t, i, &s->ranges[i]);
        s->bytes += bytes_of(&s->ranges[i]);
    }
}

// Every rank that holds state, or has some of its own, leaves a file, and worker 0.
static void list_participants(struct saver *s) {
    int workers = !s->t->elsewhere || s->count > 0 ? s->t->size : 1;
    int servers = s->t->elsewhere ? config_ranks(s->c, "server") : 0;
    s->participant_count = workers + servers;
    s->participants = xcalloc((size_t)s->participant_count, sizeof *s->participants);
    for (int i = 0; i < workers; i++) s->participants[i] = xasprintf("worker-%d", i);
    for (int i = 0; i < servers; i++) s->participants[workers + i] = xasprintf("server-%d", i);
}

struct saver *saver_create(const struct saver_options *o) {
    struct topology *t = o->topology;
    struct state_range r;
    bool writes = !t->elsewhere || t->rank == 0 || !topology_state(t, 0, &r);
    if (!o->dir || o->config->recovery.checkpoint_every <= 0 || !writes) return NULL;
    struct saver *s = xcalloc(1, sizeof *s);
    *s = (struct saver){.o = *o, .c = o->config, .t = t, .dev = t->dev, .gear = o->gear};
    snprintf(s->participant, sizeof s->participant, "worker-%d", t->rank);
    list_ranges(s);
    if (t->rank == 0) {
        list_participants(s);
        s->identity = identity_json(o->identity);
        checkpoint_sweep(o->dir, o->life);
    }
    if (!s->gear && !saver_gear_create(&s->own, o->config, s->bytes, t->dev)) s->gear = &s->own;
    if (s->gear) return s;
    warn("no checkpoints will be written: %s", dev_error(t->dev));
    saver_destroy(&s);
    return NULL;
}

void saver_destroy(struct saver **at) {
    struct saver *s = *at;
    if (!s) return;
    saver_settle(s->gear ? s : NULL);
    saver_gear_destroy(&s->own);
    for (int i = 0; i < s->participant_count; i++) free((char *)s->participants[i]);
    free(s->participants);
    cJSON_Delete(s->identity);
    free(s->ranges);
    free(s);
    *at = NULL;
}
