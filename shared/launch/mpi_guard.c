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

// The directories of that mpirun, of version 4 and of version 5. Whether there were any.
static int remove_sessions(pid_t mpirun) {
    static const char *const variables[] = {"TMPDIR", "TEMP", "TMP"};  // as Open MPI asks for them
    const char *base = NULL;
    for (int i = 0; i < 3 && !base; i++) base = getenv(variables[i]);
    if (!base) base = "/tmp";
    char *names[] = {xasprintf("%s/ompi.*.%d/pid.%d", base, (int)geteuid(), (int)mpirun),
                     xasprintf("%s/prte.*.%d.%d", base, (int)mpirun, (int)geteuid())};
    int found = 0;
    for (int i = 0; i < 2; i++) {
        glob_t g = {0};
        struct stat s;
        if (!glob(names[i], GLOB_NOSORT, NULL, &g))
            for (size_t k = 0; k < g.gl_pathc; k++)
                if (!lstat(g.gl_pathv[k], &s) && S_ISDIR(s.st_mode) && s.st_uid == geteuid())
                    found = 1, nftw(g.gl_pathv[k], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
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
    for (int i = 0; i < 5 && remove_sessions(mpirun); i++) sleep(1);
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
