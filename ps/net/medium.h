// How payloads are moved, as far as the configuration decides it. Processes of one host share memory: a worker
// writes gradients to its segment, where the servers read them (shared/core/segment.h). Weights return in one
// of two ways:
//
//     in place   the worker computes on the servers' own published weights. This is safe if they do not change
//                meanwhile: a key's update waits until every worker has pushed the key, and a worker pushes it after
//                its last use of the key's weights. Needs keys of whole pages
//     written    the server copies them to the worker's segment, when it answers the worker's pull. The same
//                push follows the last use of what the copy overwrites. Asynchronous updates, small keys, GPUs
//
// A worker on a GPU cannot compute on either: its segment holds the page-locked twins of its buffers instead
// (ps/worker/staging.h). The device copies gradients to its twins and weights from theirs.
//
// Whether two processes can share memory is found out when they connect (ps/worker/sharing.h); those that cannot send
// frames over tcp.
#ifndef STARRING_PS_NET_MEDIUM_H
#define STARRING_PS_NET_MEDIUM_H

#include "ps/job/shard_map.h"
#include "shared/config/config.h"

// Whether the workers' device, as configured, has memory of its own.
static inline bool ps_is_staged(const struct config *c) { return config_device(c)->gpu; }
// Whether processes of one host share memory.
static inline bool ps_shares(const struct config *c) { return c->medium != MEDIUM_TCP; }
// Whether server r is next to worker r, on its host (parameter_server.servers_on). Such a pair shares memory whatever
// the medium is, and its traffic is counted as local: it is on no wire.
static inline bool ps_beside(const struct config *c) { return c->ps.servers_on_workers; }
// Whether a worker has a segment, and a server opens workers' segments.
static inline bool ps_shares_any(const struct config *c) { return ps_shares(c) || ps_beside(c); }
static inline bool ps_shares_with(const struct config *c, int worker, int server) {
    return ps_shares(c) || (ps_beside(c) && worker == server);
}
// The number of ZeroMQ threads that move and encrypt a role's payloads, which `streams` shards send or receive. It is
// one per stream over tcp. If peers may be on other hosts, it is at least one per peer (workers of a server, servers of
// a worker). It is at most one per core. One thread moves a connection.
int ps_io_threads(const struct config *c, int streams, int peers);
// pages, keys: of the map, or of its cut.
bool ps_weights_in_place(const struct config *c, bool pages, int64_t keys);

#endif
