#include "ps/bench/bench_team.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ps/trust/job_secret.h"
#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"

#define GRACE_S  2.0
#define ANSWER_S 120.0  // a process's memory is written before it answers first
#define ARGS_MAX 16

struct bench_member {
    struct bench_team *team;
    int control;
    clockid_t cpu;
    struct bench_member *next;
};

struct bench_team {
    struct launcher *launcher;
    char *program;
    struct bench_member *members;
};

void bench_plan_text(const struct bench_plan *p, char text[BENCH_PLAN_TEXT]) {
    snprintf(text, BENCH_PLAN_TEXT, "%d,%d,%d,%zu,%d,%d,%d,%zu", (int)p->kind, (int)p->medium, (int)p->dtype,
             p->bytes, p->servers, p->workers, p->threads, p->partition);
}

int bench_plan_read(struct bench_plan *p, const char *text) {
    int kind, medium, dtype, used = 0;
    *p = (struct bench_plan){.kind = BENCH_STREAM};
    if (!text || sscanf(text, "%d,%d,%d,%zu,%d,%d,%d,%zu%n", &kind, &medium, &dtype, &p->bytes, &p->servers,
                        &p->workers, &p->threads, &p->partition, &used) != 8)
        return fail("bench ps --as is for processes that the bench starts itself");
    bool good = !text[used] && kind >= 0 && kind < BENCH_KINDS && medium >= 0 && medium < BENCH_MEDIA &&
                (dtype == DT_F32 || dtype == DT_BF16) && p->bytes && p->bytes % BENCH_BYTES_STEP == 0 &&
                p->servers > 0 && p->workers > 0 && p->threads > 0 && p->partition &&
                p->partition % BENCH_BYTES_STEP == 0;
    p->kind = (enum bench_kind)kind;
    p->medium = (enum bench_medium)medium;
    p->dtype = (enum dtype)dtype;
    return good ? 0 : fail("bench ps --plan %s: no plan of the bench's", text);
}

struct bench_team *bench_team_create(void) {
    struct bench_team *t = xcalloc(1, sizeof *t);
    struct launch_options o = {.grace_s = GRACE_S};
    if (job_secret_hand_down() != 0 || !(t->program = launch_self())) {
        free(t);
        return NULL;
    }
    stop_supervise();
    t->launcher = launcher_create(&o);
    return t;
}

int bench_team_end(struct bench_team **at, bool failed, int *interrupted) {
    struct bench_team *t = *at;
    if (failed) launcher_end_all(t->launcher);
    int status = launcher_wait(t->launcher);
    *interrupted = launcher_interrupted(t->launcher);
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

// ---------------------------------------------------------------- starting
static void inherit(int fd, bool on) {
    if (fd > 0) fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC);
}

struct bench_member *bench_team_launch(struct bench_team *t, const struct bench_start *s) {
    char plan[BENCH_PLAN_TEXT], rank[16], control[16], ring[16], keys[16];
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
    snprintf(ring, sizeof ring, "%d", s->ring);
    if (s->rank >= 0) argv[n++] = "--rank", argv[n++] = rank;
    if (s->address) argv[n++] = "--address", argv[n++] = s->address;
    if (s->ring) argv[n++] = "--ring", argv[n++] = ring;
    snprintf(keys, sizeof keys, "%d", bench_keys(s->plan));
    if (s->program) argv[n++] = "--keys", argv[n++] = keys;
    struct launch_child child = {.role = s->role,
                                 .rank = s->rank,
                                 .program = program,
                                 .argv = (char *const *)argv,
                                 .keep_fd = ends[1]};
    inherit(s->ring, true);
    int rc = launcher_start(t->launcher, &child);
    inherit(s->ring, false);
    close(ends[1]);
    if (rc) {
        close(ends[0]);
        return NULL;
    }
    struct bench_member *m = xcalloc(1, sizeof *m);
    *m = (struct bench_member){.team = t, .control = ends[0], .next = t->members};
    t->members = m;
    return m;
}

int bench_member_ready(struct bench_member *m, char rest[BENCH_LINE_MAX]) {
    char line[BENCH_LINE_MAX];
    int used = 0, pid;
    if (bench_answer(m, line) != 0) return -1;
    if (sscanf(line, "%d %n", &pid, &used) < 1) return fail("bench ps: a process began with \"%s\"", line);
    if (rest) snprintf(rest, BENCH_LINE_MAX, "%s", line + used);
    return clock_getcpuclockid(pid, &m->cpu) ? fail("bench ps: no clock of process %d", pid) : 0;
}

struct bench_member *bench_team_start(struct bench_team *t, const struct bench_start *s,
                                      char rest[BENCH_LINE_MAX]) {
    struct bench_member *m = bench_team_launch(t, s);
    return m && bench_member_ready(m, rest) == 0 ? m : NULL;
}

// ---------------------------------------------------------------- speaking
void bench_tell(struct bench_member *m, const char *fmt, ...) {
    char line[BENCH_LINE_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    line[n++] = '\n';
    // A process that has died is found and named by whoever waits for its answer.
    ssize_t sent = send(m->control, line, (size_t)n, MSG_NOSIGNAL);
    (void)sent;
}

int bench_answer(struct bench_member *m, char line[BENCH_LINE_MAX]) {
    return launcher_read_line(m->team->launcher, m->control, ANSWER_S, line, BENCH_LINE_MAX);
}

double bench_member_cpu(const struct bench_member *m) {
    struct timespec t = {0};
    clock_gettime(m->cpu, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
