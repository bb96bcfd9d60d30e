// starring generate: continues a prompt with trained weights.
#ifndef STARRING_SHARED_COMMAND_GENERATE_COMMAND_H
#define STARRING_SHARED_COMMAND_GENERATE_COMMAND_H

struct topology_table;

// argv: the words after "generate". The exit status: 0, EXIT_RUN_FAILED or EXIT_USAGE.
int generate_command(const struct topology_table *t, int argc, char **argv);

#endif
