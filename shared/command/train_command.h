// `starring train`: what the options ask for is checked for this machine, then the topology's row runs it.
#ifndef STARRING_SHARED_COMMAND_TRAIN_COMMAND_H
#define STARRING_SHARED_COMMAND_TRAIN_COMMAND_H

struct topology_table;

// argv holds what follows "train". The program's exit status.
int train_command(const struct topology_table *topologies, int argc, char **argv);

#endif
