// `starring train`: checks the options for this machine, then the topology's row runs the training.
#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/system.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/device/device_choice.h"
#include "shared/launch/joined.h"
#include "shared/launch/launch_ranks.h"
#include "shared/launch/run.h"
#include "shared/launch/stop.h"
#include "shared/predict/memory_check.h"
#include "shared/report/monitor.h"
#include "shared/report/run_dir.h"
#include "shared/state/checkpoint.h"
#include "shared/train/job.h"

#define CROWD            8  // more ranks per core than this are slow, which the program prints
#define REPORTER_FIRST_S 3  // seconds that other ranks wait for the reporting rank to fail first

static bool workers_given(const struct cli_args *args, const char *path) {
    for (size_t i = 0; i < args->override_count; i++)
        if (!strcmp(args->overrides[i].path, "workers")) return true;
    cJSON *file = path ? relaxed_json_load(path) : NULL;
    bool given = cJSON_HasObjectItem(file, "workers");
    cJSON_Delete(file);
    return given;
}

// Prints defaults that the run uses and that matter for its losses.
static void print_defaults(const struct config *c, const char *path) {
    char lr[32];
    path = path ? config_file_name(path) : NULL;
    shortest_f32(lr, c->optimizer.lr);
    if (path && !c->optimizer_given)
        info(
            "%s names no optimizer: %s with lr %s is used (DeepSpeed would use the optimizer that your Python program gives "
            "it)",
            path, c->optimizer.row->name, lr);
    if (!c->clip_given)
        info("gradient_clipping is not given: %.3g is used, DeepSpeed's default (0: no clipping)",
             (double)c->clip);
}

// Another rank reports for this one, so its messages were suppressed. This prints the error if only this rank failed,
// for example because its machine has no such file or its options differ. The launcher ends all ranks after the first
// failure. So a rank that survives the pause is the only one with this error; a signal during the pause means that
// another rank reported it. Ranks of our own launcher share its command line.
static void report_own_error(const struct run *r) {
    struct timespec pause = {.tv_sec = REPORTER_FIRST_S};
    if (r->life || nanosleep(&pause, NULL)) return;
    char *why = xstrdup(error_last());
    error_quiet(0);
    fail("rank %d: %s", r->env.rank, why);
    free(why);
}

static int load(struct run *r, const struct topology_table *topologies, struct cli_args *args) {
    char size[16];
    const char *path = cli_get(args, "config");
    bool rank = r->env.kind != RANK_ENV_NONE;
    // Every rank reads the same configuration, so its errors are printed once. A launcher has already printed its
    // warnings.
    error_quiet(QUIET_ALL);
    snprintf(size, sizeof size, "%d", r->env.size);
    if (rank && !workers_given(args, path)) cli_override(args, "the number of ranks", "workers", size);
    error_quiet(rank && r->env.rank > 0  ? QUIET_ALL
                : r->life                ? QUIET_WARNINGS
                : cli_get(args, "quiet") ? QUIET_REMARKS
                                         : QUIET_NOT);
    r->config = config_load(topologies, path, args->overrides, args->override_count);
    if (r->config) return 0;
    if (rank && r->env.rank > 0) report_own_error(r);
    return -1;
}

// Returns whether this process is one of several that another program started together.
static bool is_rank(const struct run *r) {
    return r->env.kind != RANK_ENV_NONE && r->config->row->max_workers != 1;
}

// Returns the ranks of the run on this machine. For ranks started by mpirun, the first one here reports for all. For
// ranks that mpirun has not started yet (--dry-run), all count as on this machine.
static struct memory_ranks part_here(const struct run *r) {
    if (!is_rank(r)) return memory_ranks_of_run(r->config);
    int count = r->env.local_size ? r->env.local_size : 1;
    return (struct memory_ranks){"worker", r->env.rank, count, .processes = true};
}

// 1. Reads the configuration, and whether this process is one rank of several.
static int configure(struct run *r, const struct topology_table *topologies, struct cli_args *args) {
    const char *launch = cli_get(args, "launch");
    long life = 0;
    if (rank_env_read(&r->env) || cli_integer(args, "life", 1, INT_MAX, 0, &life)) return -1;
    r->life = (int)life;
    // The environment is interpreted twice: with --launch before the configuration is read, and after that with the
    // configuration's own launch.
    for (int kind = 0; launch && kind < LAUNCH_KINDS; kind++)
        if (!strcmp(launch, launch_rows[kind].name)) r->env = rank_env_told(&r->env, (enum launch_kind)kind);
    if (load(r, topologies, args)) return -1;
    r->env = rank_env_told(&r->env, r->config->launch);
    device_resolve(r->config);  // resolves "auto" for this machine
    if (r->config->row->resolve) r->config->row->resolve(r->config, &r->env);
    return 0;
}

// Pairs of flags that contradict each other.
static int check_flags(const struct cli_args *args) {
    static const struct {
        const char *one, *other, *why;
    } pairs[] = {{"quiet", "full", "the one prints no table, the other all of it"},
                 {"no-weights", "save-on-interrupt",
                  "the one writes no weights, the other those of a run that was ended"},
                 {"dry-run", "print-config", "the one prints predictions, the other the configuration"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (cli_get(args, pairs[i].one) && cli_get(args, pairs[i].other))
            return fail("--%s, --%s: %s: give one of them", pairs[i].one, pairs[i].other, pairs[i].why);
    return 0;
}

static int check_words(const struct run *r, const struct cli_args *args, bool dry) {
    const struct config *c = r->config;
    if (c->interface && c->collective == RING_MPI)
        return fail(
            "--interface %s: Open MPI chooses its own: leave it out, and set OMPI_MCA_btl_tcp_if_include=%s",
            c->interface, c->interface);
    if (c->interface && !dry && !run_meets(r))
        return fail(
            "--interface %s: the ranks of this run are on one machine, and talk through none: leave it out",
            c->interface);
    if (config_check_launch(c) || (!dry && c->row->check_rank && c->row->check_rank(c, &r->env))) return -1;
    if (c->recovery.restart > 0 && is_rank(r) && !r->life && !c->row->scheduled)
        return fail(
            "--restart: started by %s as rank %d of %d, which starts all ranks or none. Leave it out, and have the job "
            "queued again with --resume latest --out DIR",
            r->env.by, r->env.rank, r->env.size);
    if (cli_get(args, "save-on-interrupt") && is_rank(r) && !r->life)
        return fail(
            "--save-on-interrupt: %s kills its ranks soon after a Ctrl-C, which is no time to write a model in; leave it "
            "out, or use --launch mpi or threads",
            r->env.by);
    if (c->recovery.resume && !strcmp(c->recovery.resume, "latest") && cli_get(args, "force"))
        return fail("--force replaces the run in --out, and --resume latest continues it: give one of them");
    if (c->recovery.restart > 0 && !c->recovery.checkpoint_every && !r->life)
        warn("--restart without --checkpoint-every: a restart goes back to %s, and all steps are repeated",
             c->recovery.resume ? "the checkpoint of --resume" : "its beginning");
    return 0;
}

// 2. Refuses runs that are impossible, or impossible on this machine.
static int check(const struct run *r, const struct cli_args *args, bool dry) {
    struct config *c = r->config;
    if (check_words(r, args, dry)) {
        if (r->env.kind != RANK_ENV_NONE && r->env.rank > 0) report_own_error(r);
        return -1;
    }
    error_quiet(0);
    // Not only rank 0 reports such an error, since machines may differ.
    if ((!dry || !config_device(c)->gpu) && !device_backend(c))
        return -1;  // a GPU's run can be predicted on a machine without a GPU
    return 0;
}

// Errors of the checkpoint and of the directories, reported together with those of model and data.
static int check_places(const struct run *r) {
    const struct config *c = r->config;
    char *from = NULL;
    int rc = resume_find(c, false, &from);
    free(from);
    if (monitor_check(c)) rc = -1;
    if (c->out && dir_possible(c->out, "--out")) return -1;
    bool begins = c->out && !c->recovery.resume;
    return begins && run_dir_check(c->out, r->force) ? -1 : rc;
}

// Many ranks on few cores are useful to study memory and bytes, but slow.
static void warn_of_crowd(const struct run *r) {
    const struct config *c = r->config;
    struct memory_ranks part = part_here(r);
    struct memory_need need;
    int given = processors_given(), ranks = 0;
    char bytes[24];
    for (const struct topology_role *role = c->row->roles; role->name; role++)
        ranks += config_ranks(c, role->name);
    if (is_rank(r)) ranks = r->job.ranks_here;
    if (ranks <= CROWD * given || memory_need_of(&r->job, &part, &need)) return;
    info("%d ranks share %d core%s, so a step is slow and needs %s more memory. Use fewer.", ranks, given,
         given > 1 ? "s" : "", format_bytes(bytes, need.host.allowed_bytes));
}

// Warns of more threads than processors: set by --threads, or one per rank where another program has placed many
// ranks.
static void print_threads(const struct run *r) {
    const struct config *c = r->config;
    bool placed = is_rank(r) && r->env.kind != RANK_ENV_OWN;
    int ranks = r->job.bound ? 1 : r->job.ranks_here, threads = job_threads(&r->job),
        given = processors_given();
    if ((!c->threads && !placed) || config_device(c)->gpu || ranks * threads <= given) return;
    info(
        "%d rank%s with %d thread%s each: affinity mask and quota give %d processor%s here, so threads wait for each other",
        ranks, ranks > 1 ? "s" : "", threads, threads > 1 ? "s" : "", given, given > 1 ? "s" : "");
}

// 3. Model and data, 4. memory, 5. the run. lacking: something is missing on this machine, and was reported.
static int check_then_run(struct run *r, const struct cli_args *args, bool lacking, int argc, char **argv) {
    const struct config *c = r->config;
    bool rank = is_rank(r), dry = cli_get(args, "dry-run") != NULL;
    r->force = cli_get(args, "force");
    r->job = (struct job){.no_weights = cli_get(args, "no-weights") != NULL,
                          .save_on_interrupt = cli_get(args, "save-on-interrupt") != NULL,
                          .no_metrics = c->quiet,
                          .no_bar = rank && r->env.kind != RANK_ENV_OWN,
                          .steps_to_stderr = c->json,
                          .ranks_here = rank && r->env.local_size ? r->env.local_size : c->workers,
                          .bound = rank && r->env.kind != RANK_ENV_OWN && processors_bound()};
    // The first rank of a machine prints errors for all its ranks, which have the same files and memory.
    bool reports = !rank || !r->env.local_size || r->env.local_rank == 0;
    // The launcher of this process has already printed the warnings.
    error_quiet(!reports ? QUIET_ALL : r->life ? QUIET_WARNINGS : c->quiet ? QUIET_REMARKS : QUIET_NOT);
    int opened = job_open(&r->job, c, dry) || lacking ? -1 : 0;
    bool first = !dry && !r->life && (!rank || r->env.rank == 0);
    // Ranks with a rendezvous (run_meets) access no directory before it: the directory may hang, and the other ranks
    // would take this one for missing.
    if (first && (run_meets(r) ? monitor_check(c) : check_places(r))) opened = -1;
    if (first && !opened) print_defaults(c, cli_get(args, "config"));
    if (first && !opened) warn_of_crowd(r);
    if (!dry && !r->life && !opened) print_threads(r);
    if (first && !opened && !rank && r->env.batch)
        info(
            "SLURM_NTASKS=%s, but a batch script is none of these tasks: this command is the whole run. srun starts ranks",
            getenv("SLURM_NTASKS"));
    error_quiet(QUIET_NOT);
    if (opened && !reports) report_own_error(r);
    if (opened) return EXIT_USAGE;
    struct memory_ranks part = part_here(r);
    if (dry) return dry_run(&r->job, &part, stdout, c->json) ? EXIT_RUN_FAILED : 0;
    if (reports && !r->life && memory_check_run(&r->job, &part)) return EXIT_USAGE;
    error_quiet(!reports);
    // Ranks with a rendezvous find a checkpoint together, because its files may be on several hosts.
    opened = run_meets(r) ? 0 : job_resume(&r->job, true);
    error_quiet(0);
    if (opened && !reports) report_own_error(r);
    if (opened) return EXIT_USAGE;
    if (r->life) return c->row->run(r);
    return run_is_over(r)           ? run_show(r)
           : launch_ranks_needed(r) ? launch_ranks(r, argc, argv)
                                    : c->row->run(r);
}

// After a restart the run resumes from the newest checkpoint that it has written; before it has written one, from where
// its first start began (--resume, or the beginning).
static void resume_after_restart(struct run *r) {
    struct recovery_config *v = &r->config->recovery;
    char *latest = r->life > 1 ? checkpoint_latest(r->config->out) : NULL;
    if (!latest) return;
    free(v->resume);
    v->resume = latest;
    v->resume_weights_only = false;
}

static int start(struct run *r, const struct cli_args *args, int argc, char **argv) {
    const struct config *c = r->config;
    bool dry = cli_get(args, "dry-run") != NULL;
    bool becomes = launch_rows[c->launch].by_others && !is_rank(r) && !launch_ranks_needed(r);
    resume_after_restart(r);
    if (r->life && c->recovery.restart) stop_run_restarts(run_leave_launcher, r);
    bool lacking = !dry && c->row->check_machine && c->row->check_machine(c);
    if (dry || !becomes) return check_then_run(r, args, lacking, argc, argv);
    // Errors of model and data are reported here, once, and not by each rank that mpirun started.
    int opened = job_open(&r->job, c, false);
    job_close(&r->job);
    if (opened || lacking) return EXIT_USAGE;
    launch_mpi(c, argc, argv);  // this child of a launcher becomes mpirun: it returns only on failure
    return EXIT_RUN_FAILED;
}

int train_command(const struct topology_table *topologies, int argc, char **argv) {
    struct cli_args args;
    struct run r = {0};
    r.tell = topologies->broadcast;
    enum cli_outcome outcome = cli_parse(&command_train, topologies, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !check_flags(&args) && !configure(&r, topologies, &args)) {
        if (cli_get(&args, "print-config")) {
            char *text = config_to_json(r.config), *rest = NULL;
            puts(text);
            free(text);
            for (char *line = strtok_r(r.config->remarks, "\n", &rest); line;
                 line = strtok_r(NULL, "\n", &rest))
                info("%s", line);
            status = 0;
        } else if (!check(&r, &args, cli_get(&args, "dry-run") != NULL))
            status = start(&r, &args, argc, argv);
    }
    fflush(stdout);
    job_close(&r.job);
    config_destroy(&r.config);
    cli_args_free(&args);
    return status;
}
