#include "shared/supervise/launch_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/supervise/local_sockets.h"
#include "shared/supervise/mpi_guard.h"

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

bool launch_mpi_is_here(void) {
    static const char *const elsewhere[] = {"PBS_NODEFILE",
                                            "LSB_HOSTS",
                                            "LSB_DJOB_HOSTFILE",
                                            "PE_HOSTFILE",
                                            "OMPI_MCA_orte_default_hostfile",
                                            "OMPI_MCA_plm",
                                            "OMPI_MCA_plm_rsh_agent",
                                            "PRTE_MCA_prte_default_hostfile",
                                            "PRTE_MCA_plm_ssh_agent",
                                            "OMPI_MCA_oob_tcp_if_include",
                                            "OMPI_MCA_oob_tcp_if_exclude",
                                            "PRTE_MCA_oob_tcp_if_include",
                                            "OMPI_MCA_btl_tcp_if_include",
                                            "OMPI_MCA_btl_tcp_if_exclude",
                                            "NCCL_SOCKET_IFNAME",
                                            "UCX_NET_DEVICES"};
    const char *nodes = getenv("SLURM_NNODES");
    if (!nodes) nodes = getenv("SLURM_JOB_NUM_NODES");
    if (nodes && strcmp(nodes, "1") != 0) return false;
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (getenv(elsewhere[i])) return false;
    return true;
}

// Whether the network is another than the supervisor's.
static bool has_own_network(void) {
    char own[64] = "", parents[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)getppid());
    return readlink("/proc/self/ns/net", own, sizeof own - 1) > 0 &&
           readlink(path, parents, sizeof parents - 1) > 0 && strcmp(own, parents) != 0;
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
    for (int i = 0; i < o->argc; i++) argv[n++] = o->argv[i];
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
    if (mpi_guard_start()) return -1;
    if (launch_mpi_is_here() && !has_own_network()) (void)local_sockets_preload();
    execvp(mpirun, (char *const *)argv);
    fail("%s: %s; run `make deps` (it installs openmpi-bin), or use --launch threads without --medium",
         mpirun, strerror(errno));
    free(mpirun);
    free(argv);
    free(program);
    return -1;
}
