#include "shared/run/stop.h"

#include <signal.h>
#include <stddef.h>

// The one variable of the program that is not handed around: a signal handler is given nothing else.
static _Atomic int stop_signal;

static void on_signal(int number) { stop_signal = number; }

const _Atomic int *stop_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stop_signal;
}
