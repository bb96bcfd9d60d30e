#include "shared/launch/mpi_guard.h"

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
static void remove_segments(long family) {
    glob_t g = {0};
    char *pattern = xasprintf("/dev/shm/vader_segment.*.%d.%lx????.*", (int)geteuid(), family);
    if (family >= 0 && !glob(pattern, GLOB_NOSORT, NULL, &g))
        for (size_t k = 0; k < g.gl_pathc; k++) unlink(g.gl_pathv[k]);
    globfree(&g);
    free(pattern);
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

// Reads from the pipe whose other end mpirun alone holds: it ends when mpirun does. The ranks notice that theirs is
// gone within a second, and write there until then.
static void guard(int from, pid_t mpirun) {
    char c;
    prctl(PR_SET_NAME, "starring-guard");
    setsid();
    signal(SIGHUP, SIG_IGN);
    for (int fd = 0; fd < 3; fd++) close(fd);
    if (chdir("/")) return;
    while (read(from, &c, 1) < 0 && errno == EINTR) continue;
    long family = -1;
    for (int i = 0, found = 1; i < 5 && found; i++) {
        if (i) sleep(1);
        found = remove_sessions(mpirun, &family);
        remove_segments(family);
    }
}

int mpi_guard_start(void) {
    int ends[2];
    pid_t mpirun = getpid();
    if (pipe(ends)) return fail("pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        // Forked twice: mpirun waits for children of its own only.
        if (fork() == 0) guard(ends[0], mpirun);
        _exit(0);
    }
    close(ends[0]);
    if (child < 0) return fail("fork: %s", strerror(errno));
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return 0;
}
