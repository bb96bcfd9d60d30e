#include "ps/sum/crew_meet.h"

#include "ps/net/medium.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define NAME_BYTES 192  // SEGMENT_NAME_MAX, and units behind it are aligned
static_assert(SEGMENT_NAME_MAX <= NAME_BYTES && NAME_BYTES % 64 == 0, "a name fits, and alignment holds");

size_t crew_board_bytes(int units, int64_t keys) {
    return segment_pages(SEGMENT_HEAD + NAME_BYTES + (size_t)units * sizeof(struct crew_unit) +
                         (size_t)keys * sizeof(struct crew_key));
}

static void lay_out(const struct crew_place *p, struct crew_member *m, const struct segment *board) {
    void *units = board->base + SEGMENT_HEAD + NAME_BYTES;
    m->units = units;
    void *keys = m->units + p->o.layout->count;
    m->keys = keys;
}

int crew_open(struct crew_place *p, const struct crew_options *o, double *numbers) {
    int size = ps_crew(o->config), first = o->rank - o->rank % size;
    char name[SEGMENT_NAME_MAX];
    *p = (struct crew_place){.o = *o};
    if (!o->grads->base)
        return fail(
            "reduce_group %d: this worker shares no memory, and its group adds its gradients there: give --medium tcp, "
            "with which the servers add in groups",
            size);
    p->boards = xcalloc((unsigned long)size, sizeof *p->boards);
    p->grads = xcalloc((unsigned long)size, sizeof *p->grads);
    for (int i = 0; i < size; i++) p->boards[i].fd = p->grads[i].fd = -1;
    p->crew = (struct crew){.size = size,
                            .self = o->rank - first,
                            .first_rank = first,
                            .members = xcalloc((unsigned long)size, sizeof *p->crew.members),
                            .grads = xcalloc((unsigned long)size, sizeof *p->crew.grads),
                            .map = o->map,
                            .dtype = o->config->dtype,
                            .wire = o->wire};
    struct segment *board = &p->boards[p->crew.self];
    if (segment_create(board, crew_board_bytes(o->layout->count, o->map->count)) != 0) return -1;
    struct crew_member *own = &p->crew.members[p->crew.self];
    segment_name(o->grads, board->base + SEGMENT_HEAD);
    lay_out(p, own, board);
    own->base = o->grads->base;
    for (int u = 0; u < o->layout->count; u++) own->units[u].grad_at = o->grad_at[u];
    segment_name(board, name);
    segment_numbers(name, numbers);
    return 0;
}

// Maps member i's board and gradients. 0, or -1 with why.
static int reach(struct crew_place *p, int i, const double *numbers, char why[SEGMENT_WHY_MAX]) {
    struct crew_member *m = &p->crew.members[i];
    struct segment *board = &p->boards[i], *grads = &p->grads[i];
    const struct layout *l = p->o.layout;
    char name[SEGMENT_NAME_MAX];
    if (segment_of_numbers(numbers, name, why) != 0) return -1;
    if (segment_open(board, name, SEGMENT_READ, why) != 0) return -1;
    if (board->bytes != crew_board_bytes(l->count, p->o.map->count)) {
        snprintf(why, SEGMENT_WHY_MAX, "its board has %zu bytes: was it given the same model?", board->bytes);
        return -1;
    }
    memcpy(name, board->base + SEGMENT_HEAD, sizeof name);
    name[sizeof name - 1] = 0;
    if (segment_open(grads, name, SEGMENT_READ, why) != 0) return -1;
    lay_out(p, m, board);
    m->base = grads->base;
    for (int u = 0; u < l->count; u++) {
        if (segment_holds(grads, m->units[u].grad_at,
                          (uint64_t)l->units[u].n_pad * dtype_size(p->crew.dtype)))
            continue;
        snprintf(why, SEGMENT_WHY_MAX, "its gradient of unit %s lies outside of what it shares",
                 l->units[u].name);
        return -1;
    }
    return 0;
}

int crew_meet(struct crew_place *p, const double *numbers) {
    char why[SEGMENT_WHY_MAX];
    const struct crew *c = &p->crew;
    for (int i = 0; i < c->size; i++) {
        int rank = c->first_rank + i;
        if (i == c->self || reach(p, i, numbers + (size_t)rank * CREW_NUMBERS, why) == 0) continue;
        return fail(
            "reduce_group %d: workers %d and %d are of one group and share no memory: %s. Give the number of workers of a "
            "machine, whose numbers follow each other; or --medium tcp, with which the servers add in groups",
            c->size, p->o.rank, rank, why);
    }
    return 0;
}

void crew_close(struct crew_place *p) {
    for (int i = 0; p->boards && i < p->crew.size; i++) {
        segment_close(&p->boards[i]);
        segment_close(&p->grads[i]);
    }
    free(p->boards);
    free(p->grads);
    free(p->crew.members);
    free(p->crew.grads);
    *p = (struct crew_place){0};
}
