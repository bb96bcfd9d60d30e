#include "shared/launch/launch_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"

#define OWN_WORDS 9

// After Ctrl-C mpirun tells its ranks, waits one second, whether they need it or not, and kills them. They end the step
// in hand first and leave their reports, for which one second is often too short.
#define STOP_SECONDS "5"

// A bundle brings its own, beside the program; otherwise PATH has it. The caller frees.
static char *mpirun_for(const char *program) {
    char *beside = xasprintf("%.*s/mpirun", (int)(strrchr(program, '/') - program), program);
    if (access(beside, X_OK) == 0) return beside;
    free(beside);
    return xstrdup("mpirun");
}

int launch_mpi(int ranks, int argc, char *const *argv) {
    char count[16];
    char *program = launch_self();
    if (!program) return -1;
    snprintf(count, sizeof count, "%d", ranks);
    // More ranks than cores are this program's business; binding would leave each rank one core alone.
    const char *own[] = {"mpirun", "-n", count, "--oversubscribe", "--bind-to", "none", program, "train"};
    size_t n = sizeof own / sizeof own[0];
    const char **words = xcalloc((size_t)argc + OWN_WORDS, sizeof *words);
    memcpy(words, own, sizeof own);
    for (int i = 0; i < argc; i++) words[n++] = argv[i];
    if (geteuid() == 0) {  // containers run as root; mpirun asks twice
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    setenv("OMPI_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);  // Open MPI 5
    // PMIx 5 keeps what ranks tell each other in files of the temporary folder, which a killed mpirun would leave there.
    setenv("PMIX_MCA_gds", "hash", 0);
    fflush(NULL);
    char *mpirun = mpirun_for(program);
    execvp(mpirun, (char *const *)words);
    fail("%s: %s; install Open MPI (the packages openmpi-bin and libopenmpi-dev), or use --launch processes",
         mpirun, strerror(errno));
    free(mpirun);
    free(words);
    free(program);
    return -1;
}
