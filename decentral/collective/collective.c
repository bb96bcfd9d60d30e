#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/collective_impl.h"
#include "shared/core/error.h"

#define RECORDS_PER_BLOCK 64

// A call in flight: the argument of the stream's function.
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

void collective_impl_init(struct collective_impl *c, const struct collective_ops *ops, int rank, int size,
                          const struct collective_options *o) {
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
    c->enqueue = stream_host;
    pthread_mutex_init(&c->lock, NULL);
    atomic_init(&c->failed, false);
    add_block(c);
}

void collective_impl_fini(struct collective_impl *c) {
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

const char *collective_rank_list(char *buf, size_t buf_bytes, const bool *missing, int size) {
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; i < size; i++) {
        if (!missing[i]) continue;
        if (used + 24 > buf_bytes) {
            snprintf(buf + used, buf_bytes - used, ", ...");
            break;
        }
        used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%d", used ? ", " : "", i);
    }
    return buf;
}

int collective_sum(struct collective_impl *c, const struct reduce_args *a) {
    if (a->n == 0) return 0;
    if (a->dt == DT_U8) return collective_impl_fail(c, "there is no sum of uint8; use int64");
    const char *why = "no reason given";
    if (cpu_ops[OP_REDUCE](1, a, &why) == 0) return 0;
    return collective_impl_fail(c, "sum of %lld %s over %d ranks failed: %s", (long long)a->n,
                                dtype_name(a->dt), c->head.size, why);
}

// ---------------------------------------------------------------- enqueuing
// Runs on the stream's thread.
static int run_record(void *arg) {
    struct call_record *r = arg;
    struct collective_impl *c = r->owner;
    double start = now_seconds();
    int rc = atomic_load(&c->failed) ? -1 : c->run(c, &r->call);
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

// ---------------------------------------------------------------- device memory that is not the host's
#define STAGED_BYTES ((size_t)1 << 20)  // of one block per chunk

size_t collective_host_bytes(int size, size_t max_count, enum dtype dt) {
    return 2 * (size_t)size * collective_staging_bytes(2, max_count, dt, STAGED_BYTES);
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

// Chunks of an all_reduce are multiples of its ranks, so every rank moves the same bytes as without chunks.
int collective_staged(struct collective_impl *c, const struct collective_call *call,
                      const struct collective_room *host,
                      int (*run)(struct collective_impl *c, const struct collective_call *call,
                                 const struct collective_room *rest)) {
    struct collective_plan p = collective_plan_of(call, c->head.rank, c->head.size);
    size_t e = dtype_size(call->dt), size = (size_t)p.size;
    size_t most = host->bytes / (2 * size) / DEV_ALIGN * DEV_ALIGN / e;
    if (p.row->result == RESULT_SUMMED_IN_PIECES && most >= size) most -= most % size;
    if (call->primitive == COLLECTIVE_BARRIER) return run(c, call, host);
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
        if (fetch(c, &p, host->at, done, n) != 0 || run(c, &chunk, &rest) != 0) return -1;
        for (size_t i = 0; i < p.recv_blocks; i++)
            dev_copy(call->stream, (char *)call->recv + (i * p.stride + done) * e, received + i * n * e,
                     n * e);
    }
    return 0;
}
