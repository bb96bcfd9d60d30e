#include "ps/sum/crew.h"

#include <stdio.h>
#include <string.h>

#include "ps/sum/sum.h"

#define ADDED_AT_ONCE 1024  // elements

void crew_hand(struct crew *c, int u, const struct crew_info *info) {
    struct crew_unit *own = &c->members[c->self].units[u];
    own->ready_ns = info->ready_ns;
    own->lr = info->lr;
    own->keep = info->keep;
    atomic_store_explicit(&own->steps, info->step + 1, memory_order_release);
}

int crew_lacks(const struct crew *c, int key, int64_t step) {
    int u = c->map->parts[key].unit;
    for (int i = 0; i < c->size; i++)
        if (atomic_load_explicit(&c->members[i].units[u].steps, memory_order_acquire) <= step) return i;
    return -1;
}

// Block by block, each through a buffer: the sum's place is one of the places that it reads.
static void add(struct crew *c, const struct partition *p) {
    char rounded[ADDED_AT_ONCE * sizeof(float)] __attribute__((aligned(64)));
    float acc[ADDED_AT_ONCE];
    size_t size = dtype_size(c->dtype);
    for (int64_t at = p->begin; at < p->end; at += ADDED_AT_ONCE) {
        int64_t n = p->end - at < ADDED_AT_ONCE ? p->end - at : ADDED_AT_ONCE;
        for (int i = 0; i < c->size; i++) {
            const struct crew_member *m = &c->members[i];
            c->grads[i] = m->base + m->units[p->unit].grad_at + (size_t)at * size;
        }
        sum_finish(
            &(struct sum_args){
                .acc = acc, .grads = c->grads, .count = c->size, .n = n, .dtype = c->dtype, .first = true},
            0, n, rounded);
        const struct crew_member *own = &c->members[c->self];
        char *place = own->base + own->units[p->unit].grad_at + (size_t)at * size;
        memcpy(place, rounded, (size_t)n * size);
    }
}

int crew_add(struct crew *c, int key, struct crew_info *info, char *error, size_t size) {
    const struct partition *p = &c->map->parts[key];
    struct crew_key *own = &c->members[c->self].keys[key];
    const struct crew_unit *first = &c->members[0].units[p->unit];
    info->lr = first->lr;
    for (int i = 0; i < c->size; i++) {
        const struct crew_unit *m = &c->members[i].units[p->unit];
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

bool crew_added(const struct crew *c, int key, int64_t step, int64_t *ready_ns) {
    const struct crew_key *k = &c->members[crew_leader(c, key)].keys[key];
    if (atomic_load_explicit(&k->steps, memory_order_acquire) <= step) return false;
    *ready_ns = k->ready_ns;
    return true;
}
