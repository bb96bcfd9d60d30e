#include "shared/train/batch_feed.h"

#include <stdlib.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"

struct half {
    int32_t *tokens, *targets;  // (own sequences, T)
    struct event *sent;         // compute has copied what was read last
};

struct batch_feed {
    struct batch_feed_options o;
    bool device_memory;
    struct arena arena;  // page-locked halves
    struct half half[2];
    int64_t latest, first;  // step whose batch was read last, -1: none; where it began
};

static int64_t own_sequences(const struct config *c) { return c->micro_batch * c->accumulation; }
static size_t half_bytes(const struct config *c) {
    return 2 * (size_t)(own_sequences(c) * c->seq) * sizeof(int32_t);
}
static struct half *half_of(struct batch_feed *f, int64_t step) { return &f->half[step & 1]; }

void batch_feed_predict(const struct config *c, bool device_memory, size_t bytes[MEM_CLASSES]) {
    struct arena a;
    arena_init(&a, NULL);
    for (int i = 0; device_memory && i < 2; i++) arena_take(&a, MEM_HOST, half_bytes(c));
    for (int class = 0; class < MEM_CLASSES; class ++) bytes[class] += a.bytes[class];
    arena_release(&a);
}

struct batch_feed *batch_feed_create(const struct batch_feed_options *o) {
    struct batch_feed *f = xcalloc(1, sizeof *f);
    size_t bytes = half_bytes(o->config);
    f->o = *o;
    f->device_memory = !dev_host_memory(o->dev);
    f->latest = -1;
    arena_init(&f->arena, o->dev);
    bool made = true;
    for (int i = 0; i < 2; i++) {
        struct half *h = &f->half[i];
        h->tokens = f->device_memory ? arena_take(&f->arena, MEM_HOST, bytes) : xcalloc(1, bytes);
        h->targets = h->tokens ? h->tokens + bytes / sizeof *h->tokens / 2 : NULL;
        h->sent = event_create(o->dev);
        made = made && h->tokens && h->sent;
    }
    if (!made) batch_feed_destroy(&f);
    return f;
}

void batch_feed_destroy(struct batch_feed **at) {
    struct batch_feed *f = *at;
    if (!f) return;
    for (int i = 0; i < 2; i++) {
        event_destroy(&f->half[i].sent);
        if (!f->device_memory) free(f->half[i].tokens);
    }
    arena_release(&f->arena);
    free(f);
    *at = NULL;
}

// Until the copies out of it have passed; most often they have.
static int half_await(struct half *h) {
    int state = event_passed(h->sent);
    return state == 0 ? event_sync(h->sent) : state < 0 ? -1 : 0;
}

// A batch may reach from one global batch's draw into the next one's.
int batch_feed_read(struct batch_feed *f, int64_t step, int64_t first) {
    const struct config *c = f->o.config;
    struct half *h = half_of(f, step);
    if (f->latest == step && f->first == first) return 0;
    if (half_await(h)) return -1;
    for (int64_t own = own_sequences(c), at = 0, n; at < own; at += n) {
        int64_t draw = (first + at) / c->train_batch, index = (first + at) % c->train_batch;
        n = own - at < c->train_batch - index ? own - at : c->train_batch - index;
        data_batch(f->o.data, &(struct data_slice){c->seed, draw, index, n, c->seq}, h->tokens + at * c->seq,
                   h->targets + at * c->seq);
    }
    f->latest = step;
    f->first = first;
    return 0;
}

struct batch batch_feed_micro(const struct batch_feed *f, int64_t step, int64_t k) {
    const struct half *h = &f->half[step & 1];
    int64_t at = k * f->o.config->micro_batch * f->o.config->seq;
    return (struct batch){h->tokens + at, h->targets + at};
}

void batch_feed_sent(struct batch_feed *f, int64_t step) {
    event_record(half_of(f, step)->sent, f->o.compute);
}
