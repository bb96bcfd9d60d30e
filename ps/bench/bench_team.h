// The processes of one row of `starring bench ps`, as the bench sees them: started through the star's launcher,
// which ends them all when one dies, and spoken to line by line (bench_roles.h).
#ifndef STARRING_PS_BENCH_BENCH_TEAM_H
#define STARRING_PS_BENCH_BENCH_TEAM_H

#include "ps/bench/bench_plan.h"
#include "ps/bench/bench_roles.h"

struct bench_team;
struct bench_member;

struct bench_team *bench_team_create(void);  // NULL after logging
// Ends whatever still runs. The row's exit status: 0, or as launcher_wait's. *interrupted: a signal, or 0.
int bench_team_end(struct bench_team **t, bool failed, int *interrupted);

struct bench_start {
    const char *role;  // as `bench ps --as`
    const struct bench_plan *plan;
    int rank;             // -1: the only one
    const char *address;  // or NULL
    int ring;             // or 0
    const char *program;  // of a peer (bench_build.h); NULL: this one
};
// Starts a process and reads its first line without the PID into rest. Valid as long as the team. NULL after logging.
struct bench_member *bench_team_start(struct bench_team *t, const struct bench_start *s,
                                      char rest[BENCH_LINE_MAX]);
// The same in two halves, where processes come up only together.
struct bench_member *bench_team_launch(struct bench_team *t, const struct bench_start *s);
int bench_member_ready(struct bench_member *m, char rest[BENCH_LINE_MAX]);

// Who has gone is found by the next answer: 0, or -1 after logging where the process has gone or is silent.
void bench_tell(struct bench_member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int bench_answer(struct bench_member *m, char line[BENCH_LINE_MAX]);
double bench_member_cpu(const struct bench_member *m);  // seconds of CPU time so far

// Reads a plan from the words that bench_team_launch made of it.
#define BENCH_PLAN_TEXT 96
void bench_plan_text(const struct bench_plan *p, char text[BENCH_PLAN_TEXT]);
int bench_plan_read(struct bench_plan *p, const char *text);  // 0, or -1 after logging

#endif
