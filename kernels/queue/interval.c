#include "kernels/queue/interval.h"

#include <stdlib.h>

int interval_log_open(struct interval_log *l, size_t room, bool stamps_only) {
    struct interval *ring = calloc(room, sizeof *ring);
    if (!ring) return -1;
    free(l->ring);
    *l = (struct interval_log){.ring = ring, .room = room, .stamps_only = stamps_only};
    return 0;
}

void interval_log_close(struct interval_log *l) {
    free(l->ring);
    *l = (struct interval_log){0};
}

// The busy interval that i goes on with, or NULL.
static struct interval *neighbour(struct interval_log *l, const struct interval *i) {
    if (l->busy <= l->first) return NULL;
    struct interval *before = &l->ring[(l->busy - 1) % l->room];
    bool near = i->begin_ns >= before->begin_ns && i->begin_ns - before->end_ns <= INTERVAL_GAP_NS;
    return near && before->phase == i->phase ? before : NULL;
}

void interval_note(struct interval_log *l, const struct interval *i) {
    bool stamp = i->kind == INTERVAL_STAMP;
    if (!l->ring || (l->stamps_only && !stamp)) return;
    if (i->kind == INTERVAL_WAIT && i->end_ns - i->begin_ns < INTERVAL_GAP_NS) return;
    struct interval *before = i->kind == INTERVAL_BUSY ? neighbour(l, i) : NULL;
    if (before) {
        if (i->end_ns > before->end_ns) before->end_ns = i->end_ns;
        return;
    }
    if (l->next - l->first == l->room) {
        l->lost++;
        return;
    }
    l->ring[l->next++ % l->room] = *i;
    if (!stamp) l->busy = i->kind == INTERVAL_BUSY ? l->next : 0;
}

size_t interval_take(struct interval_log *l, struct interval *out, size_t room, uint64_t *lost) {
    size_t n = 0;
    while (n < room && l->first < l->next) out[n++] = l->ring[l->first++ % l->room];
    *lost = l->lost;
    l->lost = 0;
    return n;
}
