// The scheduler's state machine under any history of processes: they come, are ready, speak, leave, are lost, come again, and
// speak on after they have been replaced. These of its messages are checked: a step has one decision, made after each worker
// has reported it and each shard has sent its sum in this epoch; steps follow one another; epochs do not go back. A message
// counts if its sender is the process that is ready for this epoch in its place, and only then; a word of the registry about a process
// that has no place changes nothing.
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_log.h"

#define PROCESSES 24
#define RESTARTS  1000
#define STEPS_MAX 64

struct process {
    enum ps_role role;
    int rank, thread, pid;
    uint64_t incarnation, job;
};

struct life {
    struct sim *s;
    struct log log;
    struct met met;
    struct scheduler_core *core;
    struct fuzz_bytes in;
    struct process p[PROCESSES];
    int count;
    uint64_t drawn;
    // In this epoch:
    uint32_t epoch;
    uint64_t of[16];    // (members) the process that is ready; 0: none
    uint64_t book[16];  // (members) that has the place; 0: it is free
    int dead[16];       // (members) the process whose death a launcher has told of
    int64_t reported[16], decided, begun;
    struct wire_header decision;
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
                                  .host = {.ctx = x, .job = draw, .lost = lost, .starts = starts},
                                  .epochs = {.restarts = flags & 1 ? RESTARTS : 0, .replaced = flags & 2},
                                  .port = {&x->log, log_send},
                                  .publish = met_port(&x->met)};
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
    FUZZ_CHECK(e->epoch >= x->epoch && e->restarts.used <= e->restarts.count, "epoch %u after %u", e->epoch,
               x->epoch);
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
// Whether what is said must change nothing.
static bool same(const struct life *x, uint32_t epoch, bool failed, int64_t steps) {
    return scheduler_core_epochs(x->core)->epoch == epoch &&
           failed == (scheduler_core_error(x->core)[0] != 0) && scheduler_core_steps(x->core) == steps;
}

// The member that it counts as, -1: nobody; -2: no message.
static int hear(struct life *x, struct wire_header h) {
    uint8_t wire[WIRE_HEADER_MAX];
    size_t n = wire_encode(&h, wire);
    if (!n || wire_decode(wire, n, 0, &h) != 0) return -2;
    const struct epochs *e = scheduler_core_epochs(x->core);
    uint32_t epoch = e->epoch;
    uint64_t job = e->job;
    bool failed = scheduler_core_error(x->core)[0] != 0;
    int64_t steps = scheduler_core_steps(x->core);
    int i = scheduler_core_sender_of(x->core, &h);
    scheduler_core_message(x->core, &h, x->s->now);
    FUZZ_CHECK(i >= 0 || same(x, epoch, failed, steps), "a %s of nobody changes the job",
               wire_kind_name(h.kind));
    int shard = i - x->s->t.workers - x->s->t.servers;
    int of = shard < 0 ? i : x->s->t.workers + shard / x->s->t.threads;
    FUZZ_CHECK(failed || i < 0 || (h.job == job && i < 16 && h.incarnation == x->of[of]),
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

// The place of its process; -1: it has none.
static int place_of(const struct life *x, const struct process *p) {
    bool worker = p->role == PS_WORKER;
    if (p->rank < 0 || p->rank >= (worker ? x->s->t.workers : x->s->t.servers)) return -1;
    if (p->role != PS_WORKER && p->role != PS_SERVER && p->role != PS_SHARD) return -1;
    return worker ? p->rank : x->s->t.workers + p->rank;
}

// Whether it is the process that is ready in its place for this epoch.
static bool belongs(const struct life *x, const struct process *p) {
    int i = place_of(x, p);
    return i >= 0 && i < 16 && x->of[i] == p->incarnation && p->job == scheduler_core_epochs(x->core)->job;
}

// The consequences of an accepted message are known before the scheduler sends any.
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
    if (h.kind == WIRE_PUSH || h.kind == WIRE_PULL_REPLY || h.kind == WIRE_SNAPSHOT_REPLY) return;
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    note(x, p, &h);
    bool heard = belongs(x, p) && p->thread < x->s->t.threads && !scheduler_core_error(x->core)[0];
    int i = hear(x, h);
    FUZZ_CHECK(i >= 0 || i == -2 || !heard, "a %s of a member is not heard", wire_kind_name(h.kind));
}

// How many have yet to be ready.
static int lacks(const struct life *x) {
    int workers, servers;
    return scheduler_core_waits(x->core, &workers, &servers) ? workers + servers : 0;
}

// Messages of the registry; data: malloc'd. A message of a process without a rank must change nothing.
static void book_says(struct life *x, struct member_news n) {
    uint32_t epoch = scheduler_core_epochs(x->core)->epoch;
    bool failed = scheduler_core_error(x->core)[0] != 0;
    int64_t steps = scheduler_core_steps(x->core);
    bool stale =
        n.kind != MEMBER_JOINED && (n.member < 0 || n.member >= 16 || x->book[n.member] != n.incarnation);
    int given_up = x->met.given_up, missing = lacks(x);
    met_tell(x->core, n, x->s->now);
    if (n.kind == MEMBER_SENT && lacks(x) < missing) x->of[n.member] = n.incarnation;
    FUZZ_CHECK(!stale || same(x, epoch, failed, steps), "news of a life without a place changes the job");
    if (x->met.given_up == given_up) return;
    for (int i = 0; i < 16; i++)
        if (x->book[i] && x->book[i] == x->met.out[i]) x->book[i] = x->of[i] = 0;
}

// It comes to its place: whoever has it is lost.
static void comes(struct life *x, struct process *p) {
    int i = place_of(x, p);
    if (i < 0 || i >= 16 || p->role == PS_SHARD || x->book[i] == p->incarnation) return;
    if (x->book[i]) book_says(x, met_lost(i, x->book[i], "replaced", 0));
    check(x);
    book_says(x, met_came(i, p->incarnation, p->pid));
    check(x);
    if (x->met.out[i] == p->incarnation || p->pid == x->dead[i] || scheduler_core_error(x->core)[0]) return;
    x->book[i] = p->incarnation;
    x->of[i] = 0;
}

static void is_ready(struct life *x, struct process *p) {
    int i = place_of(x, p);
    if (i < 0 || i >= 16 || p->role == PS_SHARD) return;
    char *lines = met_endpoints(p->role == PS_SERVER ? x->s->t.threads : 0);
    struct notice_ready r = {.epoch = x->met.epoch, .manifest = 5, .endpoints = lines};
    book_says(x, met_ready(i, p->incarnation, &r));
    free(lines);
    if (x->of[i] == p->incarnation) p->job = scheduler_core_epochs(x->core)->job;
}

static void come_ready(struct life *x, struct process *p) {
    comes(x, p);
    is_ready(x, p);
}

// A process that has its rank, or had it, may send anything.
static void any_news(struct life *x, const struct process *p, uint8_t what) {
    static const char *const how[] = {"silent", "gone", "replaced", ""};
    int i = place_of(x, p);
    if (i < 0 || i >= 16) return;
    bool has = x->book[i] == p->incarnation;
    struct notice_failed f = {.epoch = x->met.epoch - (what >> 7), .lost = what & 64, .why = "it failed"};
    switch (what >> 4 & 3) {
        case 0:
            book_says(x, met_left(i, p->incarnation));
            if (has) x->book[i] = 0;
            break;
        case 1:
            book_says(x, met_lost(i, p->incarnation, how[what >> 6], 2));
            if (has) x->book[i] = x->of[i] = 0;
            break;
        case 2:
            book_says(x, met_failed(i, p->incarnation, &f));
            break;
        default:
            book_says(
                x, met_said(i, p->incarnation, what & 64 ? NOTICE_READY : NOTICE_FAILED, fuzz_text(&x->in)));
    }
}

static struct process *another(struct life *x, enum ps_role role, int rank, int thread) {
    struct process *p = &x->p[x->count++ % PROCESSES];
    *p = (struct process){
        .role = role, .rank = rank, .thread = thread, .pid = 70 + x->count, .incarnation = draw(x)};
    return p;
}

static void come_all(struct life *x) {
    const struct toy_case *t = &x->s->t;
    for (int w = 0; w < t->workers; w++) come_ready(x, another(x, PS_WORKER, w, 0));
    for (int i = 0; i < t->servers; i++) {
        struct process *p = another(x, PS_SERVER, i, 0);
        come_ready(x, p);
        for (int k = 0; k < t->threads; k++) {
            struct process *q = another(x, PS_SHARD, i, k);
            q->incarnation = p->incarnation;
            q->job = p->job;
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

// A launcher tells of a death.
static void dies(struct life *x, uint8_t what) {
    int member = what & 16 ? 1 : what & 32 ? x->s->t.workers : 0, pid = 70 + (what >> 4);
    char name[32];
    bool server = member >= x->s->t.workers;
    snprintf(name, sizeof name, "%s %d", server ? "server" : "worker", server ? 0 : member);
    if (member < x->s->t.workers + x->s->t.servers) x->dead[server ? x->s->t.workers : member] = pid;
    tell_dead(x->core, name, pid, "killed", x->s->now);
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
            come_ready(x, p);
            break;
        case 2:
            if (p) come_ready(x, p);
            break;
        case 3:
            come_all(x);
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
            dies(x, what);
            break;
        case 9:
            x->s->now += what >> 4;
            break;
        case 10:  // it begins anew, as the same process
            if (p) {
                p->incarnation = draw(x);
                p->job = 0;
                comes(x, p);
                if (what & 16) is_ready(x, p);
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
            if (p) any_news(x, p, what);
            break;
        default:
            make_step(x, x->decision.kind ? x->decided + 1 : x->begun);
    }
    check(x);
    scheduler_core_tick(x->core, x->s->now);
    check(x);
}

FUZZ_TARGET(scheduler) {
    char text[WIRE_TEXT_MAX];
    struct life x = {.in = {data, size}};
    struct toy_case t = star_case(&x.in);
    t.consistency = "sync";
    x.s = sim_create(&t);
    create(&x, fuzz_u8(&x.in));
    check(&x);
    x.epoch = scheduler_core_epochs(x.core)->epoch;
    for (int i = 0; i < 16; i++) x.reported[i] = -1;
    while (x.in.left) turn(&x);
    scheduler_core_next_slow_line(x.core, x.s->now, text);
    scheduler_core_next_news_line(x.core, text);
    scheduler_core_destroy(&x.core);
    sim_destroy(x.s);
}
