// `starring evaluate RUN`.
#ifndef STARRING_SHARED_COMMAND_EVALUATE_COMMAND_H
#define STARRING_SHARED_COMMAND_EVALUATE_COMMAND_H

struct topology_table;

// The program's exit status: 0; 1 failed, interrupted, or a snapshot is not whole; 2 no run directory.
int evaluate_command(const struct topology_table *t, int argc, char **argv);

#endif
