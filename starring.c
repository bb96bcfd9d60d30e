// The command line; the only file that sees both ps/ and decentral/. It turns options into a
// configuration, picks the topology and how its ranks come to life, and nothing else.
//
//   local           this thread
//   zero:*          threads of this process, or (under mpirun) this process is one rank (decentral/ring)
//   ps:*            child processes of this program: scheduler, servers, workers (launch_star)
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "decentral/bench/bench_collective.h"
#include "decentral/collective/collective_mpi.h"
#include "decentral/ring.h"
#include "ps/role_command.h"
#include "ps/star.h"
#include "shared/bench/bench_kernels.h"
#include "shared/bench/bench_step.h"
#include "shared/bench/bench_tune.h"
#include "shared/command/commands.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/version.h"
#include "shared/data/data_command.h"
#include "shared/device/device_choice.h"
#include "shared/device/products.h"
#include "shared/generate/command.h"
#include "shared/launch/launch_check.h"
#include "shared/launch/launch_mpi.h"
#include "shared/launch/launch_star.h"
#include "shared/launch/rank_env.h"
#include "shared/launch/stop.h"
#include "shared/memory/dry_run.h"
#include "shared/memory/memory_check.h"
#include "shared/report/closing.h"
#include "shared/report/metrics.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/report/summary.h"
#include "shared/report/summary_command.h"
#include "shared/train/local.h"
#include "shared/train/session.h"

// ---------------------------------------------------------------- launching
// The signal that asked this process to end, or 0.
static int asked_by(const struct job *j) { return j->stop ? *j->stop : 0; }

// The one message of an interruption. A terminal has shown ^C on the line.
static void say_interrupted(const struct job *j, int number) {
    int64_t step = metrics_last_step(j->dir);
    error_set_label("");
    if (isatty(STDERR_FILENO)) fputc('\n', stderr);
    const char *what = number == SIGINT ? "Ctrl-C" : "SIGTERM";
    bool kept = j->save_on_interrupt && !j->no_weights;
    const char *has = kept                         ? "its figures and weights"
                      : j->no_weights || j->no_bar ? "its figures"
                                                   : "its figures; --save-on-interrupt keeps the weights";
    if (step < 1)
        info("%s: ended before the first step was done", what);
    else
        info("%s: ended after step %lld of %lld; %s has %s", what, (long long)step,
             (long long)j->config->steps, j->dir, has);
}

// ---------------------------------------------------------------- train
struct train_command {
    const struct topology_table *topologies;
    struct cli_args args;
    struct rank_env env;
    struct config *config;
    struct job job;
    char *dir;
};

// What the ranks left becomes summary.json and the closing table.
static int merge(const struct job *j, int number) {
    cJSON *summary = closing_merge(j->config, j->dir);
    if (!summary) return EXIT_RUN_FAILED;
    bool interrupted = summary_interrupted(summary);
    if (interrupted) say_interrupted(j, number);
    closing_show(j->config, j->dir, summary);
    cJSON_Delete(summary);
    run_state_end(j->dir, interrupted ? RUN_INTERRUPTED : RUN_COMPLETE, NULL);
    return !interrupted ? 0 : number ? 128 + number : EXIT_RUN_FAILED;
}

// By the one process that stands for the run: what is left of it, and how it ended. status: of the ranks;
// number: the signal that asked them to end, or 0.
static int conclude(const struct job *j, int status, int number) {
    bool interrupted = number && status == 128 + number;
    if (!status) return merge(j, number);
    if (interrupted) say_interrupted(j, number);
    run_state_end(j->dir, interrupted ? RUN_INTERRUPTED : RUN_FAILED, error_last());
    return status;
}

static bool workers_given(const struct cli_args *args, const char *path) {
    for (size_t i = 0; i < args->override_count; i++)
        if (!strcmp(args->overrides[i].path, "workers")) return true;
    cJSON *file = path ? relaxed_json_load(path) : NULL;
    bool given = cJSON_HasObjectItem(file, "workers");
    cJSON_Delete(file);
    return given;
}

static int load(struct train_command *t) {
    char size[16];
    const char *path = cli_get(&t->args, "config");
    bool rank_of_ring = t->env.kind != RANK_ENV_NONE && t->env.mpi_ready;
    // Every rank reads the same configuration: what is wrong with it is said once.
    error_quiet(rank_of_ring && t->env.rank > 0);
    snprintf(size, sizeof size, "%d", t->env.size);
    if (rank_of_ring && !workers_given(&t->args, path))
        cli_override(&t->args, "the number of MPI's ranks", "workers", size);
    t->config = config_load(t->topologies, path, t->args.overrides, t->args.override_count);
    return t->config ? 0 : -1;
}

static bool is_mpi_rank(const struct train_command *t) {
    return t->env.kind != RANK_ENV_NONE && t->config->row->launches >> LAUNCH_MPI & 1;
}

// The run directory with its config.json. Before anything is started.
static int prepare_dir(struct train_command *t) {
    if (!t->config->out && !(t->config->out = run_dir_make(t->config))) return -1;
    t->job.dir = t->config->out;
    return run_dir_take(t->job.dir, t->config, cli_get(&t->args, "force") != NULL);
}

static int train_as_mpi_rank(struct train_command *t) {
    struct mpi_world *world;
    int rank, size;
    if (mpi_world_open(&world, &rank, &size)) return EXIT_RUN_FAILED;
    if (size != t->config->workers) {
        fail("MPI's world has %d ranks, --workers is %d: make them equal", size, t->config->workers);
        return EXIT_USAGE;
    }
    t->job.dir = t->config->out;
    t->job.stop = stop_install();
    if (rank == 0 && prepare_dir(t)) return EXIT_USAGE;
    int status = stop_status(ring_run_rank(&t->job, world, rank, t->env.local_rank), t->job.stop);
    if (rank == 0) status = conclude(&t->job, status, asked_by(&t->job));
    if (status) return status;  // leaving without MPI_Finalize makes mpirun end the other ranks
    mpi_world_close(&world);
    return 0;
}

static int train_here(struct train_command *t) {
    struct job *j = &t->job;
    if (prepare_dir(t)) return EXIT_USAGE;
    int status, number = 0;
    if (t->config->row == &topology_star) {
        status = launch_star(j, &number);
    } else {
        j->stop = stop_install();
        status = stop_status(t->config->row == &topology_ring ? ring_run_threads(j) : local_run(j), j->stop);
        number = asked_by(j);
    }
    return conclude(j, status, number);
}

// The ranks of the run on this machine. Of those that mpirun started, the first here speaks for all; of those
// that mpirun is still to start (--dry-run), all are taken to be here.
static struct memory_part part_here(const struct train_command *t) {
    const struct config *c = t->config;
    bool to_start = !is_mpi_rank(t) && c->launch == LAUNCH_MPI;
    if (to_start) return (struct memory_part){"worker", 0, c->workers, .processes = true};
    if (!is_mpi_rank(t)) return (struct memory_part){.processes = !(c->row->launches >> LAUNCH_THREADS & 1)};
    int count = t->env.local_size ? t->env.local_size : 1;
    return (struct memory_part){"worker", t->env.rank, count, .processes = true};
}

static int train(struct train_command *t, int argc, char **argv) {
    const char *launch = cli_get(&t->args, "launch");
    if (rank_env_read(&t->env)) return EXIT_USAGE;
    // Before the configuration is read as a rank's, and again for what it says itself.
    if (launch) t->env = rank_env_told(&t->env, strcmp(launch, "mpi") ? LAUNCH_THREADS : LAUNCH_MPI);
    if (load(t)) return EXIT_USAGE;
    struct config *c = t->config;
    t->env = rank_env_told(&t->env, c->launch);
    device_resolve(c);  // what "auto" leaves to this machine
    if (c->row->resolve) c->row->resolve(c, &t->env);
    if (cli_get(&t->args, "print-config")) {
        char *text = config_to_json(c);
        puts(text);
        free(text);
        return 0;
    }
    bool dry = cli_get(&t->args, "dry-run") != NULL, mpi_rank = is_mpi_rank(t);
    if (launch_check(c) || (!dry && launch_check_rank(c, &t->env))) return EXIT_USAGE;
    bool save = cli_get(&t->args, "save-on-interrupt") != NULL;
    if (save && (mpi_rank || c->launch == LAUNCH_MPI)) {
        fail(
            "--save-on-interrupt: mpirun kills its ranks a second after a Ctrl-C, which is no time to write "
            "a "
            "model in; leave it out, or use --launch threads");
        return EXIT_USAGE;
    }
    error_quiet(0);
    // Machines differ: each rank speaks for its own.
    if (cpu_kernel_choose(c)) return EXIT_USAGE;
    if (!dry &&
        (!device_backend(c) || products_check(c) || (c->row->check_machine && c->row->check_machine(c))))
        return EXIT_USAGE;
    if (!dry && c->launch == LAUNCH_MPI && !mpi_rank) {
        char *name = c->out ? NULL : run_dir_make(c);
        if (!c->out && !name) return EXIT_RUN_FAILED;
        launch_mpi(&(struct launch_mpi_options){c->workers, argc, argv, name});
        if (name) rmdir(name);
        free(name);
        return EXIT_RUN_FAILED;
    }
    t->job = (struct job){.no_weights = cli_get(&t->args, "no-weights") != NULL,
                          .save_on_interrupt = save,
                          .no_metrics = c->quiet,
                          .no_bar = mpi_rank,
                          .steps_to_stderr = c->json,
                          .ranks_here = mpi_rank && t->env.local_size ? t->env.local_size : c->workers};
    // Of the ranks that share a machine the first speaks: all of them see the same files, and the same
    // memory.
    bool speaks = !mpi_rank || !t->env.local_size || t->env.local_rank == 0;
    error_quiet(!speaks);
    int opened = job_open(&t->job, c, dry);
    error_quiet(0);
    if (opened) return EXIT_USAGE;
    struct memory_part part = part_here(t);
    if (dry) return dry_run(&t->job, &part, stdout, c->json) ? EXIT_RUN_FAILED : 0;
    if (speaks && memory_check_run(&t->job, &part)) return EXIT_USAGE;
    return mpi_rank ? train_as_mpi_rank(t) : train_here(t);
}

static int cmd_train(const struct topology_table *topologies, int argc, char **argv) {
    struct train_command t = {.topologies = topologies};
    enum cli_outcome outcome = cli_parse(&command_train, argc, argv, &t.args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN) status = train(&t, argc, argv);
    job_close(&t.job);
    config_destroy(&t.config);
    cli_args_free(&t.args);
    return status;
}

// ---------------------------------------------------------------- the other commands
static int cmd_bench(const struct topology_table *t, int argc, char **argv) {
    static const char usage[] =
        "starring bench step | kernels | adam | collective | tune [OPTIONS]\n\n"
        "  step        tokens/s and the share of a matrix product's speed of one training step\n"
        "  kernels     each operation beside a copy or a matrix product\n"
        "  adam        the optimizer beside a copy of the same bytes\n"
        "  collective  the ring's primitives, checked, in the columns of nccl-tests\n"
        "  tune        which of cuBLASLt's algorithms each matrix product of a model takes on this GPU\n\n"
        "Examples:\n"
        "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
        "  starring bench adam\n";
    const char *what = argc > 0 ? argv[0] : "";
    if (!strcmp(what, "step")) return bench_step(t, argc - 1, argv + 1);
    if (!strcmp(what, "kernels")) return bench_kernels(argc - 1, argv + 1);
    if (!strcmp(what, "adam")) return bench_adam(argc - 1, argv + 1);
    if (!strcmp(what, "collective")) return bench_collective(argc - 1, argv + 1);
    if (!strcmp(what, "tune")) return bench_tune(t, argc - 1, argv + 1);
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) return fputs(usage, stdout), 0;
    if (!strcmp(what, "ps"))
        fail("bench %s: not supported yet", what);
    else
        fputs(usage, stderr),
            fail("bench%s%s: expected step, kernels, adam, collective or tune", *what ? " " : "", what);
    return EXIT_USAGE;
}

// What a full disk lost must not look like success; a reader that left, as `| head` does, chose to.
static int all_written(int status) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    bool written = !fflush(stdout) && !ferror(stdout);
    bool reader_left = poll(&out, 1, 0) > 0 && out.revents & POLLERR;
    if (written || reader_left || status) return status;
    fail("standard output could not be written: is the disk full?");
    return EXIT_RUN_FAILED;
}

// Where a shell closed one of the three (>&-), the next file opened would take its number, and what is
// printed would land in metrics.jsonl.
static void open_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    static const struct topology_table topologies = {{&topology_local, &topology_star, &topology_ring}};
    static const struct {
        const char *name;
        int (*run)(const struct topology_table *t, int argc, char **argv);
    } commands[] = {{"train", cmd_train},         {"scheduler", role_scheduler}, {"server", role_server},
                    {"worker", role_worker},      {"bench", cmd_bench},          {"data", data_command},
                    {"summary", summary_command}, {"generate", generate_command}};
    const char *names[sizeof commands / sizeof commands[0]];
    const char *word = argc > 1 ? argv[1] : "";
    open_standard_streams();
    signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of the write, not of the job
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        names[i] = commands[i].name;
        if (!strcmp(word, commands[i].name))
            return all_written(commands[i].run(&topologies, argc - 2, argv + 2));
    }
    if (!strcmp(word, "--version")) return puts("starring " STARRING_VERSION), 0;
    bool help = !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help");
    commands_overview(help ? stdout : stderr);
    if (help) return 0;
    const char *near = cli_nearest(word, names, sizeof names / sizeof names[0]);
    if (*word && near)
        fail("unknown command %s: did you mean %s?", word, near);
    else if (*word)
        fail("unknown command %s", word);
    return EXIT_USAGE;
}
