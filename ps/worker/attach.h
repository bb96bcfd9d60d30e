// A worker meets the shards of the job, before anything is pushed: each pair shares memory, or frames travel between
// the two. It asks each shard once (the link says what is lost again), and a second time where it cannot share after all.
#ifndef STARRING_PS_WORKER_ATTACH_H
#define STARRING_PS_WORKER_ATTACH_H

#include "ps/net/login.h"
#include "ps/worker/sharing.h"

struct attach {
    const struct ps_role_options *role;
    const struct ps_identity *id;
    struct net_socket *scheduler;
    struct net_socket *const *shards;  // (map->shards)
    struct link *link;                 // to these
    struct sharing *sharing;
    const struct roster *roster;
};
// Blocks until every shard has answered, at most the deadline. Where shared memory is demanded and cannot be had, an
// error that names both. 0, or -1 after logging.
int attach_shards(const struct attach *a);

#endif
