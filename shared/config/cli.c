#include "shared/config/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

#define HELP_ALL "all"
#define HELP_OWN "run"  // the group of the command's own options, which set no key

bool cli_asks_help(const char *word) {
    return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help");
}

void cli_override(struct cli_args *a, const char *flag, const char *path, const char *value) {
    a->overrides = xrealloc(a->overrides, (a->override_count + 1) * sizeof *a->overrides);
    a->overrides[a->override_count++] =
        (struct config_override){.path = xstrdup(path), .value = xstrdup(value), .flag = xstrdup(flag)};
}

static const char config_flag[] = "config";

static int take_option(struct cli_args *a, const struct cli_option *o, const char *value) {
    char why[FILE_WHY_MAX];
    if (o->metavar && !strcmp(o->name, config_flag) && file_settle(value, RELAXED_JSON_BYTES_MAX, why))
        return fail("%s: cannot read: %s", value, why);
    a->given = xrealloc(a->given, (a->given_count + 1) * sizeof *a->given);
    a->given[a->given_count++] = (struct cli_given){.option = o, .value = value};
    if (!o->path) return 0;
    char flag[64];
    snprintf(flag, sizeof flag, "--%s", o->name);
    if (strcmp(o->path, CLI_SET) != 0) {
        const struct config_key *k = config_key_find(o->path);
        // The flag of a list may be given again: it appends to the earlier value.
        for (size_t i = a->override_count; k && k->type == KEY_LIST && i-- > 0;) {
            struct config_override *before = &a->overrides[i];
            if (!before->flag || strcmp(before->flag, flag) != 0 || strcmp(before->path, o->path) != 0)
                continue;
            char *both = xasprintf("%s,%s", before->value, value);
            free((char *)before->value);
            before->value = both;
            return 0;
        }
        cli_override(a, flag, o->path, o->metavar ? value : "true");
        return 0;
    }
    const char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return fail("--%s %s: expected KEY=VALUE, for example --%s gradient_clipping=1.0", o->name, value,
                    o->name);
    char *path = xasprintf("%.*s", (int)(equals - value), value);
    cli_override(a, flag, path, equals + 1);
    free(path);
    return 0;
}

// Returns the command's options, malloc'd. The first *configured options set the configuration, the others are the
// command's own. An own option replaces a key's flag of the same name.
static struct cli_option *options_of(const struct cli_command *cmd, size_t *configured, size_t *count) {
    struct cli_option *list = xcalloc(config_key_count() + 2 + cmd->option_count, sizeof *list);
    size_t n = 0;
    if (cmd->configured)
        list[n++] = (struct cli_option){
            config_flag, NULL, "FILE",
            "configuration: DeepSpeed's JSON and more; the defaults below are those without it", 'c'};
    for (size_t i = 0; cmd->configured && i < config_key_count(); i++) {
        const struct config_key *k = config_key_at(i);
        bool own = false;
        if (!k->flag || (k->train && !cmd->trains)) continue;
        for (size_t m = 0; m < cmd->option_count; m++) own |= !strcmp(cmd->options[m].name, k->flag);
        if (own) continue;
        list[n++] = (struct cli_option){k->flag, k->path, k->metavar, k->help, 0};
    }
    if (cmd->configured)
        list[n++] = (struct cli_option){
            "set", CLI_SET, "KEY=VALUE",
            "any configuration key, as in gradient_clipping=0 (1.0 unless given, as in DeepSpeed); repeatable",
            0};
    *configured = n;
    for (size_t i = 0; i < cmd->option_count; i++) list[n++] = cmd->options[i];
    *count = n;
    return list;
}

static const char other_hosts[] =
    "experiments/over_ssh.py --hosts H:N,.. starring train .. starts ranks on other hosts over ssh, and so do srun, mpirun and "
    "torchrun";

// Options of DeepSpeed, its launcher, related programs and earlier versions of this one, each with advice: what to use
// here, or why nothing is needed.
static const struct {
    const char *name, *here, *why;
} of_others[] = {
    {"deepspeed", "-c FILE", NULL},
    {"deepspeed_config", "-c FILE", NULL},
    {"deepspeed_config_file", "-c FILE", NULL},
    {"ds_config", "-c FILE", NULL},
    {"config_file", "-c FILE", NULL},
    {"local_rank", NULL,
     "the rank is read from the environment, as torchrun, mpirun and srun set it: leave it out"},
    {"node_rank", NULL, "torchrun and srun say which ranks are here, in the environment: leave it out"},
    {"num_gpus", "--workers N", NULL},
    {"nproc_per_node", "--workers N", NULL},
    {"num_nodes", NULL, other_hosts},
    {"hosts", NULL, other_hosts},
    {"hostfile", NULL, other_hosts},
    {"stage", NULL,
     "copy what the hosts need by rsync (docs/cluster.md), and start the ranks with experiments/over_ssh.py"},
    {"replicate", NULL,
     "servers keep no copies of each other any more: a killed one costs the steps since the last checkpoint, give --restart N "
     "and --checkpoint-every K"},
    {"zero_stage", "--topology zero:S", NULL},
    {"bf16", "--dtype bf16", NULL},
    {"fp16", "--dtype fp16", NULL},
    {"learning_rate", "--lr X", NULL},
    {"max_steps", "--steps N", NULL},
    {"train_iters", "--steps N", NULL},
    {"output_dir", "--out DIR", NULL},
    {"model_name_or_path", "--model M", NULL},
    {"per_device_train_batch_size", "--batch B", NULL},
    {"micro_batch_size", "--batch B", NULL},
    {"train_micro_batch_size_per_gpu", "--batch B", NULL},
    {"train_batch_size", "--set train_batch_size=B", NULL},
    {"global_batch_size", "--set train_batch_size=B", NULL},
    {"gradient_accumulation_steps", "--set gradient_accumulation_steps=N", NULL},
    {"gradient_clipping", "--set gradient_clipping=X", NULL},
    {"keys", NULL,
     "all processes of a job have one key, in the environment: export STARRING_JOB_KEY=$(starring keygen)"},
    {"weight_decay", "--set optimizer.params.weight_decay=X", NULL},
};

static bool same_flag(const char *ours, const char *given) {  // - and _ are equal
    for (; *ours && (*ours == *given || (*ours == '_' && *given == '-')); ours++, given++) {
    }
    return !*ours && !*given;
}

static int unknown_option(const struct cli_command *cmd, const struct cli_args *a, const char *name,
                          size_t length) {
    const char **names = xcalloc(a->option_count + 1, sizeof *names);
    size_t count = 0;
    for (size_t i = 0; i < a->option_count; i++)
        if (a->options[i].help) names[count++] = a->options[i].name;
    names[count++] = "help";
    char word[65], program[PROGRAM_WORD];
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    for (size_t i = 0; cmd->configured && i < sizeof of_others / sizeof *of_others; i++) {
        if (!same_flag(of_others[i].name, word)) continue;
        free(names);
        if (of_others[i].why) return fail("unknown option --%s: %s", word, of_others[i].why);
        return fail("unknown option --%s: did you mean %s?", word, of_others[i].here);
    }
    const char *near = text_nearest(word, names, count);
    free(names);
    if (near) return fail("unknown option --%s: did you mean --%s?", word, near);
    return fail("unknown option --%s: see %s %s --help", word, program_word(program), cmd->name);
}

// Parses one option at argv[*i], whose value is in the same word or in the next one. Moves *i to the last word
// used.
static int parse_option(const struct cli_command *cmd, int argc, char **argv, int *i, struct cli_args *out) {
    const char *word = argv[*i];
    const struct cli_option *o = NULL, *end = out->options + out->option_count;
    const char *value = NULL;
    char program[PROGRAM_WORD];
    if (word[1] == '-') {
        const char *equals = strchr(word, '=');
        size_t length = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
        for (const struct cli_option *at = out->options; at < end && !o; at++)
            if (strlen(at->name) == length && !strncmp(at->name, word + 2, length)) o = at;
        if (!o) return unknown_option(cmd, out, word + 2, length);
        if (equals) value = equals + 1;
    } else {
        for (const struct cli_option *at = out->options; at < end && !o; at++)
            if (at->letter && at->letter == word[1] && !word[2]) o = at;
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

// Returns the word if it is a topic of --help, else NULL.
static const char *topic_of(const char *word) {
    bool known = !strcmp(word, HELP_ALL) || !strcmp(word, HELP_OWN);
    for (int g = 0; g < HELP_GROUPS; g++) known |= !strcmp(word, help_groups[g][0]);
    return known ? word : NULL;
}

enum cli_outcome cli_parse(const struct cli_command *cmd, const struct topology_table *t, int argc,
                           char **argv, struct cli_args *out) {
    size_t configured;
    bool only_words = false;
    *out = (struct cli_args){0};
    out->options = options_of(cmd, &configured, &out->option_count);
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_words && word[0] == '-' && cli_asks_help(word)) {
            cli_help(stdout, cmd, t, i + 1 < argc ? topic_of(argv[i + 1]) : NULL);
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
    for (struct config_override *o = a->overrides; o < a->overrides + a->override_count; o++) {
        free((char *)o->path);
        free((char *)o->value);
        free((char *)o->flag);
    }
    free(a->options);
    free(a->overrides);
    free(a->given);
    free(a->words);
    *a = (struct cli_args){0};
}

int cli_run(const struct cli_command *cmd, const struct topology_table *t, int argc, char **argv,
            int (*run)(const struct topology_table *t, const struct cli_args *a)) {
    struct cli_args args;
    enum cli_outcome outcome = cli_parse(cmd, t, argc, argv, &args);
    int status = outcome == CLI_RUN ? run(t, &args) : outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    cli_args_free(&args);
    return status;
}

const char *cli_get(const struct cli_args *a, const char *name) {
    for (size_t i = a->given_count; i-- > 0;)
        if (!strcmp(a->given[i].option->name, name)) return a->given[i].value;
    return NULL;
}

int cli_only_sets(const struct cli_args *a, const char *const *known, const char *words) {
    for (size_t i = 0; i < a->override_count; i++) {
        const char *const *k = known;
        while (*k && strcmp(a->overrides[i].path, *k) != 0) k++;
        if (!*k) return fail("--set %s: %s", a->overrides[i].path, words);
    }
    return 0;
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

#define EXACT 9007199254740992.0  // 2^53: below this a double holds an integer exactly

int cli_integer(const struct cli_args *a, const char *name, long low, long high, long fallback, long *out) {
    const char *text = cli_get(a, name);
    if (!text) {
        *out = fallback;
        return 0;
    }
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    double real = strtod(text, &end);  // accepts 1e3, too
    if (end > text && !*end && real == floor(real) && fabs(real) < EXACT) value = (long)real;
    if (errno || end == text || *end || (double)value != real || value < low || value > high)
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
        return fail("--%s %s: expected bytes up to 1024G: 4096, 64K, 1.5GiB or 1GB (powers of 1000)", name,
                    text);
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

static void help_option(FILE *f, const struct cli_option *o, const struct topology_table *t) {
    char left[64];
    char letter[8] = "    ";
    if (!o->help) return;
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->metavar ? " " : "",
             o->metavar ? o->metavar : "");
    const char *names = strstr(o->help, HELP_TOPOLOGIES);
    char *topologies = names ? config_topologies(t, true) : xstrdup("");
    fprintf(f, "  %-32s %.*s%s%s\n", left, names ? (int)(names - o->help) : (int)strlen(o->help), o->help,
            topologies, names ? names + strlen(HELP_TOPOLOGIES) : "");
    free(topologies);
}

static void help_options(FILE *f, const struct topology_table *t, const struct cli_option *options,
                         size_t count) {
    for (size_t i = 0; i < count; i++) help_option(f, &options[i], t);
}

// Prints the first `configured` options, which set the configuration, by the groups of their keys. The command's
// own options are in the last group.
static void help_in_groups(FILE *f, const struct cli_command *cmd, const struct topology_table *t,
                           const struct cli_option *all, size_t configured, size_t count, const char *topic) {
    bool every = topic && !strcmp(topic, HELP_ALL);
    for (int g = 0; g <= HELP_GROUPS; g++) {
        const char *name = g < HELP_GROUPS ? help_groups[g][0] : HELP_OWN;
        bool whole = every || (topic && !strcmp(topic, name));
        if (topic && !whole) continue;
        fprintf(f, "\n%s:", g < HELP_GROUPS ? help_groups[g][1] : "The command and its configuration");
        int listed = 0;
        for (size_t i = 0; i < count; i++) {
            const struct config_key *k = i < configured && all[i].path ? config_key_find(all[i].path) : NULL;
            bool often = k ? k->often : i < configured;  // --config and --set
            for (const char *const *o = cmd->often; *o; o++) often |= !k && !strcmp(*o, all[i].name);
            if ((k ? (int)k->group : HELP_GROUPS) != g || !(whole || often)) continue;
            if (!listed++) fputc('\n', f);
            help_option(f, &all[i], t);
        }
        if (!listed) fprintf(f, " --help %s\n", name);
    }
    fprintf(f, "  -h, --help [%s|GROUP]%*s show %s, or a group: %s", HELP_ALL, 10, "",
            topic ? "this; all options" : "these; all options", HELP_OWN);
    for (int g = 0; g < HELP_GROUPS; g++) fprintf(f, ", %s", help_groups[g][0]);
    fputc('\n', f);
}

char *cli_words(const char *text) {
    static const char name[] = "starring ";
    char program[PROGRAM_WORD], *out = xstrdup("");
    program_word(program);
    for (const char *at; (at = strstr(text, name)); text = at + sizeof name - 1)
        text_add(&out, "%.*s%s ", (int)(at - text), text, program);
    text_add(&out, "%s", text);
    return out;
}

void cli_print(FILE *f, const char *text) {
    char *words = cli_words(text);
    fputs(words, f);
    free(words);
}

void cli_help(FILE *f, const struct cli_command *cmd, const struct topology_table *t, const char *topic) {
    cli_print(f, "starring ");
    fprintf(f, "%s%s%s\n\n", cmd->name, *cmd->usage ? " " : "", cmd->usage);
    cli_print(f, cmd->summary);
    fputs("\n\nOptions:\n", f);
    size_t configured, count;
    struct cli_option *all = options_of(cmd, &configured, &count);
    if (cmd->often) {
        help_in_groups(f, cmd, t, all, configured, count, topic);
    } else {
        if (!cmd->configured_words) help_options(f, t, all, configured);
        help_options(f, t, all + configured, count - configured);
        fprintf(f, "  -h, --help%*s show this\n", 22, "");
        if (cmd->configured_words) {
            fprintf(f, "\n%s\n", cmd->configured_words);
            help_options(f, t, all, configured);
        }
    }
    free(all);
    if (!cmd->examples) return;
    fputs("\nExamples:\n", f);
    cli_print(f, cmd->examples);
}
