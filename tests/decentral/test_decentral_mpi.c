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
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "decentral/mpi/mpi_load.h"
#include "shared/core/error.h"
#include "tests/decentral/collective_cases.h"
#include "tests/decentral/time_cases.h"
#include "tests/decentral/zero_cases.h"
#include "tests/emulated.h"

// Open MPI is not built with the thread sanitizer: what its modules do among themselves, and the memory they
// fill on whichever thread makes progress, would be reported against our reads of the same message.
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:libmpi.so\nrace:libopen-pal.so\nrace:libopen-rte.so\nrace:mca_\n"
           "mutex:libmpi.so\nmutex:libopen-pal.so\nmutex:mca_\n"
           "deadlock:libmpi.so\ndeadlock:libopen-pal.so\ndeadlock:libopen-rte.so\ndeadlock:mca_\n"
           "called_from_lib:libmpi.so\ncalled_from_lib:libopen-pal.so\n";
}

#define DONE "rank outcome as expected"

// A world that was refused must not be finalized. The library that is linked with Open MPI finds this one first.
int MPI_Finalize(void);
static bool refused_world;
int MPI_Finalize(void) {
    int (*finalize)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    if (!refused_world) return finalize();
    fprintf(stderr, "MPI_Finalize was called behind a refusal\n");
    _exit(9);
}

// What a rank of a job has.
struct mpi_rank {
    struct mpi_world *world;
    int rank, size;
    struct device *dev;
    struct stream *s;
    struct wire_count wire;
};

static struct collective *open_channel(struct mpi_rank *r, int channel, struct collective_options o) {
    o.wire = &r->wire;
    return collective_mpi_kind.create(r->world, r->rank, channel, &o);
}

// ---------------------------------------------------------------- jobs, run by every rank; 0 or -1

// Small staging, so that reductions go in several chunks.
static int job_cases(struct mpi_rank *r) {
    char staging[4 * 4096];
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        struct collective_options o = {.deadline_s = 60, .mode = i == 1 ? REDUCE_NATIVE : REDUCE_ORDERED};
        o.staging = staging;
        o.staging_bytes = sizeof staging;
        struct collective *c = open_channel(r, i, o);
        if (!c) return -1;
        rc = cases_run(c, r->s, 40003, (uint64_t)i);
        stream_sync(r->s);
        collective_destroy(&c);
    }
    return rc;
}

static int expect_failure(struct collective *c, struct stream *s, const char *part) {
    if (stream_sync(s) == 0) return -1;
    if (strstr(collective_error(c), part)) return 0;
    fprintf(stderr, "\"%s\" does not mention \"%s\"\n", collective_error(c), part);
    return -1;
}

// Buffers on an (emulated) GPU, host staging for a fraction of a block.
static int job_staged(struct mpi_rank *r) {
    const char *why = "";
    struct device *gpu = NULL;
    const struct backend *cuda = backend_find("cuda", &why);
    if (!cuda || dev_open(cuda, &(struct device_options){.label = "rank"}, &gpu) != 0) return -1;
    struct stream *s = stream_create(gpu, "comm");
    size_t bytes = 2 * (size_t)r->size * 1024;
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        struct collective_options o = {.deadline_s = 60, .mode = i == 1 ? REDUCE_NATIVE : REDUCE_ORDERED};
        o.host_staging = dev_alloc(gpu, MEM_HOST, bytes);
        o.host_staging_bytes = bytes;
        struct collective *c = open_channel(r, i, o);
        if (!c) return -1;
        rc = cases_run(c, s, 1001, (uint64_t)i);
        stream_sync(s);
        collective_destroy(&c);
        dev_free(gpu, MEM_HOST, o.host_staging, bytes);
    }
    struct collective *bare = open_channel(r, 2, (struct collective_options){.deadline_s = 60});
    float x = 0;
    collective_broadcast(bare, s, &x, 1, DT_F32, 0);
    if (!rc) rc = expect_failure(bare, s, "without host staging");
    stream_destroy(&s);
    collective_destroy(&bare);
    dev_close(&gpu);
    return rc;
}

// What is refused is refused on each rank alone: the world stays whole.
static int refused(struct mpi_rank *r, struct collective_options o, const char *why) {
    uint16_t x[8] = {0};
    o.deadline_s = 60;
    struct collective *c = open_channel(r, 0, o);
    collective_all_reduce(c, r->s, x, x, 8, DT_BF16);
    int rc = expect_failure(c, r->s, why);
    stream_destroy(&r->s);
    collective_destroy(&c);
    return rc;
}

static int job_native_16bit_is_refused(struct mpi_rank *r) {
    char staging[4096];
    struct collective_options o = {
        .mode = REDUCE_NATIVE, .staging = staging, .staging_bytes = sizeof staging};
    return refused(r, o, "no bf16 natively");
}

// What the norm needs: an ordered channel without staging sums int64, counted by the formula of a ring, also where the
// sum wraps around.
static int job_exact(struct mpi_rank *r) {
    int64_t x[EXACT_SUM_WORDS], size = r->size;
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 60, .control = true});
    for (int i = 0; i < EXACT_SUM_WORDS; i++) x[i] = i ? INT64_C(1) << (i + 20) : INT64_MAX / 2;
    collective_all_reduce(c, r->s, x, x, EXACT_SUM_WORDS, DT_I64);
    int rc = stream_sync(r->s);
    for (int i = 0; i < EXACT_SUM_WORDS; i++) {
        uint64_t one = i ? UINT64_C(1) << (i + 20) : INT64_MAX / 2;
        if ((uint64_t)x[i] != one * (uint64_t)size) rc = -1;
    }
    size_t formula = 2 * (size_t)(size - 1) * sizeof x / (size_t)size;
    if (atomic_load(&r->wire.control_sent) != formula || atomic_load(&r->wire.control_received) != formula ||
        atomic_load(&r->wire.payload_sent))
        rc = -1;
    float y = 0;  // whose order matters
    collective_all_reduce(c, r->s, &y, &y, 1, DT_F32);
    if (!rc) rc = expect_failure(c, r->s, "without staging");
    stream_destroy(&r->s);
    collective_destroy(&c);
    return rc;
}

static int job_no_staging_is_refused(struct mpi_rank *r) {
    return refused(r, (struct collective_options){0}, "without staging");
}

// Rank 1 stays away until the others have had their deadline.
static int job_missing(struct mpi_rank *r) {
    float x = 0, y[3];
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank == 1 ? 30 : 1, .dev = r->dev});
    if (r->rank == 1) {
        collective_barrier(c, r->s);
        usleep(2000000);
        return expect_failure(c, r->s, "aborted by rank");
    }
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, "did not come");
}

static int job_mismatch(struct mpi_rank *r) {
    float x[8] = {0};
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 2});
    collective_broadcast(c, r->s, x, r->rank == 1 ? 7 : 6, DT_F32, 0);
    if (r->rank == 1) return expect_failure(c, r->s, "rank 0 sent 24 bytes where rank 1 expects 28");
    (void)stream_sync(r->s);  // x must outlive the message
    return 0;
}

static int job_abort(struct mpi_rank *r) {
    float x = 0, y[3];
    struct collective *c = open_channel(r, 0, (struct collective_options){0});  // no deadline
    if (r->rank == 2) {
        usleep(50000);
        collective_abort(c, "rank 2 gives up");
        collective_barrier(c, r->s);
        return expect_failure(c, r->s, "rank 2 gives up");
    }
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, "aborted by rank 2: rank 2 gives up");
}

// Rank 1 is gone without a word.
static int job_dead(struct mpi_rank *r) {
    float x = 0, y[3];
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 1});
    collective_barrier(c, r->s);
    if (stream_sync(r->s) != 0) return -1;
    if (r->rank == 1) _exit(7);
    collective_all_gather(c, r->s, &x, y, 1, DT_F32);
    return expect_failure(c, r->s, "rank 1 did not come");
}

static int compute(void *seconds) {
    for (double until = now_seconds() + *(double *)seconds; now_seconds() < until;) continue;
    return 0;
}

// Slow is not dead. Rank 1 computes for several deadlines, rank 2 waits for it, and rank 0 for both.
static int job_slow(struct mpi_rank *r) {
    double seconds = 5;
    int rc = 0;
    for (int native = 0; native < 2 && !rc; native++) {
        float x[3] = {1, 2, 3}, y[3] = {0};
        char staging[4096];
        struct collective_options o = {.deadline_s = 2,
                                       .dev = r->dev,
                                       .mode = native ? REDUCE_NATIVE : REDUCE_ORDERED,
                                       .staging = staging,
                                       .staging_bytes = sizeof staging};
        struct collective *c = open_channel(r, native, o);
        if (r->rank == 1) stream_host(r->s, "compute", compute, &seconds);
        if (r->rank == 1) collective_send(c, r->s, x, 3, DT_F32, 2);
        if (r->rank == 2) collective_recv(c, r->s, y, 3, DT_F32, 1);
        collective_all_reduce(c, r->s, x, x, 3, DT_F32);
        rc = stream_sync(r->s);
        if (rc) fprintf(stderr, "%s\n", collective_error(c));
        if (x[2] != 9 || (r->rank == 2 && y[2] != 3)) rc = -1;
        collective_destroy(&c);
    }
    return rc;
}

// Rank 1 stands for several deadlines in a file, as it were: on its way to its device, and beside it.
static int job_beside(struct mpi_rank *r) {
    float x = r->rank == 1;
    struct collective *c[2];
    for (int i = 0; i < 2; i++) {
        if (r->rank == 1) usleep(4000000);
        c[i] = open_channel(r, i, (struct collective_options){.deadline_s = 1.5, .dev = r->dev});
        if (!c[i]) return -1;
    }
    if (r->rank == 1) usleep(4000000);
    collective_broadcast(c[1], r->s, &x, 1, DT_F32, 1);
    int rc = stream_sync(r->s) || x != 1 ? -1 : 0;
    if (rc) fprintf(stderr, "%s\n", collective_error(c[1]));
    for (int i = 0; i < 2; i++) collective_destroy(&c[i]);
    return rc;
}

// One that is stopped is an error that names it, though another computes on.
static int job_stopped(struct mpi_rank *r) {
    double seconds = 20, start = now_seconds();
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank == 2 ? 0 : 2, .dev = r->dev});
    if (r->rank == 1) raise(SIGSTOP);
    if (r->rank == 2) stream_host(r->s, "compute", compute, &seconds);
    collective_barrier(c, r->s);
    if (r->rank == 0) {
        int rc = expect_failure(c, r->s, "rank 1 did not come within 2 s and gives no sign of life");
        return now_seconds() - start < 8 ? rc : -1;
    }
    char why[256];
    while (!collective_aborted(c, why, sizeof why) && now_seconds() - start < 15) usleep(10000);
    return strstr(why, "rank 1 did not come") ? 0 : -1;
}

// Nobody computes: calls that differ, each waiting for the other, end at the deadline.
static int job_differ(struct mpi_rank *r) {
    float x[3] = {0}, y[3];
    double start = now_seconds();
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank ? 60 : 1.5, .dev = r->dev});
    if (r->rank == 1)
        collective_recv(c, r->s, x, 1, DT_F32, 2);
    else
        collective_all_gather(c, r->s, x, y, 1, DT_F32);
    if (stream_sync(r->s) == 0 || now_seconds() - start > 6) return -1;
    const char *why = collective_error(c);
    return strstr(why, "did not come within 1.5 s") && !strstr(why, "sign of life") ? 0 : -1;
}

// All stages over MPI against the scalar reference.
static int zero_stages(struct mpi_rank *r, int group) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    int rc = 0;
    for (int stage = 0; stage < 4 && !rc; stage++) {
        struct zero_case c = {.world = r->size,
                              .stage = stage,
                              .dtype = types[stage % 3],
                              .tied = stage % 2 == 1,
                              .steps = 5,
                              .micro = 1,
                              .group = group};
        struct zero_reference *ref = zero_reference_create(&c);
        struct collective_source src = {&collective_mpi_kind, r->world, r->rank, r->size};
        rc = zero_case_rank(&c, ref, &src);
        zero_reference_destroy(&ref);
    }
    return rc;
}

static int job_zero(struct mpi_rank *r) { return zero_stages(r, 0); }
static int job_groups(struct mpi_rank *r) { return zero_stages(r, 2); }

// Who is late is waited for, a slow link is exposed, in all stages; each rank learns from the others when they were
// ready.
static int job_time(struct mpi_rank *r) {
    struct layout *layout = zero_case_layout(r->size, false);
    struct collective_source src = {&collective_mpi_kind, r->world, r->rank, r->size};
    int rc = 0;
    for (int i = 0; i < 2 * ZERO_STAGES && !rc; i++) {
        struct time_case c = {.stage = i / 2, .slow_link = i % 2};
        rc = time_case_rank(&c, &src, layout);
    }
    layout_destroy(&layout);
    return rc;
}

static const struct job {
    const char *name;
    int (*run)(struct mpi_rank *r);
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
    if (mpi_world_open(&w, &m, &rank, &size) == 0) return 1;
    if (strstr(error_last(), "but what started them takes them for 3 hosts'")) printf("a rank: " DONE "\n");
    fflush(stdout);
    usleep(300000);  // for the others to speak
    return 3;
}

// A failed rank leaves through _exit, as its world cannot be finalized; late enough for the others to speak
// before mpirun ends them.
static int run_as_rank(const char *name) {
    struct mpi_rank r = {0};
    struct mpi_medium medium = {0};
    const struct job *job = NULL;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (strcmp(jobs[i].name, name) == 0) job = &jobs[i];
    error_quiet(1);
    if (!strcmp(name, "refused")) return run_refused();
    if (!job || mpi_world_open(&r.world, &medium, &r.rank, &r.size) != 0) return 1;
    bool sleeps = !strcmp(name, "missing");  // beside its device, and is missed all the same
    struct device_options o = {.threads = 1, .watch_host = !sleeps};
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &o, &r.dev)) return 1;
    r.s = stream_create(r.dev, "comm");
    int rc = job->run(&r);
    if (rc == 0) printf("%d: " DONE "\n", r.rank);
    fflush(stdout);
    if (job->broken) {
        usleep(1000000);
        mpi_world_close(&r.world);
        _exit(rc == 0 ? 3 : 1);
    }
    if (r.s) stream_destroy(&r.s);
    dev_close(&r.dev);
    mpi_world_close(&r.world);
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
