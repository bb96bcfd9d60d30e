// The way that payloads take, as far as the configuration alone decides it. Processes of one host share memory: gradients
// are written where the servers read them, in a segment of each worker (shared/core/segment.h). Weights come back in one
// of two ways:
//
//     in place   the worker computes on the servers' own published weights. Sound where nobody changes them under
//                it: a key's update waits until every worker has pushed the key, and a worker pushes it behind its
//                last use of the key's weights. Needs keys of whole pages
//     written    the server copies them into the worker's segment, when it answers the worker's pull. The same
//                push is behind the last use of what the copy overwrites. Asynchronous updates, small keys, GPUs
//
// A worker on a GPU cannot compute on either: its segment holds the page-locked twins of its buffers instead
// (ps/worker/staging.h), of which the device copies one half and to which it copies the other.
//
// Whether two processes do share memory is found out when they meet (ps/worker/sharing.h); those that do not send
// frames over tcp.
#ifndef STARRING_PS_NET_MEDIUM_H
#define STARRING_PS_NET_MEDIUM_H

#include "ps/job/shard_map.h"
#include "shared/config/config.h"

// Whether the workers' device, as configured, has memory of its own.
static inline bool ps_is_staged(const struct config *c) { return config_device(c)->gpu; }
// Whether processes of one host share memory.
static inline bool ps_shares(const struct config *c) { return c->medium != MEDIUM_TCP; }
// Whether server r is beside worker r (parameter_server.servers_on). Such a pair shares memory whatever the medium is, and what
// the two tell each other is counted as local: it is on no wire.
static inline bool ps_beside(const struct config *c) { return c->ps.beside; }
// Whether a worker has a segment, and a server looks into some.
static inline bool ps_shares_any(const struct config *c) { return ps_shares(c) || ps_beside(c); }
static inline bool ps_shares_with(const struct config *c, int worker, int server) {
    return ps_shares(c) || (ps_beside(c) && worker == server);
}
// How many threads of ZeroMQ move a role's payloads that `streams` shards send or receive, and encrypt them: one for each of
// those where they go over tcp, and for each of its peers (workers of a server, servers of a worker) where these may be on other
// hosts, and not more than there are cores. A connection is moved by one thread.
int ps_io_threads(const struct config *c, int streams, int peers);
// pages, keys: of the map, or of its cut.
bool ps_weights_in_place(const struct config *c, bool pages, int64_t keys);

#endif
