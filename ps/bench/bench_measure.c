// The stars of a row: their processes and their measurements.
#include "ps/bench/bench_measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/bench/bench_roles.h"
#include "shared/core/error.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/launch.h"

#define START_NS 2000000  // time from the command to the start, in which all processes read the command
#define REST_NS  3000000
// The bytes of all payloads whose latency is measured in a round, about.
#define LATENCY_BYTES ((size_t)8 << 20)
#define LATENCY_STEPS 16
#define LATENCY_MOST  128  // the most payloads of a round: their times fit in one answer line
#define GRACE_S       2.0
#define ANSWER_S      120.0  // a long time: before its first answer a process writes all its memory once
#define ARGS_MAX      16

int bench_ranks(const struct bench_plan *p, enum bench_role role) {
    return role == BENCH_WORKER ? p->workers : role == BENCH_SERVER ? p->servers : 1;
}

// ---------------------------------------------------------------- starting
static int read_answer(const struct bench_stars *b, const struct bench_member *m, char line[BENCH_LINE_MAX]) {
    return launcher_read_line(b->launcher, m->control, ANSWER_S, line, BENCH_LINE_MAX);
}

// Starts a process of the star. address: the scheduler's; NULL for the scheduler itself.
static int launch(struct bench_stars *b, struct bench_star *s, enum bench_role role, int rank,
                  const char *address) {
    static const char *const names[BENCH_ROLES] = {"worker", "server", "scheduler"};
    char plan[BENCH_PLAN_TEXT], rank_text[16], control[16], keys[16];
    const char *program = s->program ? s->program : b->program;
    const char *argv[ARGS_MAX] = {program,  "bench", "ps",        "--as", names[role],
                                  "--plan", plan,    "--control", control};
    int ends[2], n = 9;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return fail("bench ps: no socket: %s", strerror(errno));
    s->members[role][rank].control = ends[0];
    bench_plan_text(&s->plan, plan);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(control, sizeof control, "%d", ends[1]);
    snprintf(keys, sizeof keys, "%d", bench_keys(&s->plan));
    if (address) argv[n++] = "--rank", argv[n++] = rank_text, argv[n++] = "--address", argv[n++] = address;
    if (s->program) argv[n++] = "--keys", argv[n++] = keys;
    struct launch_child child = {.role = names[role],
                                 .rank = address ? rank : -1,
                                 .program = program,
                                 .argv = (char *const *)argv,
                                 .keep_fd = ends[1]};
    int rc = launcher_start(b->launcher, &child);
    close(ends[1]);
    return rc;
}

// Reads the process's first line; rest receives it without the PID.
static int await_ready(const struct bench_stars *b, struct bench_member *m, char rest[BENCH_LINE_MAX]) {
    char line[BENCH_LINE_MAX];
    int used = 0, pid;
    if (read_answer(b, m, line)) return -1;
    if (sscanf(line, "%d %n", &pid, &used) < 1) return fail("bench ps: a process began with \"%s\"", line);
    snprintf(rest, BENCH_LINE_MAX, "%s", line + used);
    return clock_getcpuclockid(pid, &m->cpu) ? fail("bench ps: no clock of process %d", pid) : 0;
}

// Starts the scheduler first, since the others need its address, and the workers together, since each waits for all.
static int start_star(struct bench_stars *b, struct bench_star *s) {
    char address[BENCH_LINE_MAX], rest[BENCH_LINE_MAX];
    if (launch(b, s, BENCH_SCHEDULER, 0, NULL) || await_ready(b, s->members[BENCH_SCHEDULER], address))
        return -1;
    for (int i = 0; i < s->plan.servers; i++)
        if (launch(b, s, BENCH_SERVER, i, address) || await_ready(b, &s->members[BENCH_SERVER][i], rest))
            return -1;
    for (int w = 0; w < s->plan.workers; w++)
        if (launch(b, s, BENCH_WORKER, w, address)) return -1;
    for (int w = 0; w < s->plan.workers; w++)
        if (await_ready(b, &s->members[BENCH_WORKER][w], rest)) return -1;
    return 0;
}

// Calls f for each wanted star until it fails.
static int each_star(struct bench_stars *b, int (*f)(struct bench_stars *b, struct bench_star *s)) {
    int rc = b->peer.wanted ? f(b, &b->peer) : 0;
    for (int i = 0; i < BENCH_MEDIA * BENCH_KINDS && !rc; i++) {
        struct bench_star *s = &b->stars[i / BENCH_KINDS][i % BENCH_KINDS];
        if (s->wanted) rc = f(b, s);
    }
    return rc;
}

static int close_star(struct bench_stars *b, struct bench_star *s) {
    (void)b;
    for (int i = 0; i < BENCH_ROLES * BENCH_RANKS_MOST; i++) {
        struct bench_member *m = &s->members[i / BENCH_RANKS_MOST][i % BENCH_RANKS_MOST];
        if (m->control) close(m->control);
        *m = (struct bench_member){0};
    }
    return 0;
}

// Waits until the processes end; if the row has failed, ends them. Returns launcher_wait's exit status.
static int stop(struct bench_stars *b, bool failed) {
    if (failed) launcher_end_all(b->launcher);
    int status = launcher_wait(b->launcher);
    launcher_destroy(&b->launcher);
    each_star(b, close_star);
    free(b->program);
    b->program = NULL;
    return status;
}

int bench_stars_start(struct bench_stars *b) {
    b->program = job_key_hand_down() ? NULL : launch_self();
    if (!b->program) return EXIT_RUN_FAILED;
    b->launcher = launcher_create(&(struct launch_options){.grace_s = GRACE_S});
    return each_star(b, start_star) ? stop(b, true) : 0;
}

// ---------------------------------------------------------------- measuring
static int64_t start_ns(void) { return now_ns() + START_NS; }

// Sends a line to all workers. Ignores errors: whoever waits for a dead process's answer logs its death.
#define TELL_WORKERS(s, ...)                    \
    for (int w = 0; w < (s)->plan.workers; w++) \
    bench_send_line((s)->members[BENCH_WORKER][w].control, __VA_ARGS__)

static void add_cpu(struct bench_star *s, double sign) {
    for (int role = 0; role < BENCH_ROLES; role++)
        for (int i = 0; i < bench_ranks(&s->plan, (enum bench_role)role); i++)
            s->cpu_s[role] += sign * 1e-9 * (double)clock_ns(s->members[role][i].cpu);
}

// Reads the workers' answers. *first: the earliest begin; *middle: the latest second time; *last: the latest end.
static int read_spans(const struct bench_stars *b, const struct bench_star *s, int64_t *first,
                      int64_t *middle, int64_t *last) {
    char line[BENCH_LINE_MAX];
    *first = INT64_MAX, *middle = *last = 0;
    for (int w = 0; w < s->plan.workers; w++) {
        int64_t t[3] = {0};
        if (read_answer(b, &s->members[BENCH_WORKER][w], line) != 0) return -1;
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
static int measure_stream(struct bench_run *r, struct bench_stars *b, struct bench_star *s) {
    int64_t first, middle, last, start = start_ns();
    TELL_WORKERS(s, "step %" PRId64, start);
    if (read_spans(b, s, &first, &middle, &last)) return -1;
    bench_measured(r, &s->moved[BENCH_PUSH], 1e-9 * (double)(middle - first));
    bench_measured(r, &s->step, 1e-9 * (double)(last - first));
    int64_t rest = 2 * (middle - first) + REST_NS;
    if (r->round >= 0) add_cpu(s, -1);
    start = start_ns();
    TELL_WORKERS(s, "pull %" PRId64 " %" PRId64, start, rest);
    if (read_spans(b, s, &first, &middle, &last)) return -1;
    if (r->round >= 0) add_cpu(s, 1);
    bench_measured(r, &s->moved[BENCH_PULL], 1e-9 * (double)(last - first));
    s->steps += 3;  // includes the step whose weights the pull reads
    return 0;
}

static int measure_acknowledgements(struct bench_run *r, struct bench_stars *b, struct bench_star *s) {
    int64_t start = start_ns(), took;
    TELL_WORKERS(s, "acknowledge %" PRId64, start);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (read_answer(b, &s->members[BENCH_WORKER][w], line)) return -1;
        for (const char *at = line; sscanf(at, "%" SCNd64 " %n", &took, &used) == 1; at += used)
            bench_measured(r, &s->acknowledged, 1e-9 * (double)took);
    }
    s->steps++;
    return 0;
}

static int measure_latency(struct bench_run *r, struct bench_stars *b, struct bench_star *s) {
    int keys = s->plan.servers * s->plan.threads;
    size_t wanted = LATENCY_BYTES / (s->plan.bytes * (size_t)keys);
    int steps = wanted > LATENCY_STEPS ? LATENCY_STEPS : wanted < 1 ? 1 : (int)wanted;
    if (steps * keys > LATENCY_MOST) steps = LATENCY_MOST / keys;
    int64_t start = start_ns(), acknowledged, landed;
    TELL_WORKERS(s, "latency %" PRId64 " %d", start, steps);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (read_answer(b, &s->members[BENCH_WORKER][w], line)) return -1;
        for (const char *at = line;
             sscanf(at, "%" SCNd64 " %" SCNd64 " %n", &acknowledged, &landed, &used) == 2; at += used) {
            bench_measured(r, &s->acknowledged, 1e-9 * (double)acknowledged);
            bench_measured(r, &s->landed, 1e-9 * (double)landed);
        }
    }
    return 0;
}

// A star's acknowledgements over tcp are measured without updates between them.
static int measure(struct bench_run *r, struct bench_stars *b) {
    for (int medium = 0; medium < BENCH_MEDIA; medium++) {
        struct bench_star *stream = &b->stars[medium][BENCH_STREAM];
        if (!stream->wanted) continue;
        if (measure_stream(r, b, stream) || (medium == BENCH_TCP && measure_acknowledgements(r, b, stream)) ||
            measure_latency(r, b, &b->stars[medium][BENCH_LATENCY]))
            return -1;
        if (medium == BENCH_TCP && b->peer.wanted &&
            (measure_stream(r, b, &b->peer) || measure_latency(r, b, &b->peer)))
            return -1;
    }
    return 0;
}

int bench_stars_round(struct bench_run *r, struct bench_stars *b) {
    return measure(r, b) ? stop(b, true) : 0;
}

// ---------------------------------------------------------------- ending
// Reads the last lines of a role's processes: payload bytes sent and received.
static int read_counts(struct bench_stars *b, struct bench_star *s, enum bench_role role) {
    char line[BENCH_LINE_MAX];
    int count = bench_ranks(&s->plan, role);
    for (int i = 0; i < count; i++) {
        double sent, received;
        if (read_answer(b, &s->members[role][i], line)) return -1;
        if (sscanf(line, "%lf %lf", &sent, &received) != 2)
            return fail("bench ps: a process left with \"%s\"", line);
        s->sent[role] += sent / count;
        s->received[role] += received / count;
    }
    return 0;
}

// Ends the workers of a peer; its other processes end when the last worker has ended.
static int end_star(struct bench_stars *b, struct bench_star *s) {
    TELL_WORKERS(s, "end");
    return s->program ? 0 : read_counts(b, s, BENCH_WORKER) || read_counts(b, s, BENCH_SERVER) ? -1 : 0;
}

int bench_stars_end(struct bench_stars *b) { return stop(b, each_star(b, end_star) != 0); }
