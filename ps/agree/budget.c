#include "ps/agree/budget.h"

#include <stdlib.h>

#include "shared/core/error.h"

// The last batch given to one worker.
struct last_take {
    bool known;     // the worker has sent a TAKE
    int64_t step;   // step of its last TAKE
    int64_t batch;  // -1: none was left
};

struct budget {
    struct budget_options o;
    struct last_take *takes;  // (workers)
    bool begun, stopped;
    int64_t next;       // the lowest batch that was not handed out yet
    int64_t *returned;  // (DONE_MAX) batches below next that still have to be handed out, in order
    int first, count;
};

#define DONE_MAX (WIRE_VALUES_MAX * BUDGET_BITS)

struct budget *budget_create(const struct budget_options *o) {
    struct budget *b = xcalloc(1, sizeof *b);
    b->o = *o;
    b->returned = xcalloc(DONE_MAX, sizeof *b->returned);
    b->takes = xcalloc((unsigned long)o->workers, sizeof *b->takes);
    return b;
}

void budget_destroy(struct budget **at) {
    if (!*at) return;
    free((*at)->returned);
    free((*at)->takes);
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
        if (!is_done(h, batch - h->version)) b->returned[b->count++] = batch;
}

// ---------------------------------------------------------------- handing out
bool budget_take(struct budget *b, int worker, const struct wire_header *h, struct wire_header *out) {
    struct last_take *t = &b->takes[worker];
    begin(b, h);
    if (t->known && h->step < t->step) return false;  // a late copy of an answered request
    if (!t->known || h->step > t->step) {
        *t = (struct last_take){true, h->step, -1};
        if (b->o.recorded)
            t->batch = b->o.recorded(b->o.ctx, worker, h->step);
        else if (!b->stopped && b->count)
            b->count--, t->batch = b->returned[b->first++];
        else if (!b->stopped && b->next < b->o.total)
            t->batch = b->next++;
    }
    // A worker without a batch learns how much of the budget is used. In a replay each worker's last batch is known.
    int64_t used = b->o.recorded ? b->o.total : budget_taken(b);
    *out = (struct wire_header){.kind = WIRE_TAKEN,
                                .step = t->step,
                                .batch = t->batch < 0 ? used : t->batch,
                                .flags = t->batch < 0 ? WIRE_FINAL : 0};
    return true;
}

bool budget_has_asked(const struct budget *b, int worker) { return b->takes[worker].known; }

void budget_stop(struct budget *b) { b->stopped = true; }

int64_t budget_taken(const struct budget *b) { return b->next - b->count; }
