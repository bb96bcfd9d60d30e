#include "kernels/spans.h"

#include <stdlib.h>

int spans_open(struct spans *s, size_t room, enum spans_kept kept) {
    struct span *ring = calloc(room ? room : 1, sizeof *ring);
    if (!ring) return -1;
    free(s->ring);
    *s = (struct spans){.ring = ring, .room = room, .kept = kept};
    return 0;
}

void spans_close(struct spans *s) {
    free(s->ring);
    *s = (struct spans){0};
}

void spans_add(struct spans *s, const struct span *one) {
    if (spans_count(s) < s->room) {
        s->ring[s->next++ % s->room] = *one;
        return;
    }
    if (s->kept == SPANS_LAST && s->room) {
        s->ring[s->next++ % s->room] = *one;
        s->first++;
        return;
    }
    s->lost++;
    if (s->kept != SPANS_LONGEST || !s->room) return;
    // A longer span replaces the shortest one.
    struct span *shortest = s->ring;
    for (size_t i = 1; i < s->room; i++)
        if (span_length(&s->ring[i]) < span_length(shortest)) shortest = &s->ring[i];
    if (span_length(one) > span_length(shortest)) *shortest = *one;
}

size_t spans_take(struct spans *s, struct span *out, size_t room, uint64_t *lost) {
    size_t n = 0;
    while (n < room && s->first < s->next) out[n++] = s->ring[s->first++ % s->room];
    *lost = s->lost;
    s->lost = 0;
    return n;
}

static int by_begin(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

void spans_sort(struct spans *s) {
    if (s->ring) qsort(s->ring, spans_count(s), sizeof *s->ring, by_begin);
}
