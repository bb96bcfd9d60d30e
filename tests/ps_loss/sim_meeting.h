// The meeting of a simulated job: what a scheduler tells there is written down, and what its book says is made up.
#ifndef STARRING_TESTS_PS_LOSS_SIM_MEETING_H
#define STARRING_TESTS_PS_LOSS_SIM_MEETING_H

#include "ps/scheduler/scheduler_core.h"
#include "shared/core/error.h"

#define MET_MEMBERS 16  // of whom it is known what each was told

struct met {
    int opens, starts, joins, overs, given_up, ends;  // how often
    uint32_t epoch;                                   // that is open
    struct notice_start start;                        // the last one that was told; it has no roster
    char roster[2][4096];                             // of the last starts, for workers and for servers
    // The last life that was told where to join, and the last that was given up.
    uint64_t joined[MET_MEMBERS], out[MET_MEMBERS];
    uint32_t lives[MET_MEMBERS];  // of those that joined: which of its rank it is
    char why[WIRE_TEXT_MAX];      // the last that was over, given up or ended
};

static inline void met_opens(void *ctx, const struct epochs *e) {
    struct met *m = ctx;
    m->opens++;
    m->epoch = e->epoch;
}
// As it comes to a role.
static inline void met_start(struct met *m, int k, const struct notice_start *s) {
    char *text = notice_start_text(s), *roster = roster_text(s->roster);
    snprintf(m->roster[k], sizeof m->roster[k], "%s", roster);
    m->start = *s;
    m->start.roster = NULL;
    free(roster);
    free(text);
}
static inline void met_starts(void *ctx, enum ps_role role, const struct notice_start *s) {
    struct met *m = ctx;
    met_start(m, role == PS_SERVER, s);
    m->starts++;
}
static inline void met_joins(void *ctx, int worker, uint64_t life, const struct notice_start *s) {
    struct met *m = ctx;
    met_start(m, 0, s);
    m->joins++;
    if (worker >= MET_MEMBERS) return;
    m->joined[worker] = life;
    m->lives[worker] = s->process_no;
}
static inline void met_over(void *ctx, uint32_t epoch, const char *why) {
    struct met *m = ctx;
    (void)epoch;
    m->overs++;
    snprintf(m->why, sizeof m->why, "%s", why);
}
static inline void met_gives_up(void *ctx, int member, uint64_t life, const char *why) {
    struct met *m = ctx;
    m->given_up++;
    if (member < MET_MEMBERS) m->out[member] = life;
    snprintf(m->why, sizeof m->why, "%s", why);
}
static inline void met_ends(void *ctx, const char *why) {
    struct met *m = ctx;
    m->ends++;
    snprintf(m->why, sizeof m->why, "%s", why);
}
static inline struct publish_port met_port(struct met *m) {
    return (struct publish_port){m, met_opens, met_starts, met_joins, met_over, met_gives_up, met_ends};
}

// ---------------------------------------------------------------- what the registry says
static inline struct member_news met_came(int member, uint64_t life, int pid) {
    return (struct member_news){
        .kind = MEMBER_JOINED, .member = member, .incarnation = life, .pid = pid, .host = "h"};
}
static inline struct member_news met_left(int member, uint64_t life) {
    return (struct member_news){.kind = MEMBER_LEFT, .member = member, .incarnation = life};
}
// how: "silent", "gone", "replaced".
static inline struct member_news met_lost(int member, uint64_t life, const char *how, double silent_s) {
    struct member_news n = {.kind = MEMBER_LOST, .member = member, .incarnation = life, .silent_s = silent_s};
    snprintf(n.word, sizeof n.word, "%s", how);
    return n;
}
// data: malloc'd.
static inline struct member_news met_said(int member, uint64_t life, const char *word, char *data) {
    struct member_news n = {
        .kind = MEMBER_SENT, .member = member, .incarnation = life, .data = data, .bytes = strlen(data)};
    snprintf(n.word, sizeof n.word, "%s", word);
    return n;
}
static inline struct member_news met_ready(int member, uint64_t life, const struct notice_ready *r) {
    return met_said(member, life, NOTICE_READY, notice_ready_text(r));
}
static inline struct member_news met_failed(int member, uint64_t life, const struct notice_failed *f) {
    return met_said(member, life, NOTICE_FAILED, notice_failed_text(f));
}
static inline void met_tell(struct scheduler_core *c, struct member_news n, double now) {
    scheduler_core_on_news(c, &n, now);
    free(n.data);
}

// The sender is a server with so many threads; 0: a worker. Malloc'd.
static inline char *met_endpoints(int threads) {
    char *lines = xcalloc((size_t)threads * 16 + 1, 1);
    for (int t = 0; t < threads; t++) strcat(lines, "tcp://x:1\n");
    return lines;
}
// A member comes and is ready for the epoch that is open, of a job whose manifest is 5.
static inline void met_joins_epoch(struct scheduler_core *c, int member, uint64_t life, int pid, int threads,
                                   double now) {
    char *lines = met_endpoints(threads);
    met_tell(c, met_came(member, life, pid), now);
    struct notice_ready r = {.epoch = scheduler_core_epochs(c)->epoch, .manifest = 5, .endpoints = lines};
    met_tell(c, met_ready(member, life, &r), now);
    free(lines);
}

// The launcher tells of a death: "worker 1" was process pid.
static inline struct verdict tell_dead(struct scheduler_core *c, const char *name, int pid, const char *why,
                                       double now) {
    struct death d = {.pid = pid};
    snprintf(d.name, sizeof d.name, "%s", name);
    snprintf(d.why, sizeof d.why, "%s", why);
    return scheduler_core_dead(c, &d, now);
}

#endif
