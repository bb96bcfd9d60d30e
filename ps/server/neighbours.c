#include "ps/server/neighbours.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

int neighbours_open(struct neighbours *l, const struct neighbours_options *o) {
    if (!o->config->ps.replicate) return 0;
    l->primary_shard = replica_primary_shard(o->map, o->shard);
    l->holder_shard = replica_holder_shard(o->map, o->shard);
    l->threads = o->map->threads;
    const struct replica_options r = {.layout = o->layout,
                                      .map = o->map,
                                      .shard = l->primary_shard,
                                      .buffers = o->buffers,
                                      .optimizer = o->config->optimizer,
                                      .dtype = o->config->dtype,
                                      .port = o->port};
    l->to_holder = net_dealer(o->net, NULL);
    l->replica = replica_create(&r);
    return l->to_holder ? 0 : -1;
}

void neighbours_close(struct neighbours *l) { replica_destroy(&l->replica); }

int neighbours_meet(struct neighbours *l, const struct roster *r) {
    if (!l->to_holder) return 0;
    l->holder = r->shard[l->holder_shard];
    replica_set_primary(l->replica, r->shard[l->primary_shard].incarnation);
    const struct net_peer to = {l->holder.address, NET_DATA, l->holder.token};
    return net_connect(l->to_holder, &to);
}

bool neighbours_is_holder(const struct neighbours *l, const struct wire_header *h) {
    return h->role == PS_SHARD && h->rank == l->holder_shard / l->threads &&
           h->thread == l->holder_shard % l->threads && h->incarnation == l->holder.incarnation;
}

bool neighbours_sent(struct neighbours *l, struct net_socket *router, int peer, const struct ps_message *m) {
    if (peer == PEER_NEIGHBOUR) net_send(l->to_holder, NULL, m);
    if (peer == PEER_PRIMARY) net_send(router, &l->to_primary, m);
    return peer == PEER_NEIGHBOUR || peer == PEER_PRIMARY;
}

bool neighbours_is_primary(struct neighbours *l, const struct net_message *m) {
    if (!l->replica || !replica_knows(l->replica, &m->header)) return false;
    l->to_primary = m->from;
    return true;
}

void neighbours_loaded(struct neighbours *l, const struct shard_map *m, const struct key_rows *rows) {
    for (int key = 0; key < m->count; key++)
        if (replica_version(l->replica, key) >= 0) replica_loaded(l->replica, &rows->keys[key]);
    l->loaded = true;
}

int neighbours_decided(struct neighbours *l, const struct wire_header *h) {
    return l->replica ? replica_decision(l->replica, h) : 0;
}

void neighbours_set_job(struct neighbours *l, uint64_t job) {
    if (l->replica) replica_set_job(l->replica, job);
}

const char *neighbours_error(const struct neighbours *l) {
    return l->replica ? replica_error(l->replica) : "";
}
