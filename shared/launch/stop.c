#include "shared/launch/stop.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/rank_env.h"

// The program's only global variables: a signal handler gets no context.
static _Atomic int stop_signal;
static _Atomic int stop_launcher;
static void (*_Atomic stop_says)(void *ctx, const char *why);
static void *stop_sayer;
static _Atomic double stop_first_int_s, stop_first_term_s;  // times of the first signals; 0: not received
static char stop_words[2][128];                             // the answers to SIGINT and SIGTERM; "": none
static _Atomic bool stop_answered;

void stop_answers(const char *behind) {
    const char *line = isatty(STDERR_FILENO) ? "\n" : "";  // a terminal has printed ^C on the line
    // mpirun kills its ranks after a few seconds.
    const char *again = getenv("OMPI_COMM_WORLD_RANK") ? "unless mpirun ends it before" : "again ends now";
    for (int i = 0; i < 2; i++)
        snprintf(stop_words[i], sizeof stop_words[i], behind ? "%sstarring: %s: ending after %s; %s\n" : "",
                 line, i ? "SIGTERM" : "Ctrl-C", behind, again);
    stop_answered = false;
}

void stop_answer(int number) {
    const char *text = stop_words[number == SIGTERM];
    if (!*text || atomic_exchange(&stop_answered, true)) return;
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    // Nothing reads the terminal's output: the process must not block on it.
    if (poll(&out, 1, 0) <= 0) return;
    ssize_t said = write(STDERR_FILENO, text, strlen(text));
    (void)said;
}

static void on_signal(int number) { stop_signal = number; }

static void on_signal_alone(int number) {
    _Atomic double *first = number == SIGINT ? &stop_first_int_s : &stop_first_term_s;
    double now = now_seconds();
    stop_signal = number;
    stop_answer(number);
    if (*first == 0) *first = now;
    if (now - *first < STOP_AGAIN_S) return;
    signal(number, SIG_DFL);
    raise(number);
}

static void on_launcher_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_pid == stop_launcher) stop_signal = number;
}

void stop_run_restarts(void (*say)(void *ctx, const char *why), void *ctx) {
    stop_sayer = ctx;
    stop_says = say;
}

void stop_run_lost(const char *why) {
    static atomic_bool said;
    if (!stop_says) return;
    while (!why && said) pause();  // another thread of this process exits
    said = true;
    if (why) fail("%s", why);
    if (why) stop_says(stop_sayer, why);
    _exit(EXIT_RUN_LOST);  // without exit handlers: another thread may hang and never end
}

const _Atomic int *stop_install(const char *behind) {
    stop_answers(behind);
    struct sigaction action = {.sa_handler = on_signal_alone, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    stop_first_int_s = stop_first_term_s = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stop_signal;
}

const _Atomic int *stop_install_role(bool orderly) {
    if (!rank_env_supervised()) return stop_install(orderly ? "this step" : NULL);
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
