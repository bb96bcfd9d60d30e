// The command line: what topologies and what commands there are. The only file that sees both ps/ and decentral/.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/bench/bench_ring.h"
#include "decentral/mpi/mpi_load.h"
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
#include "shared/launch/local.h"
#include "shared/launch/stop.h"
#include "starring_revision.h"

static const struct bench_program *const benches[] = {&bench_step, &bench_kernels,    &bench_adam,
                                                      &bench_tune, &bench_collective, &bench_zero,
                                                      &bench_ps,   &bench_checkpoint, &bench_offload};
#define BENCHES (int)(sizeof benches / sizeof *benches)

static int cmd_bench(const struct topology_table *t, int argc, char **argv) {
    return bench_command(benches, BENCHES, t, argc, argv);
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
    static const struct topology_table topologies = {
        .row = {&topology_local, &topology_star, RING_TOPOLOGIES}, .tell = mpi_tell};
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
    char *bench_list = bench_names(benches, BENCHES);
    commands_overview(help ? stdout : stderr, bench_list);
    free(bench_list);
    if (help) return end(0, false);
    const char *near = cli_nearest(word, names, sizeof names / sizeof names[0]);
    if (*word && near)
        fail("unknown command %s: did you mean %s?", word, near);
    else if (*word)
        fail("unknown command %s", word);
    return EXIT_USAGE;
}
