// Ctrl-C and SIGTERM as a flag that loops look at.
//
// A star's launcher takes the signals and passes on one SIGTERM to whom it concerns. Its children are in the
// terminal's group, as is every process that `timeout` or a job scheduler ends: they obey their launcher
// alone, or a Ctrl-C would end servers under workers that still finish a step.
#ifndef STARRING_SHARED_LAUNCH_STOP_H
#define STARRING_SHARED_LAUNCH_STOP_H

#include <stdbool.h>

// Installs handlers for SIGINT and SIGTERM; the flag becomes the signal's number. A second signal of the
// same kind ends the process at once. May be called again.
const _Atomic int *stop_install(void);

// The launcher, before it starts children: they will know it.
void stop_supervise(void);
// A role: as stop_install where it was started by hand. The child of a launcher heeds its signals alone, and
// the launcher ends it itself when asked twice. orderly (a worker): it is one of those that the launcher asks
// first, so a SIGTERM of anybody is obeyed; two that come at once are one, and the launcher's may be the lost
// one.
const _Atomic int *stop_install_role(bool orderly);
// Whether a launcher watches over this process.
bool stop_supervised(void);

// The exit status of what returned rc and looked at the flag (NULL: at none): 0, EXIT_RUN_FAILED, or, where a
// signal was in the way of the end, the shell's 128 + its number.
int stop_status(int rc, const _Atomic int *stop);

#endif
