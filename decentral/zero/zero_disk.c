// Weights of stage 3 in a file per rank (ZeRO-Infinity, Rajbhandari et al. 2021, section 5). A stream that runs ahead
// of the gathers reads the rank's own shard to one of two host buffers. The gather first copies it to the device (up):
//
//     read      | u0 -> 0 | u1 -> 1 |     | u2 -> 0 |     | u3 -> 1 ..
//     gather              | up, u0  | .. idle | up, u1  | up, u2 ..
//                                   ^ the read of u2 waits for copied[0], the copy up waits for fetched[0]
//
// The update leaves new weights in the staging. They are written before a gather may read them:
//
//     update    | u0 | u1 | u2 | ..
//     write          | u0 | u1 | u2 ..          records units[u].updated
//
// In 16 bits the file holds | u0 | u1 | .., each shard padded to DISK_ALIGN. In fp32 this file does not exist: the
// weights are the masters, and gathers read them from the optimizer's file (zero_offload.c).
#include <stdio.h>
#include <string.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"
#include "shared/state/part_file.h"

// The masters are the weights.
static bool of_masters(const struct zero *z) { return z->opt.dtype == DT_F32; }

bool zero_disk_on(const struct zero *z) {
    const struct zero_offload_options *o = &z->opt.offload;
    return o->params && o->params_disk && (!of_masters(z) || o->disk);
}

// Bytes of one shard in either file, padding included.
static size_t shard_bytes(const struct zero *z, int64_t elements) {
    return disk_round((size_t)elements * dtype_size(z->opt.dtype));
}

static struct disk_range range_of(const struct zero *z, int u) {
    return (struct disk_range){of_masters(z) ? z->units[u].region : z->units[u].weight_region,
                               shard_bytes(z, unit_shard(z->opt.layout, u)), z->opt.layout->units[u].name};
}

static struct disk_store *store_of(const struct zero *z) {
    return of_masters(z) ? z->offload.store : z->disk.store;
}

static char *take(struct zero *z, size_t bytes) {
    enum mem_class class = z->opt.device_memory ? MEM_HOST : MEM_OFFLOAD;
    void *p = arena_take(&z->arena, class, bytes + DISK_ALIGN - DEV_ALIGN);
    return p ? disk_aligned(p) : NULL;
}

void zero_disk_carve_unit(struct zero *z, int u) {
    if (!of_masters(z)) z->units[u].weight_region = disk_take(&z->disk.file_bytes, range_of(z, u).bytes);
}

void zero_disk_carve(struct zero *z) {
    struct zero_disk *d = &z->disk;
    size_t bytes = shard_bytes(z, z->offload.elements);
    d->reading = take(z, bytes);
    for (int i = 0; i < ZERO_STAGED; i++) {
        d->shard[i] = take(z, bytes);
        if (!of_masters(z)) z->offload.weight[i] = take(z, bytes);
    }
}

size_t zero_disk_bytes(const struct zero *z, int u) { return range_of(z, u).bytes; }
bool zero_disk_writes_weights(const struct zero *z) { return zero_disk_on(z) && !of_masters(z); }

// ---------------------------------------------------------------- open and close
static struct event **event_at(struct zero_disk *d, int i) {
    return i < ZERO_STAGED ? &d->fetched[i] : &d->copied[i - ZERO_STAGED];
}

int zero_disk_store(struct zero *z, struct disk_store **out, const struct disk_store_options *o) {
    struct disk_store_options all = *o;
    char label[32];
    snprintf(label, sizeof label, "rank %d", z->base.rank);
    all.label = label;
    all.block_bytes = z->opt.offload.block_bytes;
    all.depth = z->opt.offload.depth;
    if (disk_store_create(out, &all)) return -1;
    if (disk_store_remark(*out) && z->base.rank == 0) warn("%s", disk_store_remark(*out));
    return 0;
}

int zero_disk_open(struct zero *z) {
    struct zero_disk *d = &z->disk;
    bool failed = false;
    d->read = stream_create(z->opt.dev, "weights read");
    d->write = stream_create(z->opt.dev, "weights write");
    for (int i = 0; i < 2 * ZERO_STAGED; i++)
        if (!(*event_at(d, i) = event_create(z->opt.dev))) failed = true;
    if (failed || !d->read || !d->write)
        return fail("rank %d: cannot create the streams of weights on disk: %s", z->base.rank,
                    dev_error(z->opt.dev));
    return of_masters(z) ? 0
                         : zero_disk_store(z, &d->store,
                                           &(struct disk_store_options){
                                               .dir = z->opt.offload.params_disk,
                                               .key = "zero_optimization.offload_param.nvme_path",
                                               .bytes = d->file_bytes});
}

void zero_disk_close(struct zero *z) {
    struct zero_disk *d = &z->disk;
    stream_destroy(&d->read);
    stream_destroy(&d->write);
    disk_store_destroy(&d->store);
    for (int i = 0; i < 2 * ZERO_STAGED; i++) event_destroy(event_at(d, i));
}

int zero_disk_sync(struct zero *z) {
    return z->disk.read ? stream_sync(z->disk.read) | stream_sync(z->disk.write) : 0;
}

// ---------------------------------------------------------------- a step
const void *zero_disk_fetch(struct zero *z, int u, enum pass pass) {
    struct zero_disk *d = &z->disk;
    int at = d->next;
    d->next = (at + 1) % ZERO_STAGED;
    stream_wait_event(d->read, z->units[u].updated);
    stream_wait_event(d->read, d->copied[at]);
    if (z->opt.no_overlap) stream_wait_event(d->read, z->serialized.begun);
    disk_store_read(store_of(z), d->read, d->shard[at], range_of(z, u));
    event_record(d->fetched[at], d->read);
    stream_wait_event(z->gather_stream, d->fetched[at]);
    if (pass != PASS_EVAL) atomic_fetch_add(&z->base.wire.disk_read, range_of(z, u).bytes);
    d->copying = at;
    return d->shard[at];
}

void zero_disk_copied(struct zero *z) { event_record(z->disk.copied[z->disk.copying], z->gather_stream); }

void zero_disk_write(struct zero *z, int u, int at) {
    struct zero_disk *d = &z->disk;
    struct zero_offload *o = &z->offload;
    if (of_masters(z)) return;  // zero_offload writes the masters
    stream_wait_event(d->write, o->updated[at]);
    disk_store_write(d->store, d->write, o->weight[at], range_of(z, u));
    event_record(o->copied_up[at], d->write);
    event_record(z->units[u].updated, d->write);
    event_record(o->over, d->write);
    atomic_fetch_add(&z->base.wire.disk_written, range_of(z, u).bytes);
}

// ---------------------------------------------------------------- outside of steps
int zero_disk_put(struct zero *z, int u, const void *shard) {
    struct disk_range r = range_of(z, u);
    if (of_masters(z)) return 0;
    memset(z->disk.reading, 0, r.bytes);
    memcpy(z->disk.reading, shard, (size_t)unit_shard(z->opt.layout, u) * dtype_size(z->opt.dtype));
    return disk_store_save(z->disk.store, z->disk.reading, r);
}

const void *zero_disk_get(void *ctx, const struct state_range *r) {
    struct zero *z = ctx;
    return disk_store_load(store_of(z), z->disk.reading, range_of(z, r->unit)) ? NULL : z->disk.reading;
}
