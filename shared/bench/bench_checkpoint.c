// `starring bench checkpoint`: what writing and reading a checkpoint takes, beside the disk's own rate.
#include <signal.h>
#include <stdlib.h>

#include "shared/bench/bench.h"
#include "shared/bench/checkpoint_figures.h"
#include "shared/command/cli.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/hf/presets.h"
#include "shared/memory/memory_limits.h"
#include "shared/model/model.h"
#include "shared/train/local.h"

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"dir", NULL, "DIR", "where to write: a directory of the file system that is meant (.)", 0},
    {"files", NULL, "N", "participants, each with a file and a thread of its own (1)", 0},
    {"rounds", NULL, "N", "rounds, after one that is not counted; medians count (5)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key; optimizer.type decides how much there is to write",
     0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench checkpoint",
    .usage = "[--model M] [--dir DIR] [--files N] [OPTIONS]",
    .summary =
        "Writes a model's training state (masters and optimizer states, fp32 in every run) as a run writes its\n"
        "checkpoints, to the rename, in turn with the same bytes through plain large writes and fsync, and through\n"
        "O_DIRECT: the share of the faster one's rate, which is the disk's own. Then reads it back, every byte verified, beside plain reads. What it writes\n"
        "lies in a directory of its own below --dir and is removed.",
    .examples =
        "  starring bench checkpoint --model demo\n"
        "  starring bench checkpoint --model gpt2-124m --dir /scratch --rounds 3\n"
        "  starring bench checkpoint --model gpt2-124m --files 4 --json\n",
    CLI_OPTIONS(options),
};

struct bench {
    struct config *config;
    struct model_spec spec;
    struct layout *layout;
    struct checkpoint_bench work;
    struct checkpoint_rounds rounds;
};

// Ctrl-C ends the bench behind the measurement in hand, so that nothing is left on the disk.
static volatile sig_atomic_t stopped;
static void stop(int number) {
    (void)number;
    stopped = 1;
}

static int catch_signals(void) {
    struct sigaction a = {.sa_handler = stop, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    return sigaction(SIGINT, &a, NULL) || sigaction(SIGTERM, &a, NULL) ? fail("cannot catch signals") : 0;
}

static int load(struct bench *b, const struct topology_table *topologies, const struct cli_args *a) {
    const struct config_override defaults[] = {{"topology", "local", "bench checkpoint"},
                                               {"model", "gpt2-124m", "bench checkpoint"},
                                               {"data.path", "demo", "bench checkpoint"},
                                               {"optimizer.type", "AdamW", "bench checkpoint"}};
    b->config = cli_config(topologies, defaults, sizeof defaults / sizeof *defaults, a);
    if (!b->config || model_spec_load(b->config->model, &b->spec)) return -1;
    if (b->config->row != &topology_local)
        return fail(
            "bench checkpoint: --set topology=%s: no topology is measured here; --files says how many write",
            b->config->topology);
    b->layout = model_layout_create(&b->spec, 1);
    return b->layout ? 0 : -1;
}

// Before any is taken. 0, or -1 after saying how much is missing.
static int check_memory(const struct bench *b) {
    char needs[24], has[24];
    struct memory_limit limit;
    // The largest unit is read back beside the state: no more than a copy of the masters.
    double bytes = sizeof(float) * (double)b->layout->padded * (2 + b->work.states);
    if (memory_limit_read("", &limit) || bytes <= limit.free_bytes) return 0;
    return fail(
        "bench checkpoint --model %s needs %s of memory, %s are left (%s): a smaller model needs less",
        b->spec.name, format_bytes(needs, bytes), format_bytes(has, limit.free_bytes), limit.name);
}

// One round; r 0 is the one that is not counted. What begins changes from round to round.
static int measure(struct bench *b, int r) {
    struct checkpoint_rounds *x = &b->rounds;
    struct checkpoint_bench *w = &b->work;
    int i = r ? r - 1 : 0, rc = 0;
    for (int k = 0; k < 3 && !rc && !stopped; k++) {
        // The first checkpoint tells the others how many bytes there are.
        int what = (k + r) % 3;
        if (what == 0) rc = checkpoint_bench_write(w, &x->write[i]);
        if (what == 0 && !rc) rc = checkpoint_bench_read(w, &x->read[i]);
        if (what == 0 && !rc) rc = checkpoint_bench_read_plain(w, &x->read_plain[i]);
        if (what == 1) rc = checkpoint_bench_plain(w, &x->plain[i]);
        if (what == 2) rc = checkpoint_bench_direct(w, &x->direct[i]);
    }
    return rc || stopped ? -1 : checkpoint_bench_hash(w, &x->hash[i]);
}

static int run(struct bench *b, const struct cli_args *args, int rounds) {
    const char *where = cli_get(args, "dir") ? cli_get(args, "dir") : ".";
    if (check_memory(b) || catch_signals() || checkpoint_bench_open(&b->work, where)) return -1;
    for (int r = 0; r <= rounds; r++)
        if (measure(b, r)) return stopped ? fail("bench checkpoint: stopped by a signal") : -1;
    b->rounds.count = rounds;
    struct checkpoint_figures f = {
        .model = b->spec.name, .bench = &b->work, .rounds = &b->rounds, .where = where};
    (cli_get(args, "json") ? checkpoint_figures_json : checkpoint_figures_table)(&f);
    return 0;
}

int bench_checkpoint(const struct topology_table *topologies, int argc, char **argv) {
    struct cli_args args;
    struct bench *b = xcalloc(1, sizeof *b);
    long files, rounds;
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !cli_integer(&args, "files", 1, CHECKPOINT_FILES_MAX, 1, &files) &&
        !cli_integer(&args, "rounds", 1, CHECKPOINT_ROUNDS_MAX, 5, &rounds) && !load(b, topologies, &args)) {
        b->work = (struct checkpoint_bench){.layout = b->layout,
                                            .optimizer = b->config->optimizer.row->name,
                                            .states = b->config->optimizer.row->states,
                                            .dtype = dtype_name(b->config->dtype),
                                            .files = (int)files};
        status = run(b, &args, (int)rounds) ? EXIT_RUN_FAILED : 0;
        checkpoint_bench_close(&b->work);
    }
    layout_destroy(&b->layout);
    config_destroy(&b->config);
    cli_args_free(&args);
    free(b);
    return status;
}
