#include "decentral/collective/collective_groups.h"

struct collective_team collective_within(int rank, int group) {
    return group ? (struct collective_team){rank / group * group, 1, group} : (struct collective_team){0};
}

struct collective_team collective_across(int rank, int size, int group) {
    return group ? (struct collective_team){rank % group, group, size / group} : (struct collective_team){0};
}

// ---------------------------------------------------------------- legs
static void *block(const void *buf, size_t i, const struct collective_call *c) {
    return buf ? (char *)(uintptr_t)buf + i * c->count * dtype_size(c->dt) : NULL;
}

int collective_legs(const struct collective_call *c, int size, int group) {
    bool split = c->primitive == COLLECTIVE_REDUCE_SCATTER || c->primitive == COLLECTIVE_ALL_GATHER;
    return split && collective_is_grouped(group, size) ? size / group + 1 : 1;
}

struct collective_call collective_leg(const struct collective_call *c, int rank, int size, int group, int k) {
    int legs = collective_legs(c, size, group), place = group ? rank % group : 0;
    bool sums = c->primitive == COLLECTIVE_REDUCE_SCATTER, across = k == (sums ? legs - 1 : 0);
    struct collective_call leg = *c;
    if (legs == 1) return leg;
    size_t first =
        (size_t)(sums ? k : k - 1) * (size_t)group;  // first block of the group that this leg sums or gathers
    leg.team = across ? collective_across(rank, size, group) : collective_within(rank, group);
    leg.stride = across ? (size_t)group * c->count : 0;
    if (sums) {
        leg.send = block(c->send, across ? (size_t)place : first, c);
        leg.recv = across ? c->recv : block(c->send, first + (size_t)place, c);
    } else {
        leg.send = across ? c->send : block(c->recv, first + (size_t)place, c);
        leg.recv = block(c->recv, across ? (size_t)place : first, c);
    }
    return leg;
}

void collective_grouped_enqueue(struct collective *c, const struct collective_call *call) {
    for (int k = 0; k < collective_legs(call, c->size, c->group); k++) {
        struct collective_call leg = collective_leg(call, c->rank, c->size, c->group, k);
        c->ops->enqueue(c, &leg);
    }
}

// ---------------------------------------------------------------- bytes and messages
static struct collective_volume times(struct collective_volume v, uint64_t n, uint64_t of) {
    return (struct collective_volume){(size_t)(v.sent / of * n), (size_t)(v.received / of * n)};
}

// Every peer of a call receives the same number of bytes.
struct collective_traffic collective_traffic(const struct collective_call *c, int rank, int size, int group) {
    int legs = collective_legs(c, size, group);
    bool sums = c->primitive == COLLECTIVE_REDUCE_SCATTER;
    struct collective_call last = collective_leg(c, rank, size, group, sums ? legs - 1 : 0);
    struct collective_plan p = collective_plan_of(&last, rank, size);
    struct collective_traffic t = {.all = collective_volume(&p), .messages = (uint64_t)(p.size - 1)};
    if (legs > 1) {
        uint64_t alike = (uint64_t)legs - 1;
        struct collective_call near = collective_leg(c, rank, size, group, sums ? 0 : 1);
        struct collective_plan w = collective_plan_of(&near, rank, size);
        struct collective_volume v = collective_volume(&w);
        t.across = t.all;
        t.messages_across = t.messages;
        t.all.sent += v.sent * alike;
        t.all.received += v.received * alike;
        t.messages += alike * (uint64_t)(w.size - 1);
    } else if (group && size > 1) {
        t.messages_across = (uint64_t)(size - group);
        t.across = times(t.all, t.messages_across, t.messages);
    }
    return t;
}
