// The replica that a shard thread holds of its neighbour: masters and optimizer states of another server's keys, kept
// bit for bit at what that server has. A chain of two: server s sends to server (s + 1) mod S, thread by thread.
//
//     primary s                                   neighbour (s+1) mod S               scheduler
//     step t of a key summed and rounded
//        REPLICATE key, t, lr, the sum  -------->  kept
//                  REPLICATE_ACK key, t <--------  (not before)
//     all keys of step t acknowledged
//        SHARD_SUM t  -------------------------------------------------------------->  all shards: decides
//        the update  <-------------------------------------------------- DECISION t ---'
//                                                  the same update, on the same DECISION or, where that was
//                                                  lost, on the next REPLICATE, which repeats it
//
// Hence whatever step the scheduler has decided last, each server and each replica has reached it or has what it
// takes to reach it: the sum and the decision. replica_reach does that when a server has died.
//
// Exactly once in effect: a sum of (key, step) that was kept is acknowledged again and dropped.
// Pure: messages in, messages out, no sockets, no clock. One thread, the shard's.
// Errors: -1 with replica_error set: the replica is not what its primary is; nothing may be rescued from it.
#ifndef STARRING_PS_SERVER_REPLICA_H
#define STARRING_PS_SERVER_REPLICA_H

#include "ps/net/port.h"
#include "ps/server/server_options.h"
#include "shared/model/optimizer.h"

// Peers of a shard, beside those of ps/net/port.h: the shard that keeps our replica, and the one whose replica we keep.
enum { PEER_NEIGHBOUR = -3, PEER_PRIMARY = -4 };

// The shard threads of replica_holder and replica_primary (ps/job/shard_map.h).
static inline int replica_holder_shard(const struct shard_map *m, int shard) {
    return (shard + m->threads) % m->shards;
}
static inline int replica_primary_shard(const struct shard_map *m, int shard) {
    return (shard + m->shards - m->threads) % m->shards;
}

struct replica_options {
    const struct layout *layout;
    const struct shard_map *map;
    int shard;                             // of the primary
    const struct server_buffers *buffers;  // (map->count); those of that shard are used
    struct optimizer_config optimizer;
    enum dtype dtype;
    uint64_t job;         // 0: set later
    struct ps_port port;  // sends to PEER_PRIMARY
};

struct replica;
struct replica *replica_create(const struct replica_options *o);
void replica_destroy(struct replica **r);
void replica_set_job(struct replica *r, uint64_t job);

// The primary's process, as the scheduler says: nobody else is heard.
void replica_set_primary(struct replica *r, uint64_t incarnation);
// Whether the sender is the primary's shard thread of this job, and that process.
bool replica_knows(const struct replica *r, const struct wire_header *h);
// A message of the primary. Takes over frame. 0 or -1.
int replica_message(struct replica *r, const struct wire_header *h, struct ps_frame *frame);
// A DECISION of the scheduler: applies the sums of that step. 0 or -1.
int replica_decision(struct replica *r, const struct wire_header *h);
// A key's buffers hold a checkpoint's state: how far it is.
void replica_loaded(struct replica *r, const struct key_counts *counts);
// Brings every key to `steps` steps, of which the last was decided so; drops sums beyond. 0, or -1: a key cannot.
int replica_reach(struct replica *r, int64_t steps, const struct update_scalars *last);

int64_t replica_version(const struct replica *r, int key);  // updates applied; -1: not of this replica
const char *replica_error(const struct replica *r);

#endif
