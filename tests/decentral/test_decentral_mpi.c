// The collectives over Open MPI: the same cases as for threads, and its failures. Not started by mpirun,
// this program starts itself through it, once for each job below, and looks at the outcome.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <dlfcn.h>
#include <sys/wait.h>

#include "decentral/mpi/mpi_engine.h"
#include "tests/decentral/meets.h"
#include "tests/decentral/process_jobs.h"

// Open MPI is not built with the thread sanitizer: what its modules do among themselves, and the memory they
// fill on whichever thread makes progress, would be reported against our reads of the same message.
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:libmpi.so\nrace:libopen-pal.so\nrace:libopen-rte.so\nrace:mca_\n"
           "mutex:libmpi.so\nmutex:libopen-pal.so\nmutex:mca_\n"
           "deadlock:libmpi.so\ndeadlock:libopen-pal.so\ndeadlock:libopen-rte.so\ndeadlock:mca_\n"
           "called_from_lib:libmpi.so\ncalled_from_lib:libopen-pal.so\n";
}

// A world that was refused must not be finalized. The library that is linked with Open MPI finds this one first.
int MPI_Finalize(void);
static bool refused_world;
int MPI_Finalize(void) {
    int (*finalize)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    if (!refused_world) return finalize();
    fprintf(stderr, "MPI_Finalize was called behind a refusal\n");
    _exit(9);
}

static const struct job {
    const char *name;
    int (*run)(struct process_rank *r);
    bool broken;   // ends as a failed job does
    int speakers;  // ranks that say that they saw what they should
    bool gpu;      // needs the emulated CUDA
} jobs[] = {
    {"cases", job_cases, false, 3, false},
    {"staged", job_staged, false, 3, true},
    {"native_16bit_is_refused", job_native_16bit_is_refused, false, 3, false},
    {"no_staging_is_refused", job_no_staging_is_refused, false, 3, false},
    {"exact", job_exact, false, 3, false},
    {"zero", job_zero, false, 3, false},
    {"groups", job_groups, false, 4, false},
    {"time", job_time, false, 3, false},
    {"missing", job_missing, true, 3, false},
    {"mismatch", job_mismatch, true, 3, false},
    {"abort", job_abort, true, 3, false},
    {"dead", job_dead, true, 0, false},
    {"slow", job_slow, false, 3, false},
    {"stopped", job_stopped, true, 2, false},
    {"differ", job_differ, true, 3, false},
    {"refused", NULL, true, 3, false},
    {"beside", job_beside, false, 3, false},
};

// Their starter takes the ranks of one host for several hosts'.
static int run_refused(void) {
    struct mpi_medium m = {.medium = MEDIUM_SHM, .ranks_here = 1, .ranks = 3};
    struct mpi_world *w;
    int rank, size;
    refused_world = true;
    if (mpi_world_open(&w, &m, NULL, &rank, &size) == 0) return 1;
    if (strstr(error_last(), "but what started them takes them for 3 hosts'")) printf("a rank: " DONE "\n");
    fflush(stdout);
    usleep(300000);  // for the others to speak
    return 3;
}

static void *open_first(void *port) { return meets(0, *((_Atomic int *)port + 1), 1, port); }

// Rank 0 says its port before all have come there.
static struct rendezvous *meet_over_mpi(int rank, int size) {
    _Atomic int port[2] = {0, size};
    pthread_t first;
    void *met = NULL;
    char text[16] = "";
    if (rank == 0 && pthread_create(&first, NULL, open_first, port)) return NULL;
    while (rank == 0 && !atomic_load(&port[0])) usleep(1000);
    snprintf(text, sizeof text, "%d", atomic_load(&port[0]));
    if (mpi_broadcast_text(text, sizeof text)) return NULL;
    atomic_store(&port[0], atoi(text));
    if (rank == 0)
        pthread_join(first, &met);
    else
        met = meets(rank, size, 1, port);
    return met;
}

// A failed rank leaves through _exit, as its world cannot be finalized; late enough for the others to speak
// before mpirun ends them.
static int run_as_rank(const char *name) {
    struct process_rank r = {.kind = &collective_mpi_kind, .library = true, .dead = "rank 1 did not come"};
    struct mpi_medium medium = {0};
    struct mpi_world *world = NULL;
    const struct job *job = NULL;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (strcmp(jobs[i].name, name) == 0) job = &jobs[i];
    error_quiet(1);
    if (!strcmp(name, "refused")) return run_refused();
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    struct rank_liveness *lives = rank_liveness_open(rank ? atoi(rank) : 0, size ? atoi(size) : 1);
    if (!job || mpi_world_open(&world, &medium, lives, &r.rank, &r.size) != 0) return 1;
    struct rendezvous *met = meet_over_mpi(r.rank, r.size);
    if (!met) return 1;
    rank_liveness_set_rendezvous(lives, met);
    r.world = world;
    bool sleeps = !strcmp(name, "missing");  // beside its device, and is missed all the same
    struct device_options o = {.threads = 1, .watch_host = !sleeps};
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &o, &r.dev)) return 1;
    r.s = stream_create(r.dev, "comm");
    int rc = job->run(&r);
    if (rc == 0) printf("%d: " DONE "\n", r.rank);
    fflush(stdout);
    if (job->broken) {
        usleep(1000000);
        mpi_world_close(&world);
        _exit(rc == 0 ? 3 : 1);
    }
    if (r.s) stream_destroy(&r.s);
    rank_liveness_set_device(lives, r.rank, NULL);  // where a job leaves its collectives
    dev_close(&r.dev);
    mpi_world_close(&world);
    return rc == 0 ? 0 : 1;
}

// ---------------------------------------------------------------- the test program, not started by mpirun

// Runs one job on so many ranks: its exit status, how many ranks said DONE, and what was printed.
static int run_job(const char *name, int ranks, int *speakers, char *output, size_t output_bytes) {
    char self[1024], command[1400], line[1024];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "mpirun -n %d --oversubscribe --bind-to none '%s' %s 2>&1", ranks, self,
             name);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    *speakers = 0;
    size_t used = 0;
    while (fgets(line, sizeof line, f)) {
        if (strstr(line, DONE)) ++*speakers;
        if (used < output_bytes) used += (size_t)snprintf(output + used, output_bytes - used, "    %s", line);
    }
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_job(void **state) {
    const struct job *job = *state;
    if (job->gpu && emulated_environment() != 0) skip();
    if (job->gpu) setenv("EMULATED_CUDA_DELAY_US", "100", 0);
    char output[8192] = "";
    int speakers,
        status = run_job(job->name, job->speakers > 3 ? job->speakers : 3, &speakers, output, sizeof output);
    if ((status != 0) != job->broken || speakers < job->speakers)
        fail_msg("exit status %d, %d ranks saw what they should:\n%s", status, speakers, output);
}

int main(int argc, char **argv) {
    char library[1024];
    const char *why;
    ssize_t n = readlink("/proc/self/exe", library, sizeof library - 64);
    for (int up = 0; up < 2; up++) {
        library[n > 0 ? n : 0] = 0;
        char *slash = strrchr(library, '/');
        n = slash ? slash - library : 0;
    }
    strcpy(library + n, "/libstarring_mpi.so");
    setenv("STARRING_MPI_SO", library, 1);
    if (!mpi_available(&why) || system("command -v mpirun > /dev/null")) {
        printf("skipped: %s\n", *why ? why : "there is no mpirun");
        return 0;
    }
    if (getenv("OMPI_COMM_WORLD_SIZE")) return run_as_rank(argc > 1 ? argv[1] : "");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    // Open MPI's modules leak at MPI_Finalize and are unloaded by then, so that nothing can be told apart.
    const char *asan = getenv("ASAN_OPTIONS");
    char options[1024];
    snprintf(options, sizeof options, "%s%sdetect_leaks=0", asan ? asan : "", asan ? ":" : "");
    setenv("ASAN_OPTIONS", options, 1);
    struct CMUnitTest tests[sizeof jobs / sizeof *jobs];
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        tests[i] = (struct CMUnitTest){
            .name = jobs[i].name, .test_func = test_job, .initial_state = (void *)&jobs[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
