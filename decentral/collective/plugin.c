#include "decentral/collective/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"

// RTLD_GLOBAL: Open MPI's own parts look for its symbols among those of the program.
static void load(struct plugin *p) {
    static const char *const places[] = {"", "lib/", "../lib/", "../lib/starring/"};
    const char *given = getenv(p->variable);
    char *program = launch_self(), path[PATH_MAX] = "";
    int folder = program ? (int)(strrchr(program, '/') - program) + 1 : 0;
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else
        for (size_t i = 0; i < sizeof places / sizeof *places && (i == 0 || access(path, R_OK)); i++)
            snprintf(path, sizeof path, "%.*s%s%s", folder, program ? program : "", places[i], p->file);
    void *library = access(path, R_OK) ? NULL : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const char *error = access(path, R_OK) ? NULL : dlerror();
    p->engine = library ? dlsym(library, p->symbol) : NULL;
    if (!p->engine && error)
        snprintf(p->why_not, sizeof p->why_not, "%s; install %s (%s), or use %s", error, p->library, p->runs,
                 p->instead);
    else if (!p->engine)
        snprintf(
            p->why_not, sizeof p->why_not,
            "this build has no %s: there is no %s in %.*s or its lib folder; install %s (%s) and run make, or use %s",
            p->library, p->file, folder, program ? program : "", p->library, p->builds, p->instead);
    free(program);
}

const void *plugin_open(struct plugin *p, const char **why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!p->engine && !*p->why_not) load(p);
    pthread_mutex_unlock(&lock);
    *why = p->why_not;
    return p->engine;
}
