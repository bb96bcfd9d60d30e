// A job of two workers and a server, as the scheduler's state machine has it: processes that come, are ready, die and begin anew.
#ifndef STARRING_TESTS_RECOVERY_EPOCHS_FIXTURE_H
#define STARRING_TESTS_RECOVERY_EPOCHS_FIXTURE_H

#include "tests/ps/test_ps_log.h"

#define RESTARTS 3

enum { W0, W1, SERVER, SHARD, MEMBERS };

struct process {
    enum ps_role role;
    int rank;
    uint64_t incarnation;
    int pid;
    uint64_t job;  // that it is ready for; 0: none
};

struct fixture {
    struct sim *sim;
    struct log log;
    struct met met;
    struct scheduler_core *core;
    struct process p[MEMBERS];
    uint64_t book[SHARD];  // the life that has each place; 0: it is free
    uint64_t drawn;        // numbers of jobs and processes
    int starts, lost_pid;
    char missed[128];  // who did not come, as the launcher is told
    char why[WIRE_TEXT_MAX];
    int64_t step;       // where the next epoch begins
    bool pending;       // that is not known yet
    uint64_t asked_by;  // the last job that has asked
};

static inline uint64_t draw(void *ctx) { return 1000 + ((struct fixture *)ctx)->drawn++; }
static inline void lost(void *ctx, int pid, const char *name) {
    struct fixture *f = ctx;
    size_t at = strlen(f->missed);
    assert_true(strlen(name) > 0);
    f->lost_pid = pid;
    if (!pid) snprintf(f->missed + at, sizeof f->missed - at, "%s;", name);
}

static inline int starts(void *ctx, const struct epochs *e, struct start_point *out,
                         char error[WIRE_TEXT_MAX]) {
    struct fixture *f = ctx;
    f->asked_by = e->job;
    if (f->pending) return 1;
    f->starts++;
    snprintf(f->why, sizeof f->why, "%s", e->why);
    error[0] = 0;
    out->step = f->step;
    snprintf(out->checkpoint, sizeof out->checkpoint, f->step ? "/run/step-%lld" : "", (long long)f->step);
    return 0;
}

static inline struct fixture *fixture_with(int restarts, int elastic_min, bool launched) {
    struct toy_case t = {.dtype = DT_F16,
                         .consistency = "sync",
                         .workers = 2,
                         .servers = 1,
                         .threads = 1,
                         .steps = elastic_min ? 2 : 1,
                         .elastic_min = elastic_min,
                         .overflow_step = -1};
    struct fixture *f = xcalloc(1, sizeof *f);
    f->sim = sim_create(&t);
    f->sim->c.ps.deadline_ms = 4000;
    struct scheduler_options o = {.config = &f->sim->c,
                                  .map = f->sim->map,
                                  .manifest = {.hash = 5},
                                  .job = draw(f),
                                  .host = {.ctx = f, .job = draw, .lost = lost, .starts = starts},
                                  .epochs = {.restarts = restarts, .replaced = launched},
                                  .port = {&f->log, log_send},
                                  .publish = met_port(&f->met)};
    f->core = scheduler_core_create(&o);
    for (int i = 0; i < MEMBERS; i++) {
        static const enum ps_role roles[] = {PS_WORKER, PS_WORKER, PS_SERVER, PS_SHARD};
        f->p[i] = (struct process){.role = roles[i], .rank = i == W1, .incarnation = draw(f), .pid = 70 + i};
    }
    f->p[SHARD].incarnation = f->p[SERVER].incarnation;
    return f;
}

static inline struct fixture *fixture_of(int restarts, int elastic_min) {
    return fixture_with(restarts, elastic_min, false);
}
static inline struct fixture *fixture_create(int restarts) { return fixture_of(restarts, 0); }

static inline void fixture_destroy(struct fixture *f) {
    scheduler_core_destroy(&f->core);
    sim_destroy(f->sim);
    free(f);
}

static inline uint64_t job_of(const struct fixture *f) { return scheduler_core_epochs(f->core)->job; }
static inline unsigned epoch_of(const struct fixture *f) { return scheduler_core_epochs(f->core)->epoch; }

// One message of a process as it stands; the log holds what it led to. The member that it is of, or -1.
static inline int say(struct fixture *f, const struct process *p, struct wire_header h, double now) {
    h.role = p->role;
    h.rank = p->rank;
    h.incarnation = p->incarnation;
    h.job = p->job;
    f->log.count = 0;
    int member = scheduler_core_sender_of(f->core, &h);
    scheduler_core_message(f->core, &h, now);
    scheduler_core_tick(f->core, now);
    return member;
}

// The same of what the registry says.
static inline void book_says(struct fixture *f, struct member_news n, double now) {
    f->log.count = 0;
    met_tell(f->core, n, now);
    scheduler_core_tick(f->core, now);
}

// It comes, and reads its files from now on.
static inline void comes(struct fixture *f, int who, double now) {
    uint64_t life = f->p[who].incarnation, before = f->book[who];
    if (before == life) return;
    if (before && f->met.out[who] != before) book_says(f, met_lost(who, before, "replaced", 0), now);
    book_says(f, met_came(who, life, f->p[who].pid), now);
    f->book[who] = life;
}

// It comes, and is ready for the epoch that is open. A shard is of its server's process.
static inline void hello(struct fixture *f, int who, double now) {
    struct process *p = &f->p[who];
    char *lines = met_endpoints(p->role == PS_SERVER ? 1 : 0);
    comes(f, who, now);
    struct notice_ready r = {.epoch = epoch_of(f), .manifest = 5, .endpoints = lines};
    if (p->job != job_of(f)) book_says(f, met_ready(who, p->incarnation, &r), now);
    p->job = job_of(f);
    if (who == SERVER) f->p[SHARD].incarnation = p->incarnation, f->p[SHARD].job = p->job;
    free(lines);
}

static inline void leaves(struct fixture *f, int who, double now) {
    book_says(f, met_left(who, f->p[who].incarnation), now);
    f->book[who] = 0;
}

static inline void is_lost(struct fixture *f, int who, const char *how, double now) {
    book_says(f, met_lost(who, f->p[who].incarnation, how, 2.5), now);
    f->book[who] = 0;
}

static inline void come_all(struct fixture *f, double now) {
    int before = f->starts;
    for (int i = 0; i < SHARD; i++) hello(f, i, now);
    assert_int_equal(f->starts, before + 1);
}

// As ps/net/rejoin.c has it: the same process, another incarnation.
static inline void begin_anew(struct fixture *f, int who) {
    f->p[who].incarnation = draw(f);
    f->p[who].job = 0;
}

static inline struct process another(struct fixture *f, int who) {
    return (struct process){
        .role = f->p[who].role, .rank = f->p[who].rank, .incarnation = draw(f), .pid = 170 + (int)f->drawn};
}

static const struct wire_header beat = {.kind = WIRE_HEARTBEAT};
static inline struct wire_header report(int64_t step) {
    return (struct wire_header){
        .kind = WIRE_REPORT, .step = step, .loss = 0.5, .lr = 0.5f, .loss_scale = 1, .clip = 1};
}

#endif
