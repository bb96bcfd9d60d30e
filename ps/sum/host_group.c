#include "ps/sum/host_group.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/medium.h"
#include "ps/sum/sum.h"
#include "shared/core/error.h"

#define ADDED_AT_ONCE 1024  // elements

void host_group_hand(struct host_group *c, int u, const struct host_group_info *info) {
    struct host_group_unit *own = &c->members[c->self].units[u];
    own->ready_ns = info->ready_ns;
    own->lr = info->lr;
    own->keep = info->keep;
    atomic_store_explicit(&own->steps, info->step + 1, memory_order_release);
}

int host_group_lacks(const struct host_group *c, int key, int64_t step) {
    int u = c->map->parts[key].unit;
    for (int i = 0; i < c->size; i++)
        if (atomic_load_explicit(&c->members[i].units[u].steps, memory_order_acquire) <= step) return i;
    return -1;
}

// Block by block, each through a buffer: the sum's place is one of the places that it reads.
static void add(struct host_group *c, const struct partition *p) {
    char rounded[ADDED_AT_ONCE * sizeof(float)] __attribute__((aligned(64)));
    float acc[ADDED_AT_ONCE];
    size_t size = dtype_size(c->dtype);
    for (int64_t at = p->begin; at < p->end; at += ADDED_AT_ONCE) {
        int64_t n = p->end - at < ADDED_AT_ONCE ? p->end - at : ADDED_AT_ONCE;
        for (int i = 0; i < c->size; i++) {
            const struct host_group_member *m = &c->members[i];
            c->grads[i] = m->base + m->units[p->unit].grad_at + (size_t)at * size;
        }
        sum_finish(
            &(struct sum_args){
                .acc = acc, .grads = c->grads, .count = c->size, .n = n, .dtype = c->dtype, .first = true},
            0, n, rounded);
        const struct host_group_member *own = &c->members[c->self];
        char *place = own->base + own->units[p->unit].grad_at + (size_t)at * size;
        memcpy(place, rounded, (size_t)n * size);
    }
}

int host_group_add(struct host_group *c, int key, struct host_group_info *info, char *error, size_t size) {
    const struct partition *p = &c->map->parts[key];
    struct host_group_key *own = &c->members[c->self].keys[key];
    const struct host_group_unit *first = &c->members[0].units[p->unit];
    info->lr = first->lr;
    for (int i = 0; i < c->size; i++) {
        const struct host_group_unit *m = &c->members[i].units[p->unit];
        if (m->ready_ns > info->ready_ns) info->ready_ns = m->ready_ns;
        info->keep = info->keep || m->keep;
        if (m->lr >= first->lr && m->lr <= first->lr) continue;
        snprintf(error, size,
                 "key %d, step %lld: worker %d has the learning rate %.9g, worker %d of its group %.9g", key,
                 (long long)info->step, c->first_rank + i, (double)m->lr, c->first_rank, (double)first->lr);
        return -1;
    }
    add(c, p);
    own->ready_ns = info->ready_ns;
    atomic_store_explicit(&own->steps, info->step + 1, memory_order_release);
    return 0;
}

bool host_group_added(const struct host_group *c, int key, int64_t step, int64_t *ready_ns) {
    const struct host_group_key *k = &c->members[host_group_leader(c, key)].keys[key];
    if (atomic_load_explicit(&k->steps, memory_order_acquire) <= step) return false;
    *ready_ns = k->ready_ns;
    return true;
}

// ---------------------------------------------------------------- how members meet
#define NAME_BYTES 192  // SEGMENT_NAME_MAX, and units behind it are aligned
static_assert(SEGMENT_NAME_MAX <= NAME_BYTES && NAME_BYTES % 64 == 0, "a name fits, and alignment holds");

size_t host_group_board_bytes(int units, int64_t keys) {
    return segment_pages(SEGMENT_HEAD + NAME_BYTES + (size_t)units * sizeof(struct host_group_unit) +
                         (size_t)keys * sizeof(struct host_group_key));
}

static void lay_out(const struct host_group_place *p, struct host_group_member *m,
                    const struct segment *board) {
    void *units = board->base + SEGMENT_HEAD + NAME_BYTES;
    m->units = units;
    void *keys = m->units + p->o.layout->count;
    m->keys = keys;
}

int host_group_open(struct host_group_place *p, const struct host_group_options *o, double *numbers) {
    int size = ps_host_group(o->config), first = o->rank - o->rank % size;
    char name[SEGMENT_NAME_MAX];
    *p = (struct host_group_place){.o = *o};
    if (!o->grads->base)
        return fail(
            "reduce_group %d: this worker shares no memory, and its group adds its gradients there: give --medium tcp, "
            "with which the servers add in groups",
            size);
    p->boards = xcalloc((unsigned long)size, sizeof *p->boards);
    p->grads = xcalloc((unsigned long)size, sizeof *p->grads);
    for (int i = 0; i < size; i++) p->boards[i].fd = p->grads[i].fd = -1;
    p->host_group =
        (struct host_group){.size = size,
                            .self = o->rank - first,
                            .first_rank = first,
                            .members = xcalloc((unsigned long)size, sizeof *p->host_group.members),
                            .grads = xcalloc((unsigned long)size, sizeof *p->host_group.grads),
                            .map = o->map,
                            .dtype = o->config->dtype,
                            .wire = o->wire};
    struct segment *board = &p->boards[p->host_group.self];
    if (segment_create(board, host_group_board_bytes(o->layout->count, o->map->count)) != 0) return -1;
    struct host_group_member *own = &p->host_group.members[p->host_group.self];
    segment_name(o->grads, board->base + SEGMENT_HEAD);
    lay_out(p, own, board);
    own->base = o->grads->base;
    for (int u = 0; u < o->layout->count; u++) own->units[u].grad_at = o->grad_at[u];
    segment_name(board, name);
    segment_numbers(name, numbers);
    return 0;
}

// Maps member i's board and gradients. 0, or -1 with why.
static int reach(struct host_group_place *p, int i, const double *numbers, char why[SEGMENT_WHY_MAX]) {
    struct host_group_member *m = &p->host_group.members[i];
    struct segment *board = &p->boards[i], *grads = &p->grads[i];
    const struct layout *l = p->o.layout;
    char name[SEGMENT_NAME_MAX];
    if (segment_of_numbers(numbers, name, why) != 0) return -1;
    if (segment_open(board, name, SEGMENT_READ, why) != 0) return -1;
    if (board->bytes != host_group_board_bytes(l->count, p->o.map->count)) {
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
                          (uint64_t)l->units[u].n_pad * dtype_size(p->host_group.dtype)))
            continue;
        snprintf(why, SEGMENT_WHY_MAX, "its gradient of unit %s lies outside of what it shares",
                 l->units[u].name);
        return -1;
    }
    return 0;
}

int host_group_meet(struct host_group_place *p, const double *numbers) {
    char why[SEGMENT_WHY_MAX];
    const struct host_group *c = &p->host_group;
    for (int i = 0; i < c->size; i++) {
        int rank = c->first_rank + i;
        if (i == c->self || reach(p, i, numbers + (size_t)rank * HOST_GROUP_NUMBERS, why) == 0) continue;
        return fail(
            "reduce_group %d: workers %d and %d are of one group and share no memory: %s. Give the number of workers of a "
            "machine, whose numbers follow each other; or --medium tcp, with which the servers add in groups",
            c->size, p->o.rank, rank, why);
    }
    return 0;
}

void host_group_close(struct host_group_place *p) {
    for (int i = 0; p->boards && i < p->host_group.size; i++) {
        segment_close(&p->boards[i]);
        segment_close(&p->grads[i]);
    }
    free(p->boards);
    free(p->grads);
    free(p->host_group.members);
    free(p->host_group.grads);
    *p = (struct host_group_place){0};
}
