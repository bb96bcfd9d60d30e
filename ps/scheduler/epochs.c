#include "ps/scheduler/epochs.h"

#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"

void epochs_init(struct epochs *e, const struct epoch_options *o, uint64_t job) {
    *e = (struct epochs){.o = *o, .epoch = o->first ? o->first : 1, .job = job, .used = o->used};
    e->reached = -1;
    if (o->why) snprintf(e->why, sizeof e->why, "%s", o->why);
}

void epochs_free(struct epochs *e) { free(e->retired); }

bool epochs_retired(const struct epochs *e, uint64_t incarnation) {
    for (int i = e->count - 1; i >= 0; i--)
        if (e->retired[i] == incarnation) return true;
    for (uint64_t i = 0; i < EPOCHS_FORMER && i < e->formers; i++)
        if (e->former[i] == incarnation) return true;
    return false;
}

void epochs_former(struct epochs *e, uint64_t incarnation) {
    if (incarnation && !epochs_retired(e, incarnation)) e->former[e->formers++ % EPOCHS_FORMER] = incarnation;
}

bool epochs_old(const struct epochs *e, const struct wire_header *h) {
    if (!e->o.restarts) return false;
    if (h->job && h->job != e->job) return true;
    return h->kind == WIRE_HELLO && epochs_retired(e, h->incarnation);
}

void epochs_retire(struct epochs *e, uint64_t incarnation) {
    if (!incarnation || epochs_retired(e, incarnation)) return;
    if (e->count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 64;
        e->retired = xrealloc(e->retired, (unsigned long)e->capacity * sizeof *e->retired);
    }
    e->retired[e->count++] = incarnation;
}

bool epochs_take(struct epochs *e) {
    bool left = e->used < e->o.restarts;
    e->used += left;
    return left;
}

void epochs_next(struct epochs *e, const char *why) {
    e->epoch++;
    e->job = e->o.job(e->o.ctx);
    snprintf(e->why, sizeof e->why, "%s", why);
}

struct wire_header epochs_rollback(const struct epochs *e) {
    struct wire_header h = {.kind = WIRE_ROLLBACK, .epoch = e->epoch};
    snprintf(h.text, sizeof h.text, "%s", e->why);
    return h;
}
