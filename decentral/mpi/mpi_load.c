// Opens what is linked with Open MPI, so that the program itself needs none.
#include "decentral/mpi/mpi_load.h"

#include "decentral/collective/collective_peers.h"
#include "decentral/collective/plugin.h"
#include "shared/core/error.h"

static struct plugin plugin = {.file = MPI_ENGINE_FILE,
                               .symbol = MPI_ENGINE_SYMBOL,
                               .variable = "STARRING_MPI_SO",
                               .library = "Open MPI",
                               .runs = "the package openmpi-bin",
                               .builds = "the packages openmpi-bin and libopenmpi-dev",
                               .instead = "--launch processes"};

static const struct mpi_engine *engine(const char **why) { return plugin_open(&plugin, why); }

bool mpi_available(const char **why) { return engine(why) != NULL; }

int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, int *rank, int *size) {
    const char *why;
    return engine(&why) ? engine(&why)->open(out, medium, rank, size) : fail("%s", why);
}

void mpi_world_close(struct mpi_world **w) {
    if (*w) engine(&(const char *){NULL})->close(w);
}

int mpi_tell(char *text, size_t bytes) {
    const char *why;
    return engine(&why) ? engine(&why)->tell(text, bytes) : fail("%s", why);
}

const char *mpi_medium_name(const struct mpi_medium *m) {
    return m->medium == MEDIUM_AUTO ? "mpi" : medium_names[m->medium];
}

// ---------------------------------------------------------------- for predictions too, which open nothing
static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    return engine(&(const char *){NULL})->create(world, rank, channel, o);
}

const struct collective_kind collective_mpi_kind = {
    .name = "mpi", .create = create, .staging_bytes = peers_staging_bytes, .ordered_16bit_only = true};
const struct collective_kind collective_mpi_staged_kind = {
    .name = "mpi", .create = create, .host_staging_bytes = collective_host_bytes, .ordered_16bit_only = true};
