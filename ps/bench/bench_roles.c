#include "ps/bench/bench_roles.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/net/member.h"
#include "ps/worker/worker_comm.h"
#include "shared/core/error.h"
#include "shared/fabric/job_key.h"
#include "shared/report/rank_report.h"
#include "shared/time/stall_report.h"

// ---------------------------------------------------------------- lines from and to the bench
// Sleeps until ns. Returns the time at which it continued.
static int64_t wait_until(int64_t ns) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
    return now_ns();
}

// Reads the next line, without its newline. Returns 0, or -1: the bench has ended.
static int read_line(int control, char line[BENCH_LINE_MAX]) {
    for (int n = 0; n < BENCH_LINE_MAX - 1;) {
        ssize_t got = read(control, line + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        if (line[n] == '\n') {
            line[n] = 0;
            return 0;
        }
        n++;
    }
    return -1;
}

int bench_send_line(int control, const char *fmt, ...) {
    char line[BENCH_LINE_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    assert(n < (int)sizeof line - 1);
    line[n++] = '\n';
    return send(control, line, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -1;
}

// Fills bytes with numbers of the plan's type, small and different.
static void fill_gradient(const struct bench_plan *p, void *bytes) {
    uint32_t state = 12345;
    for (int64_t i = 0; i < bench_elements(p); i++) {
        state = state * 1664525u + 1013904223u;
        float x = ((float)(state >> 8) / 16777216.0f - 0.5f) * 1e-3f;
        if (p->dtype == DT_F32)
            ((float *)bytes)[i] = x;
        else
            ((uint16_t *)bytes)[i] = f32_to_bf16(x);
    }
}

// ---------------------------------------------------------------- scheduler and server
static struct ps_role_options role_of(const struct bench_role_options *s, const struct config *c,
                                      const struct layout *l, const struct job_key *key) {
    return (struct ps_role_options){
        .config = c, .layout = l, .scheduler = s->address, .key = key, .rank = s->rank};
}

int bench_scheduler(const struct bench_role_options *s) {
    struct layout *l = bench_layout(&s->plan);
    struct config *c = bench_config(s->topologies, &s->plan);
    const struct endpoint here = {"127.0.0.1", 0};
    struct job_key key;
    int rc = -1;
    if (c && job_key_open(false, &key) > 0) {
        struct ps_role_options o = role_of(s, c, l, &key);
        o.scheduler = "tcp://127.0.0.1:*";
        o.meet = member_open(c, &here, false);
        if (o.meet)
            rc = bench_send_line(s->control, "%d tcp://%s:%d", (int)getpid(), here.host,
                                 rendezvous_port(o.meet));
        if (!rc) rc = ps_scheduler_run(&o);
        rendezvous_close(&o.meet);
    }
    job_key_forget(&key);
    config_destroy(&c);
    layout_destroy(&l);
    return rc;
}

int bench_server(const struct bench_role_options *s) {
    struct layout *l = bench_layout(&s->plan);
    struct config *c = bench_config(s->topologies, &s->plan);
    struct rank_report r;
    struct job_key key;
    int rc = -1;
    if (c && !bench_send_line(s->control, "%d", (int)getpid()) && job_key_open(false, &key) > 0) {
        struct ps_role_options o = role_of(s, c, l, &key);
        if ((o.meet = member_enter(&o, PS_SERVER, 1, false))) {
            rc = ps_server_run(&o, &r);
            stall_report_free(&r.stall_report);
        }
        rendezvous_close(&o.meet);
    }
    job_key_forget(&key);
    if (!rc) rc = bench_send_line(s->control, "%.17g %.17g", r.sent_per_step, r.received_per_step);
    config_destroy(&c);
    layout_destroy(&l);
    return rc;
}

// ---------------------------------------------------------------- worker
struct bench_worker_state {
    const struct bench_role_options *options;
    const struct bench_plan *plan;
    struct config *c;
    struct layout *l;
    struct job_key key;
    struct rendezvous *meet;
    struct device *dev;
    struct stream *compute;
    struct topology *t;
    struct comm *comm;
    int64_t step, updates;
    int64_t updates_read;  // version of the weights that were read last
    void **grads;          // (units)
    double loss;
    uint64_t seen;  // checksum of the weights, so that the compiler keeps the reads
};

static int open_worker(struct bench_worker_state *w) {
    const char *why = NULL;
    const struct backend *b = backend_find("cpu", &why);
    struct device_options d = {.threads = 1, .label = error_label()};
    if (!b || dev_open(b, &d, &w->dev) != 0 || !(w->compute = stream_create(w->dev, "compute")))
        return fail("cannot open the cpu device: %s", why ? why : "");
    if (job_key_open(false, &w->key) < 0) return -1;
    struct ps_worker_options o = {
        .role = role_of(w->options, w->c, w->l, &w->key), .dev = w->dev, .compute = w->compute};
    if (!(o.role.meet = w->meet = member_enter(&o.role, PS_WORKER, 1, false))) return -1;
    if (!(w->t = ps_worker_create(&o))) return -1;
    w->comm = ps_worker_comm(w->t);
    w->grads = xcalloc((unsigned long)w->l->count, sizeof *w->grads);
    float *zeros = xcalloc((unsigned long)bench_elements(w->plan), sizeof *zeros);
    int rc = 0;
    for (int u = 0; u < w->l->count && !rc; u++) rc = topology_load_unit(w->t, u, zeros);
    free(zeros);
    for (int u = 0; u < w->l->count && !rc; u++) {
        struct unit_view view;
        rc = topology_acquire(w->t, u, PASS_BACKWARD, &view);
        if (rc) return rc;
        w->grads[u] = view.grad;
        fill_gradient(w->plan, view.grad);
    }
    return rc;
}

// Pushes a unit, as the last kernel of its backward pass does.
static void push(struct bench_worker_state *w, int u) {
    const struct push_info push = {.step = w->step,
                                   .lr = schedule_lr(&w->c->schedule, w->c->optimizer.lr, w->updates),
                                   .grad_scale = 1.0f};
    worker_core_push_unit(comm_lock(w->comm), u, &push);
    comm_unlock_wake(w->comm);
}

static int await_acknowledged(struct bench_worker_state *w, int u) {
    const struct comm_wait wait = {worker_core_has_freed, u, w->step, 0};
    return comm_wait(w->comm, &wait, "a gradient was not acknowledged");
}

static void set_first(struct bench_worker_state *w, float x) {
    if (w->plan->dtype == DT_F32)
        *(float *)w->grads[0] = x;
    else
        *(uint16_t *)w->grads[0] = f32_to_bf16(x);
}

// Reads weights in shared memory, which may be the server's own: the worker first touches them when it uses them.
// Weights that arrived in frames have already been read, when they were copied.
static void read_shared(struct bench_worker_state *w, const struct unit_view *view) {
    uint64_t seen = 0, word;
    if (w->plan->medium != BENCH_SHM) return;
    for (size_t at = 0; at < w->plan->bytes; at += sizeof word) {
        memcpy(&word, (const char *)view->weights + at, sizeof word);
        seen ^= word;
    }
    w->seen ^= seen;
}

static int await_units(struct bench_worker_state *w, enum pass pass) {
    struct unit_view view;
    for (int u = 0; u < w->l->count; u++) {
        if (topology_acquire(w->t, u, pass, &view) != 0) return -1;
        if (pass == PASS_BACKWARD && await_acknowledged(w, u) != 0) return -1;
        if (pass == PASS_FORWARD) read_shared(w, &view);
    }
    if (pass == PASS_BACKWARD) return 0;
    w->updates_read = worker_core_version(comm_lock(w->comm));
    comm_unlock(w->comm);
    return 0;
}

static int close_step(struct bench_worker_state *w) {
    struct step_input in = {.step = w->step,
                            .updates = w->updates,
                            .lr = schedule_lr(&w->c->schedule, w->c->optimizer.lr, w->updates),
                            .loss_scale = 1.0f,
                            .clip = w->c->clip,
                            .loss_sum = &w->loss,
                            .loss_tokens = 1};
    struct step_stats stats;
    if (topology_step(w->t, &in, &stats) != 0) return -1;
    w->step++;
    if (!stats.skipped) w->updates++;
    return 0;
}

static int update(struct bench_worker_state *w) {
    for (int u = 0; u < w->l->count; u++) push(w, u);
    return close_step(w);
}

// Pushes all gradients at once. The scheduler closes the step when they are summed. After the measurement the step is
// followed by an update whose weights are not read, so that the next pull gets new weights, which are in no cache.
static int whole_step(struct bench_worker_state *w, int64_t start) {
    if (await_units(w, PASS_BACKWARD) != 0) return -1;
    if (w->options->rank == 0) set_first(w, 1e-3f);
    int64_t begin = wait_until(start);
    if (update(w) != 0) return -1;
    int64_t summed = now_ns();
    if (await_units(w, PASS_FORWARD) != 0) return -1;
    int64_t end = now_ns();
    if (await_units(w, PASS_BACKWARD) != 0 || update(w) != 0 || await_units(w, PASS_BACKWARD) != 0) return -1;
    return bench_send_line(w->options->control, "%" PRId64 " %" PRId64 " %" PRId64, begin, summed, end);
}

// Delays the report, and with it the answers to the pulls, by REST ns, in which the sums finish.
static int only_pulls(struct bench_worker_state *w, int64_t start, int64_t rest) {
    int64_t read = w->updates_read;
    if (await_units(w, PASS_BACKWARD) != 0) return -1;
    if (w->options->rank == 0) set_first(w, INFINITY);
    wait_until(start);
    for (int u = 0; u < w->l->count; u++) push(w, u);
    int64_t begin = wait_until(start + rest);
    if (close_step(w) != 0 || await_units(w, PASS_FORWARD) != 0) return -1;
    int64_t end = now_ns();
    if (w->updates_read <= read)
        return fail("bench ps: a pull read weights of update %lld again", (long long)read);
    return bench_send_line(w->options->control, "%" PRId64 " %" PRId64, begin, end);
}

// Measures the payloads of a step one at a time: no other payload is in flight.
static int measure_latency(struct bench_worker_state *w, int64_t start, int steps) {
    char line[BENCH_LINE_MAX];
    size_t at = 0;
    wait_until(start);
    for (int i = 0; i < steps; i++) {
        for (int u = 0; u < w->l->count; u++) {
            struct unit_view view;
            if (topology_acquire(w->t, u, PASS_BACKWARD, &view) != 0) return -1;
            int64_t begin = now_ns();
            push(w, u);
            if (await_acknowledged(w, u) != 0) return -1;
            int64_t acknowledged = now_ns();
            const struct comm_wait landed = {worker_core_has_landed, u, w->step + 1, 0};
            if (comm_wait(w->comm, &landed, "weights have not landed") != 0) return -1;
            read_shared(w, &view);
            at += (size_t)snprintf(line + at, sizeof line - at, "%" PRId64 " %" PRId64 " ",
                                   acknowledged - begin, now_ns() - begin);
            if (at + 48 > sizeof line) return fail("bench ps: too many payloads a shard for one answer");
        }
        if (close_step(w) != 0) return -1;
    }
    return bench_send_line(w->options->control, "%s", line);
}

// Measures the payloads of a step one at a time; no server updates before all have arrived. Only over tcp: in shared
// memory the weights are the acknowledgement.
static int measure_acknowledgements(struct bench_worker_state *w, int64_t start) {
    char line[BENCH_LINE_MAX];
    size_t at = 0;
    if (await_units(w, PASS_BACKWARD) != 0) return -1;
    if (w->options->rank == 0) set_first(w, 1e-3f);
    wait_until(start);
    for (int u = 0; u < w->l->count; u++) {
        int64_t begin = now_ns();
        push(w, u);
        if (await_acknowledged(w, u) != 0) return -1;
        at += (size_t)snprintf(line + at, sizeof line - at, "%" PRId64 " ", now_ns() - begin);
        if (at + 24 > sizeof line) return fail("bench ps: too many payloads a step for one answer");
    }
    if (close_step(w) != 0 || await_units(w, PASS_BACKWARD) != 0) return -1;
    return bench_send_line(w->options->control, "%s", line);
}

int bench_worker(const struct bench_role_options *s) {
    struct bench_worker_state w = {.options = s, .plan = &s->plan, .l = bench_layout(&s->plan)};
    char line[BENCH_LINE_MAX];
    int rc = -1;
    if ((w.c = bench_config(s->topologies, &s->plan))) rc = open_worker(&w);
    if (!rc) rc = bench_send_line(s->control, "%d", (int)getpid());
    while (!rc && !(rc = read_line(s->control, line)) && strcmp(line, "end") != 0) {
        int64_t start, rest;
        int steps;
        if (sscanf(line, "step %" SCNd64, &start) == 1)
            rc = whole_step(&w, start);
        else if (sscanf(line, "pull %" SCNd64 " %" SCNd64, &start, &rest) == 2)
            rc = only_pulls(&w, start, rest);
        else if (sscanf(line, "latency %" SCNd64 " %d", &start, &steps) == 2)
            rc = measure_latency(&w, start, steps);
        else if (sscanf(line, "acknowledge %" SCNd64, &start) == 1)
            rc = measure_acknowledgements(&w, start);
        else
            rc = fail("bench ps: a worker received \"%s\"", line);
    }
    if (!rc) rc = topology_finish(w.t);
    if (!rc)
        rc = bench_send_line(s->control, "%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRIu64,
                             atomic_load(&w.t->wire.payload_sent), atomic_load(&w.t->wire.payload_received),
                             w.step, w.seen);
    topology_destroy(&w.t);
    rendezvous_close(&w.meet);
    job_key_forget(&w.key);
    if (w.compute) stream_destroy(&w.compute);
    dev_close(&w.dev);
    free(w.grads);
    layout_destroy(&w.l);
    config_destroy(&w.c);
    return rc;
}
