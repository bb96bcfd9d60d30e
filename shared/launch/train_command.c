#include "shared/launch/train_command.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"
#include "shared/device/device_choice.h"
#include "shared/device/product_choice.h"
#include "shared/launch/launch_check.h"
#include "shared/launch/launch_mpi.h"
#include "shared/launch/run.h"
#include "shared/memory/dry_run.h"
#include "shared/memory/memory_check.h"
#include "shared/report/run_dir.h"

static bool workers_given(const struct cli_args *args, const char *path) {
    for (size_t i = 0; i < args->override_count; i++)
        if (!strcmp(args->overrides[i].path, "workers")) return true;
    cJSON *file = path ? relaxed_json_load(path) : NULL;
    bool given = cJSON_HasObjectItem(file, "workers");
    cJSON_Delete(file);
    return given;
}

static int load(struct run *r, const struct topology_table *topologies, struct cli_args *args) {
    char size[16];
    const char *path = cli_get(args, "config");
    bool rank_of_ring = r->env.kind != RANK_ENV_NONE && r->env.mpi_ready;
    // Every rank reads the same configuration: what is wrong with it is said once.
    error_quiet(rank_of_ring && r->env.rank > 0);
    snprintf(size, sizeof size, "%d", r->env.size);
    if (rank_of_ring && !workers_given(args, path))
        cli_override(args, "the number of MPI's ranks", "workers", size);
    r->config = config_load(topologies, path, args->overrides, args->override_count);
    return r->config ? 0 : -1;
}

// Whether this process is one of those that something else started together.
static bool is_rank(const struct run *r) {
    return r->env.kind != RANK_ENV_NONE && r->config->row->launches >> LAUNCH_MPI & 1;
}

// The ranks of the run on this machine. Of those that mpirun started, the first here speaks for all; of those
// that mpirun is still to start (--dry-run), all are taken to be here.
static struct memory_part part_here(const struct run *r) {
    const struct config *c = r->config;
    bool to_start = !is_rank(r) && c->launch == LAUNCH_MPI;
    if (to_start) return (struct memory_part){"worker", 0, c->workers, .processes = true};
    if (!is_rank(r)) return (struct memory_part){.processes = !(c->row->launches >> LAUNCH_THREADS & 1)};
    int count = r->env.local_size ? r->env.local_size : 1;
    return (struct memory_part){"worker", r->env.rank, count, .processes = true};
}

// 1. The configuration, and whether this process is a rank of many.
static int configure(struct run *r, const struct topology_table *topologies, struct cli_args *args) {
    const char *launch = cli_get(args, "launch");
    if (rank_env_read(&r->env)) return -1;
    // Before the configuration is read as a rank's, and again for what it says itself.
    if (launch && strcmp(launch, "auto"))
        r->env = rank_env_told(&r->env, strcmp(launch, "mpi") ? LAUNCH_THREADS : LAUNCH_MPI);
    if (load(r, topologies, args)) return -1;
    r->env = rank_env_told(&r->env, r->config->launch);
    device_resolve(r->config);  // what "auto" leaves to this machine
    if (r->config->row->resolve) r->config->row->resolve(r->config, &r->env);
    return 0;
}

// 2. What cannot be done at all, or not on this machine.
static int check(const struct run *r, const struct cli_args *args, bool dry) {
    struct config *c = r->config;
    if (launch_check(c) || (!dry && launch_check_rank(c, &r->env))) return -1;
    if (cli_get(args, "save-on-interrupt") && (is_rank(r) || c->launch == LAUNCH_MPI))
        return fail(
            "--save-on-interrupt: mpirun kills its ranks a second after a Ctrl-C, which is "
            "no time to write a model in; leave it out, or use --launch threads");
    error_quiet(0);
    // Machines differ: each rank speaks for its own.
    if (cpu_kernel_choose(c)) return -1;
    if (dry) return 0;
    if (!device_backend(c) || products_check(c)) return -1;
    return c->row->check_machine ? c->row->check_machine(c) : 0;
}

// --launch mpi outside mpirun: this process becomes mpirun. Returns only where that fails.
static int become_mpirun(const struct run *r, int argc, char **argv) {
    const struct config *c = r->config;
    char *name = c->out ? NULL : run_dir_make(c);
    if (!c->out && !name) return EXIT_RUN_FAILED;
    launch_mpi(&(struct launch_mpi_options){c->workers, argc, argv, name});
    if (name) rmdir(name);
    free(name);
    return EXIT_RUN_FAILED;
}

// 3. Model and data, 4. memory, 5. the run.
static int train(struct run *r, const struct cli_args *args, bool dry) {
    const struct config *c = r->config;
    bool rank = is_rank(r);
    r->force = cli_get(args, "force") != NULL;
    r->job = (struct job){.no_weights = cli_get(args, "no-weights") != NULL,
                          .save_on_interrupt = cli_get(args, "save-on-interrupt") != NULL,
                          .no_metrics = c->quiet,
                          .no_bar = rank,
                          .steps_to_stderr = c->json,
                          .ranks_here = rank && r->env.local_size ? r->env.local_size : c->workers};
    // Of the ranks that share a machine the first speaks: all of them see the same files, and the same memory.
    bool speaks = !rank || !r->env.local_size || r->env.local_rank == 0;
    error_quiet(!speaks);
    int opened = job_open(&r->job, c, dry);
    error_quiet(0);
    if (opened) return EXIT_USAGE;
    struct memory_part part = part_here(r);
    if (dry) return dry_run(&r->job, &part, stdout, c->json) ? EXIT_RUN_FAILED : 0;
    if (speaks && memory_check_run(&r->job, &part)) return EXIT_USAGE;
    return c->row->run(r);
}

static int print_config(const struct config *c) {
    char *text = config_to_json(c);
    puts(text);
    free(text);
    return 0;
}

int train_command(const struct topology_table *topologies, int argc, char **argv) {
    struct cli_args args;
    struct run r = {0};
    enum cli_outcome outcome = cli_parse(&command_train, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !configure(&r, topologies, &args)) {
        bool dry = cli_get(&args, "dry-run") != NULL;
        if (cli_get(&args, "print-config"))
            status = print_config(r.config);
        else if (!check(&r, &args, dry))
            status = !dry && r.config->launch == LAUNCH_MPI && !is_rank(&r) ? become_mpirun(&r, argc, argv)
                                                                            : train(&r, &args, dry);
    }
    job_close(&r.job);
    config_destroy(&r.config);
    cli_args_free(&args);
    return status;
}
