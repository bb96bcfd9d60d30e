// The collectives over tcp: the same cases as for threads and Open MPI, with 2 to 5 ranks, and its failures. Each job runs in
// processes of its own, which meet in a page that they share.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "decentral/tcp/collective_tcp.h"
#include "tests/decentral/meets.h"
#include "tests/decentral/process_jobs.h"

#define RANKS     5
#define BLOB_MOST 4096

// State shared by the ranks of the job. A rank that gives up says so, for the others not to wait.
struct page {
    atomic_int come, away, port;
    char blobs[RANKS][BLOB_MOST];
};

struct place {
    struct page *page;
    int rank, size;
};

static int meet(void *ctx, const void *mine, size_t bytes, void *all) {
    struct place *p = ctx;
    memcpy(p->page->blobs[p->rank], mine, bytes);
    atomic_fetch_add(&p->page->come, 1);
    for (int i = 0; atomic_load(&p->page->come) < p->size; i++) {
        if (i > 20000) return -1;
        usleep(1000);
    }
    for (int i = 0; i < p->size; i++) memcpy((char *)all + (size_t)i * bytes, p->page->blobs[i], bytes);
    return 0;
}

// ---------------------------------------------------------------- jobs of tcp's own

// A native sum is refused, in words; the world goes on.
static int job_native(struct process_rank *r) {
    float x = 1;
    struct collective *c = open_channel(r, 0, (struct collective_options){.mode = REDUCE_NATIVE});
    if (c || !strstr(error_last(), "over tcp ranks sum themselves")) return -1;
    c = open_channel(r, 0, (struct collective_options){.deadline_s = 60});
    collective_all_reduce(c, r->s, &x, &x, 1, DT_F32);
    int rc = stream_sync(r->s) || x != (float)r->size ? -1 : 0;
    collective_destroy(&c);
    return rc;
}

// Rank 1 ends in the middle of a message that takes long: the part that came is no message.
static int job_dead_in_message(struct process_rank *r) {
    static char big[64 << 20];
    double start = now_seconds();
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 30});
    if (r->rank == 1) alarm(1);
    for (int i = 0; i < 10000 && !*collective_error(c); i++)
        collective_broadcast(c, r->s, big, sizeof big, DT_U8, 1);
    int rc = expect_failure(c, r->s, "rank 1 is gone");
    return rc || now_seconds() - start > 10 ? -1 : 0;
}

// A rank that is done leaves; what it sent still arrives, and nobody misses it.
static int job_leaves(struct process_rank *r) {
    static char big[8 << 20];
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 30});
    memset(big, r->rank == 0 ? 7 : 0, sizeof big);
    if (r->rank > 0) usleep(200000);
    collective_broadcast(c, r->s, big, sizeof big, DT_U8, 0);
    if (stream_sync(r->s) || big[0] != 7 || big[sizeof big - 1] != 7) return -1;
    if (r->rank > 0) usleep(r->rank == 1 ? 1500000 : 700000);  // rank 2 waits, and not for rank 0
    if (r->rank == 1) collective_send(c, r->s, big, 3, DT_U8, 2);
    if (r->rank == 2) collective_recv(c, r->s, big, 3, DT_U8, 1);
    int rc = stream_sync(r->s);
    if (rc) fprintf(stderr, "%s\n", collective_error(c));
    collective_destroy(&c);
    return rc;
}

static const struct job {
    const char *name;
    int (*run)(struct process_rank *r);
    int ranks;
    int speakers;  // ranks that see what they should
    bool gpu;      // needs the emulated CUDA
    bool keyed;
} jobs[] = {
    {"cases of 1", job_cases, 1, 1, false, false},
    {"cases of 2", job_cases, 2, 2, false, false},
    {"cases of 3", job_cases, 3, 3, false, false},
    {"cases of 4", job_cases, 4, 4, false, false},
    {"cases of 5", job_cases, 5, 5, false, false},
    {"staged", job_staged, 3, 3, true, false},
    {"native", job_native, 3, 3, false, false},
    {"exact", job_exact, 3, 3, false, false},
    {"zero", job_zero, 3, 3, false, false},
    {"groups", job_groups, 4, 4, false, false},
    {"time", job_time, 3, 3, false, false},
    {"missing", job_missing, 3, 3, false, false},
    {"mismatch", job_mismatch, 3, 3, false, false},
    {"abort", job_abort, 3, 3, false, false},
    {"dead", job_dead, 3, 2, false, false},
    {"dead in a message", job_dead_in_message, 3, 2, false, false},
    {"leaves", job_leaves, 3, 3, false, false},
    {"slow", job_slow, 3, 3, false, false},
    {"stopped", job_stopped, 3, 2, false, false},
    {"differ", job_differ, 3, 3, false, false},
    {"beside", job_beside, 3, 3, false, false},
    {"cases of 3 with keys", job_cases, 3, 3, false, true},
    {"dead with keys", job_dead, 3, 2, false, true},
};

// A process of its own. Its exit status: 0 where it saw what it should.
static int run_rank(const struct job *job, struct page *page, int rank) {
    struct place place = {page, rank, job->ranks};
    struct tcp_world *world;
    static const struct job_key key = {"of this test"};
    struct process_rank r = {
        .kind = &collective_tcp_kind, .dead = "rank 1 is gone", .rank = rank, .size = job->ranks};
    error_quiet(1);
    error_set_label("rank %d", rank);
    struct rank_liveness *lives = rank_liveness_open(rank, job->ranks);
    struct rendezvous *met = meets(rank, job->ranks, 1, &page->port);
    if (met) rank_liveness_set_rendezvous(lives, met);
    if (tcp_world_open(&world, &(struct tcp_world_options){.rank = rank,
                                                           .lives = lives,
                                                           .size = job->ranks,
                                                           .listen = "tcp://127.0.0.1:*",
                                                           .key = job->keyed ? &key : NULL,
                                                           .deadline_s = 20,
                                                           .meet = meet,
                                                           .ctx = &place})) {
        fprintf(stderr, "rank %d: %s\n", rank, error_last());
        return 1;
    }
    r.world = world;
    bool sleeps = job->run == job_missing;  // beside its device, and is missed all the same
    struct device_options o = {.threads = 1, .watch_host = !sleeps};
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &o, &r.dev)) return 1;
    r.s = stream_create(r.dev, "comm");
    int rc = job->run(&r);
    if (r.s) stream_destroy(&r.s);
    rank_liveness_set_device(lives, rank, NULL);  // where a job leaves its collectives
    dev_close(&r.dev);
    tcp_world_close(&world);
    if (rc) fprintf(stderr, "rank %d of %s\n", rank, job->name);
    _exit(rc ? 1 : 0);  // some die: nobody says goodbye at the meeting
}

static void test_job(void **state) {
    const struct job *job = *state;
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t ranks[RANKS];
    int speakers = 0, status;
    if (job->gpu && !getenv("STARRING_TEST_EMULATED")) skip();
    assert_true(page != MAP_FAILED);
    for (int i = 0; i < job->ranks; i++) {
        ranks[i] = fork();
        assert_true(ranks[i] >= 0);
        if (!ranks[i]) _exit(run_rank(job, page, i));
    }
    for (int i = 0; i < job->ranks; i++) {
        // The one that stops itself is ended when the others have seen it.
        int who = (i + 2) % job->ranks;
        if (job->run == job_stopped && who == 1) kill(ranks[1], SIGKILL);
        waitpid(ranks[who], &status, 0);
        speakers += status == 0;
    }
    munmap(page, sizeof *page);
    if (speakers != job->speakers) fail_msg("%d ranks saw what they should, not %d", speakers, job->speakers);
}

int main(int argc, char **argv) {
    (void)emulated_begin(argv, "1", "100");  // where it is not built, its job alone is skipped
    signal(SIGPIPE, SIG_IGN);
    struct CMUnitTest tests[sizeof jobs / sizeof *jobs];
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        tests[i] = (struct CMUnitTest){
            .name = jobs[i].name, .test_func = test_job, .initial_state = (void *)&jobs[i]};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
