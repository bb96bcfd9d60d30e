// The launcher, the command-line parser, rank variables and run directories, without a training job.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/command/commands.h"
#include "shared/config/cli.h"
#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/rank_env.h"
#include "tests/topologies.h"

static int64_t seven(void *ctx) { return ctx ? 7 : 7; }

static struct launcher *launcher(void) {
    return launcher_create(&(struct launch_options){.grace_s = 0.5, .last_step = seven});
}

static void start(struct launcher *l, const char *role, int rank, const char *script) {
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    assert_int_equal(
        launcher_start(
            l, &(struct launch_child){.role = role, .rank = rank, .program = "/bin/sh", .argv = argv}),
        0);
}

static void all_end_well(void **state) {
    (void)state;
    struct launcher *l = launcher();
    start(l, "server", 0, "exit 0");
    start(l, "worker", 0, "sleep 0.1");
    assert_int_equal(launcher_wait(l), 0);
    launcher_destroy(&l);
    assert_null(l);
}

static void first_death_is_named(void **state) {
    (void)state;
    struct launcher *l = launcher();
    error_quiet(1);
    start(l, "server", 0, "exec sleep 60");
    start(l, "worker", 1, "exit 3");
    assert_int_equal(launcher_wait(l), 1);
    assert_non_null(strstr(error_last(), "worker 1"));
    assert_non_null(strstr(error_last(), "exit status 3"));
    assert_non_null(strstr(error_last(), "after step 7"));
    launcher_destroy(&l);
    error_quiet(0);
}

static void usage_errors_keep_their_status(void **state) {
    (void)state;
    struct launcher *l = launcher();
    error_quiet(1);
    start(l, "worker", 0, "exit 2");
    assert_int_equal(launcher_wait(l), 2);
    launcher_destroy(&l);
    error_quiet(0);
}

static void signals_are_named(void **state) {
    (void)state;
    struct launcher *l = launcher();
    error_quiet(1);
    start(l, "scheduler", -1, "kill -9 $$");
    start(l, "worker", 0, "exec sleep 60");
    assert_int_equal(launcher_wait(l), 1);
    assert_non_null(strstr(error_last(), "scheduler (pid"));
    assert_non_null(strstr(error_last(), "signal 9"));
    launcher_destroy(&l);
    error_quiet(0);
}

// A child that ignores SIGTERM is killed once its grace is over; nobody is left behind.
static void the_deaf_are_killed(void **state) {
    (void)state;
    int ends[2];
    char line[32];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct launcher *l = launcher();
    error_quiet(1);
    char script[128];
    snprintf(script, sizeof script, "trap '' TERM; echo $$ >&%d; while :; do sleep 0.05; done", ends[1]);
    char *argv[] = {"sh", "-c", script, NULL};
    assert_int_equal(
        launcher_start(
            l,
            &(struct launch_child){
                .role = "worker", .rank = 0, .program = "/bin/sh", .argv = argv, .keep_fd = ends[1]}),
        0);
    close(ends[1]);
    assert_int_equal(launcher_read_line(l, ends[0], 10, line, sizeof line), 0);
    pid_t pid = (pid_t)atoi(line);
    assert_int_equal(kill(pid, 0), 0);
    start(l, "server", 0, "exit 1");
    assert_int_equal(launcher_wait(l), 1);
    assert_int_equal(kill(pid, 0), -1);
    close(ends[0]);
    launcher_destroy(&l);
    error_quiet(0);
}

static void interrupt_ends_all(void **state) {
    (void)state;
    struct launcher *l = launcher();
    error_quiet(1);
    start(l, "worker", 0, "exec sleep 60");
    start(l, "worker", 1, "exec sleep 60");
    kill(getpid(), SIGINT);
    assert_int_equal(launcher_wait(l), 128 + SIGINT);
    launcher_destroy(&l);
    error_quiet(0);
}

// One orderly child leaves before the first step; the other waits for it, deaf to SIGTERM, and must be ended.
static void nobody_waits_for_who_left(void **state) {
    (void)state;
    struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 0.2});
    char *leaves[] = {"sh", "-c", "exec sleep 60", NULL};
    char *waits[] = {"sh", "-c", "trap '' TERM; exec sleep 3600", NULL};
    double start_s = now_seconds();
    error_quiet(1);
    assert_int_equal(
        launcher_start(l,
                       &(struct launch_child){
                           .role = "worker", .rank = 0, .program = "/bin/sh", .argv = leaves, .orderly = 1}),
        0);
    assert_int_equal(
        launcher_start(l,
                       &(struct launch_child){
                           .role = "worker", .rank = 1, .program = "/bin/sh", .argv = waits, .orderly = 1}),
        0);
    usleep(200000);  // the trap is set
    kill(getpid(), SIGTERM);
    assert_int_equal(launcher_wait(l), 128 + SIGTERM);
    assert_true(now_seconds() - start_s < 600);
    launcher_destroy(&l);
    error_quiet(0);
}

static void line_of_a_child(void **state) {
    (void)state;
    int ends[2];
    char line[32], script[64];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct launcher *l = launcher();
    snprintf(script, sizeof script, "echo tcp://127.0.0.1:5555 >&%d", ends[1]);
    char *argv[] = {"sh", "-c", script, NULL};
    assert_int_equal(
        launcher_start(
            l,
            &(struct launch_child){
                .role = "scheduler", .rank = -1, .program = "/bin/sh", .argv = argv, .keep_fd = ends[1]}),
        0);
    close(ends[1]);
    assert_int_equal(launcher_read_line(l, ends[0], 10, line, sizeof line), 0);
    assert_string_equal(line, "tcp://127.0.0.1:5555");
    // The writer has gone: an error, no wait for the deadline.
    error_quiet(1);
    assert_int_equal(launcher_read_line(l, ends[0], 600, line, sizeof line), -1);
    error_quiet(0);
    close(ends[0]);
    assert_int_equal(launcher_wait(l), 0);
    launcher_destroy(&l);
}

// ---------------------------------------------------------------- one that does not answer
static int line_of(const char *script, double deadline_s) {
    int ends[2];
    char line[32] = "", text[64];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 0.2});
    snprintf(text, sizeof text, script, ends[1]);
    char *argv[] = {"sh", "-c", text, NULL};
    error_quiet(1);
    assert_int_equal(
        launcher_start(
            l,
            &(struct launch_child){
                .role = "server", .rank = -1, .program = "/bin/sh", .argv = argv, .keep_fd = ends[1]}),
        0);
    int rc = launcher_read_line(l, ends[0], deadline_s, line, sizeof line);
    error_quiet(0);
    if (rc) launcher_end_all(l);
    if (!rc) assert_string_equal(line, "here");
    assert_int_equal(launcher_wait(l), rc ? 1 : 0);
    close(ends[0]);
    close(ends[1]);
    launcher_destroy(&l);
    return rc;
}

// One that is slow is waited for, and one that a signal has stopped is not.
static void who_does_not_answer(void **state) {
    (void)state;
    assert_int_equal(line_of("kill -STOP $$; echo here >&%d", 0.3), -1);
    assert_non_null(strstr(error_last(), "server did not answer within 0.3 s"));
    assert_int_equal(line_of("sleep 0.7; echo here >&%d", 0.3), 0);
}

// The launcher stands still itself for longer than that, as after Ctrl-Z: who has not answered meanwhile is not silent.
static void a_launcher_that_stands_still(void **state) {
    (void)state;
    int ends[2];
    char line[16];
    assert_int_equal(pipe(ends), 0);
    struct launcher *l = launcher();
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        usleep(100000);
        kill(self, SIGSTOP);
        usleep(3000000);
        kill(self, SIGCONT);
        usleep(100000);
        _exit(write(ends[1], "here\n", 5) == 5 ? 0 : 1);
    }
    assert_int_equal(launcher_read_line(l, ends[0], 2, line, sizeof line), 0);
    assert_string_equal(line, "here");
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    launcher_destroy(&l);
}

static void a_program_that_is_not_there(void **state) {
    (void)state;
    struct launcher *l = launcher();
    char *argv[] = {"no-such-program", NULL};
    error_quiet(1);
    assert_int_equal(
        launcher_start(
            l,
            &(struct launch_child){.role = "server", .rank = 2, .program = "/nonexistent/x", .argv = argv}),
        -1);
    assert_non_null(strstr(error_last(), "server 2"));
    error_quiet(0);
    launcher_destroy(&l);
}

// ---------------------------------------------------------------- the command line
static enum cli_outcome parse(struct cli_args *a, int argc, char **argv) {
    error_quiet(1);
    enum cli_outcome outcome = cli_parse(&command_train, &topologies, argc, argv, a);
    error_quiet(0);
    return outcome;
}

static void options_become_overrides(void **state) {
    (void)state;
    struct cli_args a;
    char *argv[] = {"-c", "x.json", "--workers=3", "--set", "fp16.loss_scale=4=5", "--trace", "--steps", "9"};
    assert_int_equal(parse(&a, 8, argv), CLI_RUN);
    assert_string_equal(cli_get(&a, "config"), "x.json");
    assert_int_equal(a.override_count, 4);
    assert_string_equal(a.overrides[0].path, "workers");
    assert_string_equal(a.overrides[0].value, "3");
    assert_string_equal(a.overrides[0].flag, "--workers");
    assert_string_equal(a.overrides[1].path, "fp16.loss_scale");
    assert_string_equal(a.overrides[1].value, "4=5");
    assert_string_equal(a.overrides[2].path, "trace");
    assert_string_equal(a.overrides[2].value, "true");
    assert_string_equal(a.overrides[3].value, "9");
    assert_null(cli_get(&a, "dry-run"));
    cli_args_free(&a);
}

static void wrong_options_are_named(void **state) {
    (void)state;
    struct {
        char *argv[2];
        int argc;
        const char *says;
    } cases[] = {
        {{"--wrokers", "2"}, 2, "did you mean --workers"},
        {{"--workers", NULL}, 1, "--workers needs a value"},
        {{"--trace=1", NULL}, 1, "--trace takes no value"},
        {{"--set", "novalue"}, 2, "KEY=VALUE"},
        {{"-x", NULL}, 1, "unknown option -x"},
        {{"word", NULL}, 1, "unexpected word \"word\""},
        {{"--qqqqqqqqqqqqqq", NULL}, 1, "--help"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cli_args a;
        assert_int_equal(parse(&a, cases[i].argc, cases[i].argv), CLI_WRONG);
        if (!strstr(error_last(), cases[i].says)) fail_msg("case %zu says: %s", i, error_last());
        cli_args_free(&a);
    }
}

static void whole_numbers(void **state) {
    (void)state;
    struct cli_args a;
    long value = 77;
    char *good[] = {"--rank", "3"}, *bad[] = {"--rank", "3x"};
    assert_int_equal(cli_parse(&command_server, &topologies, 2, good, &a), CLI_RUN);
    assert_int_equal(cli_integer(&a, "rank", 0, 3, -1, &value), 0);
    assert_int_equal(value, 3);
    error_quiet(1);
    assert_int_equal(cli_integer(&a, "rank", 0, 2, -1, &value), -1);
    assert_non_null(strstr(error_last(), "--rank 3"));
    cli_args_free(&a);
    assert_int_equal(cli_parse(&command_server, &topologies, 2, bad, &a), CLI_RUN);
    assert_int_equal(cli_integer(&a, "rank", 0, 9, -1, &value), -1);
    error_quiet(0);
    cli_args_free(&a);
    assert_int_equal(cli_parse(&command_server, &topologies, 0, NULL, &a), CLI_RUN);
    assert_int_equal(cli_integer(&a, "rank", 0, 9, -1, &value), 0);
    assert_int_equal(value, -1);
    cli_args_free(&a);
}

// ---------------------------------------------------------------- rank variables
static void forget_ranks(void) {
    unsetenv("STARRING_LAUNCHER");
    rank_env_take_back();
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_ID",
                                        "SLURM_JOB_ID",
                                        "SLURM_NODEID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "PMIX_RANK",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_LOCAL_SIZE",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_RANK",
                                        "MV2_COMM_WORLD_SIZE",
                                        "MVP_COMM_WORLD_RANK",
                                        "MVP_COMM_WORLD_SIZE",
                                        "MVP_COMM_WORLD_LOCAL_SIZE",
                                        "HOROVOD_RANK",
                                        "HOROVOD_SIZE",
                                        "JSM_NAMESPACE_RANK",
                                        "JSM_NAMESPACE_SIZE",
                                        "FLUX_TASK_RANK",
                                        "FLUX_JOB_SIZE",
                                        "FLUX_JOB_ID",
                                        "FLUX_JOB_NNODES",
                                        "DMLC_ROLE",
                                        "SM_HOSTS",
                                        "TF_CONFIG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

static void rank_variables(void **state) {
    (void)state;
    struct rank_env e;
    forget_ranks();
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_NONE);
    setenv("RANK", "1", 1);
    assert_int_equal(rank_env_read(&e), -1);
    assert_non_null(strstr(error_last(), "RANK=1 without WORLD_SIZE: set both, or unset it"));
    setenv("WORLD_SIZE", "4", 1);
    setenv("MASTER_ADDR", "node7", 1);
    static const char *const no_ports[] = {"0", "65536", "abc", "29500x", ""};
    for (int i = 0; i < 5; i++) {
        setenv("MASTER_PORT", no_ports[i], 1);
        assert_int_equal(rank_env_read(&e), -1);
        assert_non_null(strstr(error_last(), " is no port: give a number from 1 to 65535"));
    }
    unsetenv("MASTER_PORT");
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_TORCHRUN);
    assert_int_equal(e.rank, 1);
    assert_int_equal(e.size, 4);
    assert_false(e.mpi_ready);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_MPIRUN);
    assert_true(e.mpi_ready);
    assert_int_equal(e.local_rank, 0);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.local_rank, 1);
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    error_quiet(1);
    assert_int_equal(rank_env_read(&e), -1);
    setenv("OMPI_COMM_WORLD_RANK", "two", 1);
    assert_int_equal(rank_env_read(&e), -1);
    assert_non_null(strstr(error_last(), "OMPI_COMM_WORLD_RANK=two"));
    error_quiet(0);
    forget_ranks();
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_SLURM);
    assert_false(e.mpi_ready);
    setenv("PMIX_RANK", "0", 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_true(e.mpi_ready);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_NONE);
    // The own launcher's are heeded by its children alone, before all others.
    rank_env_give(7, 1, 2, 9);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_NONE);
    char parent[16];
    snprintf(parent, sizeof parent, "%d", (int)getppid());
    setenv("STARRING_LAUNCHER", parent, 1);
    assert_int_equal(rank_env_read(&e), 0);
    assert_int_equal(e.kind, RANK_ENV_OWN);
    assert_true(e.rank == 1 && e.size == 2 && e.local_size == 2 && e.local_rank == 1 && e.memory == 9 &&
                rank_env_meeting() == 7);
    assert_int_equal(rank_env_told(&e, LAUNCH_THREADS).kind, RANK_ENV_OWN);
    forget_ranks();
}

// The table of rank_env.h, row by row.
static void what_was_told_wins(void **state) {
    (void)state;
    static const struct {
        const char *variables[8];
        bool rank[4];  // told nothing, threads, processes, mpi
    } rows[] = {
        {{NULL}, {false, false, false, false}},
        {{"SLURM_PROCID", "SLURM_NTASKS", NULL}, {false, false, false, false}},          // a batch script
        {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL}, {false, false, false, false}},  // in no step
        {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", NULL}, {true, false, false, false}},
        {{"RANK", "WORLD_SIZE", NULL}, {true, false, false, false}},
        {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "PMIX_RANK", NULL},
         {true, false, false, true}},
        {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL}, {true, false, false, true}},
        {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL}, {true, false, false, false}},
        {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
          "SLURM_STEP_ID", NULL},
         {true, false, false, true}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rank_env e;
        forget_ranks();
        for (int v = 0; rows[i].variables[v]; v++) {
            bool count = strstr(rows[i].variables[v], "SIZE") || strstr(rows[i].variables[v], "TASKS");
            setenv(rows[i].variables[v], count ? "4" : "1", 1);
        }
        setenv("MASTER_ADDR", "node7", 1);
        assert_int_equal(rank_env_read(&e), 0);
        for (int told = LAUNCH_DEFAULT; told <= LAUNCH_MPI; told++) {
            struct rank_env is = rank_env_told(&e, told);
            if ((is.kind != RANK_ENV_NONE) != rows[i].rank[told])
                fail_msg("row %zu, told %d: kind %d", i, told, (int)is.kind);
            assert_int_equal(is.size, rows[i].rank[told] ? 4 : 1);
        }
    }
    forget_ranks();
}

static void where_ranks_meet(void **state) {
    (void)state;
    static const struct {
        const char *variables[10];  // NAME=VALUE
        const char *host;           // NULL: refused
        int port;                   // 0: one that is made of the job's number
    } rows[] = {
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7"}, "node7", 29500},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=1234"}, "node7", 1234},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=1234",
          "TORCHELASTIC_USE_AGENT_STORE=True"},
         "node7",
         2234},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=65000",
          "TORCHELASTIC_USE_AGENT_STORE=True"},
         "node7",
         64000},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=1234",
          "TORCHELASTIC_USE_AGENT_STORE=False"},
         "node7",
         1234},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=70000"}, NULL, 0},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=x"}, NULL, 0},
        {{"RANK=1", "WORLD_SIZE=4"}, NULL, 0},
        {{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4"}, "127.0.0.1", 29500},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0", "SLURM_JOB_ID=7",
          "SLURM_STEP_NODELIST=n[07-12,20],m2"},
         "n07",
         0},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=m2,n3"},
         "m2",
         0},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=m2",
          "MASTER_ADDR=a.b"},
         "a.b",
         0},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[1-2",
          "SLURM_NODEID=0"},
         NULL,
         0},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0"}, NULL, 0},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n1",
          "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=4"},
         "127.0.0.1",
         0},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4"},
         "127.0.0.1",
         0},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}, "", 0},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=[fd00::7]"}, "fd00::7", 29500},
        {{"PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4"}, "127.0.0.1", 0},
        {{"PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"}, NULL, 0},
        {{"PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2", "MASTER_ADDR=node7"},
         "node7",
         29500},
        // Hydra may start its proxies by srun, a task for each node.
        {{"PMI_RANK=5", "PMI_SIZE=8", "MPI_LOCALRANKID=1", "MASTER_ADDR=node7", "SLURM_PROCID=1",
          "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n1"},
         "node7",
         29500},
        // And srun --mpi=pmi2 itself.
        {{"PMI_RANK=1", "PMI_SIZE=4", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_ID=0",
          "SLURM_STEP_NODELIST=n1,n2"},
         "n1",
         0},
        // From a shell that is a step of one task.
        {{"PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4", "SLURM_PROCID=0",
          "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n1"},
         "127.0.0.1",
         0},
        {{"PMI_RANK=1", "PMI_SIZE=4", "MASTER_ADDR=node7"}, "node7", 29500},
        {{"PMI_RANK=1", "PMI_SIZE=4"}, NULL, 0},
        {{"PMI_RANK=1", "PMI_SIZE=4", "PMI_LOCAL_SIZE=4"}, "127.0.0.1", 0},
        {{"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=4"}, NULL, 0},
        {{"MVP_COMM_WORLD_RANK=1", "MVP_COMM_WORLD_SIZE=4", "MVP_COMM_WORLD_LOCAL_SIZE=4"}, "127.0.0.1", 0},
        {{"HOROVOD_RANK=1", "HOROVOD_SIZE=4", "MASTER_ADDR=node7", "MASTER_PORT=7"}, "node7", 7},
        {{"JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE=4", "MASTER_ADDR=node7"}, "node7", 29500},
        {{"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=4", "FLUX_JOB_ID=f8", "MASTER_ADDR=node7"}, "node7", 0},
        {{"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=4", "FLUX_JOB_ID=f8", "FLUX_JOB_NNODES=1"}, "127.0.0.1", 0},
        {{"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=4", "FLUX_JOB_ID=f8", "FLUX_JOB_NNODES=2"}, NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rank_env e;
        char text[64];
        forget_ranks();
        for (int v = 0; v < 10 && rows[i].variables[v]; v++) {
            const char *value = strchr(rows[i].variables[v], '=') + 1;
            snprintf(text, sizeof text, "%.*s", (int)(value - 1 - rows[i].variables[v]),
                     rows[i].variables[v]);
            setenv(text, value, 1);
        }
        error_quiet(1);
        int rc = rank_env_read(&e);
        error_quiet(0);
        if (rc != (rows[i].host ? 0 : -1)) fail_msg("row %zu: %d, %s", i, rc, error_last());
        if (rc) continue;
        if (strcmp(e.host, rows[i].host) != 0) fail_msg("row %zu: %s", i, e.host);
        assert_true(rows[i].port ? e.port == rows[i].port : e.port >= 20000 && e.port < 30000);
        assert_true(rank_env_joins(&e));
    }
    forget_ranks();
}

// A job that is there and whose ranks cannot meet is an error; of a world of one, and of a list of one host, nothing is said.
static void jobs_that_nobody_here_joins(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *says;  // NULL: an ordinary run
    } rows[] = {
        {"DMLC_ROLE", "worker", "DMLC_ROLE=worker is of ps-lite"},
        {"PMIX_RANK", "0", "does not report how many ranks there are"},
        {"SM_HOSTS", "[\"algo-1\",\"algo-2\"]", "SageMaker"},
        {"SM_HOSTS", "[\"algo-1\"]", NULL},
        {"TF_CONFIG", "{\"cluster\":{\"chief\":[\"a:1\"],\"worker\":[\"b:1\"]}}", "TensorFlow"},
        {"TF_CONFIG", "{\"cluster\":{\"worker\":[\"b:1\"]}}", NULL},
        {"TF_CONFIG", "{}", NULL},
        {"PMI_RANK", "0", "PMI_RANK=0 without PMI_SIZE: set both, or unset it"},
        {"MV2_COMM_WORLD_RANK", "1", "without MV2_COMM_WORLD_SIZE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rank_env e;
        forget_ranks();
        setenv(rows[i].name, rows[i].value, 1);
        int rc = rank_env_read(&e);
        if (rc != (rows[i].says ? -1 : 0)) fail_msg("row %zu: %d, %s", i, rc, error_last());
        assert_int_equal(e.kind, RANK_ENV_NONE);
        if (!rows[i].says) continue;
        if (!strstr(error_last(), rows[i].says)) fail_msg("row %zu: %s", i, error_last());
    }
    static const char *const alone[][3] = {{"PMI_RANK", "PMI_SIZE", NULL},
                                           {"HOROVOD_RANK", "HOROVOD_SIZE", NULL},
                                           {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"},
                                           {"RANK", "WORLD_SIZE", "PMI_RANK"}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        struct rank_env e;
        forget_ranks();
        setenv("SLURM_STEP_ID", "0", 1);
        setenv(alone[i][0], "0", 1);
        setenv(alone[i][1], "1", 1);
        if (alone[i][2]) setenv(alone[i][2], "0", 1);
        assert_int_equal(rank_env_read(&e), 0);
        assert_true(e.kind == RANK_ENV_NONE && e.size == 1);
    }
    forget_ranks();
}

// Two jobs of one machine whose launcher gives them no number meet at two ports: each is its launcher's.
static void jobs_without_a_number(void **state) {
    (void)state;
    struct rank_env here;
    int ends[2], port = 0;
    forget_ranks();
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "4", 1);
    setenv("PMI_LOCAL_SIZE", "4", 1);
    assert_int_equal(rank_env_read(&here), 0);
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {  // its parent is another process
        struct rank_env e;
        bool read = rank_env_read(&e) == 0;
        _exit(!read || write(ends[1], &e.port, sizeof e.port) != sizeof e.port);
    }
    waitpid(pid, NULL, 0);
    assert_int_equal(read(ends[0], &port, sizeof port), sizeof port);
    close(ends[0]), close(ends[1]);
    assert_true(port >= 20000 && port < 30000 && port != here.port);
    forget_ranks();
}

static void ranks_of_a_slurm_node(void **state) {
    (void)state;
    static const struct {
        const char *tasks, *node;
        int count;
    } rows[] = {{"2(x3),1", "0", 2}, {"2(x3),1", "2", 2}, {"2(x3),1", "3", 1}, {"2(x3),1", "4", 0},
                {"3,5", "1", 5},     {"7", "0", 7},       {"x", "0", 0},       {"2(x3),1", NULL, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rank_env e;
        forget_ranks();
        setenv("SLURM_PROCID", "0", 1);
        setenv("SLURM_STEP_NUM_TASKS", "9", 1);
        setenv("SLURM_STEP_ID", "0", 1);
        setenv("SLURM_STEP_NODELIST", "n[1-4]", 1);
        setenv("SLURM_STEP_TASKS_PER_NODE", rows[i].tasks, 1);
        if (rows[i].node) setenv("SLURM_NODEID", rows[i].node, 1);
        assert_int_equal(rank_env_read(&e), 0);
        assert_int_equal(e.local_size, rows[i].count);
    }
    forget_ranks();
}

static void first_hosts(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"n1", "n1"},         {"n[1-3,7],m2", "n1"}, {"rack[0-1]n[03-05]-x", "rack0n03-x"},
        {"a-b.c,d", "a-b.c"}, {"n[9]", "n9"},        {"", NULL},
        {"n[1-3", NULL}};
    char host[64];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(rank_env_first_host(rows[i][0], host, sizeof host), rows[i][1] ? 0 : -1);
        if (rows[i][1]) assert_string_equal(host, rows[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_ranks_meet),
        cmocka_unit_test(jobs_that_nobody_here_joins),
        cmocka_unit_test(jobs_without_a_number),
        cmocka_unit_test(ranks_of_a_slurm_node),
        cmocka_unit_test(first_hosts),
        cmocka_unit_test(all_end_well),
        cmocka_unit_test(first_death_is_named),
        cmocka_unit_test(usage_errors_keep_their_status),
        cmocka_unit_test(signals_are_named),
        cmocka_unit_test(the_deaf_are_killed),
        cmocka_unit_test(interrupt_ends_all),
        cmocka_unit_test(nobody_waits_for_who_left),
        cmocka_unit_test(line_of_a_child),
        cmocka_unit_test(who_does_not_answer),
        cmocka_unit_test(a_launcher_that_stands_still),
        cmocka_unit_test(a_program_that_is_not_there),
        cmocka_unit_test(options_become_overrides),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(rank_variables),
        cmocka_unit_test(what_was_told_wins),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
