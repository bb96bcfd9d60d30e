// `starring data info`, `starring data tokenize` and `starring data wrap`.
#ifndef STARRING_SHARED_COMMAND_DATA_COMMAND_H
#define STARRING_SHARED_COMMAND_DATA_COMMAND_H

struct topology_table;

// argv holds what follows "data". Returns the program's exit status.
int data_command(const struct topology_table *t, int argc, char **argv);

#endif
