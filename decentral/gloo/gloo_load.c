// Opens what is linked with Gloo, so that the program itself needs none.
#include "decentral/gloo/gloo_load.h"

#include "decentral/collective/collective_peers.h"
#include "decentral/collective/plugin.h"
#include "shared/core/error.h"

static struct plugin plugin = {.file = "libstarring_gloo.so",
                               .symbol = GLOO_ENGINE_SYMBOL,
                               .variable = "STARRING_GLOO_SO",
                               .library = "Gloo",
                               .runs = "the package libgloo0",
                               .builds = "the package libgloo-dev",
                               .instead = "--launch processes on one machine, mpirun on several"};

static const struct gloo_engine *engine(const char **why) { return plugin_open(&plugin, why); }

bool gloo_available(const char **why) { return engine(why) != NULL; }

int gloo_world_open(struct gloo_world **out, const struct gloo_world_options *o) {
    const char *why;
    return engine(&why) ? engine(&why)->open(out, o) : fail("%s", why);
}

void gloo_world_close(struct gloo_world **w) {
    if (*w) engine(&(const char *){NULL})->close(w);
}

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    return engine(&(const char *){NULL})->create(world, rank, channel, o);
}

const struct collective_kind collective_gloo_kind = {
    .name = "gloo", .create = create, .staging_bytes = peers_staging_bytes};
const struct collective_kind collective_gloo_staged_kind = {
    .name = "gloo", .create = create, .host_staging_bytes = collective_host_bytes};
