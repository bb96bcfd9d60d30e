// One row of `starring bench ps`: its processes and their measurements.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/bench/bench_roles.h"
#include "shared/core/error.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/launch.h"

#define START_NS      2000000  // from the command to the start, so that all processes have read it
#define REST_NS       3000000
#define LATENCY_BYTES ((size_t)8 << 20)  // about as many bytes make the latencies of a round
#define LATENCY_STEPS 16
#define LATENCY_MOST  128  // payloads, which fit in one answer
#define RANKS_MOST    4
#define GRACE_S       2.0
#define ANSWER_S      120.0  // long: a process writes its memory before its first answer
#define ARGS_MAX      16

// ---------------------------------------------------------------- the processes of a row
// The star's launcher starts them and ends all of them when one dies. They communicate by lines (bench_roles.h).
struct bench_member {
    struct launcher *launcher;
    int control;
    clockid_t cpu;
    struct bench_member *next;
};

struct star {
    struct bench_plan plan;
    const char *program;     // of a peer; NULL: a star
    struct bench_star *out;  // its measurements
    struct bench_member *scheduler, *servers[RANKS_MOST], *workers[RANKS_MOST];
    int64_t steps;
};

struct bench_processes {
    const struct bench_request *q;
    struct bench_row *row;
    struct launcher *launcher;
    char *program;
    struct bench_member *members;  // all of them; owned
    struct star stars[BENCH_MEDIA][BENCH_KINDS], peer;
    bool counts;  // the current round is counted
};

// Sends a line. Ignores errors: whoever waits for a dead process's answer logs its death.
__attribute__((format(printf, 2, 3))) static void send_line(struct bench_member *m, const char *fmt, ...) {
    char line[BENCH_LINE_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    line[n++] = '\n';
    ssize_t sent = send(m->control, line, (size_t)n, MSG_NOSIGNAL);
    (void)sent;
}

static int read_answer(struct bench_member *m, char line[BENCH_LINE_MAX]) {
    return launcher_read_line(m->launcher, m->control, ANSWER_S, line, BENCH_LINE_MAX);
}

static double member_cpu(const struct bench_member *m) { return 1e-9 * (double)clock_ns(m->cpu); }

struct bench_start {
    const char *role;  // for `bench ps --as`
    const struct bench_plan *plan;
    int rank;             // -1: the scheduler
    const char *address;  // or NULL
    const char *program;  // of a peer (bench_build in bench_ps.c); NULL: this program
};

// ---------------------------------------------------------------- starting
// Starts a process. Returns a member that the processes own, or NULL after logging.
static struct bench_member *launch(struct bench_processes *t, const struct bench_start *s) {
    char plan[BENCH_PLAN_TEXT], rank[16], control[16], keys[16];
    const char *program = s->program ? s->program : t->program;
    const char *argv[ARGS_MAX] = {program,  "bench", "ps",        "--as", s->role,
                                  "--plan", plan,    "--control", control};
    int ends[2], n = 9;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        fail("bench ps: no socket: %s", strerror(errno));
        return NULL;
    }
    bench_plan_text(s->plan, plan);
    snprintf(rank, sizeof rank, "%d", s->rank);
    snprintf(control, sizeof control, "%d", ends[1]);
    if (s->rank >= 0) argv[n++] = "--rank", argv[n++] = rank;
    if (s->address) argv[n++] = "--address", argv[n++] = s->address;
    snprintf(keys, sizeof keys, "%d", bench_keys(s->plan));
    if (s->program) argv[n++] = "--keys", argv[n++] = keys;
    struct launch_child child = {.role = s->role,
                                 .rank = s->rank,
                                 .program = program,
                                 .argv = (char *const *)argv,
                                 .keep_fd = ends[1]};
    int rc = launcher_start(t->launcher, &child);
    close(ends[1]);
    if (rc) {
        close(ends[0]);
        return NULL;
    }
    struct bench_member *m = xcalloc(1, sizeof *m);
    *m = (struct bench_member){.launcher = t->launcher, .control = ends[0], .next = t->members};
    t->members = m;
    return m;
}

// Reads the process's first line; rest receives it without the PID.
static int member_ready(struct bench_member *m, char rest[BENCH_LINE_MAX]) {
    char line[BENCH_LINE_MAX];
    int used = 0, pid;
    if (read_answer(m, line) != 0) return -1;
    if (sscanf(line, "%d %n", &pid, &used) < 1) return fail("bench ps: a process began with \"%s\"", line);
    if (rest) snprintf(rest, BENCH_LINE_MAX, "%s", line + used);
    return clock_getcpuclockid(pid, &m->cpu) ? fail("bench ps: no clock of process %d", pid) : 0;
}

// Starts a process and waits until it is ready.
static struct bench_member *start_ready(struct bench_processes *t, const struct bench_start *s,
                                        char rest[BENCH_LINE_MAX]) {
    struct bench_member *m = launch(t, s);
    return m && member_ready(m, rest) == 0 ? m : NULL;
}

static int64_t start_ns(void) { return now_ns() + START_NS; }

static void keep(const struct bench_processes *m, struct bench_series *s, double value) {
    if (m->counts) bench_series_add(s, value);
}

// ---------------------------------------------------------------- starting
static int start_star(struct bench_processes *m, struct star *s) {
    char address[BENCH_LINE_MAX];
    const struct bench_plan *p = &s->plan;
    struct bench_start start = {.role = "scheduler", .plan = p, .rank = -1, .program = s->program};
    if (!(s->scheduler = start_ready(m, &start, address))) return -1;
    start.address = address;
    start.role = "server";
    for (start.rank = 0; start.rank < p->servers; start.rank++)
        if (!(s->servers[start.rank] = start_ready(m, &start, NULL))) return -1;
    start.role = "worker";
    for (start.rank = 0; start.rank < p->workers; start.rank++)
        if (!(s->workers[start.rank] = launch(m, &start))) return -1;
    for (int w = 0; w < p->workers; w++)
        if (member_ready(s->workers[w], NULL) != 0) return -1;
    return 0;
}

static int start_all(struct bench_processes *m) {
    const struct bench_plan *p = &m->q->plan;
    for (int medium = 0; medium < BENCH_MEDIA; medium++)
        for (int kind = 0; kind < BENCH_KINDS && m->q->media[medium]; kind++) {
            struct star *s = &m->stars[medium][kind];
            s->plan = *p;
            s->plan.kind = (enum bench_kind)kind;
            s->plan.medium = (enum bench_medium)medium;
            s->out = &m->row->star[medium];
            if (start_star(m, s) != 0) return -1;
        }
    m->peer = (struct star){.plan = *p, .program = m->q->peer, .out = &m->row->peer};
    return m->q->peer ? start_star(m, &m->peer) : 0;
}

// ---------------------------------------------------------------- the star
static void read_cpu(const struct star *s, double out[BENCH_ROLES]) {
    memset(out, 0, BENCH_ROLES * sizeof *out);
    for (int w = 0; w < s->plan.workers; w++) out[BENCH_WORKER] += member_cpu(s->workers[w]);
    for (int i = 0; i < s->plan.servers; i++) out[BENCH_SERVER] += member_cpu(s->servers[i]);
    out[BENCH_SCHEDULER] = member_cpu(s->scheduler);
}

// Reads the workers' answers. *first: the earliest begin; *middle: the latest second time; *last: the latest end.
static int read_spans(struct star *s, int64_t *first, int64_t *middle, int64_t *last) {
    char line[BENCH_LINE_MAX];
    *first = INT64_MAX, *middle = *last = 0;
    for (int w = 0; w < s->plan.workers; w++) {
        int64_t t[3] = {0};
        if (read_answer(s->workers[w], line) != 0) return -1;
        int n = sscanf(line, "%" SCNd64 " %" SCNd64 " %" SCNd64, &t[0], &t[1], &t[2]);
        if (n < 2) return fail("bench ps: a worker answered \"%s\"", line);
        if (t[0] < *first) *first = t[0];
        if (t[1] > *middle) *middle = t[1];
        if (t[n - 1] > *last) *last = t[n - 1];
    }
    return 0;
}

// Measures a whole step, then a step that measures only its pulls: these begin after twice the time of the first step's
// pushes.
static int measure_stream(struct bench_processes *m, struct star *s) {
    struct bench_star *out = s->out;
    double bytes = (double)m->row->keys * (double)m->row->bytes, before[BENCH_ROLES], after[BENCH_ROLES];
    int64_t first, middle, last, start = start_ns();
    out->there = true;
    out->moved[BENCH_PUSH].bytes = out->moved[BENCH_PULL].bytes = out->step.bytes = bytes;
    for (int w = 0; w < s->plan.workers; w++) send_line(s->workers[w], "step %" PRId64, start);
    if (read_spans(s, &first, &middle, &last) != 0) return -1;
    keep(m, &out->moved[BENCH_PUSH].seconds, 1e-9 * (double)(middle - first));
    keep(m, &out->step.seconds, 1e-9 * (double)(last - first));
    int64_t rest = 2 * (middle - first) + REST_NS;
    read_cpu(s, before);
    start = start_ns();
    for (int w = 0; w < s->plan.workers; w++)
        send_line(s->workers[w], "pull %" PRId64 " %" PRId64, start, rest);
    if (read_spans(s, &first, &middle, &last) != 0) return -1;
    read_cpu(s, after);
    keep(m, &out->moved[BENCH_PULL].seconds, 1e-9 * (double)(last - first));
    for (int r = 0; r < BENCH_ROLES && m->counts; r++) {
        out->cpu[r].seconds += after[r] - before[r];
        out->cpu[r].bytes += 2 * bytes * s->plan.workers;
    }
    s->steps += 3;  // includes the step whose weights the pull reads
    return 0;
}

static int measure_acknowledgements(struct bench_processes *m, struct star *s) {
    int64_t start = start_ns(), took;
    for (int w = 0; w < s->plan.workers; w++) send_line(s->workers[w], "acknowledge %" PRId64, start);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (read_answer(s->workers[w], line) != 0) return -1;
        for (const char *at = line; sscanf(at, "%" SCNd64 " %n", &took, &used) == 1; at += used)
            keep(m, &s->out->acknowledged, 1e-9 * (double)took);
    }
    s->steps++;
    return 0;
}

// A star's acknowledgements over tcp are measured elsewhere, without updates between them (measure_acknowledgements).
static int measure_latency(struct bench_processes *m, struct star *s) {
    struct bench_star *out = s->out;
    int keys = s->plan.servers * s->plan.threads;
    size_t wanted = LATENCY_BYTES / (s->plan.bytes * (size_t)keys);
    int steps = wanted > LATENCY_STEPS ? LATENCY_STEPS : wanted < 1 ? 1 : (int)wanted;
    if (steps * keys > LATENCY_MOST) steps = LATENCY_MOST / keys;
    int64_t start = start_ns(), acknowledged, landed;
    for (int w = 0; w < s->plan.workers; w++)
        send_line(s->workers[w], "latency %" PRId64 " %d", start, steps);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (read_answer(s->workers[w], line) != 0) return -1;
        for (const char *at = line;
             sscanf(at, "%" SCNd64 " %" SCNd64 " %n", &acknowledged, &landed, &used) == 2; at += used) {
            if (s->program || s->plan.medium == BENCH_SHM)
                keep(m, &out->acknowledged, 1e-9 * (double)acknowledged);
            keep(m, &out->landed, 1e-9 * (double)landed);
        }
    }
    return 0;
}

static int measure_round(struct bench_processes *m) {
    for (int medium = 0; medium < BENCH_MEDIA; medium++) {
        if (!m->q->media[medium]) continue;
        if (measure_stream(m, &m->stars[medium][BENCH_STREAM]) != 0 ||
            (medium == BENCH_TCP && measure_acknowledgements(m, &m->stars[medium][BENCH_STREAM]) != 0) ||
            measure_latency(m, &m->stars[medium][BENCH_LATENCY]) != 0)
            return -1;
        if (medium == BENCH_TCP && m->q->peer &&
            (measure_stream(m, &m->peer) != 0 || measure_latency(m, &m->peer) != 0))
            return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- ending
// Waits until the processes end; if the row has failed, ends them. Returns launcher_wait's exit status. Frees all.
static int stop(struct bench_processes **at, bool failed) {
    struct bench_processes *t = *at;
    if (failed) launcher_end_all(t->launcher);
    int status = launcher_wait(t->launcher);
    launcher_destroy(&t->launcher);
    while (t->members) {
        struct bench_member *m = t->members;
        t->members = m->next;
        close(m->control);
        free(m);
    }
    free(t->program);
    free(t);
    *at = NULL;
    return status;
}

// Reads a process's last line, its payload bytes sent and received, and adds them divided by `count`, the processes.
static int add_final_counts(struct bench_member *from, int count, double *sent, double *received) {
    char line[BENCH_LINE_MAX];
    double out, in;
    if (read_answer(from, line) != 0) return -1;
    if (sscanf(line, "%lf %lf", &out, &in) != 2) return fail("bench ps: a process left with \"%s\"", line);
    *sent += out / count;
    *received += in / count;
    return 0;
}

static int end_star(struct star *s) {
    struct bench_wire wire = {.steps = (double)s->steps};
    const struct bench_plan *p = &s->plan;
    wire.expected = wire.steps * (double)bench_keys(p) * (double)p->bytes;
    wire.server_expected = (double)bench_keys(p) * (double)p->bytes * p->workers / p->servers;
    for (int w = 0; w < p->workers; w++) send_line(s->workers[w], "end");
    for (int w = 0; w < p->workers; w++)
        if (add_final_counts(s->workers[w], p->workers, &wire.worker_sent, &wire.worker_received)) return -1;
    for (int i = 0; i < p->servers; i++)
        if (add_final_counts(s->servers[i], p->servers, &wire.server_sent, &wire.server_received)) return -1;
    if (p->kind == BENCH_STREAM) s->out->wire = wire;
    return 0;
}

int bench_processes_start(struct bench_processes **out, const struct bench_request *q,
                          struct bench_row *row) {
    const struct bench_plan *p = &q->plan;
    char *program = job_key_hand_down() ? NULL : launch_self();
    if (!program) return EXIT_RUN_FAILED;
    struct bench_processes *m = *out = xcalloc(1, sizeof *m);
    *m = (struct bench_processes){.q = q,
                                  .row = row,
                                  .program = program,
                                  .launcher = launcher_create(&(struct launch_options){.grace_s = GRACE_S})};
    *row = (struct bench_row){.bytes = p->bytes,
                              .servers = p->servers,
                              .workers = p->workers,
                              .threads = p->threads,
                              .keys = bench_keys(p)};
    return start_all(m) ? stop(out, true) : 0;
}

int bench_processes_round(struct bench_processes **m, bool counts) {
    (*m)->counts = counts;
    return measure_round(*m) ? stop(m, true) : 0;
}

int bench_processes_end(struct bench_processes **at) {
    struct bench_processes *m = *at;
    int rc = 0;
    for (int medium = 0; medium < BENCH_MEDIA; medium++)
        for (int kind = 0; kind < BENCH_KINDS && m->q->media[medium] && !rc; kind++)
            rc = end_star(&m->stars[medium][kind]);
    // A peer's other processes end with its last worker.
    for (int w = 0; w < m->q->plan.workers && m->q->peer && !rc; w++) send_line(m->peer.workers[w], "end");
    return stop(at, rc != 0);
}
