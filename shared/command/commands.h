// The subcommands: their option tables, from which --help is printed, and the functions that run them.
#ifndef STARRING_SHARED_COMMAND_COMMANDS_H
#define STARRING_SHARED_COMMAND_COMMANDS_H

#include "shared/config/cli.h"

extern const struct cli_command command_train, command_scheduler, command_server, command_worker,
    command_data_info, command_data_tokenize, command_data_wrap, command_summary, command_evaluate,
    command_keygen, command_plan;

// argv: the words after the command's name. Returns the program's exit status; summary also returns 3 if the run is
// running.
int train_command(const struct topology_table *t, int argc, char **argv);
int data_command(const struct topology_table *t, int argc, char **argv);
int plan_command(const struct topology_table *t, int argc, char **argv);
int summary_command(const struct topology_table *t, int argc, char **argv);
int evaluate_command(const struct topology_table *t, int argc, char **argv);
int keygen_command(const struct topology_table *t, int argc, char **argv);
int generate_command(const struct topology_table *t, int argc, char **argv);

// `train --dry-run`: prints the table, or one JSON document with as_json (docs/files.md). "here" compares the ranks
// `part` with this machine's memory. Returns 0, or -1 after logging.
struct job;
struct memory_ranks;
int dry_run(const struct job *j, const struct memory_ranks *part, FILE *f, bool as_json);

// Prints the text of `starring --help`.
void commands_overview(FILE *f, const char *benches);  // benches: their names, "step | kernels"

#endif
