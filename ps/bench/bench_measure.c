#include "ps/bench/bench_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/bench/bench_ring.h"
#include "ps/bench/bench_team.h"
#include "shared/core/error.h"

#define START_NS      2000000  // until everyone who is told to start then has heard of it
#define REST_NS       3000000
#define LATENCY_BYTES ((size_t)8 << 20)  // about so many make the latencies of a round
#define LATENCY_STEPS 16
#define LATENCY_MOST  128  // payloads: one answer holds them
#define RANKS_MOST    4

struct star {
    struct bench_plan plan;
    const char *program;     // of a peer; NULL: a star
    struct bench_star *out;  // what is measured of it
    struct bench_member *scheduler, *servers[RANKS_MOST], *workers[RANKS_MOST];
    int64_t steps;
};

struct measure {
    const struct bench_request *q;
    struct bench_row *row;
    struct bench_team *team;
    struct bench_member *solo, *sender, *receiver;
    struct star stars[BENCH_MEDIA][BENCH_KINDS], peer;
    int round;  // -1: warming up
};

static int64_t start_moment(void) { return bench_now() + START_NS; }

static void keep(const struct measure *m, struct bench_series *s, double value) {
    if (m->round >= 0) bench_series_add(s, value);
}

// Reads "BEGIN END ..."; seconds between them.
static int read_span(struct bench_member *from, int64_t *begin, int64_t *end, char line[BENCH_LINE_MAX]) {
    if (bench_answer(from, line) != 0) return -1;
    if (sscanf(line, "%" SCNd64 " %" SCNd64, begin, end) != 2)
        return fail("bench ps: a process answered \"%s\"", line);
    return 0;
}

// ---------------------------------------------------------------- starting
static int start_star(struct measure *m, struct star *s) {
    char address[BENCH_LINE_MAX];
    const struct bench_plan *p = &s->plan;
    struct bench_start start = {.role = "scheduler", .plan = p, .rank = -1, .program = s->program};
    if (!(s->scheduler = bench_team_start(m->team, &start, address))) return -1;
    start.address = address;
    start.role = "server";
    for (start.rank = 0; start.rank < p->servers; start.rank++)
        if (!(s->servers[start.rank] = bench_team_start(m->team, &start, NULL))) return -1;
    start.role = "worker";
    for (start.rank = 0; start.rank < p->workers; start.rank++)
        if (!(s->workers[start.rank] = bench_team_launch(m->team, &start))) return -1;
    for (int w = 0; w < p->workers; w++)
        if (bench_member_ready(s->workers[w], NULL) != 0) return -1;
    return 0;
}

static int start_peers(struct measure *m) {
    char address[BENCH_LINE_MAX];
    int ring = bench_ring_memory(m->q->plan.bytes), rc = -1;
    if (ring < 0) return -1;
    struct bench_start start = {.role = "receiver", .plan = &m->q->plan, .rank = -1, .ring = ring};
    m->receiver = bench_team_start(m->team, &start, address);
    start.role = "sender";
    start.address = address;
    if (m->receiver) m->sender = bench_team_start(m->team, &start, NULL);
    if (m->sender) rc = 0;
    close(ring);
    return rc;
}

static int start_all(struct measure *m) {
    char rest[BENCH_LINE_MAX];
    const struct bench_plan *p = &m->q->plan;
    size_t copy, pieces;
    if (!(m->solo =
              bench_team_start(m->team, &(struct bench_start){.role = "solo", .plan = p, .rank = -1}, rest)))
        return -1;
    if (sscanf(rest, "%zu %zu", &copy, &pieces) != 2)
        return fail("bench ps: a process began with \"%s\"", rest);
    m->row->copy.bytes = 2 * (double)copy;
    m->row->pieces.bytes = 2 * (double)pieces;
    m->row->apply.bytes = m->row->keys * bench_apply_bytes(bench_elements(p), p->workers, p->dtype);
    if (start_peers(m) != 0) return -1;
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

// ---------------------------------------------------------------- one thread, raw streams
static int measure_solo(struct measure *m, const char *what, struct bench_timed *t) {
    char line[BENCH_LINE_MAX];
    int64_t begin, end;
    bench_tell(m->solo, "%s %" PRId64, what, start_moment());
    if (read_span(m->solo, &begin, &end, line) != 0) return -1;
    keep(m, &t->seconds, 1e-9 * (double)(end - begin));
    return 0;
}

static void add_cpu(const struct measure *m, struct bench_cpu *cpu, double seconds, double bytes) {
    if (m->round < 0) return;
    cpu->seconds += seconds;
    cpu->bytes += bytes;
}

static int measure_raw(struct measure *m, enum bench_medium medium) {
    struct bench_raw *raw = &m->row->raw[medium];
    char line[BENCH_LINE_MAX], seen[BENCH_LINE_MAX];
    double sender = bench_member_cpu(m->sender), receiver = bench_member_cpu(m->receiver);
    int64_t begin, end;
    const char *name = bench_medium_name(medium), *checksum;
    bench_tell(m->receiver, "%s", name);
    bench_tell(m->sender, "%s %" PRId64, name, start_moment());
    if (read_span(m->sender, &begin, &end, line) != 0 || bench_answer(m->receiver, seen) != 0) return -1;
    checksum = strrchr(line, ' ');
    if (!checksum || strcmp(checksum + 1, seen) != 0)
        return fail("bench ps: the raw %s stream was not read whole", name);
    raw->moved.bytes = (double)m->row->keys * (double)m->row->bytes;
    keep(m, &raw->moved.seconds, 1e-9 * (double)(end - begin));
    add_cpu(m, &raw->sender, bench_member_cpu(m->sender) - sender, raw->moved.bytes);
    add_cpu(m, &raw->receiver, bench_member_cpu(m->receiver) - receiver, raw->moved.bytes);
    return 0;
}

// ---------------------------------------------------------------- the star
static void read_cpu(const struct star *s, double out[BENCH_ROLES]) {
    memset(out, 0, BENCH_ROLES * sizeof *out);
    for (int w = 0; w < s->plan.workers; w++) out[BENCH_WORKER] += bench_member_cpu(s->workers[w]);
    for (int i = 0; i < s->plan.servers; i++) out[BENCH_SERVER] += bench_member_cpu(s->servers[i]);
    out[BENCH_SCHEDULER] = bench_member_cpu(s->scheduler);
}

// All workers have been told. The first's beginning, the last's end, and where there are three moments the last's
// middle.
static int read_spans(struct star *s, int64_t *first, int64_t *middle, int64_t *last) {
    char line[BENCH_LINE_MAX];
    *first = INT64_MAX, *middle = *last = 0;
    for (int w = 0; w < s->plan.workers; w++) {
        int64_t t[3] = {0};
        if (bench_answer(s->workers[w], line) != 0) return -1;
        int n = sscanf(line, "%" SCNd64 " %" SCNd64 " %" SCNd64, &t[0], &t[1], &t[2]);
        if (n < 2) return fail("bench ps: a worker answered \"%s\"", line);
        if (t[0] < *first) *first = t[0];
        if (t[1] > *middle) *middle = t[1];
        if (t[n - 1] > *last) *last = t[n - 1];
    }
    return 0;
}

// A whole step, then one whose pulls are alone: they begin when twice the time of the first one's pushes has passed.
static int measure_stream(struct measure *m, struct star *s) {
    struct bench_star *out = s->out;
    double bytes = (double)m->row->keys * (double)m->row->bytes, before[BENCH_ROLES], after[BENCH_ROLES];
    int64_t first, middle, last, start = start_moment();
    out->there = true;
    out->moved[BENCH_PUSH].bytes = out->moved[BENCH_PULL].bytes = out->step.bytes = bytes;
    for (int w = 0; w < s->plan.workers; w++) bench_tell(s->workers[w], "step %" PRId64, start);
    if (read_spans(s, &first, &middle, &last) != 0) return -1;
    keep(m, &out->moved[BENCH_PUSH].seconds, 1e-9 * (double)(middle - first));
    keep(m, &out->step.seconds, 1e-9 * (double)(last - first));
    int64_t rest = 2 * (middle - first) + REST_NS;
    read_cpu(s, before);
    start = start_moment();
    for (int w = 0; w < s->plan.workers; w++)
        bench_tell(s->workers[w], "pull %" PRId64 " %" PRId64, start, rest);
    if (read_spans(s, &first, &middle, &last) != 0) return -1;
    read_cpu(s, after);
    keep(m, &out->moved[BENCH_PULL].seconds, 1e-9 * (double)(last - first));
    for (int r = 0; r < BENCH_ROLES; r++)
        add_cpu(m, &out->cpu[r], after[r] - before[r], 2 * bytes * s->plan.workers);
    s->steps += 3;  // with the one whose weights the pull reads
    return 0;
}

static int measure_acknowledgements(struct measure *m, struct star *s) {
    int64_t start = start_moment(), took;
    for (int w = 0; w < s->plan.workers; w++) bench_tell(s->workers[w], "acknowledge %" PRId64, start);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (bench_answer(s->workers[w], line) != 0) return -1;
        for (const char *at = line; sscanf(at, "%" SCNd64 " %n", &took, &used) == 1; at += used)
            keep(m, &s->out->acknowledged, 1e-9 * (double)took);
    }
    s->steps++;
    return 0;
}

// Over tcp the acknowledgements of a star are those of one that does not update in between.
static int measure_latency(struct measure *m, struct star *s) {
    struct bench_star *out = s->out;
    int keys = s->plan.servers * s->plan.threads;
    size_t wanted = LATENCY_BYTES / (s->plan.bytes * (size_t)keys);
    int steps = wanted > LATENCY_STEPS ? LATENCY_STEPS : wanted < 1 ? 1 : (int)wanted;
    if (steps * keys > LATENCY_MOST) steps = LATENCY_MOST / keys;
    int64_t start = start_moment(), acknowledged, landed;
    for (int w = 0; w < s->plan.workers; w++)
        bench_tell(s->workers[w], "latency %" PRId64 " %d", start, steps);
    for (int w = 0; w < s->plan.workers; w++) {
        char line[BENCH_LINE_MAX];
        int used = 0;
        if (bench_answer(s->workers[w], line) != 0) return -1;
        for (const char *at = line;
             sscanf(at, "%" SCNd64 " %" SCNd64 " %n", &acknowledged, &landed, &used) == 2; at += used) {
            if (s->program || s->plan.medium == BENCH_SHM)
                keep(m, &out->acknowledged, 1e-9 * (double)acknowledged);
            keep(m, &out->landed, 1e-9 * (double)landed);
        }
    }
    return 0;
}

static int measure_round(struct measure *m) {
    if (measure_solo(m, "copy", &m->row->copy) != 0 || measure_solo(m, "apply", &m->row->apply) != 0 ||
        measure_solo(m, "pieces", &m->row->pieces) != 0)
        return -1;
    for (int medium = 0; medium < BENCH_MEDIA; medium++) {
        if (measure_raw(m, (enum bench_medium)medium) != 0) return -1;
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
static int end_member(struct bench_member *member) {
    char line[BENCH_LINE_MAX];
    bench_tell(member, "end");
    return bench_answer(member, line);
}

// The last lines of workers and servers say what went over the wire.
static int end_star(struct star *s) {
    struct bench_wire wire = {.steps = (double)s->steps};
    const struct bench_plan *p = &s->plan;
    char line[BENCH_LINE_MAX];
    double sent, received;
    wire.expected = wire.steps * (double)bench_keys(p) * (double)p->bytes;
    wire.server_expected = (double)bench_keys(p) * (double)p->bytes * p->workers / p->servers;
    for (int w = 0; w < p->workers; w++) bench_tell(s->workers[w], "end");
    for (int w = 0; w < p->workers; w++) {
        if (bench_answer(s->workers[w], line) != 0) return -1;
        if (sscanf(line, "%lf %lf", &sent, &received) != 2)
            return fail("bench ps: a worker left with \"%s\"", line);
        wire.worker_sent += sent / p->workers;
        wire.worker_received += received / p->workers;
    }
    for (int i = 0; i < p->servers; i++) {
        if (bench_answer(s->servers[i], line) != 0) return -1;
        if (sscanf(line, "%lf %lf", &sent, &received) != 2)
            return fail("bench ps: a server left with \"%s\"", line);
        wire.server_sent += sent / p->servers;
        wire.server_received += received / p->servers;
    }
    if (p->kind == BENCH_STREAM) s->out->wire = wire;
    return 0;
}

static int end_all(struct measure *m) {
    if (end_member(m->solo) != 0 || end_member(m->sender) != 0 || end_member(m->receiver) != 0) return -1;
    for (int medium = 0; medium < BENCH_MEDIA; medium++)
        for (int kind = 0; kind < BENCH_KINDS && m->q->media[medium]; kind++)
            if (end_star(&m->stars[medium][kind]) != 0) return -1;
    // A peer's other processes end with its last worker.
    for (int w = 0; w < m->q->plan.workers && m->q->peer; w++) bench_tell(m->peer.workers[w], "end");
    return 0;
}

int bench_measure_row(const struct bench_request *q, struct bench_row *row, int *interrupted) {
    struct measure m = {.q = q, .row = row};
    const struct bench_plan *p = &q->plan;
    *interrupted = 0;
    *row = (struct bench_row){.bytes = p->bytes,
                              .servers = p->servers,
                              .workers = p->workers,
                              .threads = p->threads,
                              .keys = bench_keys(p)};
    if (!(m.team = bench_team_create())) return EXIT_RUN_FAILED;
    int rc = start_all(&m);
    for (m.round = -1; m.round < q->rounds && !rc; m.round++) rc = measure_round(&m);
    if (!rc) rc = end_all(&m);
    return bench_team_end(&m.team, rc != 0, interrupted);
}
