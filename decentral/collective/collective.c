// The common half of the collectives: enqueuing, the pool of call records, errors, counting.
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/collective_impl.h"
#include "shared/core/error.h"

#define RECORDS_PER_BLOCK 64

// A call in flight: what the stream's function gets.
struct call_record {
    struct collective_call call;
    struct stream *stream;
    struct collective_impl *owner;
    struct call_record *next;
};

struct call_block {
    struct call_block *next;
    struct call_record records[RECORDS_PER_BLOCK];
};

const char *collective_op_name(enum collective_op op) {
    static const char *const names[COLLECTIVE_OPS] = {
        "broadcast",      "scatter",    "reduce", "all_reduce", "gather",  "all_gather",
        "reduce_scatter", "all_to_all", "send",   "recv",       "barrier",
    };
    return names[op];
}

// ---------------------------------------------------------------- life

// With the lock held.
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

int collective_sum(struct collective_impl *c, void *out, const void *const *inputs, int64_t n,
                   enum dtype dt) {
    if (n == 0) return 0;
    if (dt == DT_U8) return collective_impl_fail(c, "there is no sum of uint8; use int64");
    const char *why = "no reason given";
    struct reduce_args a = {.out = out, .inputs = inputs, .count = c->head.size, .n = n, .dt = dt};
    if (cpu_ops[OP_REDUCE](1, &a, &why) == 0) return 0;
    return collective_impl_fail(c, "sum of %lld %s over %d ranks failed: %s", (long long)n, dtype_name(dt),
                                c->head.size, why);
}

// ---------------------------------------------------------------- enqueuing

// On the stream's thread.
static int run_record(void *arg) {
    struct call_record *r = arg;
    struct collective_impl *c = r->owner;
    double start = now_seconds();
    int rc = atomic_load(&c->failed) ? -1 : c->run(c, r->stream, &r->call);
    c->head.busy_s += now_seconds() - start;
    pthread_mutex_lock(&c->lock);
    r->next = c->idle;
    c->idle = r;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

// A stream that has failed never runs its records: they stay out until the collective is destroyed.
static void enqueue(struct collective *head, struct stream *s, const struct collective_call *call) {
    struct collective_impl *c = (struct collective_impl *)head;
    assert(call->root < head->size);
    pthread_mutex_lock(&c->lock);
    if (!c->idle) add_block(c);
    struct call_record *r = c->idle;
    c->idle = r->next;
    pthread_mutex_unlock(&c->lock);
    r->call = *call;
    r->stream = s;
    c->enqueue(s, collective_op_name(call->op), run_record, r);
}

void collective_enqueue_broadcast(struct collective *c, struct stream *s, void *buf, size_t count,
                                  enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_BROADCAST, dt, root, count, buf, buf});
}

void collective_enqueue_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                size_t count, enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_SCATTER, dt, root, count, send, recv});
}

void collective_enqueue_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                               size_t count, enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_REDUCE, dt, root, count, send, recv});
}

void collective_enqueue_all_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_REDUCE, dt, -1, count, send, recv});
}

void collective_enqueue_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                               size_t count, enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_GATHER, dt, root, count, send, recv});
}

void collective_enqueue_all_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_GATHER, dt, -1, count, send, recv});
}

void collective_enqueue_reduce_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                       size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_REDUCE_SCATTER, dt, -1, count, send, recv});
}

void collective_enqueue_all_to_all(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt) {
    assert(send != recv);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_TO_ALL, dt, -1, count, send, recv});
}

void collective_enqueue_send(struct collective *c, struct stream *s, const void *buf, size_t count,
                             enum dtype dt, int to) {
    assert(to >= 0 && to != c->rank);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_SEND, dt, to, count, buf, NULL});
}

void collective_enqueue_recv(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt,
                             int from) {
    assert(from >= 0 && from != c->rank);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_RECV, dt, from, count, NULL, buf});
}

void collective_enqueue_barrier(struct collective *c, struct stream *s) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_BARRIER, DT_U8, -1, 0, NULL, NULL});
}
