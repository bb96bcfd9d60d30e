// The subcommands and their options, as tables; --help is printed from them. Constant.
#ifndef STARRING_SHARED_COMMAND_COMMANDS_H
#define STARRING_SHARED_COMMAND_COMMANDS_H

#include "shared/config/cli.h"

extern const struct cli_command command_train, command_scheduler, command_server, command_worker,
    command_data_info, command_data_tokenize, command_data_wrap, command_summary, command_evaluate,
    command_keygen, command_plan;

// Prints the text of `starring --help`.
void commands_overview(FILE *f, const char *benches);  // benches: their names, "step | kernels"

#endif
