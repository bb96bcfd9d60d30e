// Ctrl-C and SIGTERM as a flag that loops look at.
#ifndef STARRING_SHARED_RUN_STOP_H
#define STARRING_SHARED_RUN_STOP_H

// Installs handlers for SIGINT and SIGTERM; the flag becomes the signal's number. A second signal of the
// same kind ends the process at once. May be called again.
const _Atomic int *stop_install(void);

#endif
