// `starring scheduler`, `server` and `worker`: the star's roles as processes of their own. train starts them
// (ps/launch_star.h), or somebody does by hand, on one machine or on many.
//
// A role started by hand compares its memory, says whom it waits for and, with --out DIR, leaves its report
// in DIR/ranks; worker 0 takes DIR for the run (config.json, state.json), and the last worker or server to
// leave prints the table (shared/launch/closing.h). A role that train started leaves all that to it.
#ifndef STARRING_PS_ROLE_COMMAND_H
#define STARRING_PS_ROLE_COMMAND_H

#include "shared/core/topology_row.h"

// argv holds what follows the command's name. The exit status: 0, EXIT_RUN_FAILED, EXIT_USAGE, or 128 + the
// signal that ended it.
int role_scheduler(const struct topology_table *t, int argc, char **argv);
int role_server(const struct topology_table *t, int argc, char **argv);
int role_worker(const struct topology_table *t, int argc, char **argv);

#endif
