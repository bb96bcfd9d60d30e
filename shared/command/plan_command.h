// `starring plan`: what fits a device's memory, fastest first.
#ifndef STARRING_SHARED_COMMAND_PLAN_COMMAND_H
#define STARRING_SHARED_COMMAND_PLAN_COMMAND_H

struct topology_table;

// argv holds what follows "plan". 0: something fits; 1: nothing does; 2: wrong options.
int plan_command(const struct topology_table *topologies, int argc, char **argv);

#endif
