#include "ps/net/rejoin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/fabric/rank_env.h"
#include "shared/launch/launch.h"

#define WORDS_MAX 1024
#define SAYING_S  0.5  // for messages to leave, where they can

// The words that this process was started with. The caller does not outlive them. Behind them, unless they say so already,
// where the configuration lies in memory: the last -c counts.
static char **own_words(const struct config *c) {
    static char path[32];
    char **words = xcalloc(WORDS_MAX + 3, sizeof *words), *text = NULL, *last = "";
    size_t size = 0, known = strlen(CONFIG_HANDED_DOWN);
    int n = 0;
    FILE *f = fopen("/proc/self/cmdline", "re");
    while (f && n < WORDS_MAX && getdelim(&text, &size, 0, f) > 0) {
        words[n++] = xstrdup(text);
        if (n > 1 && !strcmp(words[n - 2], "-c")) last = words[n - 1];
    }
    if (f) fclose(f);
    free(text);
    if (!strncmp(last, CONFIG_HANDED_DOWN, known))
        fcntl(atoi(last + known), F_SETFD, 0);
    else if (n && config_hand_down(c, path) >= 0)
        words[n] = "-c", words[n + 1] = path;
    return words;
}

// Those that somebody has left open by mistake too.
static void keep_standard_streams_alone(void) {
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (atoi(e->d_name) > STDERR_FILENO) fcntl(atoi(e->d_name), F_SETFD, FD_CLOEXEC);
    if (d) closedir(d);
}

// Signals until the program has installed its handlers again: the launcher's SIGTERM ends the process, and a
// terminal's Ctrl-C concerns its launcher alone. The signal of the launcher's death belongs to a thread.
static void reset_signals(bool supervised) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, supervised ? SIG_IGN : SIG_DFL);
    if (supervised) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (supervised && !rank_env_supervised()) _exit(EXIT_RUN_FAILED);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static void become_myself(const struct config *c) {
    char *program = launch_self();
    // The holder of the stream may be stuck with it: what it has not written is lost, as where a process is killed.
    if (ftrylockfile(stdout) == 0) {
        fflush(stdout);
        funlockfile(stdout);
    }
    output_apart_wait(SAYING_S);
    keep_standard_streams_alone();
    char **words = own_words(c);
    if (program && access(program, X_OK) == 0) execv(program, words);
    execv("/proc/self/exe", words);  // its file has been replaced or removed
}

int rejoin_now(const struct ps_role_options *o, const char *why) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;  // stays locked where the process begins anew
    const struct config *c = o->config;
    if (!c->recovery.restart)
        return fail(
            "%s: the job begins anew, and this role knows no restarts: give every role the same --restart N",
            why);
    pthread_mutex_lock(&one);
    bool supervised = rank_env_supervised();
    int quiet = error_quiet(QUIET_NOT);  // of a thread for which another speaks
    if (o->say_waiting) info("%s: coming anew to %s", why, o->scheduler);
    error_quiet(quiet);
    reset_signals(supervised);
    if (o->stop && *o->stop) {
        pthread_mutex_unlock(&one);
        error_quiet(supervised);  // the launcher says it
        return fail("interrupted");
    }
    become_myself(c);
    int error = errno;
    pthread_mutex_unlock(&one);
    return fail("%s; and the program cannot be started again: %s", why, strerror(error));
}
