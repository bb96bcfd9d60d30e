// The scheduler's state machine under any history of processes: they log in, speak, die, come again, and speak on after
// they have been replaced. Of what it says this is checked: a step has one decision, made after each worker has reported
// it and each shard has sent its sum in this epoch; steps come one after the other; epochs do not go back. A message counts
// if its sender is the process that logged in for its rank, in this epoch, and only then.
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_log.h"

#define PROCESSES 24
#define RESTARTS  1000
#define STEPS_MAX 64

struct process {
    enum ps_role role;
    int rank, thread, pid;
    uint64_t incarnation, was, job;
};

struct life {
    struct sim *s;
    struct log log;
    struct scheduler_core *core;
    struct fuzz_bytes in;
    struct process p[PROCESSES];
    int count;
    uint64_t drawn;
    // Of this epoch:
    uint32_t epoch;
    uint64_t of[16];  // (members) the process that logged in last; 0: none
    int64_t reported[16], decided, begun;
    struct wire_header decision;
    bool flooded;
};

static uint64_t draw(void *ctx) { return 5000 + ((struct life *)ctx)->drawn++; }
static void lost(void *ctx, int pid, const char *name) {
    (void)ctx, (void)pid;
    FUZZ_CHECK(name[0], "nobody is lost");
}

// Goes on from what was reached, as a checkpoint of that step would have it.
static int starts(void *ctx, const struct epochs *e, struct start_point *out, char error[WIRE_TEXT_MAX]) {
    struct life *x = ctx;
    error[0] = 0;
    out->step = e->reached > 0 ? e->reached : 0;
    x->begun = out->step;
    return 0;
}

static void create(struct life *x, uint8_t flags) {
    struct scheduler_options o = {.config = &x->s->c,
                                  .map = x->s->map,
                                  .manifest = {.hash = 5},
                                  .job = draw(x),
                                  .starts = starts,
                                  .starts_ctx = x,
                                  .epochs = {.restarts = flags & 1 ? RESTARTS : 0,
                                             .ctx = x,
                                             .job = draw,
                                             .lost = lost,
                                             .replaced = flags & 2},
                                  .port = {&x->log, log_send}};
    x->s->c.ps.deadline_ms = 4000;
    x->core = scheduler_core_create(&o);
}

// ---------------------------------------------------------------- what it says
static void check_decision(struct life *x, const struct wire_header *h) {
    const struct shard_map *map = x->s->map;
    int workers = x->s->t.workers, base = workers + x->s->t.servers;
    if (h->step == x->decided && x->decision.kind) {
        FUZZ_CHECK(h->grad_scale == x->decision.grad_scale && h->flags == x->decision.flags &&
                       h->norm == x->decision.norm,
                   "step %lld has two decisions", (long long)h->step);
        return;
    }
    int64_t next = x->decision.kind ? x->decided + 1 : x->begun;
    FUZZ_CHECK(h->step == next, "step %lld is decided where step %lld is due", (long long)h->step,
               (long long)next);
    for (int w = 0; w < workers; w++)
        FUZZ_CHECK(x->reported[w] >= h->step, "step %lld is decided without worker %d", (long long)h->step,
                   w);
    for (int g = 0; g < map->shards; g++)
        FUZZ_CHECK(!map->shard_keys[g] || x->reported[base + g] >= h->step,
                   "step %lld is decided without shard %d", (long long)h->step, g);
    x->decided = h->step;
    x->decision = *h;
}

static void check(struct life *x) {
    const struct epochs *e = scheduler_core_epochs(x->core);
    FUZZ_CHECK(e->epoch >= x->epoch && e->used <= e->o.restarts, "epoch %u after %u", e->epoch, x->epoch);
    for (int i = 0; i < x->log.count; i++) {
        const struct wire_header *h = &x->log.sent[i].h;
        if (h->kind == WIRE_DECISION) check_decision(x, h);
        if (h->kind == WIRE_STEP_DONE)
            FUZZ_CHECK(x->decision.kind && h->step == x->decided, "step %lld is done without a decision",
                       (long long)h->step);
    }
    x->log.count = 0;
    if (e->epoch == x->epoch) return;
    x->epoch = e->epoch;
    memset(x->of, 0, sizeof x->of);
    for (int i = 0; i < 16; i++) x->reported[i] = -1;
    x->decision.kind = WIRE_NONE;
}

// ---------------------------------------------------------------- what it hears
static int hear(struct life *x, struct wire_header h, size_t bytes, void *payload) {
    uint8_t wire[WIRE_HEADER_MAX];
    size_t n = wire_encode(&h, wire);
    if (!n || wire_decode(wire, n, bytes, &h) != 0) {
        free(payload);
        return -2;
    }
    const struct epochs *e = scheduler_core_epochs(x->core);
    uint32_t epoch = e->epoch;
    uint64_t job = e->job;
    bool failed = scheduler_core_error(x->core)[0] != 0;
    int64_t steps = scheduler_core_steps(x->core);
    int i = scheduler_core_message(x->core, &h, sim_frame(x->s, payload, bytes), x->s->now);
    if (!bytes) free(payload);
    if (h.kind == WIRE_HELLO) return i;
    if (i < 0) {
        FUZZ_CHECK(e->epoch == epoch && failed == (scheduler_core_error(x->core)[0] != 0) &&
                       scheduler_core_steps(x->core) == steps,
                   "a %s of nobody changes the job", wire_kind_name(h.kind));
        return i;
    }
    FUZZ_CHECK(h.job == job && i < 16 && h.incarnation == x->of[i],
               "a %s of process %llu counts as member %d's", wire_kind_name(h.kind),
               (unsigned long long)h.incarnation, i);
    return i;
}

static int number_of(const struct life *x, const struct process *p) {
    int servers = x->s->t.workers, shards = servers + x->s->t.servers;
    return p->role == PS_WORKER   ? p->rank
           : p->role == PS_SERVER ? servers + p->rank
                                  : shards + p->rank * x->s->t.threads + p->thread;
}

// Whether it is the process that logged in last for its rank, in this epoch.
static bool belongs(const struct life *x, const struct process *p) {
    int i = number_of(x, p);
    return i >= 0 && i < 16 && x->of[i] == p->incarnation && p->job == scheduler_core_epochs(x->core)->job;
}

// What follows an accepted message is known before the scheduler speaks of it.
static void note(struct life *x, const struct process *p, const struct wire_header *h) {
    int i = number_of(x, p);
    if (!belongs(x, p)) return;
    bool says = (p->role == PS_WORKER && h->kind == WIRE_REPORT) ||
                (p->role == PS_SHARD && h->kind == WIRE_SHARD_SUM);
    if (says && h->step > x->reported[i]) x->reported[i] = h->step;
}

static void say(struct life *x, const struct process *p, struct wire_header h) {
    h.role = p->role;
    h.rank = p->rank;
    h.thread = p->thread;
    h.incarnation = p->incarnation;
    h.job = p->job;
    if (h.kind == WIRE_HELLO || h.kind == WIRE_START) return;
    if (h.kind == WIRE_PUSH || h.kind == WIRE_PULL_REPLY || h.kind == WIRE_SNAPSHOT_REPLY) return;
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    note(x, p, &h);
    // Shards leave with their server, which may have begun anew.
    bool heard = belongs(x, p) && p->role != PS_SHARD && p->role != PS_SCHEDULER;
    int i = hear(x, h, 0, NULL);
    FUZZ_CHECK(i >= 0 || i == -2 || !heard, "a %s of a member is not heard", wire_kind_name(h.kind));
}

static int hello(struct life *x, struct process *p, uint64_t was) {
    struct wire_header h = {.kind = WIRE_HELLO,
                            .role = p->role,
                            .rank = p->rank,
                            .thread = p->thread,
                            .incarnation = p->incarnation,
                            .job = p->role == PS_SHARD ? scheduler_core_epochs(x->core)->job : p->job,
                            .manifest = 5,
                            .key = p->pid,
                            .seq = was};
    // No identity; of a server a line for each of its shards.
    static const char line[] = "tcp://y:1\n";
    int lines = p->role == PS_SERVER ? x->s->t.threads : 0;
    size_t bytes = 1 + (size_t)lines * (sizeof line - 1);
    char *payload = xcalloc(bytes, 1);
    for (int i = 0; i < lines; i++)
        memcpy(payload + 1 + (size_t)i * (sizeof line - 1), line, sizeof line - 1);
    uint32_t epoch = scheduler_core_epochs(x->core)->epoch;
    int i = hear(x, h, bytes, payload);
    // Its HELLO may have ended an epoch: then it is the first of the next.
    if (scheduler_core_epochs(x->core)->epoch != epoch) check(x);
    if (i < 0 || i >= 16) return i;
    p->job = scheduler_core_epochs(x->core)->job;
    if (p->role != PS_SHARD) p->rank = i < x->s->t.workers ? i : i - x->s->t.workers;
    x->of[i] = p->incarnation;
    return i;
}

static struct process *another(struct life *x, enum ps_role role, int rank, int thread) {
    struct process *p = &x->p[x->count++ % PROCESSES];
    *p = (struct process){
        .role = role, .rank = rank, .thread = thread, .pid = 70 + x->count, .incarnation = draw(x)};
    return p;
}

static void login_all(struct life *x) {
    const struct toy_case *t = &x->s->t;
    for (int w = 0; w < t->workers; w++) hello(x, another(x, PS_WORKER, w, 0), 0);
    for (int i = 0; i < t->servers; i++) {
        struct process *p = another(x, PS_SERVER, i, 0);
        hello(x, p, 0);
        for (int k = 0; k < t->threads; k++) {
            struct process *q = another(x, PS_SHARD, i, k);
            q->incarnation = p->incarnation;
            hello(x, q, 0);
        }
    }
}

// All that a step takes, from the processes that are there.
static void make_step(struct life *x, int64_t step) {
    for (int i = 0; i < PROCESSES && i < x->count; i++) {
        struct wire_header h = {.kind = x->p[i].role == PS_SHARD ? WIRE_SHARD_SUM : WIRE_REPORT,
                                .step = step,
                                .loss = 0.5,
                                .lr = TOY_LR,
                                .loss_scale = 1,
                                .clip = 1};
        if (x->p[i].role == PS_SHARD) h.sum.limb[10] = 5;
        if (x->p[i].role != PS_SERVER) say(x, &x->p[i], h);
        check(x);
    }
}

// One process that says HELLO, as a process that has begun anew, without end.
static void flood(struct life *x, struct process *p) {
    size_t before = fuzz_allocated();
    if (x->flooded) return;
    x->flooded = true;
    for (uint64_t i = 0; i < 3000; i++) {
        hello(x, p, 100000 + i);
        check(x);
    }
    size_t now = fuzz_allocated();
    FUZZ_CHECK(now < before + 16384, "3000 HELLOs take %zu bytes", now - before);
}

static void turn(struct life *x) {
    uint8_t what = fuzz_u8(&x->in);
    struct process *p =
        x->count ? &x->p[fuzz_below(&x->in, (uint64_t)(x->count < PROCESSES ? x->count : PROCESSES))] : NULL;
    x->s->now += 0.001;
    switch (what & 15) {
        case 0:
        case 1:
            p = another(x, (enum ps_role)(what >> 4 & 3), (int)(what >> 6) - 1, 0);
            hello(x, p, 0);
            break;
        case 2:
            if (p) hello(x, p, what & 16 ? p->incarnation ^ 1 : 0);
            break;
        case 3:
            login_all(x);
            break;
        case 4:
        case 5:
        case 6:
            if (p) say(x, p, star_header(&x->in, x->s->map->count));
            break;
        case 7:
            make_step(x, what >> 4);
            break;
        case 8:
            tell_dead(x->core,
                      what & 16   ? "worker 1"
                      : what & 32 ? "server 0"
                                  : "worker 0",
                      70 + (what >> 4), "killed", x->s->now);
            break;
        case 9:
            x->s->now += what >> 4;
            break;
        case 10:  // it begins anew, as the same process
            if (p) {
                p->was = p->incarnation;
                p->incarnation = draw(x);
                p->job = 0;
                hello(x, p, p->was);
            }
            break;
        case 11:
            if (p) {
                struct process liar = *p;
                if (what & 16)
                    liar.job ^= UINT64_C(1) << (what >> 6);
                else
                    liar.incarnation ^= UINT64_C(1) << (what >> 6);
                say(x, &liar, star_header(&x->in, x->s->map->count));
            }
            break;
        case 12:
            if (p && what & 16) flood(x, p);
            break;
        default:
            make_step(x, x->decision.kind ? x->decided + 1 : x->begun);
    }
    check(x);
    scheduler_core_tick(x->core, x->s->now);
    check(x);
}

FUZZ_TARGET(scheduler) {
    char text[WIRE_TEXT_MAX > WIRE_TEXT_MAX ? ROUNDS_TEXT_MAX : WIRE_TEXT_MAX];
    struct life x = {.in = {data, size}};
    struct toy_case t = star_case(&x.in);
    t.consistency = "sync";
    x.s = sim_create(&t);
    create(&x, fuzz_u8(&x.in));
    check(&x);
    x.epoch = scheduler_core_epochs(x.core)->epoch;
    for (int i = 0; i < 16; i++) x.reported[i] = -1;
    while (x.in.left) turn(&x);
    scheduler_core_slow(x.core, x.s->now, text);
    scheduler_core_news(x.core, text);
    if (scheduler_core_error(x.core)[0]) scheduler_core_part(x.core, x.s->now);
    scheduler_core_destroy(&x.core);
    sim_destroy(x.s);
}
