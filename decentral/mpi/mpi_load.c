// Opens the library that is linked with Open MPI, so that the program itself needs no Open MPI. Its path is
// STARRING_MPI_SO, if set and not empty. Otherwise it is beside the program, in the lib folder there, or in the lib
// folder next to the program's own folder (bin/starring, lib/... and lib/starring/...). The library uses the program's
// code for errors, streams and the plans of collectives.
#include "decentral/mpi/mpi_engine.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/collective_peers.h"
#include "shared/core/error.h"
#include "shared/launch/launch.h"

#define VARIABLE "STARRING_MPI_SO"

static char why_not[PATH_MAX + 256];

// RTLD_GLOBAL: Open MPI's own plugins look up its symbols globally. Returns NULL if it fails; why_not has the reason.
static const struct mpi_engine *load(void) {
    static const char *const places[] = {"", "lib/", "../lib/", "../lib/starring/"};
    const char *given = getenv(VARIABLE);
    char *program = launch_self(), path[PATH_MAX] = "";
    int folder = program ? (int)(strrchr(program, '/') - program) + 1 : 0;
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else
        for (size_t i = 0; i < sizeof places / sizeof *places && (i == 0 || access(path, R_OK)); i++)
            snprintf(path, sizeof path, "%.*s%s" MPI_ENGINE_FILE, folder, program ? program : "", places[i]);
    void *library = access(path, R_OK) ? NULL : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const char *error = access(path, R_OK) ? NULL : dlerror();
    const struct mpi_engine *found = library ? dlsym(library, MPI_ENGINE_SYMBOL) : NULL;
    if (!found && error)
        snprintf(why_not, sizeof why_not,
                 "%s; install Open MPI (the package openmpi-bin), or use --launch processes", error);
    else if (!found)
        snprintf(
            why_not, sizeof why_not,
            "this build has no Open MPI: there is no " MPI_ENGINE_FILE
            " in %.*s or its lib folder; install Open MPI (the packages openmpi-bin and libopenmpi-dev) and run make, or "
            "use --launch processes",
            folder, program ? program : "");
    free(program);
    return found;
}

// Loads the library once and never closes it. Any thread. Returns NULL if it fails; *why is a sentence.
static const struct mpi_engine *engine(const char **why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct mpi_engine *found;
    pthread_mutex_lock(&lock);
    if (!found && !*why_not) found = load();
    pthread_mutex_unlock(&lock);
    *why = why_not;
    return found;
}

bool mpi_available(const char **why) { return engine(why) != NULL; }

int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, struct rank_liveness *lives, int *rank,
                   int *size) {
    const char *why;
    return engine(&why) ? engine(&why)->open(out, medium, lives, rank, size) : fail("%s", why);
}

void mpi_world_close(struct mpi_world **w) {
    if (*w) engine(&(const char *){NULL})->close(w);
}

int mpi_broadcast_text(char *text, size_t bytes) {
    const char *why;
    return engine(&why) ? engine(&why)->broadcast_text(text, bytes) : fail("%s", why);
}

const char *mpi_medium_name(const struct mpi_medium *m) {
    return m->medium == MEDIUM_AUTO ? "mpi" : medium_names[m->medium];
}

// ---------------------------------------------------------------- also for predictions, which open nothing
static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    return engine(&(const char *){NULL})->create(world, rank, channel, o);
}

const struct collective_kind collective_mpi_kind = {.name = "mpi",
                                                    .create = create,
                                                    .staging_bytes = peers_staging_bytes,
                                                    .on_host = true,
                                                    .ordered_16bit_only = true};
