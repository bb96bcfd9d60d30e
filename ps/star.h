// The star as the program uses it: its row (shared/core/topology_row.h), and its roles as commands.
#ifndef STARRING_PS_STAR_H
#define STARRING_PS_STAR_H

#include "shared/core/topology_row.h"

extern const struct topology_row topology_star;

// The roles as commands (role_command.c). argv holds what follows the command's name. Returns the exit status: 0,
// EXIT_RUN_FAILED, EXIT_USAGE, or 128 + the signal that ended it.
int role_scheduler(const struct topology_table *t, int argc, char **argv);
int role_server(const struct topology_table *t, int argc, char **argv);
int role_worker(const struct topology_table *t, int argc, char **argv);

// For star.c: checks the settings that exclude each other (star_pairs.c). Limits of a single setting are checked where it
// is read (shared/config/config_resolve.c, star.c). Returns 0, or -1 after fail("ONE: with OTHER why: what to do").
int star_pairs_check(const struct config *c);

#endif
