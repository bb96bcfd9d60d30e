#include "shared/train/saver.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/state/part_file.h"

#define STAGING_BYTES (4 << 20)
#define STALL_LEAST_S 10.0  // a checkpoint is given up after so long without progress by any participant
#define NOTICEABLE_S  1e-3  // shorter waits are not counted

static const char *const kind_names[CHECKPOINT_KINDS] = {"checkpoint", "snapshot"};

// A snapshot that the topology collects.
struct snapshot {
    struct saver *owner;
    struct snapshot *next;
    struct train_state state;
    double seconds;
    int64_t version;  // version that all keys must have; -1: any
    bool reached;     // requested ahead: the rank has reached the version; `state` and `seconds` are set
    bool collected;   // for a request made ahead: the weights are already in the buffer
};

struct saver {
    struct saver_options o;
    const struct config *c;
    struct topology *t;
    const struct layout *layout;
    struct device *dev;
    enum dtype dtype;
    struct saver_buffers own_buffers;  // used if the options have no buffers
    const struct saver_buffers *buffers;
    char participant[32];
    size_t bytes;  // bytes of this rank's state
    struct {
        bool part;    // this rank writes a file of this kind
        bool in_use;  // a file is being written: saver_delay_updates must let the next updates wait
        const char **participants;  // worker 0: the participants of the run
        int count;
    } of[CHECKPOINT_KINDS];
    cJSON *identity;  // worker 0: the manifest's description of the run
    double delay_begin_s;
    _Atomic int quit;

    // Snapshots.
    double last_s;
    _Atomic bool warned;
    struct part_file *final;  // file of the last weights, NULL: none
    int final_units;
    struct train_state final_state;
    // Set if the topology collects the snapshot's weights itself:
    bool collected, on_arrival;
    struct arena arena;
    char *buffer;
    _Atomic bool writing;             // the buffer's weights are being written to a file
    pthread_mutex_t mutex;            // guards the fields below
    struct checkpoint_report report;  // written by the loop and by the threads of compute and of both streams
    double start_s;  // start of the first step, less the time of earlier starts; INFINITY: not started
    bool finished;   // the topology may be destroyed: it gets no more requests
    // Seconds of training at the newest snapshot, or at the last weights, after which no snapshot follows.
    double last_seconds;
    bool final_begun;
    struct snapshot *requests;
    struct snapshot *awaited;  // requested ahead; this rank has not reached its version yet
};

// One checkpoint or snapshot that is being written.
struct save {
    struct saver *s;
    enum checkpoint_kind kind;
    struct train_state state;
    double seconds;              // of training until then
    struct state_range *ranges;  // of this rank, where they are in memory
    int count;
    int64_t own_number;
    double start_s;
    bool only_file;  // no other rank writes a file for it
    struct part_file *file;
    char *why;  // why this rank has no file; NULL: it has one
};

// ---------------------------------------------------------------- the cost in time
static void count_slowdown(struct saver *s, double seconds) {
    if (seconds < NOTICEABLE_S) return;
    pthread_mutex_lock(&s->mutex);
    s->report.slowed++;
    s->report.slowed_seconds += seconds;
    s->report.slowed_most = fmax(s->report.slowed_most, seconds);
    pthread_mutex_unlock(&s->mutex);
}

static int delay_begins(void *arg) {
    ((struct saver *)arg)->delay_begin_s = now_seconds();
    return 0;
}

static int delay_ends(void *arg) {
    struct saver *s = arg;
    count_slowdown(s, now_seconds() - s->delay_begin_s);
    return 0;
}

// ---------------------------------------------------------------- a rank's file, on the stream's thread
static size_t bytes_of(const struct state_range *r) { return (size_t)(r->end - r->begin) * sizeof(float); }

// Writes from a device's own memory, one slice at a time.
static int write_slices(struct save *v, int range, char *staging) {
    const struct saver *s = v->s;
    const struct state_range *r = &v->ranges[range];
    struct stream *stream = s->buffers->of[v->kind].stream;
    size_t size = dtype_size(v->kind == CHECKPOINT_WEIGHTS ? s->dtype : DT_F32);
    int64_t slice = (int64_t)(STAGING_BYTES / size);
    int rc = 0;
    for (int64_t at = r->begin; at < r->end && !rc; at += slice) {
        int64_t end = at + slice < r->end ? at + slice : r->end;
        dev_copy(stream, staging, (const char *)r->data + (size_t)(at - r->begin) * size,
                 (size_t)(end - at) * size);
        rc = stream_sync(stream) || part_file_write(v->file, range, at, end, staging) ? -1 : 0;
    }
    return rc;
}

// Writes everything but the end of the file. Afterwards the values may change.
static int write_values(void *arg) {
    struct save *v = arg;
    struct saver *s = v->s;
    const float *copy = v->kind == CHECKPOINT_ALL ? s->buffers->copy : NULL;
    const struct part_extra number = {s->t->own_number.name, &v->own_number, 1};
    char *dir = checkpoint_partial(s->o.dir, v->kind, v->state.step, s->o.start_number), *staging = NULL;
    v->start_s = now_seconds();
    v->file = part_file_create(
        &(struct part_options){.dir = dir,
                               .participant = s->participant,
                               .layout = s->layout,
                               .dtype = s->dtype,
                               .ranges = v->ranges,
                               .count = v->count,
                               .extra = &number,
                               .extras = v->kind == CHECKPOINT_ALL && number.name && v->count > 0},
        &v->why);
    free(dir);
    int rc = v->file ? 0 : -1;
    for (int i = 0; i < v->count && !rc; i++) {
        const struct state_range *r = &v->ranges[i];
        if (!copy && !r->read && !dev_host_memory(s->dev)) {
            if (!staging)
                staging = s->buffers->staging ? (char *)s->buffers->staging : xcalloc(1, STAGING_BYTES);
            rc = write_slices(v, i, staging);
            continue;
        }
        const void *data = copy ? copy : r->read ? r->read(r->ctx, r) : r->data;
        rc = data ? part_file_write(v->file, i, r->begin, r->end, data) : -1;
        if (copy) copy += r->end - r->begin;
    }
    if (staging != (char *)s->buffers->staging) free(staging);
    return 0;
}

static int finish_file(void *arg) {
    struct save *v = arg;
    struct checkpoint_report *r = &v->s->report;
    double bytes = v->file ? (double)part_file_bytes(v->file) : 0;
    if (v->file) part_file_finish(&v->file, &v->why);
    if (v->kind != CHECKPOINT_ALL) return 0;
    pthread_mutex_lock(&v->s->mutex);
    r->failed += v->why != NULL;  // worker 0 reports it
    r->written += !v->why;
    r->bytes += v->why ? 0 : bytes;
    r->seconds_writing += v->why ? 0 : now_seconds() - v->start_s;
    pthread_mutex_unlock(&v->s->mutex);
    return 0;
}

// ---------------------------------------------------------------- the checkpoint, on worker 0
// why: a sentence. Only the first snapshot that fails is reported.
static void report_failure(struct saver *s, enum checkpoint_kind kind, const char *why) {
    if (kind == CHECKPOINT_ALL)
        warn("%s; training continues", why);
    else if (!s->warned)
        warn("%s; training continues; later failures are not reported", why);
    s->warned |= kind == CHECKPOINT_WEIGHTS;
}

static int commit(void *arg) {
    struct save *v = arg;
    struct saver *s = v->s;
    bool all = v->kind == CHECKPOINT_ALL;
    const char *const own[] = {s->participant};
    char *why = NULL;
    struct checkpoint_commit c = {.run_dir = s->o.dir,
                                  .kind = v->kind,
                                  .seconds = v->seconds,
                                  .start_number = s->o.start_number,
                                  .participants = v->only_file ? own : s->of[v->kind].participants,
                                  .count = v->only_file ? 1 : s->of[v->kind].count,
                                  .train = &v->state,
                                  .identity = s->identity,
                                  .dtype = dtype_name(s->dtype),
                                  .optimizer = all ? config_kept_optimizer(s->c)->row->name : "",
                                  .states = all ? config_kept_optimizer(s->c)->row->states : 0,
                                  .failed = v->why,
                                  .stall_seconds = fmax(STALL_LEAST_S, 1e-3 * (double)s->c->deadline_ms)};
    if (checkpoint_complete(&c, &s->quit, &why)) {
        report_failure(s, v->kind, why);
        pthread_mutex_lock(&s->mutex);
        if (all) snprintf(s->report.why, sizeof s->report.why, "%s", v->why ? v->why : why);
        s->report.written -= all && !v->why;
        s->report.failed += all && !v->why;
        pthread_mutex_unlock(&s->mutex);
    } else if (all) {
        checkpoint_rotate(s->o.dir, (int)s->c->recovery.checkpoint_keep,
                          s->c->recovery.checkpoint_keep_every * s->c->recovery.checkpoint_every);
    }
    free(why);
    return 0;
}

static int free_save(void *arg) {
    struct save *v = arg;
    free(v->ranges);
    free(v->why);
    free(v);
    return 0;
}

// ---------------------------------------------------------------- keeping this rank's values
static int range_of(struct topology *t, enum checkpoint_kind kind, int index, struct state_range *out) {
    if (kind == CHECKPOINT_ALL) return topology_state(t, index, out);
    return t->ops->weights ? t->ops->weights(t, index, out) : -1;
}

static struct save *save_create(struct saver *s, enum checkpoint_kind kind, const struct train_state *now,
                                double seconds) {
    struct save *v = xcalloc(1, sizeof *v);
    *v = (struct save){.s = s, .kind = kind, .state = *now, .seconds = seconds};
    return v;
}

// Copies the ranges that are not in memory, on the checkpoint stream's thread.
static int copy_offloaded(void *arg) {
    const struct save *v = arg;
    float *to = v->s->buffers->copy;
    for (int i = 0; i < v->count; to += v->ranges[i].end - v->ranges[i].begin, i++) {
        const struct state_range *r = &v->ranges[i];
        const float *data = r->read ? r->read(r->ctx, r) : NULL;
        if (r->read && !data) return -1;
        if (data) memcpy(to, data, bytes_of(r));
    }
    return 0;
}

// Writes the values from their memory, after the updates that are already enqueued on compute.
static void write_state(struct saver *s, struct save *v) {
    const char *name = kind_names[v->kind];
    struct stream *stream = s->buffers->of[v->kind].stream;
    struct event *ready = s->buffers->of[v->kind].ready, *free = s->buffers->of[v->kind].free;
    float *copy = v->kind == CHECKPOINT_ALL ? s->buffers->copy : NULL;
    struct state_range r;
    v->own_number = s->t->own_number.value;
    while (!range_of(s->t, v->kind, v->count, &r)) {
        v->ranges = xrealloc(v->ranges, (unsigned long)(v->count + 1) * sizeof r);
        v->ranges[v->count++] = r;
    }
    event_record(ready, s->t->compute);
    stream_wait_event(stream, ready);
    if (copy) {
        for (int i = 0; i < v->count; copy += v->ranges[i].end - v->ranges[i].begin, i++)
            if (!v->ranges[i].read) dev_copy(stream, copy, v->ranges[i].data, bytes_of(&v->ranges[i]));
        stream_host(stream, name, copy_offloaded, v);
        event_record(free, stream);
    }
    stream_host(stream, name, write_values, v);
    if (!copy) event_record(free, stream);
    s->of[v->kind].in_use = v->count > 0;
    stream_host(stream, name, finish_file, v);
    if (s->t->rank == 0) stream_host(stream, name, commit, v);
    stream_host(stream, name, free_save, v);
}

// ---------------------------------------------------------------- the loop: checkpoints
static bool writes(const struct saver *s, enum checkpoint_kind kind) { return s && s->of[kind].part; }

bool saver_is_checkpoint_due(const struct saver *s, int64_t step, bool stopping) {
    if (!writes(s, CHECKPOINT_ALL) || s->t->plan.not_resumable) return false;
    bool ends = !s->t->plan.independent && (stopping || step + 1 == s->c->steps);
    return ends || (step + 1) % s->c->recovery.checkpoint_every == 0;
}

void saver_wait_previous(struct saver *s) {
    if (!writes(s, CHECKPOINT_ALL) || s->t->rank != 0) return;
    double start_s = now_seconds();
    stream_sync(s->buffers->of[CHECKPOINT_ALL].stream);
    count_slowdown(s, now_seconds() - start_s);
}

void saver_delay_updates(struct saver *s) {
    for (int kind = 0; s && kind < CHECKPOINT_KINDS; kind++) {
        bool measured = kind == CHECKPOINT_ALL;
        if (!s->of[kind].in_use) continue;
        s->of[kind].in_use = false;
        if (measured) stream_host(s->t->compute, kind_names[kind], delay_begins, s);
        stream_wait_event(s->t->compute, s->buffers->of[kind].free);
        if (measured) stream_host(s->t->compute, kind_names[kind], delay_ends, s);
    }
}

void saver_write_checkpoint(struct saver *s, const struct train_state *now) {
    if (writes(s, CHECKPOINT_ALL)) write_state(s, save_create(s, CHECKPOINT_ALL, now, 0));
}

// ---------------------------------------------------------------- snapshots by version, from the servers
static struct snapshot *snapshot_create(struct saver *s, const struct train_state *state, double seconds,
                                        int64_t version) {
    struct snapshot *one = xcalloc(1, sizeof *one);
    *one = (struct snapshot){
        .owner = s, .next = s->requests, .state = *state, .seconds = seconds, .version = version};
    return s->requests = one;
}

// Asks for the first multiple of eval_every that the servers have not reached yet. They answer when they reach it.
// Runs on the snapshot stream's thread, except the first time.
static void request_next_version(struct saver *s, int64_t version) {
    int64_t per_step = s->c->train_batch / config_own_sequences(s->c);  // pushes that make a global batch
    struct train_state state = {.step = (version / per_step / s->c->eval_every + 1) * s->c->eval_every};
    if (state.step >= s->c->steps) return;
    pthread_mutex_lock(&s->mutex);
    if (!s->finished) {
        struct snapshot *one = snapshot_create(s, &state, 0, state.step * per_step);
        topology_snapshot(s->t, one->version, one);
    }
    pthread_mutex_unlock(&s->mutex);
}

static char *buffer_of(const struct saver *s, int u) {
    char *at = s->buffer;
    for (int i = 0; i < u; i++) at += (size_t)s->layout->units[i].n_pad * dtype_size(s->dtype);
    return at;
}

void *snapshot_address(const struct snapshot *one, int u, int64_t begin) {
    return buffer_of(one->owner, u) + (size_t)begin * dtype_size(one->owner->dtype);
}

bool snapshot_can_begin(const struct snapshot *one) { return !atomic_load(&one->owner->writing); }

static struct state_range *whole_units(const struct saver *s) {
    struct state_range *r = xcalloc((unsigned long)s->layout->count, sizeof *r);
    for (int u = 0; u < s->layout->count; u++)
        r[u] = (struct state_range){.unit = u, .kind = STATE_WEIGHTS, .end = s->layout->units[u].n_pad};
    return r;
}

// Runs on the snapshot stream's thread. The buffer is host memory, or host memory that the device can read too.
static const void *read_buffer(void *saver, const struct state_range *r) { return buffer_of(saver, r->unit); }

// Where steps go on without this rank, keys may be newer than this rank's step when it reaches one. So the rank
// asks for a version before any key has it, and adds the step and time when it reaches that version itself. There
// is one buffer: if this rank is late by more steps than lie between two snapshots, some snapshots are given up.
static void request_version(struct saver *s, int64_t version) {
    pthread_mutex_lock(&s->mutex);
    struct snapshot *one = s->awaited = snapshot_create(s, &(struct train_state){0}, 0, version);
    pthread_mutex_unlock(&s->mutex);
    topology_snapshot(s->t, version, one);
}

static int write_collected(void *arg) {
    const struct snapshot *one = arg;
    struct saver *s = one->owner;
    struct save *v = save_create(s, CHECKPOINT_WEIGHTS, &one->state, one->seconds);
    v->ranges = whole_units(s);
    v->count = s->layout->count;
    for (int u = 0; u < v->count; u++) {
        v->ranges[u].read = read_buffer;
        v->ranges[u].ctx = s;
    }
    write_values(v);
    finish_file(v);
    commit(v);
    free_save(v);
    atomic_store(&s->writing, false);
    if (s->on_arrival && s->c->eval_every > 0) request_next_version(s, one->version);
    return 0;
}

void snapshot_collected(struct snapshot *one, int64_t least, int64_t most, int64_t updates) {
    struct saver *s = one->owner;
    if (s->on_arrival) {
        one->version = least;
        one->state.updates = updates;
        one->state.samples = least * config_own_sequences(s->c);
        pthread_mutex_lock(&s->mutex);
        one->seconds = fmax(now_seconds() - s->start_s, s->last_seconds);
        if (s->final_begun) one->seconds = fmin(one->seconds, s->last_seconds);
        s->last_seconds = fmax(one->seconds, s->last_seconds);
        pthread_mutex_unlock(&s->mutex);
    } else if (least != one->version || most != one->version) {
        warn("the snapshot of update %lld was given up: its weights are of versions %lld to %lld instead",
             (long long)one->version, (long long)least, (long long)most);
        return;
    }
    atomic_store(&s->writing, true);
    pthread_mutex_lock(&s->mutex);
    one->collected = true;
    bool waits = s->t->plan.may_miss_steps && !one->reached;
    pthread_mutex_unlock(&s->mutex);
    if (!waits) stream_host(s->buffers->of[CHECKPOINT_WEIGHTS].stream, "snapshot", write_collected, one);
}

// This rank has ended a step for which a snapshot may have been requested: asks for the next one.
static void reach_version(struct saver *s, const struct train_state *now, double seconds, bool requested) {
    struct snapshot *one = s->awaited;
    int64_t every = s->c->eval_every;
    bool reached = one && now->updates >= one->version;
    if (reached) {
        pthread_mutex_lock(&s->mutex);
        one->state = *now;
        one->seconds = seconds;
        one->reached = true;
        bool collected = one->collected;
        pthread_mutex_unlock(&s->mutex);
        if (collected)
            stream_host(s->buffers->of[CHECKPOINT_WEIGHTS].stream, "snapshot", write_collected, one);
        s->last_s = now_seconds();
        s->awaited = NULL;
    }
    int64_t left = every > 0 ? every - now->step % every : 2;  // 2: the first version that no rank has yet
    bool more = every > 0 ? reached : requested && !s->awaited;
    if (more && now->step + left < s->c->steps) request_version(s, now->updates + left);
}

// ---------------------------------------------------------------- the loop: snapshots
void saver_request_first(struct saver *s, double before_s) {
    if (!writes(s, CHECKPOINT_WEIGHTS)) return;
    s->last_seconds = before_s;
    s->start_s = INFINITY;
    if (s->collected && s->on_arrival && s->c->eval_every > 0)
        request_next_version(s, s->t->plan.samples / config_own_sequences(s->c));
    const struct train_state *from = &s->t->start;
    int64_t every = s->c->eval_every, left = every > 0 ? (every - from->step % every) % every : 0;
    if (s->collected && s->t->plan.may_miss_steps && every > 0)
        request_version(s, from->updates + (left || from->step ? left : every));
}

void saver_start(struct saver *s, double before_s) {
    if (!writes(s, CHECKPOINT_WEIGHTS)) return;
    s->last_s = now_seconds();
    pthread_mutex_lock(&s->mutex);  // an earlier request's weights may already be in the buffer
    s->start_s = s->last_s - before_s;
    pthread_mutex_unlock(&s->mutex);
}

bool saver_wants_snapshot(const struct saver *s) {
    return writes(s, CHECKPOINT_WEIGHTS) && s->t->rank == 0 && s->c->eval_every_seconds > 0 &&
           now_seconds() - s->last_s >= s->c->eval_every_seconds;
}

void saver_take_snapshot(struct saver *s, const struct train_state *now, double seconds, bool requested) {
    // The last weights are written by saver_last_*.
    if (!writes(s, CHECKPOINT_WEIGHTS) || now->step >= s->c->steps) return;
    if (s->collected && s->t->plan.may_miss_steps) {
        reach_version(s, now, seconds, requested);
        return;
    }
    if (!requested && (s->c->eval_every <= 0 || now->step % s->c->eval_every != 0)) return;
    s->last_s = now_seconds();
    if (!s->collected) {
        write_state(s, save_create(s, CHECKPOINT_WEIGHTS, now, seconds));
    } else if (requested || !s->on_arrival) {
        pthread_mutex_lock(&s->mutex);
        struct snapshot *one = snapshot_create(s, now, seconds, s->on_arrival ? -1 : now->updates);
        pthread_mutex_unlock(&s->mutex);
        topology_snapshot(s->t, one->version < 0 ? 0 : one->version, one);
    }
}

void saver_final_begin(struct saver *s, const struct train_state *now, double seconds) {
    if (!writes(s, CHECKPOINT_WEIGHTS)) return;
    char *dir = checkpoint_partial(s->o.dir, CHECKPOINT_WEIGHTS, now->step, s->o.start_number), *why = NULL;
    struct state_range *ranges = whole_units(s);
    s->final_state = *now;
    pthread_mutex_lock(&s->mutex);
    s->final_begun = true;
    s->last_seconds = fmax(seconds, s->last_seconds);
    pthread_mutex_unlock(&s->mutex);
    s->final = part_file_create(&(struct part_options){.dir = dir,
                                                       .participant = s->participant,
                                                       .layout = s->layout,
                                                       .dtype = s->dtype,
                                                       .ranges = ranges,
                                                       .count = s->layout->count},
                                &why);
    char *text =
        s->final ? NULL : xasprintf("the snapshot of step %lld was given up: %s", (long long)now->step, why);
    if (text) report_failure(s, CHECKPOINT_WEIGHTS, text);
    free(text);
    free(ranges);
    free(why);
    free(dir);
}

void saver_final_unit(struct saver *s, int u, const void *weights) {
    if (!s || !s->final) return;
    // An error is reported by finish_file.
    part_file_write(s->final, u, 0, s->layout->units[u].n_pad, weights);
    s->final_units = u + 1;
}

static void write_final(struct saver *s) {
    if (!s->final) return;
    if (s->final_units < s->layout->count) {
        part_file_discard(&s->final, "the run failed");
        return;
    }
    pthread_mutex_lock(&s->mutex);
    struct save *v = save_create(s, CHECKPOINT_WEIGHTS, &s->final_state, s->last_seconds);
    pthread_mutex_unlock(&s->mutex);
    v->file = s->final;
    v->only_file = true;
    s->final = NULL;
    finish_file(v);
    commit(v);
    free_save(v);
}

void saver_abandon(struct saver *s) {
    if (s) atomic_store(&s->quit, 1);
}

void saver_finish(struct saver *s) {
    if (!s) return;
    pthread_mutex_lock(&s->mutex);
    s->finished = true;
    pthread_mutex_unlock(&s->mutex);
    for (int kind = 0; kind < CHECKPOINT_KINDS; kind++)
        if (s->buffers->of[kind].stream) stream_sync(s->buffers->of[kind].stream);
    write_final(s);
}

bool saver_takes_snapshots(const struct saver *s) { return writes(s, CHECKPOINT_WEIGHTS); }

size_t saver_state_bytes(const struct saver *s) { return s ? s->bytes : 0; }

struct checkpoint_report saver_report(struct saver *s) {
    struct checkpoint_report r = {0};
    if (!s) return r;
    pthread_mutex_lock(&s->mutex);
    r = s->report;
    pthread_mutex_unlock(&s->mutex);
    return r;
}

// ---------------------------------------------------------------- memory and streams
// These functions measure (arena without a device) and allocate.
static void take_checkpoint_buffers(struct saver_buffers *g, const struct config *c, size_t state_bytes,
                                    bool device_memory) {
    enum mem_class class = device_memory ? MEM_HOST : MEM_CHECKPOINT;
    bool background = c->recovery.checkpoint_background;
    if (c->recovery.checkpoint_every <= 0 || !state_bytes) return;
    g->copy = background ? arena_take(&g->arena, class, state_bytes) : NULL;
    g->staging = !background && device_memory ? arena_take(&g->arena, MEM_HOST, STAGING_BYTES) : NULL;
}

static void *take_snapshot_buffer(struct arena *a, const struct config *c, const struct layout *l, int rank,
                                  bool device_memory) {
    bool any = c->eval_batches != 0 && (c->eval_every > 0 || c->eval_every_seconds > 0);
    if (!any || rank != 0 || !config_ranks(c, "server")) return NULL;
    return arena_take(a, device_memory ? MEM_HOST : MEM_CHECKPOINT, (size_t)l->padded * dtype_size(c->dtype));
}

struct saver_bytes saver_predict(const struct config *c, const struct layout *l, int rank, size_t state_bytes,
                                 bool device_memory) {
    struct saver_buffers g = {0};
    struct arena snapshots;
    struct saver_bytes out;
    arena_init(&g.arena, NULL);
    arena_init(&snapshots, NULL);
    take_checkpoint_buffers(&g, c, state_bytes, device_memory);
    take_snapshot_buffer(&snapshots, c, l, rank, device_memory);
    memcpy(out.checkpoints, g.arena.bytes, sizeof out.checkpoints);
    memcpy(out.snapshots, snapshots.bytes, sizeof out.snapshots);
    return out;
}

int saver_buffers_create(struct saver_buffers *g, const struct config *c, size_t state_bytes,
                         struct device *dev) {
    const bool wanted[CHECKPOINT_KINDS] = {c->recovery.checkpoint_every > 0, c->eval_batches != 0};
    bool ok = true;
    *g = (struct saver_buffers){0};
    if (wanted[CHECKPOINT_ALL]) {
        arena_init(&g->arena, dev);
        take_checkpoint_buffers(g, c, state_bytes, !dev_host_memory(dev));
    }
    for (int kind = 0; kind < CHECKPOINT_KINDS; kind++) {
        if (!wanted[kind]) continue;
        g->of[kind].stream = stream_create(dev, kind_names[kind]);
        if (g->of[kind].stream) g->of[kind].ready = event_create(dev);
        if (g->of[kind].ready) g->of[kind].free = event_create(dev);
        ok = ok && g->of[kind].free;
    }
    return ok && !g->arena.failed ? 0 : -1;
}

void saver_buffers_destroy(struct saver_buffers *g) {
    for (int kind = 0; kind < CHECKPOINT_KINDS; kind++) {
        event_destroy(&g->of[kind].ready);
        event_destroy(&g->of[kind].free);
        if (g->of[kind].stream) stream_destroy(&g->of[kind].stream);
    }
    arena_release(&g->arena);
}

// ---------------------------------------------------------------- create and destroy
// Every rank that holds values of that kind writes a file, and worker 0 always does.
static void list_participants(struct saver *s, enum checkpoint_kind kind) {
    struct state_range r;
    bool all = kind == CHECKPOINT_ALL, has = !range_of(s->t, kind, 0, &r);
    int workers = has || (all && !s->t->state_servers) ? s->t->size : 1;
    int servers = all ? s->t->state_servers : 0;
    s->of[kind].count = workers + servers;
    s->of[kind].participants = xcalloc((size_t)s->of[kind].count, sizeof *s->of[kind].participants);
    for (int i = 0; i < workers; i++) s->of[kind].participants[i] = xasprintf("worker-%d", i);
    for (int i = 0; i < servers; i++) s->of[kind].participants[workers + i] = xasprintf("server-%d", i);
}

struct saver *saver_create(const struct saver_options *o) {
    struct topology *t = o->topology;
    const struct config *c = o->config;
    const bool wanted[CHECKPOINT_KINDS] = {c->recovery.checkpoint_every > 0,
                                           c->eval_batches != 0 && o->evaluates};
    struct saver *s = xcalloc(1, sizeof *s);
    struct state_range r;
    *s = (struct saver){.o = *o,
                        .c = c,
                        .t = t,
                        .layout = t->layout,
                        .dev = t->dev,
                        .dtype = t->dtype,
                        .buffers = o->buffers,
                        .collected = !t->ops->weights,
                        .on_arrival = t->plan.independent};
    pthread_mutex_init(&s->mutex, NULL);
    arena_init(&s->arena, t->dev);
    snprintf(s->participant, sizeof s->participant, "worker-%d", t->rank);
    if (t->rank == 0 && o->identity) s->identity = identity_json(o->identity);
    for (int kind = 0; o->dir && kind < CHECKPOINT_KINDS; kind++) {
        s->of[kind].part = wanted[kind] && (t->rank == 0 || (kind == CHECKPOINT_ALL && !t->state_servers) ||
                                            !range_of(t, kind, 0, &r));
        if (!s->of[kind].part || t->rank != 0) continue;
        list_participants(s, kind);
        checkpoint_sweep(o->dir, kind, o->start_number);
    }
    for (int i = 0; writes(s, CHECKPOINT_ALL) && !topology_state(t, i, &r); i++) s->bytes += bytes_of(&r);
    if (s->collected && writes(s, CHECKPOINT_WEIGHTS))
        s->buffer = take_snapshot_buffer(&s->arena, c, t->layout, t->rank, !dev_host_memory(t->dev));
    bool any = writes(s, CHECKPOINT_ALL) || writes(s, CHECKPOINT_WEIGHTS), failed = s->arena.failed;
    if (any && !s->buffers && !failed) {
        failed = saver_buffers_create(&s->own_buffers, c, s->bytes, t->dev);
        s->buffers = &s->own_buffers;
    }
    if (any && !failed) return s;
    if (failed) warn("no checkpoints and no snapshots will be written: %s", dev_error(t->dev));
    saver_destroy(&s);
    return NULL;
}

void saver_destroy(struct saver **at) {
    struct saver *s = *at;
    if (!s) return;
    if (s->buffers) saver_finish(s);
    saver_buffers_destroy(&s->own_buffers);
    for (int kind = 0; kind < CHECKPOINT_KINDS; kind++) {
        for (int i = 0; i < s->of[kind].count; i++) free((char *)s->of[kind].participants[i]);
        free(s->of[kind].participants);
    }
    for (struct snapshot *one = s->requests, *next; one; one = next) {
        next = one->next;
        free(one);
    }
    arena_release(&s->arena);
    pthread_mutex_destroy(&s->mutex);
    cJSON_Delete(s->identity);
    free(s);
    *at = NULL;
}
