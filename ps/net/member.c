#include "ps/net/member.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/fabric/address.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/launch.h"
#include "shared/launch/rank_env.h"

#define WORDS_MAX 1024
#define OUTPUT_S  0.5  // seconds that this process waits for its printed lines

uint64_t ps_random_id(void) {
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = (uint64_t)(now_seconds() * 1e9);
    return id ? id : 1;
}

bool ps_was_interrupted(const char *why) {
    size_t n = strlen(why), end = strlen(PS_INTERRUPTED);
    return n >= end && !strcmp(why + n - end, PS_INTERRUPTED);
}

int ps_fail(const char *why) {
    if (ps_was_interrupted(why) && rank_env_supervised()) error_quiet(1);
    return fail("%s", why);
}

void member_rendezvous_options(const struct config *c, struct rendezvous_options *o) {
    o->roles[0] = (struct meet_role){ps_role_name(PS_WORKER), c->workers};
    o->roles[1] = (struct meet_role){ps_role_name(PS_SERVER), c->ps.servers};
    o->replace = c->recovery.restart > 0 || ps_elastic(c);
    o->silent_s = ps_lost_s(c);
    o->beat_s = ps_heartbeat_s(c);
}

// ---------------------------------------------------------------- entering, and waiting for the others
int member_interrupted(const struct ps_role_options *o) {
    if (!ps_stopped(o->stop)) return 0;
    error_quiet(1);  // a user who has pressed Ctrl-C knows why
    return fail("interrupted before the start");
}

void member_log_waiting(const struct ps_role_options *o, struct waiting *w, const char *for_whom) {
    char text[384];
    snprintf(text, sizeof text, "waiting for %s at %s", for_whom, o->scheduler);
    if (o->log_waiting && waiting_due(w, text, now_seconds())) info("%s", text);
}

static struct rendezvous_options meeting_at(const struct config *c, const struct endpoint *at, bool open) {
    struct rendezvous_options o = {.host = at->host,
                                   .port = at->port,
                                   .size = 1,
                                   .member_0 = "the scheduler",
                                   .deadline_s = ps_deadline_s(c),
                                   .no_key = open};
    member_rendezvous_options(c, &o);
    return o;
}

struct rendezvous *member_open(const struct config *c, const struct endpoint *at, bool open) {
    const struct rendezvous_options o = meeting_at(c, at, open);
    return rendezvous_open(&o);
}

struct rendezvous *member_enter(const struct ps_role_options *o, enum ps_role role, int ranks, bool open) {
    struct endpoint at;
    if (endpoint_read("--scheduler", o->scheduler, &at)) return NULL;
    if (!at.port) {
        fail("--scheduler %s: give one port, not a wildcard: the one that the scheduler prints",
             o->scheduler);
        return NULL;
    }
    struct rendezvous_options ro = meeting_at(o->config, &at, open);
    ro.rank = ranks + o->rank + (role == PS_SERVER ? o->config->workers : 0);
    ro.size = ranks;
    ro.no_wait = true;
    ro.same_key = o->launcher_logs;
    return rendezvous_open(&ro);
}

int member_find(const struct ps_role_options *o, struct ps_identity *id, char scheduler[FABRIC_ADDRESS_MAX]) {
    struct endpoint at;
    struct notice_now now;
    struct waiting waiting = {.said_s = 0};
    char *text;
    size_t bytes;
    id->incarnation = rendezvous_incarnation(o->meet);
    member_log_waiting(o, &waiting, "the scheduler");
    if (rendezvous_wait(o->meet, o->stop)) return -1;
    while (!(text = rendezvous_try_get(o->meet, NOTICE_NOW, &bytes))) {
        if (member_interrupted(o) || member_goes_on(o, id)) return -1;
        member_log_waiting(o, &waiting, "the scheduler");
        usleep(POLL_MS * 1000);
    }
    bool good = notice_now_read(text, bytes, &now);
    free(text);
    if (!good) return fail("what listens at %s is no scheduler of this version", o->scheduler);
    if (endpoint_read("the scheduler's", now.address, &at)) return -1;
    snprintf(scheduler, FABRIC_ADDRESS_MAX, "%s", now.address);
    // If the scheduler listens on every address, this role uses the host that it was given.
    int port = at.port;
    bool everywhere = !strcmp(at.host, "0.0.0.0") || !strcmp(at.host, "::");
    if (everywhere && endpoint_read("--scheduler", o->scheduler, &at)) return -1;
    if (everywhere) endpoint_text(at.host, port, scheduler, FABRIC_ADDRESS_MAX);
    id->job = now.job;
    id->epoch = now.epoch;
    id->clock = ps_clock_of(ps_clock_id(), now.clock);
    return 0;
}

void member_ready(const struct ps_role_options *o, const struct ps_identity *id, const struct manifest *m,
                  const char *endpoints) {
    struct notice_ready r = {id->epoch, m->hash, m->identity, endpoints};
    char *text = notice_ready_text(&r);
    rendezvous_send(o->meet, NOTICE_READY, text, strlen(text));
    free(text);
}

int member_starts(const struct ps_role_options *o, struct ps_identity *id, int shards,
                  struct notice_start *out) {
    size_t bytes;
    bool elastic = ps_elastic(o->config), worker = id->role == PS_WORKER;
    char name[MEET_NAME_MAX];
    if (id->joins)
        notice_join_name(name, id->epoch, id->rank, id->incarnation);
    else
        notice_start_name(name, id->epoch, id->role);
    char *text = rendezvous_try_get(o->meet, name, &bytes);
    if (!text) return 0;  // the scheduler has not published it yet
    bool good = notice_start_read(text, bytes, shards, worker && !elastic ? 0 : o->config->workers, out);
    free(text);
    if (!good)
        return fail("the scheduler at %s names other members than this job has: is it of the same version?",
                    o->scheduler);
    id->process_no = worker ? out->process_no : 0;
    if (!worker || !elastic || out->roster->worker[id->rank].incarnation == id->incarnation) return 1;
    // The epoch has begun without this process: it joins separately.
    id->joins = true;
    roster_destroy(&out->roster);
    return 0;
}

// ---------------------------------------------------------------- starting again
// The arguments that this process was started with; the caller keeps them until it ends. The configuration in memory
// is added, unless they have it already: the last -c counts.
static char **own_arguments(const struct config *c) {
    static char path[32];
    char **words = xcalloc(WORDS_MAX + 3, sizeof *words), *text = NULL, *last = "";
    size_t size = 0, known = strlen(CONFIG_HANDED_DOWN);
    int n = 0;
    FILE *f = fopen("/proc/self/cmdline", "re");
    while (f && n < WORDS_MAX && getdelim(&text, &size, 0, f) > 0) {
        words[n++] = xstrdup(text);
        if (n > 1 && !strcmp(words[n - 2], "-c")) last = words[n - 1];
    }
    if (f) fclose(f);
    free(text);
    if (!strncmp(last, CONFIG_HANDED_DOWN, known))
        fcntl(atoi(last + known), F_SETFD, 0);
    else if (n && config_hand_down(c, path) >= 0)
        words[n] = "-c", words[n + 1] = path;
    return words;
}

// Sets the signals for the time until the program has installed its handlers again. The launcher's SIGTERM then ends
// the process; a terminal's Ctrl-C is handled only by the launcher. The signal of the launcher's death is a setting of
// one thread, so it is set again.
static void reset_signals(bool supervised) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, supervised ? SIG_IGN : SIG_DFL);
    if (supervised) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (supervised && !rank_env_supervised()) _exit(EXIT_RUN_FAILED);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static void exec_own_program(const struct config *c) {
    char *program = launch_self();
    // The thread that holds the stream may be stuck: its unwritten output is lost, as if the process was killed.
    if (ftrylockfile(stdout) == 0) {
        fflush(stdout);
        funlockfile(stdout);
    }
    output_thread_wait(OUTPUT_S);
    // Only the standard streams stay open, whatever else was left open by mistake.
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (atoi(e->d_name) > STDERR_FILENO) fcntl(atoi(e->d_name), F_SETFD, FD_CLOEXEC);
    if (d) closedir(d);
    char **words = own_arguments(c);
    if (program && access(program, X_OK) == 0) execv(program, words);
    execv("/proc/self/exe", words);  // the program's file was replaced or removed
}

int member_exec_again(const struct ps_role_options *o, const char *why) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;  // remains locked if the program is executed
    const struct config *c = o->config;
    if (!c->recovery.restart)
        return fail(
            "%s: the job restarts, and this role has no --restart: give every role the same --restart N",
            why);
    pthread_mutex_lock(&one);
    bool supervised = rank_env_supervised();
    int quiet = error_quiet(QUIET_NOT);  // this thread's errors may be logged by another one
    if (o->log_waiting) info("%s: entering the job at %s again", why, o->scheduler);
    error_quiet(quiet);
    reset_signals(supervised);
    if (o->stop && *o->stop) {
        pthread_mutex_unlock(&one);
        error_quiet(supervised);  // the launcher logs it
        return fail("interrupted");
    }
    exec_own_program(c);
    int error = errno;
    pthread_mutex_unlock(&one);
    return fail("%s; and the program cannot be started again: %s", why, strerror(error));
}

// ---------------------------------------------------------------- the end
bool member_launcher_logs(const struct ps_role_options *o) {
    enum meet_end end = rendezvous_end_kind(o->meet);
    return o->launcher_logs && (end == MEET_JOB_OVER || (end == MEET_MEMBER_0_LOST && ps_stopped(o->stop)));
}

int member_goes_on(const struct ps_role_options *o, const struct ps_identity *id) {
    const char *ended = rendezvous_end_reason(o->meet);
    char name[MEET_NAME_MAX], *over = NULL, *why = NULL;
    size_t bytes;
    int rc = 0;
    if (!ended && id->epoch) over = rendezvous_try_get(o->meet, notice_over_name(name, id->epoch), &bytes);
    if (!ended && !over) return 0;
    enum meet_end end = rendezvous_end_kind(o->meet);
    if (ended) why = xasprintf("%s%s", end == MEET_MEMBER_0_LOST ? "the scheduler was lost: " : "", ended);
    // Another scheduler may replace one that is gone, and this process may get its rank again.
    bool again = (end == MEET_MEMBER_0_LOST || end == MEET_LOST_ME) && o->config->recovery.restart > 0;
    if (over || (again && !member_launcher_logs(o)))
        rc = member_exec_again(o, over ? over : why);
    else {
        if (member_launcher_logs(o)) error_quiet(QUIET_ALL);
        rc = ps_fail(why);
    }
    free(over);
    free(why);
    return rc;
}

void member_failed(const struct ps_role_options *o, const struct ps_identity *id, bool lost,
                   const char *why) {
    struct notice_failed f = {.epoch = id->epoch, .lost = lost};
    text_shorten(f.why, sizeof f.why, why);
    char *text = notice_failed_text(&f);
    rendezvous_send(o->meet, NOTICE_FAILED, text, strlen(text));
    free(text);
}

// If a launcher has asked the role to leave, the launcher logs why.
int member_left(const struct ps_role_options *o, const struct ps_identity *id, int rc) {
    bool asked = ps_stopped(o->stop) && rank_env_supervised();
    if (rc != 0 && !asked && !rendezvous_end_reason(o->meet)) member_failed(o, id, false, error_last());
    return rc;
}
