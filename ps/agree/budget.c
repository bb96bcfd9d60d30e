#include "ps/agree/budget.h"

#include <stdlib.h>

#include "shared/core/error.h"

// The batches that one worker has asked for and was given.
struct taker {
    bool asks;                   // its TAKE of `step` waits
    bool known;                  // it has asked at all
    int64_t step;                // of its last TAKE
    int64_t batch;               // given for it; -1: none was left
    int64_t open[BATCHES_OPEN];  // not acknowledged; -1: none
    int64_t of[BATCHES_OPEN];    // the steps of these
};

struct budget {
    struct budget_options o;
    struct taker *takers;  // (workers)
    bool begun, stopped;
    int64_t next;   // the lowest that nobody has had
    int64_t *back;  // (room) batches below next that are to be handed out, in order
    int count, room;
};

#define DONE_MOST (WIRE_VALUES_MAX * BUDGET_BITS)

struct budget *budget_create(const struct budget_options *o) {
    struct budget *b = xcalloc(1, sizeof *b);
    b->o = *o;
    b->room = DONE_MOST + BATCHES_OPEN * o->workers;
    b->back = xcalloc((unsigned long)b->room, sizeof *b->back);
    b->takers = xcalloc((unsigned long)o->workers, sizeof *b->takers);
    for (int w = 0; w < o->workers; w++)
        for (int i = 0; i < BATCHES_OPEN; i++) b->takers[w].open[i] = -1;
    return b;
}

void budget_destroy(struct budget **at) {
    if (!*at) return;
    free((*at)->back);
    free((*at)->takers);
    free(*at);
    *at = NULL;
}

// ---------------------------------------------------------------- what is done already
void budget_write_done(struct wire_header *h, int64_t low) {
    h->version = low;
    h->count = 0;
}

void budget_set_done(struct wire_header *h, int64_t batch) {
    int64_t at = batch - h->version, word = at / BUDGET_BITS;
    if (at < 0 || word >= WIRE_VALUES_MAX) return;
    while (h->count <= word) h->values[h->count++] = 0;
    h->values[word] += (double)(INT64_C(1) << at % BUDGET_BITS);
}

static bool is_done(const struct wire_header *h, int64_t at) {
    double word = h->values[at / BUDGET_BITS];
    bool whole = word >= 0 && word < (double)(INT64_C(1) << BUDGET_BITS);
    return whole && (int64_t)word >> at % BUDGET_BITS & 1;
}

static void begin(struct budget *b, const struct wire_header *h) {
    int64_t most = (int64_t)h->count * BUDGET_BITS;
    if (b->begun) return;
    b->begun = true;
    b->next = h->version < b->o.total ? h->version : b->o.total;
    for (int64_t at = 0; at < most && h->version + at < b->o.total; at++)
        if (is_done(h, at)) b->next = h->version + at + 1;
    for (int64_t batch = h->version; batch < b->next; batch++)
        if (!is_done(h, batch - h->version)) b->back[b->count++] = batch;
}

// ---------------------------------------------------------------- handing out
static void put_back(struct budget *b, int64_t batch) {
    int at = b->count++;
    for (; at > 0 && b->back[at - 1] > batch; at--) b->back[at] = b->back[at - 1];
    b->back[at] = batch;
}

static int64_t hand_out(struct budget *b) {
    if (b->stopped || budget_empty(b)) return -1;
    if (!b->count) return b->next++;
    int64_t batch = b->back[0];
    b->count--;
    for (int i = 0; i < b->count; i++) b->back[i] = b->back[i + 1];
    return batch;
}

static bool is_open(const struct budget *b) {
    for (int w = 0; w < b->o.workers; w++)
        for (int i = 0; i < BATCHES_OPEN; i++)
            if (b->takers[w].open[i] >= 0) return true;
    return false;
}

// Gives its TAKE an answer, if there is one.
static bool answer(struct budget *b, int worker, struct wire_header *out) {
    struct taker *t = &b->takers[worker];
    if (t->asks) {
        int64_t batch = b->o.recorded ? b->o.recorded(b->o.ctx, worker, t->step) : hand_out(b);
        if (batch < 0 && b->o.returns && !b->stopped && is_open(b)) return false;
        t->asks = false;
        t->batch = batch;
        t->open[t->step % BATCHES_OPEN] = batch;
        t->of[t->step % BATCHES_OPEN] = t->step;
    }
    // To a worker that gets none of it any more: how far the budget is used. Of a replay each worker's last batch is known.
    int64_t used = b->o.recorded ? b->o.total : budget_taken(b);
    *out = (struct wire_header){.kind = WIRE_TAKEN,
                                .step = t->step,
                                .batch = t->batch < 0 ? used : t->batch,
                                .flags = t->batch < 0 ? WIRE_FINAL : 0};
    return true;
}

bool budget_take(struct budget *b, int worker, const struct wire_header *h, struct wire_header *out) {
    struct taker *t = &b->takers[worker];
    int64_t done = (int64_t)h->seq;
    begin(b, h);
    if (t->known && h->step < t->step) return false;  // a repetition of what was answered, and heard, before
    if (!t->known || h->step > t->step) {
        t->asks = t->known = true;
        t->step = h->step;
    }
    // The step before the last one is acknowledged, or this one would not be asked for.
    if (done < h->step - 1) done = h->step - 1;
    for (int i = 0; i < BATCHES_OPEN; i++)
        if (t->open[i] >= 0 && t->of[i] < done) t->open[i] = -1;
    return answer(b, worker, out);
}

int budget_ready(struct budget *b, struct wire_header *out) {
    for (int w = 0; w < b->o.workers; w++)
        if (b->takers[w].asks && answer(b, w, out)) return w;
    return -1;
}

void budget_lost(struct budget *b, int worker) {
    struct taker *t = &b->takers[worker];
    for (int i = 0; i < BATCHES_OPEN; i++) {
        if (t->open[i] >= 0) put_back(b, t->open[i]);
        t->open[i] = -1;
    }
    t->asks = t->known = false;
}

bool budget_knows(const struct budget *b, int worker) { return b->takers[worker].known; }

bool budget_waits(const struct budget *b, int worker) { return b->takers[worker].asks; }

void budget_stop(struct budget *b) { b->stopped = true; }

bool budget_empty(const struct budget *b) { return !b->count && b->next >= b->o.total; }

int64_t budget_taken(const struct budget *b) { return b->next - b->count; }
