// Some processes' lanes, joined by connections that keep the order and lose nothing, as TCP's: what is said waits until it is
// delivered, a queue may be full, and pieces are held until their connection lets go of them.
#ifndef STARRING_TESTS_FABRIC_LANES_NET_H
#define STARRING_TESTS_FABRIC_LANES_NET_H

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/lanes.h"

#define NET_RANKS 3
#define NET_LANES 2

struct net_said {
    struct net_said *next;
    struct lane_head head;
    char *data;
    size_t bytes;
};

struct net_queue {
    struct net_said *first, **last;
    size_t pieces, bytes;  // of pieces that wait
};

struct lanes_net;
struct net_end {
    struct lanes_net *net;
    int rank;
};

struct lanes_net {
    struct lanes *of[NET_RANKS];
    struct net_end ends[NET_RANKS];
    struct net_queue queues[NET_RANKS][NET_RANKS];  // from, to
    bool full;                                      // nothing can be queued
};

static inline void net_post(struct lanes_net *n, int from, int to, const struct lane_head *h,
                            const void *data, size_t bytes) {
    struct net_queue *q = &n->queues[from][to];
    struct net_said *s = xcalloc(1, sizeof *s);
    *s = (struct net_said){NULL, *h, xcalloc(1, bytes + 1), bytes};
    if (bytes) memcpy(s->data, data, bytes);
    *q->last = s;
    q->last = &s->next;
    q->pieces++;
    q->bytes += bytes;
}

static inline bool net_say(void *ctx, int to, const struct lane_head *h, const void *data, size_t bytes,
                           _Atomic int *held) {
    struct net_end *e = ctx;
    if (!e->net->full) net_post(e->net, e->rank, to, h, data, bytes);
    if (held) atomic_fetch_sub(held, 1);  // it was copied
    return !e->net->full;
}

static inline void net_open(struct lanes_net *n) {
    *n = (struct lanes_net){0};
    for (int i = 0; i < NET_RANKS; i++) {
        n->ends[i] = (struct net_end){n, i};
        for (int k = 0; k < NET_RANKS; k++) n->queues[i][k].last = &n->queues[i][k].first;
        n->of[i] = lanes_create(&(struct lanes_options){
            .rank = i, .size = NET_RANKS, .lanes = NET_LANES, .send = net_say, .ctx = &n->ends[i]});
    }
}

// The first that waits. 0; 1: nothing waits; -1: the receiver finds the sender at fault.
static inline int net_deliver(struct lanes_net *n, int from, int to, char why[LANES_WHY]) {
    struct net_queue *q = &n->queues[from][to];
    struct net_said *s = q->first;
    if (!s) return 1;
    if (!(q->first = s->next)) q->last = &q->first;
    q->pieces--;
    q->bytes -= s->bytes;
    struct lane_piece piece = {s->data, s->bytes, free, s->data};
    int rc = lanes_hear(n->of[to], from, &s->head, &piece, why);
    free(s);
    return rc;
}

static inline void net_close(struct lanes_net *n) {
    for (int i = 0; i < NET_RANKS; i++) {
        lanes_destroy(&n->of[i]);
        for (int k = 0; k < NET_RANKS; k++)
            while (n->queues[i][k].first) {
                struct net_said *s = n->queues[i][k].first;
                n->queues[i][k].first = s->next;
                free(s->data);
                free(s);
            }
    }
}

#endif
