// The command line from one table: parsing, --help and "did you mean" all come from it.
//
// An option either sets a configuration key (path) or belongs to the program (cli_get reads it). A configured
// command also takes the flags of all keys, from the keys' rows (shared/config/config.h). The tables are
// constant. struct cli_args owns copies of what it needs, and argv must outlive it.
#ifndef STARRING_SHARED_CONFIG_CLI_H
#define STARRING_SHARED_CONFIG_CLI_H

#include <stddef.h>
#include <stdio.h>

#include "shared/config/config.h"

struct cli_option {
    const char *name;  // "workers": written --workers
    // The configuration key that it sets; CLI_SET: KEY=VALUE; NULL: the program's own option.
    const char *path;
    const char *metavar;  // "N": takes a value; NULL: a switch (sets path to true)
    const char *help;     // one sentence for --help; NULL: hidden, for programs that start this one
    char letter;          // 'c' for -c, or 0
};
#define CLI_SET "*"

struct cli_command {
    const char *name;      // "train"
    const char *usage;     // printed after the name: "[-c CONFIG.json] [OPTIONS]"
    const char *summary;   // a sentence or a paragraph
    const char *examples;  // complete lines
    const struct cli_option *options;
    size_t option_count;
    bool configured;  // takes --config, --set and the configuration's flags, listed first
    bool trains;      // also takes the flags of train
    // In --help, the heading of the configuration's flags, after the command's own options; NULL: none.
    const char *configured_words;
    // The own options that the short --help lists (NULL at the end). NULL: --help is not short, and lists all options.
    const char *const *often;
    int max_words;  // the most words that it takes besides options
};

// Initialiser of a command's table: CLI_OPTIONS(options).
#define CLI_OPTIONS(list) .options = (list), .option_count = sizeof(list) / sizeof *(list)

struct cli_given {
    const struct cli_option *option;
    const char *value;  // "" for a switch
};

struct cli_args {
    struct cli_option *options;  // the options that the command takes
    size_t option_count;
    struct config_override *overrides;  // in the order given; their texts are copies
    size_t override_count;
    struct cli_given *given;  // every option given, in order
    size_t given_count;
    const char **words;
    size_t word_count;
};

enum cli_outcome { CLI_RUN, CLI_HELP_SHOWN, CLI_WRONG };

// argv starts after the command's name. CLI_HELP_SHOWN: --help was given and has been printed to stdout. CLI_WRONG:
// the option has been logged, and for an unknown one the nearest known name.
enum cli_outcome cli_parse(const struct cli_command *cmd, const struct topology_table *t, int argc,
                           char **argv, struct cli_args *out);
void cli_args_free(struct cli_args *a);
// Runs a whole command: parses, calls `run` and frees. Returns the program's exit status: run's, 0 after --help, or
// EXIT_USAGE.
int cli_run(const struct cli_command *cmd, const struct topology_table *t, int argc, char **argv,
            int (*run)(const struct topology_table *t, const struct cli_args *a));

// Returns the last value given for the option, "" for a switch, NULL if it was not given.
const char *cli_get(const struct cli_args *a, const char *name);
// Adds an override as if --flag value had been given last.
void cli_override(struct cli_args *a, const char *flag, const char *path, const char *value);
// Checks that --set and the flags set only the keys in `known` (NULL at the end). Otherwise returns -1 after logging the
// first other key, and `words`, which say what to do.
int cli_only_sets(const struct cli_args *a, const char *const *known, const char *words);
// Makes the configuration of a command without a file: the defaults, then the given options. Returns NULL after
// logging.
struct config *cli_config(const struct topology_table *t, const struct config_override *defaults,
                          size_t count, const struct cli_args *a);
// Reads an option's whole number in [low, high]; *out receives fallback if the option was not given. Returns 0, or -1
// after logging the option, with *out unchanged.
int cli_integer(const struct cli_args *a, const char *name, long low, long high, long fallback, long *out);
// Reads bytes from 1 to 1024G in the same way: "4096", "64K", "1.5GiB" or "1GB". After an error *out is fallback.
int cli_bytes(const struct cli_args *a, const char *name, size_t fallback, size_t *out);
// Reads a finite number in the same way as cli_integer.
int cli_number(const struct cli_args *a, const char *name, double low, double high, double fallback,
               double *out);

// cli_words returns the text (malloc'd) with each "starring " replaced by the name that this program was called by, so
// that examples can be copied. cli_print prints it.
char *cli_words(const char *text);
void cli_print(FILE *f, const char *text);
// topic: "all", or the name of a group (help_groups); NULL: the short help.
void cli_help(FILE *f, const struct cli_command *cmd, const struct topology_table *t, const char *topic);
// Returns whether the word is help, --help or -h.
bool cli_asks_help(const char *word);

#endif
