// The scheduler's cost as a job grows: its core, link and codec, with 8 to 512 simulated workers (a server for every eight)
// over a network that loses nothing. Bytes are exact and asserted; CPU seconds are printed. With sizes as arguments it prints
// their rows: build/tests/test_ps_sizes 4096
#include <time.h>

#include "ps/net/link.h"
#include "ps/scheduler/scheduler_core.h"
#include "test_ps_sim.h"

#define STEPS   20
#define STEP_S  0.1
#define THREADS 2     // shards of a server
#define TURN_S  0.02  // of messages, before the scheduler looks at all members

struct member_of {
    struct job_size *job;
    enum ps_role role;
    int rank, thread, index;
    struct link *link;
    int done;
};

struct job_size {
    int workers, servers, count, starts;
    struct config c;
    struct layout *l;
    struct shard_map *map;
    struct scheduler_core *core;
    struct link *link;
    struct member_of *m;
    struct packet {
        int from;
        size_t size;
        uint8_t header[WIRE_HEADER_MAX];
    } * up;  // on the way to the scheduler
    int ups, room;
    double now;
    double start_bytes, sent, received, messages;
    double cpu_s, since_s, turn_s;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---------------------------------------------------------------- the network
static void from_scheduler(void *ctx, int peer, const struct ps_message *message) {
    struct job_size *j = ctx;
    struct ps_message m = *message;
    uint8_t bytes[WIRE_HEADER_MAX];
    m.header.role = PS_SCHEDULER;
    m.header.incarnation = 7;
    m.header.job = SIM_JOB;
    size_t size = wire_encode(&m.header, bytes);
    assert_true(size > 0);
    j->cpu_s += cpu_seconds() - j->since_s;
    struct member_of *to = &j->m[peer];
    j->sent += (double)(size + m.bytes);
    j->messages++;
    to->done += m.header.kind == WIRE_STEP_DONE || m.header.kind == WIRE_DECISION;
    star_link_receive(to->link, PEER_SCHEDULER, &m.header, j->now);
    j->since_s = cpu_seconds();
}

// A shard is of its server's process.
static uint64_t life_of(const struct member_of *x) {
    return 100 + (uint64_t)(x->role == PS_SHARD ? x->job->workers + x->rank : x->index);
}

static void from_member(void *ctx, int peer, const struct ps_message *message) {
    struct member_of *x = ctx;
    struct job_size *j = x->job;
    struct wire_header h = message->header;
    (void)peer;
    h.role = x->role;
    h.rank = x->rank;
    h.thread = x->thread;
    h.incarnation = life_of(x);
    h.job = SIM_JOB;
    if (j->ups == j->room) {
        j->room = j->room ? 2 * j->room : 64;
        j->up = xrealloc(j->up, (unsigned long)j->room * sizeof *j->up);
    }
    struct packet *p = &j->up[j->ups++];
    p->from = x->index;
    p->size = wire_encode(&h, p->header);
    assert_true(p->size > 0);
}

// As ps/scheduler/scheduler.c does.
static void look_around(struct job_size *j) {
    assert_int_equal(scheduler_core_tick(j->core, j->now), 0);
    link_tick(j->link, j->now);
}

static void hear(struct job_size *j, const struct packet *p) {
    struct wire_header h;
    assert_int_equal(wire_decode(p->header, p->size, 0, &h), 0);
    int member = scheduler_core_sender_of(j->core, &h);
    j->received += (double)p->size;
    j->messages++;
    assert_int_equal(member, p->from);
    star_link_receive(j->link, member, &h, j->now);
    scheduler_core_message(j->core, &h, j->now);
}

// All that is under way comes.
static void deliver(struct job_size *j) {
    j->since_s = cpu_seconds();
    double turn_s = j->since_s;
    for (int i = 0; i < j->ups; i++) {
        hear(j, &j->up[i]);
        if (cpu_seconds() - turn_s < TURN_S) continue;
        look_around(j);
        turn_s = cpu_seconds();
    }
    j->ups = 0;
    look_around(j);
    j->cpu_s += cpu_seconds() - j->since_s;
    for (int i = 0; i < j->count; i++) link_tick(j->m[i].link, j->now);
}

static void say(struct member_of *x, const struct wire_header *h) {
    const struct ps_port port = star_link_port(x->link);
    port_tell(&port, PEER_SCHEDULER, h);
}

// ---------------------------------------------------------------- a job
// One text for all of a role: each takes it from the meeting.
static void starts(void *ctx, enum ps_role role, const struct notice_start *start) {
    struct job_size *j = ctx;
    char *text = notice_start_text(start);
    size_t bytes = strlen(text);
    free(text);
    j->start_bytes += (double)bytes * (role == PS_SERVER ? j->servers : j->workers);
    j->starts++;
}
static void opens(void *ctx, const struct epochs *e) { (void)ctx, (void)e; }

static struct job_size *size_create(int workers) {
    const struct toy_case t = {.dtype = DT_F16,
                               .consistency = "sync",
                               .workers = workers,
                               .servers = (workers + 7) / 8,
                               .threads = THREADS,
                               .steps = STEPS,
                               .overflow_step = -1};
    struct job_size *j = xcalloc(1, sizeof *j);
    j->c = toy_config(&t);
    j->l = toy_layout(workers, 80);
    j->map = shard_map_of(&j->c, j->l);
    j->workers = workers;
    j->servers = t.servers;
    j->count = workers + t.servers + j->map->shards;
    j->link = star_link_create(
        &(struct star_link_options){.peers = j->count, .repeat_most_s = 2, .network = {j, from_scheduler}});
    j->core = scheduler_core_create(&(struct scheduler_options){.config = &j->c,
                                                                .map = j->map,
                                                                .manifest = {.hash = 5},
                                                                .job = SIM_JOB,
                                                                .port = star_link_port(j->link),
                                                                .publish = {j, opens, starts}});
    j->m = xcalloc((unsigned long)j->count, sizeof *j->m);
    for (int i = 0; i < j->count; i++) {
        int shard = i - workers - t.servers;
        j->m[i] = (struct member_of){.job = j,
                                     .role = i < workers ? PS_WORKER
                                             : shard < 0 ? PS_SERVER
                                                         : PS_SHARD,
                                     .rank = i < workers ? i
                                             : shard < 0 ? i - workers
                                                         : shard / THREADS,
                                     .thread = shard < 0 ? 0 : shard % THREADS,
                                     .index = i};
        j->m[i].link = star_link_create(
            &(struct star_link_options){.repeat_most_s = 2, .network = {&j->m[i], from_member}});
    }
    return j;
}

static void size_destroy(struct job_size *j) {
    for (int i = 0; i < j->count; i++) link_destroy(&j->m[i].link);
    scheduler_core_destroy(&j->core);
    link_destroy(&j->link);
    shard_map_destroy(&j->map);
    layout_destroy(&j->l);
    free(j->m);
    free(j->up);
    free(j);
}

// All but one come; then that one.
static void all_come(struct job_size *j) {
    static const char shards[] = "tcp://10.100.100.100:40001 -\ntcp://10.100.100.100:40002 -\n";
    for (int i = 0; i < j->workers + j->servers; i++) {
        uint64_t life = life_of(&j->m[i]);
        struct notice_ready r = {.epoch = 1, .manifest = 5, .endpoints = i < j->workers ? "" : shards};
        assert_int_equal(j->starts, 0);
        j->since_s = cpu_seconds();
        met_tell(j->core, met_came(i, life, i), j->now);
        met_tell(j->core, met_ready(i, life, &r), j->now);
        look_around(j);
        j->cpu_s += cpu_seconds() - j->since_s;
    }
    assert_int_equal(j->starts, 2);
}

static void step(struct job_size *j, int64_t t) {
    const struct wire_header report = {.kind = WIRE_REPORT,
                                       .step = t,
                                       .loss = 1.5,
                                       .lr = 0.5f,
                                       .loss_scale = 256},
                             sum = {.kind = WIRE_SHARD_SUM, .step = t, .has_sum = true},
                             beat = {.kind = WIRE_HEARTBEAT, .step = t, .ready_ns = 123456789012345};
    for (int i = 0; i < j->count; i++) {
        struct member_of *x = &j->m[i];
        if (x->role == PS_WORKER) say(x, &report);
        if (x->role == PS_SHARD) say(x, &sum);
        if (x->role != PS_SHARD && t % 10 == 0) say(x, &beat);
    }
    deliver(j);
    for (int i = 0; i < j->count; i++) assert_int_equal(j->m[i].done, j->m[i].role == PS_SERVER ? 0 : t + 1);
    j->now += STEP_S;
}

struct row {
    double start_bytes, step_bytes, step_messages;  // the last two: of a member and a step
};

static struct row run(int workers) {
    struct job_size *j = size_create(workers);
    all_come(j);
    double start_s = j->cpu_s, start_bytes = j->start_bytes;
    j->cpu_s = j->sent = j->received = j->messages = 0;
    for (int64_t t = 0; t < STEPS; t++) step(j, t);
    double steps = (double)j->count * STEPS;
    struct row r = {start_bytes, (j->sent + j->received) / steps, j->messages / steps};
    printf(
        "%5d workers %4d servers %5d members: starts with %8.2f MB, %7.3f s; a step %8.1f KB, "
        "%6.0f messages, %8.3f ms of CPU\n",
        workers, j->servers, j->count, 1e-6 * start_bytes, start_s, 1e-3 * (j->sent + j->received) / STEPS,
        j->messages / STEPS, 1e3 * j->cpu_s / STEPS);
    size_destroy(j);
    return r;
}

static void test_growth(void **state) {
    (void)state;
    static const int sizes[] = {8, 64, 512};
    struct row first = run(sizes[0]);
    for (int i = 1; i < 3; i++) {
        struct row r = run(sizes[i]);
        int n = sizes[i], servers = n / 8, shards = THREADS * servers;
        // A step: as much for each member, but for a byte or two of its rank.
        assert_true(r.step_bytes > 0.98 * first.step_bytes && r.step_bytes < 1.05 * first.step_bytes);
        assert_true(fabs(r.step_messages - first.step_messages) < 0.1);
        // How it starts: a line for each shard, to each worker and server; a line for each worker, to the servers; and one more.
        double line = (double)strlen("shard tcp://10.100.100.100:40001 123 -\n"),
               worker = (double)strlen("worker 123 1\n");
        assert_true(r.start_bytes <= (n + servers) * (shards * line + 16) + servers * n * worker);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth)};
    for (int i = 1; i < argc; i++) run(atoi(argv[i]));
    return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
