#include "shared/train/batch_feed.h"

#include <stdlib.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"

struct half {
    int32_t *tokens, *targets;  // (own sequences, T): with a smaller T the end of a region is unused
    int64_t *seq;               // (micro-batches) the T of each
    struct event *sent;         // event: compute has copied the batch that was read last
};

struct batch_feed {
    struct batch_feed_options o;
    bool device_memory;
    struct arena arena;  // page-locked halves
    struct half half[2];
    int64_t latest, first;  // step whose batch was read last, -1: none; its first sample
};

static size_t half_bytes(const struct config *c) {
    return 2 * (size_t)(config_own_sequences(c) * c->seq) * sizeof(int32_t);
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
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        struct half *h = &f->half[i];
        h->tokens = f->device_memory ? arena_take(&f->arena, MEM_HOST, bytes) : xcalloc(1, bytes);
        h->seq = xcalloc((size_t)o->config->accumulation, sizeof *h->seq);
        h->targets = h->tokens ? h->tokens + bytes / sizeof *h->tokens / 2 : NULL;
        h->sent = event_create(o->dev);
        ok = ok && h->tokens && h->sent;
    }
    if (!ok) batch_feed_destroy(&f);
    return f;
}

void batch_feed_destroy(struct batch_feed **at) {
    struct batch_feed *f = *at;
    if (!f) return;
    for (int i = 0; i < 2; i++) {
        event_destroy(&f->half[i].sent);
        free(f->half[i].seq);
        if (!f->device_memory) free(f->half[i].tokens);
    }
    arena_release(&f->arena);
    free(f);
    *at = NULL;
}

// Returns the samples from `sample` on, at most n, that are in the same global batch's draw.
static struct data_slice slice_at(const struct batch_feed *f, int64_t sample, int64_t n, int64_t seq) {
    const struct config *c = f->o.config;
    int64_t index = sample % c->train_batch, left = c->train_batch - index;
    return (struct data_slice){c->seed, sample / c->train_batch, index, n < left ? n : left, seq};
}

static struct batch_count count_micro(const struct batch_feed *f, int64_t first) {
    const struct config *c = f->o.config;
    struct batch_count n = {0};
    int64_t longest = 0;
    for (int64_t i = 0; i < c->micro_batch; i++) {
        struct data_slice one = slice_at(f, first + i, 1, c->seq);
        int64_t length = data_length(f->o.data, &one);
        n.tokens += length;
        n.squares += (double)length * (double)length;
        longest = length > longest ? length : longest;
    }
    n.padded_tokens = c->micro_batch * (data_documents(f->o.data) ? data_bucket(longest, c->seq) : c->seq);
    return n;
}

struct batch_count batch_feed_count(const struct batch_feed *f, int64_t first, int64_t samples) {
    struct batch_count sum = {0};
    int64_t seq = f->o.config->seq, packed = samples * seq;
    if (!data_documents(f->o.data)) return (struct batch_count){packed, packed, (double)packed * (double)seq};
    for (int64_t at = 0; at < samples; at += f->o.config->micro_batch) {
        struct batch_count n = count_micro(f, first + at);
        sum.tokens += n.tokens;
        sum.padded_tokens += n.padded_tokens;
        sum.squares += n.squares;
    }
    return sum;
}

// A batch may extend from one global batch's draw into the next one.
int batch_feed_read(struct batch_feed *f, int64_t step, int64_t first) {
    const struct config *c = f->o.config;
    struct half *h = half_of(f, step);
    if (f->latest == step && f->first == first) return 0;
    // The copies out of the half are usually done.
    int state = event_passed(h->sent);
    if (state < 0 || (state == 0 && event_sync(h->sent))) return -1;
    for (int64_t k = 0; k < c->accumulation; k++) {
        int64_t begin = first + k * c->micro_batch, offset = k * c->micro_batch * c->seq, n;
        h->seq[k] = count_micro(f, begin).padded_tokens / c->micro_batch;
        for (int64_t at = 0; at < c->micro_batch; at += n, offset += n * h->seq[k]) {
            struct data_slice slice = slice_at(f, begin + at, c->micro_batch - at, h->seq[k]);
            n = slice.count;
            data_batch(f->o.data, &slice, h->tokens + offset, h->targets + offset);
        }
    }
    f->latest = step;
    f->first = first;
    return 0;
}

struct batch batch_feed_micro(const struct batch_feed *f, int64_t step, int64_t k) {
    const struct half *h = &f->half[step & 1];
    int64_t at = k * f->o.config->micro_batch * f->o.config->seq;
    return (struct batch){h->tokens + at, h->targets + at, h->seq[k]};
}

void batch_feed_sent(struct batch_feed *f, int64_t step) {
    event_record(half_of(f, step)->sent, f->o.compute);
}
