#include "shared/launch/stop.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/core/error.h"

#define LAUNCHER_VARIABLE "STARRING_LAUNCHER"  // the launcher's process

// The two variables of the program that are not handed around: a signal handler is given nothing else.
static _Atomic int stop_signal;
static _Atomic int stop_launcher;

static void on_signal(int number) { stop_signal = number; }

static void on_launcher_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_pid == stop_launcher) stop_signal = number;
}

const _Atomic int *stop_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stop_signal;
}

void stop_supervise(void) {
    char number[16];
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv(LAUNCHER_VARIABLE, number, 1);
}

bool stop_supervised(void) {
    const char *launcher = getenv(LAUNCHER_VARIABLE);
    return launcher && atoi(launcher) == (int)getppid();
}

const _Atomic int *stop_install_role(bool orderly) {
    if (!stop_supervised()) return stop_install();
    stop_launcher = (int)getppid();
    struct sigaction all = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction launchers = {.sa_sigaction = on_launcher_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&all.sa_mask);
    sigemptyset(&launchers.sa_mask);
    sigaction(SIGINT, &launchers, NULL);
    sigaction(SIGTERM, orderly ? &all : &launchers, NULL);
    return &stop_signal;
}

int stop_status(int rc, const _Atomic int *stop) {
    if (!rc) return 0;
    return stop && *stop ? 128 + *stop : EXIT_RUN_FAILED;
}
