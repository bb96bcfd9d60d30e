// The command line: what topologies and what commands there are. The only file that sees both ps/ and decentral/.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "decentral/bench/bench_collective.h"
#include "decentral/bench/bench_zero.h"
#include "decentral/ring.h"
#include "ps/bench/bench_ps.h"
#include "ps/role_command.h"
#include "ps/star.h"
#include "ps/trust/keygen.h"
#include "shared/bench/bench.h"
#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/core/version.h"
#include "shared/data/data_command.h"
#include "shared/evaluation/evaluate_command.h"
#include "shared/generate/command.h"
#include "shared/launch/stop.h"
#include "shared/launch/train_command.h"
#include "shared/plan/plan_command.h"
#include "shared/report/summary_command.h"
#include "shared/train/local.h"
#include "starring_revision.h"

static int cmd_bench(const struct topology_table *t, int argc, char **argv) {
    static const char usage[] =
        "starring bench step | kernels | adam | collective | zero | ps | tune | checkpoint | offload [OPTIONS]\n\n"
        "  step        tokens/s and the share of a matrix product's speed of one training step\n"
        "  kernels     each operation beside a copy or a matrix product\n"
        "  adam        the optimizer beside a copy of the same bytes\n"
        "  collective  the ring's primitives, checked, in the columns of nccl-tests\n"
        "  zero        what a rank holds in each of ZeRO's stages, counted beside the prediction\n"
        "  ps          the star: push, pull, latency and a server's arithmetic beside raw ceilings\n"
        "  tune        which of cuBLASLt's algorithms each matrix product of a model takes on this GPU\n"
        "  checkpoint  writing and reading a model's checkpoint beside the disk's own rate\n"
        "  offload     states on disk, read, updated and written, beside fio; AdamW on a host beside a copy\n\n"
        "Examples:\n"
        "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
        "  starring bench adam\n"
        "  starring bench ps --min-bytes 1M --max-bytes 1M\n";
    const char *what = argc > 0 ? argv[0] : "";
    if (!strcmp(what, "step")) return bench_step(t, argc - 1, argv + 1);
    if (!strcmp(what, "kernels")) return bench_kernels(argc - 1, argv + 1);
    if (!strcmp(what, "adam")) return bench_adam(argc - 1, argv + 1);
    if (!strcmp(what, "collective")) return bench_collective(argc - 1, argv + 1);
    if (!strcmp(what, "zero")) return bench_zero(argc - 1, argv + 1);
    if (!strcmp(what, "ps")) return bench_ps(t, argc - 1, argv + 1);
    if (!strcmp(what, "tune")) return bench_tune(t, argc - 1, argv + 1);
    if (!strcmp(what, "checkpoint")) return bench_checkpoint(t, argc - 1, argv + 1);
    if (!strcmp(what, "offload")) return bench_offload(argc - 1, argv + 1);
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) return cli_print(stdout, usage), 0;
    cli_print(stderr, usage);
    fail("bench%s%s: expected step, kernels, adam, collective, zero, ps, tune, checkpoint or offload",
         *what ? " " : "", what);
    return EXIT_USAGE;
}

// Whether a command that trains was asked to: the others only print, and who leaves has read enough.
static bool asks_to_train(int argc, char **argv) {
    static const char *const prints[] = {"-h", "--help", "--dry-run", "--print-config"};
    for (int i = 0; i < argc; i++)
        for (size_t k = 0; k < sizeof prints / sizeof *prints; k++)
            if (!strcmp(argv[i], prints[k])) return false;
    return true;
}

// A role that a launcher watches prints where its launcher does, which says what has become of it.
static int end(int status, bool run) { return stop_supervised() ? status : output_end(status, run); }

int main(int argc, char **argv) {
    static const struct topology_table topologies = {{&topology_local, &topology_star, &topology_ring}};
    static const struct {
        const char *name;
        int (*run)(const struct topology_table *t, int argc, char **argv);
        bool trains;
    } commands[] = {{"train", train_command, true},        {"scheduler", role_scheduler, true},
                    {"server", role_server, true},         {"worker", role_worker, true},
                    {"bench", cmd_bench, false},           {"data", data_command, false},
                    {"summary", summary_command, false},   {"evaluate", evaluate_command, false},
                    {"generate", generate_command, false}, {"keygen", keygen_command, false},
                    {"plan", plan_command, false}};
    const char *names[sizeof commands / sizeof commands[0]];
    const char *word = argc > 1 ? argv[1] : "";
    output_open_streams();
    if (*STARRING_REVISION) starring_revision = STARRING_REVISION;
    signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of the write, not of the job
    signal(SIGXFSZ, SIG_IGN);  // and so is a file that may not grow
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        names[i] = commands[i].name;
        if (!strcmp(word, commands[i].name))
            return end(commands[i].run(&topologies, argc - 2, argv + 2),
                       commands[i].trains && asks_to_train(argc - 2, argv + 2));
    }
    if (!strcmp(word, "--version")) return puts("starring " STARRING_VERSION), end(0, false);
    bool help = !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help");
    commands_overview(help ? stdout : stderr);
    if (help) return end(0, false);
    const char *near = cli_nearest(word, names, sizeof names / sizeof names[0]);
    if (*word && near)
        fail("unknown command %s: did you mean %s?", word, near);
    else if (*word)
        fail("unknown command %s", word);
    return EXIT_USAGE;
}
