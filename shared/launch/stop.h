// Ctrl-C and SIGTERM as a flag that loops check.
//
// A launcher receives the signals and sends one SIGTERM to the processes that need it. Its children are in the
// terminal's process group, as is every process that `timeout` or a job scheduler ends. They end only when their
// launcher asks: otherwise a Ctrl-C would end servers while workers still finish a step.
#ifndef STARRING_SHARED_LAUNCH_STOP_H
#define STARRING_SHARED_LAUNCH_STOP_H

#include <signal.h>
#include <stdbool.h>

// A signal that is repeated within this time counts as the same one: `timeout` sends it to the command and to the
// command's group.
#define STOP_AGAIN_S 0.5

// Installs handlers for SIGINT and SIGTERM; the flag becomes the signal's number. A second signal of the same kind,
// STOP_AGAIN_S later, ends the process at once. May be called again. behind: as stop_answers.
const _Atomic int *stop_install(const char *behind);

// Sets the answer to the first signal, which one process of a job prints at once: "Ctrl-C: ending after this step;
// again ends now". behind: what is finished first, "this step"; NULL: another process answers. Needed only by callers
// that handle signals themselves; stop_install calls it.
void stop_answers(const char *behind);
void stop_answer(int number);  // prints the answer; async-signal-safe; a second call does nothing

// Installs the handlers of a role. A role that was started by hand behaves as with stop_install. A launcher's child
// obeys only its launcher, which kills it when it is itself asked twice. orderly (a worker): the launcher signals it
// first, so it obeys a SIGTERM from any process: two that arrive at once are merged, and the launcher's may be the
// lost one.
const _Atomic int *stop_install_role(bool orderly);

// Called when a rank is lost. If the run may be restarted, it reports why (NULL: another rank or thread has reported
// it) and exits with EXIT_RUN_LOST; otherwise it returns.
void stop_run_lost(const char *why);
// Allows restarts: say(ctx, why) is called before that exit, if there is a why.
void stop_run_restarts(void (*say)(void *ctx, const char *why), void *ctx);
#define EXIT_RUN_LOST 3  // only the launcher sees it

// Returns the exit status of a function that returned rc and checked the flag (NULL: none): 0, EXIT_RUN_FAILED, or the
// shell's 128 + number if a signal interrupted it.
int stop_status(int rc, const _Atomic int *stop);

#endif
