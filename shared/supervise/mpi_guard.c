#include "shared/supervise/mpi_guard.h"

#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/supervise/proc_look.h"

#define LOOK_US 50000
#define LOOKS   100
#define FDS     64

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *at) {
    (void)s, (void)type, (void)at;
    remove(path);
    return 0;
}

// Version 4 has a directory around those of all its mpiruns, which the last one removes.
static void remove_if_empty(const char *session) {
    char *around = xasprintf("%.*s", (int)(strrchr(session, '/') - session), session);
    rmdir(around);
    free(around);
}

// The jobs of version 4's mpirun, whose numbers begin with these 16 bits: "1598029824.0;tcp://.." in its session. -1:
// it does not say.
static long family_of(const char *session) {
    unsigned long job = 0;
    char *path = xasprintf("%s/contact.txt", session);
    FILE *f = fopen(path, "re");
    int found = f ? fscanf(f, "%lu.", &job) : 0;
    if (f) fclose(f);
    free(path);
    return found == 1 ? (long)(job >> 16 & 0xffff) : -1;
}

// What ranks that were killed on their way into MPI_Init share. Later it has no name any more.
static int remove_segments(long family) {
    int count = 0;
    glob_t g = {0};
    char *pattern = xasprintf("/dev/shm/vader_segment.*.%d.%lx????.*", (int)geteuid(), family);
    if (family >= 0 && !glob(pattern, GLOB_NOSORT, NULL, &g))
        for (size_t k = 0; k < g.gl_pathc; k++) count += unlink(g.gl_pathv[k]) == 0;
    globfree(&g);
    free(pattern);
    return count;
}

static int remove_session(const char *path, long *family) {
    struct stat s;
    if (lstat(path, &s) || !S_ISDIR(s.st_mode) || s.st_uid != geteuid()) return 0;
    long said = family_of(path);
    if (said >= 0) *family = said;
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return 1;
}

// The directories of that mpirun, of version 4 and of version 5. Whether there were any.
static int remove_sessions(pid_t mpirun, long *family) {
    static const char *const variables[] = {"TMPDIR", "TEMP", "TMP"};  // as Open MPI asks for them
    const char *base = NULL;
    for (int i = 0; i < 3 && !base; i++) base = getenv(variables[i]);
    if (!base) base = "/tmp";
    char *names[] = {xasprintf("%s/ompi.*.%d/pid.%d", base, (int)geteuid(), (int)mpirun),
                     xasprintf("%s/prte.*.%d.%d", base, (int)mpirun, (int)geteuid())};
    int found = 0;
    for (int i = 0; i < 2; i++) {
        glob_t g = {0};
        if (!glob(names[i], GLOB_NOSORT, NULL, &g))
            for (size_t k = 0; k < g.gl_pathc; k++) {
                found |= remove_session(g.gl_pathv[k], family);
                if (i == 0) remove_if_empty(g.gl_pathv[k]);
            }
        globfree(&g);
        free(names[i]);
    }
    return found;
}

// ---------------------------------------------------------------- its ranks
struct hunt {
    char mpirun[16];
    int found;
};

static bool kill_rank(void *ctx, pid_t pid) {
    struct hunt *h = ctx;
    struct proc_look p;
    char of[16];
    if (pid == getpid() || proc_look(pid, &p) || p.state == 'Z') return true;
    if (!proc_variable(pid, MPI_GUARD_VARIABLE, of, sizeof of) || strcmp(of, h->mpirun) != 0) return true;
    kill(pid, SIGKILL);
    h->found++;
    return true;
}

// Those that are still there when mpirun has gone: they would notice it within a second, unless they are stopped.
static int kill_ranks(pid_t mpirun) {
    struct hunt h = {.found = 0};
    snprintf(h.mpirun, sizeof h.mpirun, "%d", (int)mpirun);
    proc_each(kill_rank, &h);
    return h.found;
}

// ---------------------------------------------------------------- the guard
// Reads from the pipe whose other end mpirun alone holds: it ends when mpirun does. A rank that was about to write in the
// session directory may do so until it is gone.
static void guard(int from, pid_t mpirun) {
    char c;
    prctl(PR_SET_NAME, MPI_GUARD_NAME);
    setsid();
    signal(SIGHUP, SIG_IGN);
    for (int fd = 0; fd < FDS; fd++)  // mpirun's, which others read from
        if (fd != from) close(fd);
    if (chdir("/")) return;
    while (read(from, &c, 1) < 0 && errno == EINTR) continue;
    long family = -1;
    for (int i = 0, found = 1; i < LOOKS && found; i++) {
        if (i) usleep(LOOK_US);
        found = kill_ranks(mpirun);
        found += remove_sessions(mpirun, &family);
        found += remove_segments(family);
    }
}

int mpi_guard_start(void) {
    int ends[2];
    pid_t mpirun = getpid();
    char number[16];
    if (pipe(ends)) return fail("pipe: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", (int)mpirun);
    setenv(MPI_GUARD_VARIABLE, number, 1);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        // Forked twice: mpirun waits for children of its own only.
        if (fork() == 0) {
            unsetenv(MPI_GUARD_VARIABLE);
            guard(ends[0], mpirun);
        }
        _exit(0);
    }
    close(ends[0]);
    if (child < 0) return fail("fork: %s", strerror(errno));
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return 0;
}
