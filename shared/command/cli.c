#include "shared/command/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"

const char *cli_nearest(const char *word, const char *const *names, size_t count) {
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t d = edit_distance(word, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

static char *own(struct cli_args *a, const char *text, size_t length) {
    char *copy = xcalloc(length + 1, 1);
    memcpy(copy, text, length);
    a->owned = xrealloc(a->owned, (a->owned_count + 1) * sizeof *a->owned);
    a->owned[a->owned_count++] = copy;
    return copy;
}

void cli_override(struct cli_args *a, const char *flag, const char *path, const char *value) {
    char *f = own(a, flag, strlen(flag));
    char *p = own(a, path, strlen(path));
    char *v = own(a, value, strlen(value));
    a->overrides = xrealloc(a->overrides, (a->override_count + 1) * sizeof *a->overrides);
    a->overrides[a->override_count++] = (struct config_override){.path = p, .value = v, .flag = f};
}

static void show_flag(char *text, size_t size, const struct cli_option *o) {
    snprintf(text, size, "--%s", o->name);
}

// Whether the flag was given before; its value then has become longer.
static bool add_to_list(struct cli_args *a, const char *path, const char *flag, const char *value) {
    for (size_t i = a->override_count; i-- > 0;) {
        struct config_override *before = &a->overrides[i];
        if (!before->flag || strcmp(before->flag, flag) != 0 || strcmp(before->path, path) != 0) continue;
        char *both = xasprintf("%s,%s", before->value, value);
        before->value = own(a, both, strlen(both));
        free(both);
        return true;
    }
    return false;
}

static int take_option(struct cli_args *a, const struct cli_option *o, const char *value) {
    a->given = xrealloc(a->given, (a->given_count + 1) * sizeof *a->given);
    a->given[a->given_count++] = (struct cli_given){.option = o, .value = value};
    if (!o->path) return 0;
    char flag[64];
    show_flag(flag, sizeof flag, o);
    if (strcmp(o->path, CLI_SET) != 0) {
        bool list = o->path[0] == CLI_LIST[0];
        const char *path = o->path + list;
        if (!list || !add_to_list(a, path, flag, value))
            cli_override(a, flag, path, o->metavar ? value : "true");
        return 0;
    }
    const char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return fail("--%s %s: expected KEY=VALUE, for example --%s gradient_clipping=1.0", o->name, value,
                    o->name);
    char *path = own(a, value, (size_t)(equals - value));
    cli_override(a, flag, path, equals + 1);
    return 0;
}

// Options are numbered through: the common ones, then the command's own. NULL past the last.
static const struct cli_option *option_at(const struct cli_command *cmd, size_t i) {
    if (i < cmd->common_count) return &cmd->common[i];
    i -= cmd->common_count;
    return i < cmd->option_count ? &cmd->options[i] : NULL;
}

static int unknown_option(const struct cli_command *cmd, const char *name, size_t length) {
    const char *names[64];
    size_t count = 0;
    const struct cli_option *o;
    for (size_t i = 0; count < 63 && (o = option_at(cmd, i)); i++)
        if (o->help) names[count++] = o->name;
    names[count++] = "help";
    char word[65];
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    const char *near = cli_nearest(word, names, count);
    if (near) return fail("unknown option --%s: did you mean --%s?", word, near);
    char program[PROGRAM_WORD];
    return fail("unknown option --%s: see %s %s --help", word, program_word(program), cmd->name);
}

static const struct cli_option *find_long(const struct cli_command *cmd, const char *name, size_t length) {
    const struct cli_option *o;
    for (size_t i = 0; (o = option_at(cmd, i)); i++)
        if (strlen(o->name) == length && !strncmp(o->name, name, length)) return o;
    return NULL;
}

static const struct cli_option *find_letter(const struct cli_command *cmd, char letter) {
    const struct cli_option *o;
    for (size_t i = 0; (o = option_at(cmd, i)); i++)
        if (letter && o->letter == letter) return o;
    return NULL;
}

// One option at argv[*i], with its value there or in the next word; moves *i to the last word used.
static int parse_option(const struct cli_command *cmd, int argc, char **argv, int *i, struct cli_args *out) {
    const char *word = argv[*i];
    const struct cli_option *o;
    const char *value = NULL;
    char program[PROGRAM_WORD];
    if (word[1] == '-') {
        const char *equals = strchr(word, '=');
        size_t length = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
        o = find_long(cmd, word + 2, length);
        if (!o) return unknown_option(cmd, word + 2, length);
        if (equals) value = equals + 1;
    } else {
        o = word[2] ? NULL : find_letter(cmd, word[1]);
        if (!o) return fail("unknown option %s: see %s %s --help", word, program_word(program), cmd->name);
    }
    if (!o->metavar) {
        if (value) return fail("--%s takes no value, but %s was given", o->name, value);
        return take_option(out, o, "");
    }
    if (!value) {
        if (*i + 1 >= argc) return fail("--%s needs a value: --%s %s", o->name, o->name, o->metavar);
        value = argv[++*i];
    }
    return take_option(out, o, value);
}

enum cli_outcome cli_parse(const struct cli_command *cmd, int argc, char **argv, struct cli_args *out) {
    *out = (struct cli_args){0};
    bool only_words = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_words && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            cli_help(stdout, cmd);
            return CLI_HELP_SHOWN;
        }
        if (!only_words && !strcmp(word, "--")) {
            only_words = true;
        } else if (!only_words && word[0] == '-' && word[1]) {
            if (parse_option(cmd, argc, argv, &i, out)) return CLI_WRONG;
        } else {
            if ((int)out->word_count == cmd->max_words) {
                char program[PROGRAM_WORD];
                fail("unexpected word \"%s\": see %s %s --help", word, program_word(program), cmd->name);
                return CLI_WRONG;
            }
            out->words = xrealloc(out->words, (out->word_count + 1) * sizeof *out->words);
            out->words[out->word_count++] = word;
        }
    }
    return CLI_RUN;
}

void cli_args_free(struct cli_args *a) {
    for (size_t i = 0; i < a->owned_count; i++) free(a->owned[i]);
    free(a->owned);
    free(a->overrides);
    free(a->given);
    free(a->words);
    *a = (struct cli_args){0};
}

const char *cli_get(const struct cli_args *a, const char *name) {
    for (size_t i = a->given_count; i-- > 0;)
        if (!strcmp(a->given[i].option->name, name)) return a->given[i].value;
    return NULL;
}

struct config *cli_config(const struct topology_table *t, const struct config_override *defaults,
                          size_t count, const struct cli_args *a) {
    struct config_override *all = xcalloc(count + a->override_count, sizeof *all);
    memcpy(all, defaults, count * sizeof *all);
    if (a->override_count) memcpy(all + count, a->overrides, a->override_count * sizeof *all);
    struct config *c = config_load(t, NULL, all, count + a->override_count);
    free(all);
    return c;
}

int cli_integer(const struct cli_args *a, const char *name, long low, long high, long fallback, long *out) {
    const char *text = cli_get(a, name);
    if (!text) {
        *out = fallback;
        return 0;
    }
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return fail("--%s %s: expected a whole number from %ld to %ld", name, text, low, high);
    *out = value;
    return 0;
}

int cli_bytes(const struct cli_args *a, const char *name, size_t fallback, size_t *out) {
    const char *text = cli_get(a, name);
    int64_t bytes;
    *out = fallback;
    if (!text) return 0;
    if (text_bytes(text, &bytes) || bytes > (int64_t)1 << 40)
        return fail("--%s %s: expected bytes up to 1024G: 4096, 64K, 16M or 1GiB", name, text);
    *out = (size_t)bytes;
    return 0;
}

int cli_number(const struct cli_args *a, const char *name, double low, double high, double fallback,
               double *out) {
    const char *text = cli_get(a, name);
    if (!text) {
        *out = fallback;
        return 0;
    }
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= low && value <= high))
        return fail("--%s %s: expected a number from %g to %g", name, text, low, high);
    *out = value;
    return 0;
}

static void help_options(FILE *f, const struct cli_option *options, size_t count) {
    for (const struct cli_option *o = options; o < options + count; o++) {
        char left[64];
        char letter[8] = "    ";
        if (!o->help) continue;
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->metavar ? " " : "",
                 o->metavar ? o->metavar : "");
        fprintf(f, "  %-32s %s\n", left, o->help);
    }
}

void cli_print(FILE *f, const char *text) {
    static const char name[] = "starring ";
    char program[PROGRAM_WORD];
    program_word(program);
    for (const char *at; (at = strstr(text, name)); text = at + sizeof name - 1)
        fprintf(f, "%.*s%s ", (int)(at - text), text, program);
    fputs(text, f);
}

void cli_help(FILE *f, const struct cli_command *cmd) {
    cli_print(f, "starring ");
    fprintf(f, "%s %s\n\n", cmd->name, cmd->usage);
    cli_print(f, cmd->summary);
    fputs("\n\nOptions:\n", f);
    if (!cmd->common_words) help_options(f, cmd->common, cmd->common_count);
    help_options(f, cmd->options, cmd->option_count);
    fprintf(f, "  -h, --help%*s show this\n", 22, "");
    if (cmd->common_words) {
        fprintf(f, "\n%s\n", cmd->common_words);
        help_options(f, cmd->common, cmd->common_count);
    }
    if (!cmd->examples) return;
    fputs("\nExamples:\n", f);
    cli_print(f, cmd->examples);
}
