// `starring scheduler`, `server` and `worker`: the star's roles as separate processes. train starts them
// (ps/launch_star.h), or a user does by hand, on one machine or on many.
//
// A role started by hand compares its memory, prints which ranks it waits for and, with --out DIR, leaves its report
// in DIR/ranks. Worker 0 takes DIR for the run (config.json, state.json), and the last worker or server to
// leave prints the table (shared/launch/closing.h). If train has started the role, train does all of that.
#ifndef STARRING_PS_ROLE_COMMAND_H
#define STARRING_PS_ROLE_COMMAND_H

#include "shared/core/topology_row.h"

// argv holds what follows the command's name. Returns the exit status: 0, EXIT_RUN_FAILED, EXIT_USAGE, or 128 + the
// signal that ended it.
int role_scheduler(const struct topology_table *t, int argc, char **argv);
int role_server(const struct topology_table *t, int argc, char **argv);
int role_worker(const struct topology_table *t, int argc, char **argv);

#endif
