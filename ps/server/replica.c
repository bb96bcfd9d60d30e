#include "ps/server/replica.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

struct replica_key {
    const struct partition *part;
    int64_t n;  // elements
    struct server_buffers buf;
    struct key_counts
        counts;  // key, version, updates, clock: with masters and states the key's part of a checkpoint
    bool loaded;
    uint64_t load_seq;
    bool kept;  // the sum of step `clock` is here, in buf.acc
    float lr;   // of that sum
};

struct replica {
    struct replica_options o;
    uint64_t incarnation;  // of the primary; 0: not known yet
    int count;
    struct replica_key *keys;
    int *index;  // (map->count): key -> place in keys, -1: not ours
    char error[WIRE_TEXT_MAX];
};

// ---------------------------------------------------------------- messages
static void acknowledge(const struct replica *r, const struct wire_header *h) {
    const struct wire_header ack = {
        .kind = WIRE_REPLICATE_ACK, .key = h->key, .step = h->step, .seq = h->seq};
    port_tell(&r->o.port, PEER_PRIMARY, &ack);
}

// The update of the sum that is kept, as the primary makes it.
static int apply(struct replica *r, struct replica_key *k, const struct update_scalars *scalars) {
    const struct unit *unit = &r->o.layout->units[k->part->unit];
    struct update_range range = {.unit = unit,
                                 .begin = k->part->begin,
                                 .end = k->part->end,
                                 .master = k->buf.master,
                                 .grad = k->buf.acc,
                                 .dtype = r->o.dtype};
    const struct update_step step = {.lr = k->lr, .t = k->counts.updates + 1, .scalars = scalars};
    memcpy(range.state, k->buf.state, sizeof range.state);
    if (!scalars->skip && optimizer_apply(&r->o.optimizer, &range, &step, 1) != 0)
        return core_fail(r->error, "replica of key %d (%s), update %lld: the optimizer failed", k->counts.key,
                         unit->name, (long long)k->counts.version + 1);
    k->counts.version += !scalars->skip;
    k->counts.updates += !scalars->skip;
    k->counts.clock++;
    k->kept = false;
    return 0;
}

static struct update_scalars scalars_of(const struct wire_header *h) {
    return (struct update_scalars){.grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0};
}

// The weights that worker 0 loads, before the first sum.
static void on_load(struct replica *r, struct replica_key *k, const struct wire_header *h,
                    const struct ps_frame *frame) {
    bool started = k->counts.clock > 0 || k->kept;
    if (frame->bytes != (size_t)k->n * sizeof(float)) return;
    if (!started && h->seq > k->load_seq) {
        memcpy(k->buf.master, frame->data, frame->bytes);
        k->load_seq = h->seq;
        k->loaded = true;
    }
    acknowledge(r, h);
}

// A primary sends the sum of step t + 1 only behind the decision of step t, and says that decision: it stands in for
// one of the scheduler's that has not come here.
static int keep_sum(struct replica *r, struct replica_key *k, const struct wire_header *h,
                    const struct ps_frame *frame) {
    if (h->step == k->counts.clock + 1 && k->kept) {
        const struct update_scalars last = scalars_of(h);
        if (apply(r, k, &last) != 0) return -1;
    }
    if (h->step != k->counts.clock || h->version != k->counts.version)
        return core_fail(
            r->error,
            "replica of key %d: the sum of step %lld, version %lld, came, while the replica is at step "
            "%lld, version %lld",
            k->counts.key, (long long)h->step, (long long)h->version, (long long)k->counts.clock,
            (long long)k->counts.version);
    if (frame->bytes != (size_t)k->n * dtype_size(r->o.dtype))
        return core_fail(r->error, "replica of key %d, step %lld: the sum has %zu bytes", k->counts.key,
                         (long long)h->step, frame->bytes);
    memcpy(k->buf.acc, frame->data, frame->bytes);
    k->lr = h->lr;
    k->kept = true;
    return 0;
}

static int on_sum(struct replica *r, struct replica_key *k, const struct wire_header *h,
                  const struct ps_frame *frame) {
    bool known = h->step < k->counts.clock || (h->step == k->counts.clock && k->kept);
    if (!k->loaded) return 0;
    if (!known && keep_sum(r, k, h, frame) != 0) return -1;
    acknowledge(r, h);
    return 0;
}

bool replica_knows(const struct replica *r, const struct wire_header *h) {
    const struct shard_map *m = r->o.map;
    if (h->role != PS_SHARD || h->rank * m->threads + h->thread != r->o.shard) return false;
    if (r->o.job == 0 || h->job != r->o.job) return false;
    return h->incarnation && r->incarnation == h->incarnation;
}

int replica_message(struct replica *r, const struct wire_header *h, struct ps_frame *frame) {
    int i = h->key < r->o.map->count ? r->index[h->key] : -1, rc = 0;
    if (!r->error[0] && replica_knows(r, h) && h->kind == WIRE_REPLICATE && frame && i >= 0) {
        if (h->seq)
            on_load(r, &r->keys[i], h, frame);
        else
            rc = on_sum(r, &r->keys[i], h, frame);
    }
    ps_frame_release(frame);
    return r->error[0] ? -1 : rc;
}

int replica_decision(struct replica *r, const struct wire_header *h) {
    const struct update_scalars scalars = scalars_of(h);
    for (int i = 0; i < r->count && !r->error[0]; i++) {
        struct replica_key *k = &r->keys[i];
        if (k->kept && k->counts.clock == h->step) apply(r, k, &scalars);
    }
    return r->error[0] ? -1 : 0;
}

void replica_loaded(struct replica *r, const struct key_counts *counts) {
    struct replica_key *k = &r->keys[r->index[counts->key]];
    k->loaded = true;
    k->counts = *counts;
    k->counts.pushed = k->counts.batches = NULL;
}

int replica_reach(struct replica *r, int64_t steps, const struct update_scalars *last) {
    for (int i = 0; i < r->count && !r->error[0]; i++) {
        struct replica_key *k = &r->keys[i];
        if (k->loaded && k->kept && k->counts.clock == steps - 1 && apply(r, k, last) != 0) return -1;
        k->kept = false;
        if (!k->loaded || k->counts.clock != steps)
            return core_fail(r->error, "replica of key %d: it is at step %lld and cannot reach step %lld",
                             k->counts.key, (long long)k->counts.clock, (long long)steps);
    }
    return r->error[0] ? -1 : 0;
}

// ---------------------------------------------------------------- create, destroy, state
struct replica *replica_create(const struct replica_options *o) {
    struct replica *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->index = xcalloc((unsigned long)o->map->count + 1, sizeof *r->index);
    r->keys = xcalloc((unsigned long)o->map->shard_keys[o->shard] + 1, sizeof *r->keys);
    for (int key = 0; key < o->map->count; key++) {
        const struct partition *p = &o->map->parts[key];
        r->index[key] = -1;
        if (p->shard != o->shard) continue;
        r->index[key] = r->count;
        r->keys[r->count++] = (struct replica_key){
            .part = p, .n = p->end - p->begin, .buf = o->buffers[key], .counts.key = key};
    }
    return r;
}

void replica_destroy(struct replica **replica) {
    struct replica *r = *replica;
    if (!r) return;
    free(r->keys);
    free(r->index);
    free(r);
    *replica = NULL;
}

void replica_set_primary(struct replica *r, uint64_t incarnation) { r->incarnation = incarnation; }

void replica_set_job(struct replica *r, uint64_t job) { r->o.job = job; }

int64_t replica_version(const struct replica *r, int key) {
    int i = key >= 0 && key < r->o.map->count ? r->index[key] : -1;
    return i < 0 ? -1 : r->keys[i].counts.version;
}

const char *replica_error(const struct replica *r) { return r->error; }
