// The command line: the lists of topologies and commands. The only file that includes both ps/ and decentral/.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/mpi/mpi_engine.h"
#include "decentral/ring.h"
#include "ps/star.h"
#include "shared/bench/bench.h"
#include "shared/command/commands.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/launch/local.h"
#include "shared/launch/rank_env.h"
#include "starring_revision.h"

// The benches in the order of the help: bench_NAME, the row of bench NAME (shared/bench/bench.h).
#define BENCH_LIST(ROW) \
    ROW(step) ROW(kernels) ROW(adam) ROW(collective) ROW(zero) ROW(ps) ROW(checkpoint) ROW(offload)
#define DECLARE(name) extern const struct bench bench_##name;
#define ADDRESS(name) &bench_##name,
BENCH_LIST(DECLARE)
static const struct bench *const benches[] = {BENCH_LIST(ADDRESS)};
#define BENCHES (int)(sizeof benches / sizeof *benches)

static int cmd_bench(const struct topology_table *t, int argc, char **argv) {
    return bench_command(benches, BENCHES, t, argc, argv);
}

// Returns whether the arguments ask for training. If not, the command only prints, and a closed pipe needs no warning.
static bool asks_to_train(int argc, char **argv) {
    static const char *const prints[] = {"-h", "--help", "--dry-run", "--print-config"};
    for (int i = 0; i < argc; i++)
        for (size_t k = 0; k < sizeof prints / sizeof *prints; k++)
            if (!strcmp(argv[i], prints[k])) return false;
    return true;
}

// A supervised role prints to its launcher's output; the launcher reports failed writes.
static int end(int status, bool run) { return rank_env_supervised() ? status : output_end(status, run); }

// Words that users may type, and the command that they need.
static const struct {
    const char *word, *says;
} elsewhere[] = {
    {"list", "starring --help lists the commands, starring train --help the topologies"},
    {"ls", "starring summary DIR shows one run; runs lie in runs/"},
    {"topologies", "starring train --help lists them at --topology"},
    {"models", "starring train --help names them at --model"},
    {"compare", "experiments/compare.py --a ps:sync --b zero:2 compares topologies"},
    {"consistency", "experiments/consistency.py compares the consistencies of the star"},
    {"demo", "make demo trains through every topology and compares"},
    {"lab", "docs/lab.md is the lab, make lab-check runs its commands"},
    {"drill", "make drill kills processes at random moments"},
    {"test", "make test runs the tests"},
    {"check", "make check runs every test; starring train --dry-run checks a configuration"},
    {"docs", "the pages are in docs/; README.md lists them by purpose"},
    {"run", "starring train trains"},
    {"start", "starring train trains"},
    {"launch",
     "starring train starts the ranks too: --launch, or under srun, mpirun, torchrun, or over ssh: experiments/over_ssh.py"},
    {"fit", "starring train trains"},
    {"pretrain", "starring train trains"},
    {"finetune", "starring train --model DIR begins with the weights of a directory"},
    {"fine-tune", "starring train --model DIR begins with the weights of a directory"},
    {"resume", "starring train --resume latest --out DIR continues a run"},
    {"continue", "starring train --resume latest --out DIR continues a run"},
    {"predict", "starring train --dry-run predicts memory and bytes, starring plan what fits"},
    {"estimate", "starring train --dry-run predicts memory and bytes, starring plan what fits"},
    {"memory", "starring train --dry-run predicts memory and bytes, starring plan what fits"},
    {"dry-run", "starring train --dry-run predicts memory and bytes"},
    {"config", "starring train --print-config prints the resolved configuration"},
    {"print-config", "starring train --print-config prints the resolved configuration"},
    {"benchmark", "starring bench measures steps, kernels, collectives, servers and files"},
    {"eval", "starring evaluate DIR evaluates the snapshots of a run"},
    {"report",
     "starring summary DIR prints a run's table; experiments/compare.py --runs DIR writes a report"},
    {"show", "starring summary DIR prints a run's table"},
    {"status", "starring summary DIR prints a run's state"},
    {"info", "starring data info PATH describes a text, starring summary DIR a run"},
    {"plot", "experiments/compare.py --runs DIR draws the curves of a run"},
    {"tokenize",
     "starring data tokenize makes tokens of bytes, experiments/tokenize.py those of a Hugging Face tokenizer"},
    {"prepare",
     "starring data tokenize makes tokens of bytes, experiments/tokenize.py those of a Hugging Face tokenizer"},
    {"sample", "starring generate writes text from a run's weights"},
    {"infer", "starring generate writes text from a run's weights"},
    {"inference", "starring generate writes text from a run's weights"},
    {"chat", "starring generate writes text from a run's weights"},
    {"serve", "starring generate writes text from a run's weights; it does not serve"},
    {"export", "starring train leaves model.safetensors and config.json in DIR/weights"},
    {"keys", "starring keygen prints the key of a job"},
    {"ps", "starring train --topology ps:sync trains a star"},
    {"zero", "starring train --topology zero:1 trains a ring"},
    {"install", "make install installs the program below PREFIX"},
    {"version", "starring --version"},
};

struct command {
    const char *name;
    int (*run)(const struct topology_table *t, int argc, char **argv);
    bool trains;
    bool parts;  // a second word completes its name: bench step
};
static const struct command commands[] = {
    {"train", train_command, .trains = true},     {"scheduler", role_scheduler, .trains = true},
    {"server", role_server, .trains = true},      {"worker", role_worker, .trains = true},
    {"bench", cmd_bench, .parts = true},          {"data", data_command, .parts = true},
    {"summary", summary_command, false, false},   {"evaluate", evaluate_command, false, false},
    {"generate", generate_command, false, false}, {"keygen", keygen_command, false, false},
    {"plan", plan_command, false, false}};
#define COMMANDS (sizeof commands / sizeof *commands)

static const struct command *command_of(const char *word) {
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(word, commands[i].name)) return &commands[i];
    return NULL;
}

static int unknown(const char *word) {
    const char *names[COMMANDS], *says = NULL;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strcmp(word, elsewhere[i].word)) says = elsewhere[i].says;
    if (!says && *word == '-') says = "options follow a command: starring train --help";
    for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    const char *near = says ? NULL : text_nearest(word, names, COMMANDS);
    char *words = near ? xasprintf("did you mean %s?", near)
                       : cli_words(says ? says : "starring --help lists the commands");
    fail("unknown %s %s: %s", *word == '-' ? "option" : "command", word, words);
    free(words);
    return EXIT_USAGE;
}

static void overview(FILE *f) {
    char *bench_list = bench_names(benches, BENCHES);
    commands_overview(f, bench_list);
    free(bench_list);
}

// `starring help COMMAND ..` runs `starring COMMAND .. --help`.
static int help(const struct topology_table *t, int argc, char **argv) {
    const struct command *c = argc > 0 ? command_of(argv[0]) : NULL;
    if (argc > 0 && !c && !cli_asks_help(argv[0])) return unknown(argv[0]);
    if (!c) return overview(stdout), 0;
    char ask[] = "--help", **words = xcalloc((size_t)argc + 1, sizeof *words);
    int n = 0;
    if (!c->parts) words[n++] = ask;
    for (int i = 1; i < argc; i++) words[n++] = argv[i];
    if (c->parts) words[n++] = ask;
    int status = c->run(t, n, words);
    free(words);
    return status;
}

int main(int argc, char **argv) {
    static const struct topology_table topologies = {
        .row = {&topology_local, &topology_star, RING_TOPOLOGIES}, .broadcast = mpi_broadcast_text};
    const char *word = argc > 1 ? argv[1] : "";
    const struct command *c = command_of(word);
    output_open_streams();
    if (*STARRING_REVISION) starring_revision = STARRING_REVISION;
    signal(SIGPIPE, SIG_IGN);  // a closed pipe fails the write, not the job
    signal(SIGXFSZ, SIG_IGN);  // a file at its size limit fails the write, not the job
    if (c)
        return end(c->run(&topologies, argc - 2, argv + 2), c->trains && asks_to_train(argc - 2, argv + 2));
    if (!strcmp(word, "--version")) return puts("starring " STARRING_VERSION), end(0, false);
    if (cli_asks_help(word)) return end(help(&topologies, argc - 2, argv + 2), false);
    if (*word) return unknown(word);
    overview(stderr);
    return EXIT_USAGE;
}
