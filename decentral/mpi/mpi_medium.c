// The medium of Open MPI's messages (mpi_engine.h): environment variables before MPI_Init, and the checks after it.
#include "decentral/mpi/mpi_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/text.h"

#define START_S    30.0
#define HOST_BYTES 128

#define SEGMENTS      "/dev/shm"  // the folder of Open MPI's segments
#define SEGMENT_BYTES (4.25 * (1 << 20))

// ---------------------------------------------------------------- before MPI_Init
// Version 5 renamed the shared-memory transport from "vader" to "sm", the name of an older one that was removed. The
// installed library may differ from the headers.
static const char *shared_memory_btl(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, major = 4;
    MPI_Get_library_version(text, &length);
    (void)sscanf(text, "Open MPI v%d", &major);
    return major >= 5 ? "sm" : "vader";
}

// Returns whether a list contains exactly these two names, in any order.
static bool is_pair(const char *list, const char *a, const char *b) {
    char text[96];
    bool has_a = false, has_b = false;
    if (snprintf(text, sizeof text, "%s", list) >= (int)sizeof text) return false;
    char *rest = text, *word;
    while ((word = strsep(&rest, ","))) {
        bool is_a = !strcmp(word, a), is_b = !strcmp(word, b);
        if (!is_a && !is_b) return false;
        has_a |= is_a;
        has_b |= is_b;
    }
    return has_a && has_b;
}

static int refuse_own(const struct mpi_medium *m, const char *name, const char *needs) {
    return fail(
        "--medium %s needs %s=%s, and the environment (or mpirun --mca) says %s; leave that out, or leave "
        "--medium out to let Open MPI choose",
        medium_names[m->medium], name, needs, getenv(name));
}

// Returns whether the kernel lets a process read another one's memory. Containers often do not, and Open MPI's shared
// memory then prints an error for every message.
static bool may_read_peers(void) {
    int from = 1, to = 0;
    struct iovec in = {&to, sizeof to}, out = {&from, sizeof from};
    return process_vm_readv(getpid(), &in, 1, &out, 1, 0) == (ssize_t)sizeof to;
}

static double free_bytes_in(const char *folder) {
    struct statvfs fs;
    return statvfs(folder, &fs) ? 0 : (double)fs.f_bavail * (double)fs.f_frsize;
}

// Each rank maps a file of its own for its messages on this host. The files may not fit, as in a container's 64 MB.
// Then Open MPI ends the job without a message of ours, or a rank dies of SIGBUS at its first write. So the files are
// put into the temporary folder.
static int choose_folder(const struct mpi_medium *m, const char *shm) {
    const char *tmp = getenv("TMPDIR");
    double needs = SEGMENT_BYTES * (m->ranks_here > 0 ? m->ranks_here : 1), has = free_bytes_in(SEGMENTS);
    char name[64], needed[24], available[24], text[24];
    snprintf(name, sizeof name, "OMPI_MCA_btl_%s_backing_directory", shm);
    if (!tmp || !*tmp) tmp = "/tmp";
    if (has >= needs || getenv(name)) return 0;
    format_bytes(needed, needs), format_bytes(available, has), format_bytes(text, free_bytes_in(tmp));
    if (free_bytes_in(tmp) < needs)
        return fail("Open MPI maps %s for its %d ranks here, and " SEGMENTS
                    " has %s, %s %s: give the first one more (docker run "
                    "--shm-size 1g; mount -o remount,size=1g " SEGMENTS
                    "), or take --medium tcp, or --launch processes",
                    needed, m->ranks_here, available, tmp, text);
    if (m->local_rank == 0)
        warn(
            SEGMENTS
            " has %s, and Open MPI maps %s for its %d ranks here: its files lie in %s, which may be slower. docker "
            "run --shm-size 1g gives more",
            available, needed, m->ranks_here, tmp);
    setenv(name, tmp, 0);
    return 0;
}

int mpi_medium_set(struct mpi_medium *m) {
    const char *pml = getenv("OMPI_MCA_pml"), *btl = getenv("OMPI_MCA_btl"), *shm = shared_memory_btl();
    char needs[48], name[64];
    // 1. The medium, and the folder of shared memory's files.
    if (m->medium == MEDIUM_AUTO && m->ranks_here > 0 && m->ranks_here == m->ranks && !pml && !btl)
        m->medium = MEDIUM_SHM;
    if (m->medium != MEDIUM_TCP && choose_folder(m, shm)) return -1;
    if (m->medium == MEDIUM_AUTO) return 0;
    // 2. The transports. A user's own choice of others is refused.
    const char *btl_needed = m->medium == MEDIUM_SHM ? shm : "tcp";
    snprintf(needs, sizeof needs, "self,%s", btl_needed);
    if (pml && strcmp(pml, "ob1")) return refuse_own(m, "OMPI_MCA_pml", "ob1");
    if (btl && !is_pair(btl, "self", btl_needed)) return refuse_own(m, "OMPI_MCA_btl", needs);
    // Ranks that cannot reach each other cannot exchange their host names. tcp is added for that; it carries no
    // message between two processes that shared memory connects.
    m->several_hosts = m->medium == MEDIUM_SHM && m->ranks_here != m->ranks;
    if (m->several_hosts) snprintf(needs, sizeof needs, "self,%s,tcp", btl_needed);
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", needs, m->several_hosts);
    // 3. The transports' parameters.
    if (m->medium == MEDIUM_SHM && !may_read_peers()) {
        snprintf(name, sizeof name, "OMPI_MCA_btl_%s_single_copy_mechanism", shm);
        setenv(name, "none", 0);
    }
    // Flags 9: send, in place; no put. A put is requested by the receiver, and on a link that is busy both ways the
    // request waits in the connection after megabytes of data.
    if (m->medium == MEDIUM_TCP) setenv("OMPI_MCA_btl_tcp_flags", "9", 0);
    // By default Open MPI excludes the loopback, and ranks of a host without a network would not reach each other.
    if (m->medium == MEDIUM_TCP && m->ranks_here == m->ranks && !getenv("OMPI_MCA_btl_tcp_if_exclude"))
        setenv("OMPI_MCA_btl_tcp_if_include", "127.0.0.0/8", 0);
    return 0;
}

// ---------------------------------------------------------------- after MPI_Init
// Reads the host's name and its boot id: two hosts may have the same name.
static void read_host(char host[HOST_BYTES]) {
    char id[64] = "";
    memset(host, 0, HOST_BYTES);
    gethostname(host, HOST_BYTES / 2 - 1);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, id, sizeof id - 1);
    close(fd);
    if (n > 0) memcpy(host + HOST_BYTES / 2, id, (size_t)n);
}

// Waits with a deadline: mpirun ends the other ranks if one is lost here, but not every launcher does.
static int complete(int rc, MPI_Request *request) {
    int done = 0;
    double until = now_seconds() + START_S;
    while (rc == MPI_SUCCESS && !done) {
        rc = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && now_seconds() > until) rc = MPI_ERR_OTHER;
        if (!done) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return rc == MPI_SUCCESS ? 0 : -1;
}

int mpi_medium_check_hosts(const struct mpi_medium *m) {
    char own[HOST_BYTES];
    int rank, size;
    if (!m->several_hosts) return 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *all = xcalloc((size_t)size, HOST_BYTES);
    read_host(own);
    MPI_Request request;
    int other = 0;  // the first rank that shares no host with rank 0
    int rc = MPI_Iallgather(own, HOST_BYTES, MPI_CHAR, all, HOST_BYTES, MPI_CHAR, MPI_COMM_WORLD, &request);
    rc = complete(rc, &request);
    for (int i = size - 1; i > 0 && rc == 0; i--)
        if (memcmp(all, all + (size_t)i * HOST_BYTES, HOST_BYTES)) other = i;
    error_quiet(rank > 0 && rc == 0);  // all ranks know it; one logs it
    if (rc)
        fail(
            "--medium shm: this rank on host %s, and not all others could be reached from it: use --medium tcp, "
            "or start all ranks on one host",
            own);
    else if (other)
        rc = fail(
            "--medium shm: rank 0 is on host %s and rank %d on host %s, which share no memory; use --medium "
            "tcp, or start all ranks on one host",
            all, other, all + (size_t)other * HOST_BYTES);
    else if (m->ranks_here > 0 && m->ranks_here < size)
        rc = fail(
            "--medium shm: all ranks are on host %s, but what started them takes them for %d hosts'; use "
            "--medium tcp, or name the host once (mpirun --host %s:%d)",
            own, size / m->ranks_here, own, size);
    error_quiet(0);
    // The first rank that exits without MPI_Finalize makes mpirun end the others; so all wait until rank 0 has logged
    // the reason.
    if (rc) (void)complete(MPI_Ibarrier(MPI_COMM_WORLD, &request), &request);
    free(all);
    return rc;
}

// Returns the file that this rank has mapped and Open MPI has named after it:
// DIR/vader_segment.HOST.UID.JOB.LOCAL_RANK.
static char *own_segment(const struct mpi_medium *m) {
    char line[512], ending[16], *found = NULL;
    snprintf(ending, sizeof ending, ".%d\n", m->local_rank);
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *path = strchr(line, '/'), *name = path ? strrchr(path, '/') + 1 : "";
        size_t length = strlen(name), tail = strlen(ending);
        bool segment = !strncmp(name, "vader_segment.", 14) || !strncmp(name, "sm_segment.", 11);
        if (segment && length > tail && !strcmp(name + length - tail, ending))
            found = xasprintf("%.*s", (int)strlen(path) - 1, path);
    }
    if (f) fclose(f);
    return found;
}

int mpi_medium_unlink(struct mpi_medium *m) {
    int size;
    MPI_Request request;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (m->medium != MEDIUM_SHM || size < 2) return 0;
    // An integer from each rank to each: after that all ranks have attached to all segments.
    int *words = xcalloc(2 * (size_t)size, sizeof *words);
    int rc = MPI_Ialltoall(words, 1, MPI_INT, words + size, 1, MPI_INT, MPI_COMM_WORLD, &request);
    rc = complete(rc, &request);
    if (rc) return fail("MPI: not all %d ranks joined within %g s of the start", size, START_S);
    free(words);
    m->hidden = own_segment(m);
    if (m->hidden) unlink(m->hidden);
    return 0;
}

void mpi_medium_relink(struct mpi_medium *m) {
    if (!m->hidden) return;
    int fd = open(m->hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    free(m->hidden);
    m->hidden = NULL;
}
