// State on the host (ZeRO-Offload, Ren et al. 2021, sections 4 and 5): the host holds masters and optimizer states and
// updates them. Per unit, the reduced gradient is copied down to the host, and the new weights up to the device:
//
//     compute  | .. backward | norm | decide |                  | forward u0 | ..
//     down     |             | g u0 | g u1   | g u2      | g u3
//     update                                 | u0 | u1 | u2 | u3       on the host's threads
//     up                                          | w0 | w1 | w2 | w3
//
// The staging has two sets of buffers, each for one unit's gradient and weights. The first gradients are copied down
// while the norm is computed; {clip, skip} is decided before any update, as without offload. The update is not delayed
// by a step: the next forward pass waits for each unit's weights. So the bits are those of a run without offload.
//
// The host's update is the CPU's operation, whose bits equal those of every device. A skipped step updates nothing: the
// rounded master is copied up again, which equals the device's weights.
//
// On disk (Rajbhandari et al. 2021, section 5.2) a unit's master and states are read to one of two buffers before its
// update and written back after it, on streams of their own.
//
// Weights of stage 3 may be on the host, too (ZeRO-Infinity, Rajbhandari et al. 2021, section 5). The update writes
// them in place. Each gather first copies the rank's own shard up, to its offset in the slot. On disk,
// a stream that runs ahead of the gathers first reads the shard to one of two host buffers:
//
//     read      | u0 -> 0 | u1 -> 1 |     | u2 -> 0 |     | u3 -> 1 ..
//     gather              | up, u0  | .. idle | up, u1  | up, u2 ..
//                                   ^ the read of u2 waits for free_again[0], the copy up waits for fetched[0]
//
// The update leaves new weights in the staging. They are written before a gather may read them:
//
//     update    | u0 | u1 | u2 | ..
//     write          | u0 | u1 | u2 ..          records units[u].updated
//
// In 16 bits the file holds | u0 | u1 | .., each shard padded to DISK_ALIGN. In fp32 this file does not exist: the
// weights are the masters, and gathers read them from the optimizer's file.
//
// Memory  offload   masters and states; pinned with page_locked, if the device has memory of its own
//         staging   gradient and weights, twice: class pinned if the device has memory of its own, else class offload
// In fp32 a run without offload has no masters. With offload the host holds masters, and the device holds the weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"
#include "shared/state/part_file.h"

bool zero_offloads(const struct zero *z, int64_t elements) {
    const struct offload_config *o = &z->c->offload_optimizer;
    double ratio = o->ratio > 0 ? o->ratio : 1;
    return o->device && (double)elements <= ratio * (double)z->opt.layout->padded;
}

// ---------------------------------------------------------------- memory
enum mem_class zero_offload_class_of_weights(const struct zero *z) {
    if (!z->c->offload_param.device) return MEM_PARAMETER;
    return z->opt.device_memory && z->c->offload_param.pin_memory ? MEM_HOST : MEM_OFFLOAD;
}

static enum mem_class class_of_state(const struct zero *z) {
    return z->opt.device_memory && z->c->offload_optimizer.pin_memory ? MEM_HOST : MEM_OFFLOAD;
}

bool zero_offload_on_disk(const struct zero *z, int u) {
    return zero_folder(&z->c->offload_optimizer) && z->units[u].offloaded;
}

// Bytes in the file: of the master or one state; of the master and all states.
static size_t kind_bytes(const struct zero *z, int u) {
    return disk_round((size_t)unit_shard(z->opt.layout, u) * sizeof(float));
}
static size_t region_bytes(const struct zero *z, int u) {
    return (size_t)(1 + z->c->optimizer.row->states) * kind_bytes(z, u);
}

// ---------------------------------------------------------------- a file
static char *take(struct zero *z, enum mem_class class, size_t bytes) {
    void *p = arena_take(&z->arena, class, bytes + DISK_ALIGN - DEV_ALIGN);
    return p ? disk_aligned(p) : NULL;
}

static void file_carve(struct zero *z, struct zero_file *f, enum mem_class class, size_t bytes,
                       size_t once_bytes) {
    f->once = take(z, class, once_bytes);
    for (int i = 0; i < ZERO_STAGED; i++) f->buffer[i] = take(z, class, bytes);
}

static int file_open(struct zero *z, struct zero_file *f, const char *const name[2], const char *dir,
                     const char *key) {
    char label[32];
    bool failed = false;
    f->read = stream_create(z->opt.dev, name[0]);
    f->write = stream_create(z->opt.dev, name[1]);
    for (int i = 0; i < ZERO_STAGED; i++) {
        f->fetched[i] = event_create(z->opt.dev);
        f->free_again[i] = event_create(z->opt.dev);
        failed = failed || !f->fetched[i] || !f->free_again[i];
    }
    if (failed || !f->read || !f->write)
        return fail("rank %d: cannot create the streams of a disk: %s", z->base.rank, dev_error(z->opt.dev));
    if (!dir) return 0;
    snprintf(label, sizeof label, "rank %d", z->base.rank);
    if (disk_store_create(&f->store,
                          &(struct disk_store_options){.dir = dir,
                                                       .key = key,
                                                       .label = label,
                                                       .bytes = f->bytes,
                                                       .block_bytes = (size_t)z->c->aio.block_bytes,
                                                       .depth = (int)z->c->aio.depth}))
        return -1;
    if (disk_store_remark(f->store) && z->base.rank == 0) warn("%s", disk_store_remark(f->store));
    return 0;
}

static void file_close(struct zero_file *f) {
    stream_destroy(&f->read);
    stream_destroy(&f->write);
    disk_store_destroy(&f->store);
    for (int i = 0; i < ZERO_STAGED; i++) {
        event_destroy(&f->fetched[i]);
        event_destroy(&f->free_again[i]);
    }
}

static int file_sync(const struct zero_file *f) {
    return f->read ? stream_sync(f->read) | stream_sync(f->write) : 0;
}

static void file_fetch(struct zero *z, struct zero_file *f, struct disk_store *store, int at,
                       struct disk_range range, bool counted) {
    stream_wait_event(f->read, f->free_again[at]);
    disk_store_read(store, f->read, f->buffer[at], range);
    event_record(f->fetched[at], f->read);
    if (counted) atomic_fetch_add(&z->base.wire.disk_read, range.bytes);
}

static int file_put(struct zero_file *f, struct disk_range range, const void *data, size_t bytes) {
    memset(f->once, 0, range.bytes);
    memcpy(f->once, data, bytes);
    return disk_store_save(f->store, f->once, range);
}

static const void *file_get(struct zero_file *f, struct disk_store *store, struct disk_range range) {
    return disk_store_load(store, f->once, range) ? NULL : f->once;
}

// ---------------------------------------------------------------- weights in a file
// The masters are the weights.
static bool of_masters(const struct zero *z, int u) {
    return z->c->dtype == DT_F32 && u < z->opt.layout->count;
}

bool zero_disk_on(const struct zero *z) {
    return zero_folder(&z->c->offload_param) && (!of_masters(z, 0) || zero_folder(&z->c->offload_optimizer));
}

// Bytes of one shard in either file, padding included.
static size_t shard_bytes(const struct zero *z, int64_t elements) {
    return disk_round((size_t)elements * dtype_size(z->c->dtype));
}

static struct disk_range weights_range(const struct zero *z, int u) {
    return (struct disk_range){of_masters(z, u) ? z->units[u].region : z->units[u].weight_region,
                               shard_bytes(z, unit_shard(z->opt.layout, u)), z->opt.layout->units[u].name};
}

static struct disk_store *store_of(const struct zero *z, int u) {
    return of_masters(z, u) ? z->offload.file.store : z->disk.file.store;
}

void zero_disk_carve_unit(struct zero *z, int u) {
    int64_t shard = unit_shard(z->opt.layout, u);
    if (shard > z->disk.elements) z->disk.elements = shard;
    if (!of_masters(z, u))
        z->units[u].weight_region = disk_take(&z->disk.file.bytes, weights_range(z, u).bytes);
}

static void weights_carve(struct zero *z) {
    size_t bytes = shard_bytes(z, z->disk.elements), staged = shard_bytes(z, z->offload.elements);
    enum mem_class class = z->opt.device_memory ? MEM_HOST : MEM_OFFLOAD;
    file_carve(z, &z->disk.file, class, bytes, bytes);
    for (int i = 0; i < ZERO_STAGED && !of_masters(z, 0); i++) z->offload.weight[i] = take(z, class, staged);
}

static size_t weights_bytes(const struct zero *z, int u) { return weights_range(z, u).bytes; }
bool zero_disk_writes_weights(const struct zero *z) { return zero_disk_on(z) && !of_masters(z, 0); }

static int weights_open(struct zero *z) {
    static const char *const names[2] = {"weights read", "weights write"};
    return file_open(z, &z->disk.file, names, z->disk.file.bytes ? zero_folder(&z->c->offload_param) : NULL,
                     "zero_optimization.offload_param.nvme_path");
}

static const void *weights_fetch(struct zero *z, int u, enum pass pass) {
    struct zero_file *f = &z->disk.file;
    int at = z->disk.copying = z->disk.next;
    z->disk.next = (at + 1) % ZERO_STAGED;
    stream_wait_event(f->read, z->units[u].updated);
    if (z->c->no_overlap) stream_wait_event(f->read, z->serialized.begun);
    file_fetch(z, f, store_of(z, u), at, weights_range(z, u), pass != PASS_EVAL);
    stream_wait_event(z->gather_stream, f->fetched[at]);
    return f->buffer[at];
}

static void weights_copied(struct zero *z) {
    event_record(z->disk.file.free_again[z->disk.copying], z->gather_stream);
}

static void weights_write(struct zero *z, int u, int at) {
    struct stream *write = z->disk.file.write;
    struct zero_offload *o = &z->offload;
    if (of_masters(z, u)) return;  // the update writes the masters, and these are the file's weights
    stream_wait_event(write, o->updated[at]);
    disk_store_write(z->disk.file.store, write, o->weight[at], weights_range(z, u));
    event_record(o->copied_up[at], write);
    event_record(z->units[u].updated, write);
    event_record(o->over, write);
    atomic_fetch_add(&z->base.wire.disk_written, weights_range(z, u).bytes);
}

int zero_disk_put(struct zero *z, int u, const void *shard) {
    size_t bytes = (size_t)unit_shard(z->opt.layout, u) * dtype_size(z->c->dtype);
    return of_masters(z, u) ? 0 : file_put(&z->disk.file, weights_range(z, u), shard, bytes);
}

const void *zero_disk_get(void *ctx, const struct state_range *r) {
    struct zero *z = ctx;
    return file_get(&z->disk.file, store_of(z, r->unit), weights_range(z, r->unit));
}

// ---------------------------------------------------------------- memory of offloaded state
void zero_offload_carve_unit(struct zero *z, int u) {
    struct update_range *r = &z->units[u].update;
    size_t bytes = (size_t)(r->end - r->begin) * sizeof(float);
    // In fp32 the master is the weights if both are on the host.
    bool own = z->c->dtype != DT_F32 || !z->c->offload_param.device;
    z->units[u].region = z->offload.file.bytes;
    if (zero_disk_on(z)) zero_disk_carve_unit(z, u);
    if (r->end - r->begin > z->offload.elements) z->offload.elements = r->end - r->begin;
    if (zero_folder(&z->c->offload_optimizer)) {
        disk_take(&z->offload.file.bytes, region_bytes(z, u));
        return;
    }
    r->master = own ? arena_take(&z->arena, class_of_state(z), bytes) : r->weight;
    if (!own) r->weight = NULL;
    for (int i = 0; i < z->c->optimizer.row->states; i++)
        r->state[i] = arena_take(&z->arena, class_of_state(z), bytes);
}

void zero_offload_carve(struct zero *z) {
    struct zero_offload *o = &z->offload;
    enum mem_class class = z->opt.device_memory ? MEM_HOST : MEM_OFFLOAD;
    size_t bytes = (size_t)o->elements * dtype_size(z->c->dtype);
    if (zero_folder(&z->c->offload_optimizer) && o->elements) {
        size_t kind = disk_round((size_t)o->elements * sizeof(float));
        file_carve(z, &o->file, class_of_state(z), (size_t)(1 + z->c->optimizer.row->states) * kind, kind);
    }
    for (int i = 0; i < ZERO_STAGED; i++) {
        o->grad[i] = arena_take(&z->arena, class, bytes);
        if (!z->c->offload_param.device) o->weight[i] = arena_take(&z->arena, class, bytes);
    }
    if (zero_disk_on(z)) weights_carve(z);
}

static size_t unit_bytes(const struct zero *z, int u) {
    return (size_t)unit_shard(z->opt.layout, u) * dtype_size(z->c->dtype);
}

// Returns the staging buffer of u: offloaded units alternate; units that are not offloaded do not count.
static int staging_of(const struct zero *z, int u) {
    int before = 0;
    for (int i = 0; i < u; i++) before += z->units[i].offloaded;
    return before % ZERO_STAGED;
}

// ---------------------------------------------------------------- tasks
static int add_copy(struct step_tasks *t, enum task_kind kind, enum task_stream stream, int u, size_t bytes) {
    struct step_task *s = step_tasks_add(t, kind, stream);
    step_task_unit(s, u);
    s->bytes = bytes;
    s->pattern = PATTERN_HOST;
    return t->count - 1;
}

// The last task on the stream that used the staging buffer before u; -1: none in this step.
static int staged_before(const struct zero *z, const struct step_tasks *t, enum task_stream stream, int u) {
    for (int i = t->last[stream]; i >= 0 && t->list[i].micro < 0; i--)
        if (t->list[i].stream == stream && t->list[i].unit < u &&
            staging_of(z, t->list[i].unit) == staging_of(z, u))
            return i;
    return -1;
}

static void need(struct step_tasks *t, int of, int task) { step_tasks_need(t, &t->list[of], task); }

void zero_offload_tasks_update(const struct zero *z, struct step_tasks *t, int u) {
    const bool disk = zero_offload_on_disk(z, u);
    const int down = add_copy(t, TASK_DOWN, ON_DOWN, u, unit_bytes(z, u));
    need(t, down, t->last[ON_REDUCE]);
    need(t, down, staged_before(z, t, ON_HOST, u));
    const int read = disk ? add_copy(t, TASK_READ, ON_READ, u, region_bytes(z, u)) : -1;
    if (disk) need(t, read, staged_before(z, t, ON_WRITE, u));
    step_tasks_add(t, TASK_UPDATE, ON_HOST);
    const int update = t->count - 1;
    step_task_unit(&t->list[update], u);
    t->list[update].elements = unit_shard(z->opt.layout, u);
    need(t, update, t->last[ON_COMPUTE]);  // the update waits for the decision
    need(t, update, down);
    need(t, update, read);
    need(t, update, staged_before(z, t, z->c->offload_param.device ? ON_WRITE : ON_UP, u));
    int over = update;
    if (!z->c->offload_param.device) over = add_copy(t, TASK_UP, ON_UP, u, unit_bytes(z, u));
    if (over != update) need(t, over, update);
    if (zero_disk_writes_weights(z)) add_copy(t, TASK_WRITE, ON_WRITE, u, weights_bytes(z, u));
    if (zero_disk_writes_weights(z)) need(t, t->count - 1, update);
    if (disk) add_copy(t, TASK_WRITE, ON_WRITE, u, region_bytes(z, u));
    if (disk) need(t, t->count - 1, over);
}

void zero_offload_tasks_fetch(const struct zero *z, struct step_tasks *t, int u) {
    int read = zero_disk_on(z) ? add_copy(t, TASK_READ, ON_READ, u, weights_bytes(z, u)) : -1;
    need(t, add_copy(t, TASK_UP, ON_GATHER, u, unit_bytes(z, u)), read);
}

// ---------------------------------------------------------------- open and close
static void for_each_event(struct zero_offload *o, struct device *dev, bool *failed) {
    struct event **all[] = {&o->grad_on_host[0], &o->grad_on_host[1], &o->updated[0], &o->updated[1],
                            &o->copied_up[0],    &o->copied_up[1],    &o->over};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!dev)
            event_destroy(all[i]);
        else if (!(*all[i] = event_create(dev)))
            *failed = true;
    }
}

int zero_offload_open(struct zero *z) {
    static const char *const names[2] = {"offload read", "offload write"};
    const char *disk = zero_folder(&z->c->offload_optimizer);
    struct zero_offload *o = &z->offload;
    bool failed = false;
    if (!o->elements) return 0;
    o->tasks = xcalloc(2 * (unsigned long)z->opt.layout->count, sizeof *o->tasks);
    for_each_event(o, z->opt.dev, &failed);
    o->down = stream_create(z->opt.dev, "offload down");
    o->update = stream_create(z->opt.dev, "offload update");
    o->up = stream_create(z->opt.dev, "offload up");
    if (failed || !o->down || !o->update || !o->up)
        return fail("rank %d: cannot create the streams of offloaded state: %s", z->base.rank,
                    dev_error(z->opt.dev));
    if (disk && file_open(z, &o->file, names, disk, "zero_optimization.offload_optimizer.nvme_path"))
        return -1;
    if (zero_disk_on(z) && weights_open(z)) return -1;
    stream_phase(o->down, PHASE_COMM);
    stream_phase(o->update, PHASE_OPTIMIZER);
    stream_phase(o->up, PHASE_COMM);
    return 0;
}

void zero_offload_close(struct zero *z) {
    struct zero_offload *o = &z->offload;
    stream_destroy(&o->down);
    stream_destroy(&o->update);
    stream_destroy(&o->up);
    file_close(&z->disk.file);
    file_close(&o->file);
    for_each_event(o, NULL, NULL);
    free(o->tasks);
    o->tasks = NULL;
}

// ---------------------------------------------------------------- a step
// Returns whether an update leaves weights in the staging, to be copied to the device or written to their file.
static bool stages_weights(const struct zero *z) {
    return !z->c->offload_param.device || (zero_disk_on(z) && z->c->dtype != DT_F32);
}

// A skipped step still copies the staging to the weights, so this fills it with the unchanged master, rounded.
static int round_master(const struct zero *z, const struct update_range *r) {
    const char *why = "";
    struct cast_args a = {r->weight, r->master, r->end - r->begin, DT_F32, z->c->dtype, 1};
    if (z->c->dtype == DT_F32)
        memcpy(r->weight, r->master, (size_t)a.n * sizeof(float));
    else if (cpu_ops[OP_CAST](z->opt.threads, &a, &why))
        return fail("rank %d: unit %s: %s", z->base.rank, r->unit->name, why);
    return 0;
}

// Runs on the update stream's thread, when the decision and the gradient are on the host and the staging is free.
static int update_run(void *arg) {
    struct zero_offload_task *task = arg;
    struct zero *z = task->z;
    const struct update_step step = {.lr = task->lr, .t = task->t, .scalars = z->host_scalars};
    struct update_range r = z->units[task->unit].update;
    r.grad = z->offload.grad[task->at];
    if (stages_weights(z)) r.weight = z->offload.weight[task->at];
    if (zero_folder(&z->c->offload_optimizer)) {
        char *at = z->offload.file.buffer[task->at];
        r.master = (void *)at;
        for (int k = 0; k < z->c->optimizer.row->states; k++)
            r.state[k] = (void *)(at + (size_t)(k + 1) * kind_bytes(z, task->unit));
    }
    if (z->host_scalars->skip) return stages_weights(z) ? round_master(z, &r) : 0;
    return optimizer_apply(&z->c->optimizer, &r, &step, z->opt.threads);
}

// A unit's whole region of the file: it is read, and written, by one call.
static struct disk_range range_of(const struct zero *z, int u) {
    return (struct disk_range){z->units[u].region, region_bytes(z, u), z->opt.layout->units[u].name};
}

// The master, or a state, in its region.
static struct disk_range kind_range(const struct zero *z, int u, int kind) {
    return (struct disk_range){z->units[u].region + (size_t)kind * kind_bytes(z, u), kind_bytes(z, u),
                               z->opt.layout->units[u].name};
}

int zero_offload_put(struct zero *z, int u, int kind, const float *shard) {
    size_t bytes = (size_t)unit_shard(z->opt.layout, u) * sizeof(float);
    return zero_offload_sync(z) ? -1 : file_put(&z->offload.file, kind_range(z, u, kind), shard, bytes);
}

const void *zero_offload_get(void *ctx, const struct state_range *s) {
    struct zero *z = ctx;
    return file_get(&z->offload.file, z->offload.file.store, kind_range(z, s->unit, s->kind));
}

void zero_offload_update(struct zero *z, int u, const struct update_step *step) {
    struct zero_offload *o = &z->offload;
    struct zero_file *f = &o->file;
    struct zero_unit *zu = &z->units[u];
    int at = staging_of(z, u);
    size_t bytes = unit_bytes(z, u);
    struct zero_offload_task *task = &o->tasks[o->task_set * z->opt.layout->count + u];
    *task = (struct zero_offload_task){z, u, at, step->lr, step->t};
    // 1. The gradient is copied down after the last but one update, which has read the same buffer.
    stream_wait_event(o->down, z->reduced);
    stream_wait_event(o->down, o->updated[at]);
    dev_copy(o->down, o->grad[at], zu->grad_shard, bytes);
    event_record(o->grad_on_host[at], o->down);
    // 2. A state on disk is read when the buffer's previous state is written.
    if (f->store) {
        file_fetch(z, f, f->store, at, range_of(z, u), true);
        stream_wait_event(o->update, f->fetched[at]);
    }
    // 3. The update runs when the host knows the decision and the buffer's previous weights have left it.
    stream_wait_event(o->update, z->stats);
    stream_wait_event(o->update, o->grad_on_host[at]);
    stream_wait_event(o->update, o->copied_up[at]);
    stream_host(o->update, "update", update_run, task);
    event_record(o->updated[at], o->update);
    atomic_fetch_add(&z->base.wire.host_down, bytes);
    // 4. The weights are copied up. With offloaded weights they stay on the host, and each gather copies them up.
    if (z->c->offload_param.device) {
        event_record(zu->updated, o->update);
        event_record(o->over, o->update);
        if (zero_disk_on(z)) weights_write(z, u, at);
    } else {
        stream_wait_event(o->up, o->updated[at]);
        dev_copy(o->up, zu->weight_shard, o->weight[at], bytes);
        event_record(o->copied_up[at], o->up);
        event_record(zu->updated, o->up);
        event_record(o->over, o->up);
        atomic_fetch_add(&z->base.wire.host_up, bytes);
    }
    // 5. A state on disk is written after the weights of u, so that waiting for this write is waiting for all of u.
    if (!f->store) return;
    stream_wait_event(f->write, zu->updated);
    disk_store_write(f->store, f->write, f->buffer[at], range_of(z, u));
    event_record(f->free_again[at], f->write);
    if (zero_disk_on(z)) event_record(zu->updated, f->write);  // gathers may read masters from this file
    event_record(o->over, f->write);
    atomic_fetch_add(&z->base.wire.disk_written, region_bytes(z, u));
}

const void *zero_offload_shard(struct zero *z, int u, void *whole, enum pass pass) {
    void *own = zero_at(z, whole, unit_shard(z->opt.layout, u) * z->base.rank);
    bool filed = zero_disk_on(z);
    dev_copy(z->gather_stream, own, filed ? weights_fetch(z, u, pass) : z->units[u].weight_shard,
             unit_bytes(z, u));
    if (filed) weights_copied(z);
    if (pass != PASS_EVAL) atomic_fetch_add(&z->base.wire.host_up, unit_bytes(z, u));
    return own;
}

void zero_offload_settle(struct zero *z) {
    if (!z->offload.elements) return;
    stream_wait_event(z->opt.compute, z->offload.over);
}

int zero_offload_sync(struct zero *z) {
    struct zero_offload *o = &z->offload;
    int rc = o->elements ? stream_sync(o->down) | stream_sync(o->update) | stream_sync(o->up) : 0;
    return rc | file_sync(&z->disk.file) | file_sync(&o->file);
}
