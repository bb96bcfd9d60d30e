#include "shared/launch/hosts_rank.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/launch/run.h"

#define FIRST_WORDS_S 30
#define LAST_WORD_S   1.0

bool hosts_rank(void) {
    const char *by = getenv("STARRING_STARTED_BY");
    return by && !strcmp(by, "ssh");
}

// A line without its end. false: there is no more, or not in time (ms -1: any).
static bool hear(char *line, size_t size, int ms) {
    size_t length = 0;
    char c;
    for (;;) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&in, 1, ms) <= 0 || read(STDIN_FILENO, &c, 1) != 1) return false;
        line[length] = 0;
        if (c == '\n') return true;
        if (length < size - 1) line[length++] = c;
    }
}

static void *listen_on(void *arg) {
    char line[64];
    int number;
    (void)arg;
    while (hear(line, sizeof line, -1))
        if (sscanf(line, "signal %d", &number) == 1 && (number == SIGINT || number == SIGTERM))
            kill(getpid(), number);
    fail("the connection to who started this rank has ended: this rank ends too");
    output_apart_wait(LAST_WORD_S);
    _exit(EXIT_RUN_FAILED);
}

int hosts_rank_begin(struct run *r) {
    char line[512];
    pthread_t thread;
    sigset_t all, before;
    int life, why;
    unsigned long long job;
    do {
        if (!hear(line, sizeof line, FIRST_WORDS_S * 1000))
            return fail(
                "STARRING_STARTED_BY=ssh, but nobody says more on standard input: start the run with --hosts");
        if (!strncmp(line, "key ", 4)) setenv("STARRING_JOB_KEY", line + 4, 1);
        if (sscanf(line, "life %d %llx %n", &life, &job, &why) == 2) {
            r->far_life = life;
            r->lives = job;
            snprintf(r->why, sizeof r->why, "%s", line + why);
        }
    } while (strcmp(line, "go") != 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are other threads'
    int failed = pthread_create(&thread, NULL, listen_on, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return fail("a thread for standard input: %s; " ERROR_RAISE_THREADS, strerror(failed));
    pthread_detach(thread);
    return 0;
}
