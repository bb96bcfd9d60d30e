#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/rank_liveness.h"
#include "shared/core/error.h"

#define RECORDS_PER_BLOCK 64

// A call in flight: the argument of the function that the stream runs.
struct call_record {
    struct collective_call call;
    struct collective_impl *owner;
    struct call_record *next;
};

struct call_block {
    struct call_block *next;
    struct call_record records[RECORDS_PER_BLOCK];
};

// ---------------------------------------------------------------- create and destroy
// The caller holds the lock.
static void add_block(struct collective_impl *c) {
    struct call_block *b = xcalloc(1, sizeof *b);
    b->next = c->blocks;
    c->blocks = b;
    for (int i = 0; i < RECORDS_PER_BLOCK; i++) {
        b->records[i].owner = c;
        b->records[i].next = c->idle;
        c->idle = &b->records[i];
    }
}

int collective_impl_init(struct collective_impl *c, const struct collective_ops *ops, int rank, int size,
                         const struct collective_options *o) {
    size_t least = (size_t)(size - 1) * DEV_ALIGN, host_least = 2 * (size_t)size * DEV_ALIGN;
    bool host = o->host_staging && o->host_staging_bytes < host_least;
    if (host || (o->staging && o->staging_bytes < least))
        return fail(
            "%s collectives: %zu bytes of %sstaging given for channel %d; %zu are the least for %d ranks",
            ops->name, host ? o->host_staging_bytes : o->staging_bytes, host ? "host " : "", c->channel,
            host ? host_least : least, size);
    c->head = (struct collective){
        .ops = ops,
        .rank = rank,
        .size = size,
        .mode = o->mode,
        .control = o->control,
        .group = o->group,
        .counted_group = o->counted_group ? o->counted_group : o->group,
        .wire = o->wire,
        .deadline_s = o->deadline_s,
    };
    c->staging = (struct collective_room){o->staging, o->staging_bytes};
    c->host = (struct collective_room){o->host_staging, o->host_staging_bytes};
    c->enqueue = stream_host;
    pthread_mutex_init(&c->lock, NULL);
    atomic_init(&c->failed, false);
    add_block(c);
    if (c->lives && o->dev) rank_liveness_set_device(c->lives, rank, o->dev);
    return 0;
}

void collective_impl_fini(struct collective_impl *c) {
    if (c->lives) rank_liveness_set_device(c->lives, c->head.rank, NULL);
    for (struct call_block *b = c->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    pthread_mutex_destroy(&c->lock);
}

void collective_destroy(struct collective **c) {
    if (!*c) return;
    (*c)->ops->destroy(*c);
    *c = NULL;
}

// ---------------------------------------------------------------- errors and counters
int collective_impl_fail(struct collective_impl *c, const char *fmt, ...) {
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->failed)) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(c->error, sizeof c->error, fmt, ap);
        va_end(ap);
        atomic_store(&c->failed, true);
    }
    pthread_mutex_unlock(&c->lock);
    return -1;
}

int collective_impl_fail_aborted(struct collective_impl *c, const char *what) {
    const char *why = rank_liveness_end_reason(c->lives);
    return collective_impl_fail(c, "%s on channel %d: aborted: %s", what, c->channel, why ? why : "");
}

const char *collective_aborted(struct collective *head) {
    const struct collective_impl *c = (const struct collective_impl *)head;
    if (head->ops->look) head->ops->look(head);
    return c->lives ? rank_liveness_end_reason(c->lives) : NULL;
}

const char *collective_error(struct collective *head) {
    struct collective_impl *c = (struct collective_impl *)head;
    return atomic_load(&c->failed) ? c->error : "";
}

void collective_count(struct wire_count *wire, bool control, size_t sent_bytes, size_t received_bytes) {
    if (!wire) return;
    atomic_fetch_add(control ? &wire->control_sent : &wire->payload_sent, sent_bytes);
    atomic_fetch_add(control ? &wire->control_received : &wire->payload_received, received_bytes);
}

void collective_count_peer(const struct collective *c, int peer, size_t sent_bytes, size_t received_bytes) {
    collective_count(c->wire, c->control, sent_bytes, received_bytes);
    if (!c->wire || c->control || !c->counted_group || peer / c->counted_group == c->rank / c->counted_group)
        return;
    atomic_fetch_add(&c->wire->across_sent, sent_bytes);
    atomic_fetch_add(&c->wire->across_received, received_bytes);
}

int collective_sum(struct collective_impl *c, const struct reduce_args *a) {
    if (a->n == 0) return 0;
    if (a->dt == DT_U8) return collective_impl_fail(c, "there is no sum of uint8; use int64");
    const char *why = "no reason given";
    if (cpu_ops[OP_REDUCE](1, a, &why) == 0) return 0;
    return collective_impl_fail(c, "sum of %lld %s over %d ranks failed: %s", (long long)a->n,
                                dtype_name(a->dt), c->head.size, why);
}

// ---------------------------------------------------------------- device memory that is not the host's
#define STAGED_BYTES ((size_t)1 << 20)  // bytes of a chunk's share of one block

size_t collective_staging(const struct collective_source *s, size_t max_count, enum dtype dt) {
    // In this case a chunk leaves free memory for its sum.
    bool on_host = s->device_memory && s->kind->on_host;
    return s->kind->staging_bytes && !on_host ? s->kind->staging_bytes(s->size, max_count, dt) : 0;
}

size_t collective_host_staging(const struct collective_source *s, size_t max_count, enum dtype dt) {
    if (!s->device_memory || !s->kind->on_host) return 0;
    return 2 * (size_t)s->size * collective_staging_bytes(2, max_count, dt, STAGED_BYTES);
}

// Copies n elements of every block to send from the device to the host, and waits for this and all earlier copies.
static int fetch(struct collective_impl *c, const struct collective_plan *p, char *host, size_t done,
                 size_t n) {
    const struct collective_call *call = p->call;
    size_t e = dtype_size(call->dt);
    for (size_t i = 0; i < p->send_blocks; i++)
        dev_copy(call->stream, host + i * n * e, (const char *)call->send + (i * p->stride + done) * e,
                 n * e);
    if (stream_sync(call->stream) == 0) return 0;
    return collective_impl_fail(c, "%s: copying to the host failed: %s", p->row->name,
                                dev_error(stream_device(call->stream)));
}

// Copies each block chunk by chunk to host memory and runs the call there. A chunk leaves free memory for its sum: 2*size
// blocks are enough for any call. Runs in a host function of the call's stream.
//
//     host | blocks to send | blocks received | rest |
//
// Chunks of an all_reduce are multiples of its ranks, so every rank moves the same bytes as without chunks.
static int run_staged(struct collective_impl *c, const struct collective_call *call) {
    const struct collective_room *host = &c->host;
    struct collective_plan p = collective_plan_of(call, c->head.rank, c->head.size);
    size_t e = dtype_size(call->dt), size = (size_t)p.size;
    size_t most = host->bytes / (2 * size) / DEV_ALIGN * DEV_ALIGN / e;
    if (p.row->result == RESULT_SUMMED_IN_PIECES && most >= size) most -= most % size;
    if (call->primitive == COLLECTIVE_BARRIER) return c->run(c, call, host);
    for (size_t done = 0; done < call->count; done += most) {
        size_t n = call->count - done < most ? call->count - done : most;
        char *received = host->at + p.send_blocks * n * e, *behind = received + p.recv_blocks * n * e;
        size_t used = dev_round((size_t)(behind - host->at));
        struct collective_room rest = {host->at + used, host->bytes - used};
        struct collective_call chunk = *call;
        chunk.send = host->at;
        chunk.recv = received;
        chunk.count = n;
        chunk.stride = 0;
        if (fetch(c, &p, host->at, done, n) != 0 || c->run(c, &chunk, &rest) != 0) return -1;
        for (size_t i = 0; i < p.recv_blocks; i++)
            dev_copy(call->stream, (char *)call->recv + (i * p.stride + done) * e, received + i * n * e,
                     n * e);
    }
    return 0;
}

// ---------------------------------------------------------------- enqueuing
// Runs on the stream's thread.
static int run_record(void *arg) {
    struct call_record *r = arg;
    struct collective_impl *c = r->owner;
    bool staged = c->on_host && !dev_host_memory(stream_device(r->call.stream));
    double start = now_seconds();
    int rc = -1;
    if (atomic_load(&c->failed))
        rc = -1;
    else if (!staged)
        rc = c->run(c, &r->call, &c->staging);
    else if (c->host.at)
        rc = run_staged(c, &r->call);
    else
        collective_impl_fail(c, "%s on channel %d: this channel was created without host staging",
                             collective_name(r->call.primitive), c->channel);
    c->head.busy_s += now_seconds() - start;
    pthread_mutex_lock(&c->lock);
    r->next = c->idle;
    c->idle = r;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

// A failed stream never runs its records; they are freed with the collective.
void collective_impl_enqueue(struct collective *head, const struct collective_call *call) {
    struct collective_impl *c = (struct collective_impl *)head;
    pthread_mutex_lock(&c->lock);
    if (!c->idle) add_block(c);
    struct call_record *r = c->idle;
    c->idle = r->next;
    pthread_mutex_unlock(&c->lock);
    r->call = *call;
    c->enqueue(call->stream, collective_name(call->primitive), run_record, r);
}

// ---------------------------------------------------------------- groups
void collective_grouped_enqueue(struct collective *c, const struct collective_call *call) {
    for (int k = 0; k < collective_legs(call, c->size, c->group); k++) {
        struct collective_call leg = collective_leg(call, c->rank, c->size, c->group, k);
        c->ops->enqueue(c, &leg);
    }
}
