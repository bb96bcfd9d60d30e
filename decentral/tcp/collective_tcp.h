// Collectives between processes over ZeroMQ's connections, one per pair of ranks, on one host or several. All ranks
// open their worlds at the same point. A channel is a lane of the world.
//
// Staging     A channel without staging allocates a little, for sums of a few values.
// Failure     A rank that ends closes its connections, and the other ranks notice at once. After that the world is
//             broken.
#ifndef STARRING_DECENTRAL_TCP_COLLECTIVE_TCP_H
#define STARRING_DECENTRAL_TCP_COLLECTIVE_TCP_H

#include "decentral/collective/collective.h"
#include "shared/fabric/mesh.h"

struct rank_liveness;
struct tcp_world;
struct tcp_world_options {
    int rank, size;
    struct rank_liveness *lives;  // outlives the world
    const char *listen;           // see mesh_options
    const struct job_key *key;    // see mesh_options
    double deadline_s;            // the time in which all ranks must join
    int (*meet)(void *ctx, const void *mine, size_t bytes, void *all);  // see mesh_options
    void *ctx;
};

// Returns 0, or -1 after logging.
int tcp_world_open(struct tcp_world **out, const struct tcp_world_options *o);
// Call it after the world's collectives are destroyed. Waits until the other ranks have received all messages, unless
// the world is broken.
void tcp_world_close(struct tcp_world **w);

extern const struct collective_kind collective_tcp_kind;  // world: struct tcp_world

#endif
