// Collectives between processes over ZeroMQ's connections, one for each pair of ranks, on one host or several. Every rank opens
// its world at the same place; channels are lanes of it.
//
// Staging     A channel that is given none has a little of its own, for sums of a few values.
// Failure     A rank that ends closes its connections, which the others notice at once. After that the world is broken.
#ifndef STARRING_DECENTRAL_TCP_COLLECTIVE_TCP_H
#define STARRING_DECENTRAL_TCP_COLLECTIVE_TCP_H

#include "decentral/collective/collective.h"
#include "shared/fabric/mesh.h"

struct rank_lives;
struct tcp_world;
struct tcp_world_options {
    int rank, size;
    struct rank_lives *lives;                                           // outlives the world
    const char *listen;                                                 // mesh_options'
    const struct job_key *key;                                          // the same
    double deadline_s;                                                  // for all to come
    int (*meet)(void *ctx, const void *mine, size_t bytes, void *all);  // mesh_options'
    void *ctx;
};

// 0, or -1 after logging.
int tcp_world_open(struct tcp_world **out, const struct tcp_world_options *o);
// After its collectives. What was sent last is given until the others have it, unless the world is broken.
void tcp_world_close(struct tcp_world **w);

// world: struct tcp_world. staged: for ranks whose device memory is not the host's.
extern const struct collective_kind collective_tcp_kind, collective_tcp_staged_kind;

#endif
