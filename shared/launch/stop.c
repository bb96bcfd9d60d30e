#include "shared/launch/stop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/supervise/mpi_guard.h"

#define LAUNCHER_VARIABLE "STARRING_LAUNCHER"  // the launcher's process
// Of mpirun's ranks, their supervisor: PROCESS:OUT:ERR:HOST, of which OUT and ERR are mpirun's descriptors.
#define SUPERVISOR_VARIABLE "STARRING_SUPERVISOR"

#define LOST_WAIT_US 2000000  // for the supervisor to end this process
#define VALUE_SHIFT  16       // two numbers in a signal's value, which has 32 bits
#define HOST_BYTES   64

// The variables of the program that are not handed around: a signal handler is given nothing else.
static _Atomic int stop_signal;
static _Atomic int stop_launcher;
static _Atomic int stop_supervisor;
static _Atomic int stop_rank;
static _Atomic bool stop_stays, stop_spoke, stop_restarts;
static _Atomic double stop_first_int_s, stop_first_term_s;  // 0: it has not come
static char stop_words[2][128];                             // the answer to SIGINT, to SIGTERM; "": none
static _Atomic bool stop_answered;

void stop_answers(const char *behind) {
    const char *line = isatty(STDERR_FILENO) ? "\n" : "";  // a terminal has shown ^C on it
    // mpirun that nobody of ours watches gives its ranks a second.
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
    if (poll(&out, 1, 0) <= 0) return;  // nobody reads: what is to be stopped must not wait for that
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

static void on_rank_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_pid == stop_supervisor) stop_signal = number;
    if (stop_signal) return;
    if (info->si_pid == getppid())
        kill(stop_supervisor, STOP_RANK_DIED);
    else  // nobody is lost: this rank is asked
        sigqueue(stop_supervisor, STOP_RANK_DIED, (union sigval){.sival_int = stop_rank});
}

// ---------------------------------------------------------------- a rank and its supervisor
static void host_name(char name[HOST_BYTES]) {
    memset(name, 0, HOST_BYTES);
    gethostname(name, HOST_BYTES - 1);
}

void stop_supervise_ranks(int out, int err) {
    char value[HOST_BYTES + 64], host[HOST_BYTES];
    host_name(host);
    snprintf(value, sizeof value, "%d:%d:%d:%s", (int)getpid(), out, err, host);
    setenv(SUPERVISOR_VARIABLE, value, 1);
}

// The process, where this is a rank that mpirun has started for a supervisor, on the supervisor's machine; else 0. fds:
// NULL, or its ends of what it reads.
static int supervisor_of_rank(int fds[2]) {
    const char *value = getenv(SUPERVISOR_VARIABLE);
    char own[HOST_BYTES];
    int pid = 0, to[2] = {0, 0}, at = 0;
    if (!value || !getenv("OMPI_COMM_WORLD_RANK")) return 0;
    host_name(own);
    if (sscanf(value, "%d:%d:%d:%n", &pid, &to[0], &to[1], &at) != 3 || !at || strcmp(value + at, own))
        return 0;
    if (fds) memcpy(fds, to, sizeof to);
    return pid > 0 ? pid : 0;
}

static int own_rank(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank ? atoi(rank) : 0;
}

// Says a number to the supervisor, with this rank's.
static void tell(int number, int value) {
    int supervisor = supervisor_of_rank(NULL);
    if (supervisor)
        sigqueue(supervisor, number, (union sigval){.sival_int = value << VALUE_SHIFT | own_rank()});
}

static void on_error(void) {
    if (!atomic_exchange(&stop_spoke, true))
        sigqueue(stop_supervisor, STOP_RANK_SPOKE, (union sigval){.sival_int = stop_rank});
}

void stop_rank_streams(void) {
    int fds[2];
    const char *mpirun = getenv(MPI_GUARD_VARIABLE);
    bool told = supervisor_of_rank(fds) && mpirun;
    stop_supervisor = supervisor_of_rank(NULL);
    stop_rank = own_rank();
    if (stop_supervisor) error_heard_by(on_error);
    for (int i = 0; i < 2 && told; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%s/fd/%d", mpirun, fds[i]);
        int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0) continue;  // then through mpirun
        dup2(fd, i == 0 ? STDOUT_FILENO : STDERR_FILENO);
        close(fd);
    }
}

void stop_rank_enters(void) { tell(STOP_RANK_ENTERS, 0); }
void stop_rank_met(void) { tell(STOP_RANK_MET, 0); }
bool stop_rank_is_watched(void) { return supervisor_of_rank(NULL) != 0; }
void stop_rank_stays(void) { stop_stays = stop_rank_is_watched(); }

void stop_rank_ended(int status) {
    tell(STOP_RANK_ENDED, status);
    while (stop_stays) pause();
}

int stop_value_lost(const bool *lost, int size, int stuck) {
    int first = 0, count = 0;
    for (int i = size - 1; i >= 0; i--)
        if (lost[i]) first = i, count++;
    return (count | stuck) << VALUE_SHIFT | first;
}

void stop_ranks_lost(int value) {
    int supervisor = supervisor_of_rank(NULL);
    if (!supervisor) return;
    sigqueue(supervisor, STOP_RANK_DIED, (union sigval){.sival_int = value});
    // The rank that failed for this would tell the others, and they that they have failed: final, which this is not.
    usleep(LOST_WAIT_US);
}

void stop_run_restarts(void) { stop_restarts = true; }

void stop_run_lost(const char *why) {
    if (!stop_restarts) return;
    fail("%s", why);
    _exit(EXIT_RUN_LOST);  // the thread that is lost may never end
}

int stop_value_rank(int value) { return value & ((1 << VALUE_SHIFT) - 1); }
int stop_value_number(int value) { return value >> VALUE_SHIFT; }

static const _Atomic int *install_rank(int supervisor) {
    struct sigaction action = {.sa_sigaction = on_rank_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    stop_supervisor = supervisor;
    stop_rank = own_rank();
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stop_signal;
}

const _Atomic int *stop_install(const char *behind) {
    int supervisor = supervisor_of_rank(NULL);
    if (supervisor) return install_rank(supervisor);
    stop_answers(behind);
    struct sigaction action = {.sa_handler = on_signal_alone, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    stop_first_int_s = stop_first_term_s = 0;
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
    if (!stop_supervised()) return stop_install(orderly ? "this step" : NULL);
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
