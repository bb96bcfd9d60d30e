// Collectives between processes over Gloo and tcp, for ranks of several hosts that have no MPI. Every rank opens its world and
// creates its channels in the same order.
//
// Trust       Gloo encrypts nothing and asks nobody who he is: its ports are for a network that is trusted.
// Staging     A channel that is given none has a little of its own, for sums of a few values.
// Failure     A rank that ends closes its connections, which the others notice at once. After that the world is broken.
#ifndef STARRING_DECENTRAL_GLOO_GLOO_LOAD_H
#define STARRING_DECENTRAL_GLOO_GLOO_LOAD_H

#include "decentral/collective/collective.h"

struct gloo_world;
struct gloo_world_options {
    int rank, size;
    const char *address;  // of this host, at which the others reach it
    double deadline_s;    // for all to come
    // All ranks call it once, from gloo_world_open: everybody's bytes (as many of each) into all (size x bytes), in rank
    // order. 0, or -1 after logging.
    int (*meet)(void *ctx, const void *mine, size_t bytes, void *all);
    void *ctx;
};

// Whether there is a Gloo that this program can use; if not, why.
bool gloo_available(const char **why);
// 0, or -1 after logging.
int gloo_world_open(struct gloo_world **out, const struct gloo_world_options *o);
// After its collectives. Waits for all ranks, for as long as they live, unless the world is broken.
void gloo_world_close(struct gloo_world **w);

// world: struct gloo_world. staged: for ranks whose device memory is not the host's.
extern const struct collective_kind collective_gloo_kind, collective_gloo_staged_kind;

// ---- What libstarring_gloo.so, the one part of the program that is linked with Gloo, gives to the rest (plugin.h).
#define GLOO_ENGINE_SYMBOL "starring_gloo_engine"

struct gloo_engine {
    int (*open)(struct gloo_world **out, const struct gloo_world_options *o);
    void (*close)(struct gloo_world **w);
    struct collective *(*create)(void *world, int rank, int channel, const struct collective_options *o);
};

#endif
