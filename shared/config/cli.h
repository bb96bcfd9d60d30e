// The command line from one table: parsing, --help and "did you mean" all come from it.
//
// An option either sets a configuration key (path) or belongs to the program (read with cli_get). Commands that are
// configured take the flags of all keys besides, from their rows (shared/config/config_key.h). The tables are constant;
// struct cli_args owns copies of what it needs, and argv must outlive it.
#ifndef STARRING_SHARED_CONFIG_CLI_H
#define STARRING_SHARED_CONFIG_CLI_H

#include <stddef.h>
#include <stdio.h>

#include "shared/config/config.h"

struct cli_option {
    const char *name;     // "workers": written --workers
    const char *path;     // configuration key it sets; CLI_SET: KEY=VALUE; NULL: the program's own
    const char *metavar;  // "N": takes a value; NULL: a switch (sets path to true)
    const char *help;     // one sentence, for --help; NULL: between programs, not shown
    char letter;          // 'c' for -c, or 0
};
#define CLI_SET "*"

struct cli_command {
    const char *name;      // "train"
    const char *usage;     // what follows the name: "[-c CONFIG.json] [OPTIONS]"
    const char *summary;   // a sentence or a paragraph
    const char *examples;  // whole lines
    const struct cli_option *options;
    size_t option_count;
    bool configured;               // takes --config, --set and the configuration's flags, listed first
    bool trains;                   // those of train alone, too
    const char *configured_words;  // a heading over them in --help, below the command's own; NULL: none
    // Its --help is short and in groups, with these of its own options (NULL at the end). NULL: it lists all.
    const char *const *often;
    int max_words;  // how many words that are no options it takes
};

// Initialiser of a command's table: CLI_OPTIONS(options).
#define CLI_OPTIONS(list) .options = (list), .option_count = sizeof(list) / sizeof *(list)

struct cli_given {
    const struct cli_option *option;
    const char *value;  // "" for a switch
};

struct cli_args {
    struct cli_option *options;  // that the command takes
    size_t option_count;
    struct config_override *overrides;  // in the order given
    size_t override_count;
    struct cli_given *given;  // every option given, in order
    size_t given_count;
    const char **words;
    size_t word_count;
    char **owned;  // strings the overrides point into
    size_t owned_count;
};

enum cli_outcome { CLI_RUN, CLI_HELP_SHOWN, CLI_WRONG };

// argv holds what follows the command's name. CLI_HELP_SHOWN: --help was given and printed to stdout;
// CLI_WRONG: after naming the option and, for an unknown one, the nearest known name.
enum cli_outcome cli_parse(const struct cli_command *cmd, int argc, char **argv, struct cli_args *out);
void cli_args_free(struct cli_args *a);
// A whole command: parses, calls `run` and frees. The program's exit status: run's, 0 after --help, EXIT_USAGE.
int cli_run(const struct cli_command *cmd, const struct topology_table *t, int argc, char **argv,
            int (*run)(const struct topology_table *t, const struct cli_args *a));

// The last value given for the option, "" for a switch, NULL when it was not given.
const char *cli_get(const struct cli_args *a, const char *name);
// Adds an override as if --flag value had been given last.
void cli_override(struct cli_args *a, const char *flag, const char *path, const char *value);
// Whether --set and the flags name no other keys than these (NULL at the end). -1 after naming the first and `words`.
int cli_only_sets(const struct cli_args *a, const char *const *known, const char *words);
// The configuration of a command without a file: its defaults, then what was given. NULL after logging.
struct config *cli_config(const struct topology_table *t, const struct config_override *defaults,
                          size_t count, const struct cli_args *a);
// A whole number in [low, high], or -1 with *out untouched after naming the option; not given: fallback.
int cli_integer(const struct cli_args *a, const char *name, long low, long high, long fallback, long *out);
// Likewise bytes from 1 to 1024G, as "4096", "64K", "16M" or "1G" (powers of 1024).
int cli_bytes(const struct cli_args *a, const char *name, size_t fallback, size_t *out);
// Likewise a finite number.
int cli_number(const struct cli_args *a, const char *name, double low, double high, double fallback,
               double *out);

// The text, in which commands begin with "starring ": with these as this program was called (malloc'd); and printed.
char *cli_words(const char *text);
void cli_print(FILE *f, const char *text);
// topic: "all", or the name of a group (help_groups); NULL: what most people need.
void cli_help(FILE *f, const struct cli_command *cmd, const char *topic);
// Whether the word asks for help: help, --help or -h.
bool cli_asks_help(const char *word);
// The nearest of count names by edit distance, or NULL when none is near.
const char *cli_nearest(const char *word, const char *const *names, size_t count);

#endif
