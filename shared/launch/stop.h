// Ctrl-C and SIGTERM as a flag that loops look at.
//
// A star's launcher takes the signals and passes on one SIGTERM to whom it concerns. Its children are in the
// terminal's group, as is every process that `timeout` or a job scheduler ends: they obey their launcher
// alone, or a Ctrl-C would end servers under workers that still finish a step.
#ifndef STARRING_SHARED_LAUNCH_STOP_H
#define STARRING_SHARED_LAUNCH_STOP_H

#include <signal.h>
#include <stdbool.h>

// A signal that comes again so soon is the same one: `timeout` sends it to the command and to the command's group.
#define STOP_AGAIN_S 0.5

// Installs handlers for SIGINT and SIGTERM; the flag becomes the signal's number. A second signal of the
// same kind, STOP_AGAIN_S later, ends the process at once. May be called again. behind: as stop_answers.
const _Atomic int *stop_install(const char *behind);

// The first signal is answered at once, by one process of a job: "Ctrl-C: ending after this step; again ends now". behind: what
// ends first, "this step"; NULL: another process answers. For who takes signals himself; with stop_install, nothing to do.
void stop_answers(const char *behind);
void stop_answer(int number);  // async-signal-safe; does nothing when it is called again

// A role: as stop_install where it was started by hand. The child of a launcher heeds its signals alone, and
// the launcher ends it itself when asked twice. orderly (a worker): it is one of those that the launcher asks
// first, so a SIGTERM of anybody is obeyed; two that come at once are one, and the launcher's may be the lost
// one.
const _Atomic int *stop_install_role(bool orderly);

// A rank is given up. Where the run may be started again this process says why (NULL: another one, or thread, has) and ends here;
// otherwise nothing happens.
void stop_run_lost(const char *why);
// It may: say(ctx, why) is called before that, if there is a why.
void stop_run_restarts(void (*say)(void *ctx, const char *why), void *ctx);
#define EXIT_RUN_LOST 3  // for the launcher alone

// The exit status of what returned rc and looked at the flag (NULL: at none): 0, EXIT_RUN_FAILED, or, where a
// signal was in the way of the end, the shell's 128 + its number.
int stop_status(int rc, const _Atomic int *stop);

#endif
