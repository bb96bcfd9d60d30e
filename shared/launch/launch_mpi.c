#include "shared/launch/launch_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/mpi_guard.h"

#define OWN_WORDS 11

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

int launch_mpi(const struct launch_mpi_options *o) {
    char count[16];
    char *program = launch_self();
    if (!program) return -1;
    snprintf(count, sizeof count, "%d", o->ranks);
    // More ranks than cores are this program's business; binding would leave each rank one core alone.
    const char *own[] = {"mpirun", "-n", count, "--oversubscribe", "--bind-to", "none", program, "train"};
    size_t n = sizeof own / sizeof own[0];
    const char **argv = xcalloc((size_t)o->argc + OWN_WORDS, sizeof *argv);
    memcpy(argv, own, sizeof own);
    if (o->out) {  // before the given words, which may end in "--"
        argv[n++] = "--out";
        argv[n++] = o->out;
    }
    for (int i = 0; i < o->argc; i++) argv[n++] = o->argv[i];
    if (geteuid() == 0) {  // containers run as root; mpirun asks twice
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    setenv("OMPI_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", STOP_SECONDS, 0);  // Open MPI 5
    fflush(NULL);
    char *mpirun = mpirun_for(program);
    if (mpi_guard_start()) return -1;
    execvp(mpirun, (char *const *)argv);
    fail("%s: %s; run `make deps` (it installs openmpi-bin), or use --launch threads without --medium",
         mpirun, strerror(errno));
    free(mpirun);
    free(argv);
    free(program);
    return -1;
}
