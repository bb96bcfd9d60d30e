#include "shared/launch/launch_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/launch.h"

// After Ctrl-C mpirun signals its ranks, always waits this long, and kills them. The default of one second is often
// too short: the ranks first end their step and write their reports.
#define STOP_SECONDS "5"

// The programs that start ranks, by launch (struct launch_row.by_others): the words between "-n N" and the ranks' own
// command, and the advice if the program is missing.
static const struct {
    const char *const *words;
    const char *advice;
} starters[LAUNCH_KINDS] = {
    // --oversubscribe: more ranks than cores are allowed. --bind-to none: binding would give each rank only one core.
    // -x passes the key to ranks on other machines.
    [LAUNCH_MPI] = {(const char *const[]){"--oversubscribe", "--bind-to", "none", "-x", JOB_KEY_VARIABLE,
                                          NULL},
                    "install Open MPI (the packages openmpi-bin and libopenmpi-dev)"},
};

int launch_mpi(const struct config *c, int argc, char *const *argv) {
    const char *name = launch_rows[c->launch].child;
    char *program = launch_self();
    if (!program) return -1;
    // A bundle has its own mpirun beside the program; otherwise PATH is searched.
    char *starter = xasprintf("%.*s/%s", (int)(strrchr(program, '/') - program), program, name);
    if (access(starter, X_OK) != 0) {
        free(starter);
        starter = xstrdup(name);
    }
    char count[16];
    const char **words = xcalloc((size_t)argc + 16, sizeof *words);
    size_t n = 0;
    snprintf(count, sizeof count, "%d", c->workers);
    words[n++] = name;
    words[n++] = "-n";
    words[n++] = count;
    for (const char *const *own = starters[c->launch].words; *own; own++) words[n++] = *own;
    words[n++] = program;
    words[n++] = "train";
    size_t given = n;
    for (int i = 0; i < argc; i++) words[n++] = file_of_others(argv[i]);  // -c <(..): not inherited by ranks
    if (geteuid() == 0) {  // containers run as root; mpirun requires both variables
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    setenv("OMPI_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);  // Open MPI 5
    // By default PMIx 5 keeps the ranks' data in files of the temporary folder, which a killed mpirun would not
    // remove.
    setenv("PMIX_MCA_gds", "hash", 0);
    fflush(NULL);
    execvp(starter, (char *const *)words);
    fail("%s: %s; %s, or use --launch processes", starter, strerror(errno), starters[c->launch].advice);
    for (int i = 0; i < argc; i++) free((char *)words[given + (size_t)i]);
    free(starter);
    free(words);
    free(program);
    return -1;
}
