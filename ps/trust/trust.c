#include "ps/trust/trust.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/job/timing.h"
#include "ps/trust/job_secret.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define WAIT_US 50000  // between two looks for the scheduler's file

const char *trust_mode_name(enum trust_mode m) {
    static const char *const names[] = {"loopback", "job", "curve", "insecure"};
    return names[m];
}

const char *trust_mode_words(enum trust_mode m) {
    static const char *const words[] = {
        "loopback: processes of this host that know the job's secret",
        "job: processes that know the job's secret, and everything is encrypted",
        "curve: who has a key of --keys may join, and everything is encrypted",
        "insecure: ANYBODY WHO REACHES THE PORTS CAN JOIN, READ AND CHANGE THE RUN (--insecure; safer: --keys)"};
    return words[m];
}

enum trust_mode trust_mode_asked(const struct config *c) {
    return c->security.insecure                        ? TRUST_INSECURE
           : c->security.keys                          ? TRUST_CURVE
           : !c->ps.bind || trust_is_local(c->ps.bind) ? TRUST_LOOPBACK
                                                       : TRUST_JOB;
}

// ---------------------------------------------------------------- addresses
bool trust_is_local(const char *address) {
    char host[64];
    struct in_addr v4;
    struct in6_addr v6;
    if (!strncmp(address, "ipc://", 6) || !strncmp(address, "inproc://", 9)) return true;
    // The host of "tcp://HOST:PORT" or "HOST", without the brackets of IPv6.
    const char *at = strncmp(address, "tcp://", 6) ? address : address + 6;
    const char *colon = strrchr(at, ':'), *bracket = strchr(at, ']');
    size_t n = at != address && colon ? (size_t)(colon - at) : strlen(at);
    if (*at == '[' && bracket) n = (size_t)(bracket - ++at);
    snprintf(host, sizeof host, "%.*s", n < sizeof host ? (int)n : (int)sizeof host - 1, at);
    if (!strcmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int says(const struct config *c, const char *what, const char *address) {
    char program[PROGRAM_WORD];
    return fail(
        "%s %s: that is not this host alone, and whoever reaches it could join. Make keys (%s keygen DIR "
        "--workers %d --servers %d) and give every role --keys DIR (docs/security.md); or --insecure, with which anybody "
        "who reaches the ports may join",
        what, address, program_word(program), c->workers, c->ps.servers);
}

int trust_mode_of(const struct trust_request *r, enum trust_mode *out) {
    const struct config *c = r->config;
    bool scheduler = r->role == PS_SCHEDULER;
    if (c->security.keys && c->security.insecure)
        return fail("--keys %s and --insecure: one says who may join, the other lets everybody; give one",
                    c->security.keys);
    *out = trust_mode_asked(c);
    if (*out == TRUST_JOB && !getenv(JOB_SECRET_VARIABLE))
        return says(c, "parameter_server.bind", c->ps.bind);
    if (*out != TRUST_LOOPBACK) return 0;
    if (r->address && !trust_is_local(r->address))
        return says(c, scheduler ? "--bind" : "--scheduler", r->address);
    if (r->role != PS_SERVER) return 0;
    return r->advertise && !trust_is_local(r->advertise) ? says(c, "--advertise", r->advertise) : 0;
}

// ---------------------------------------------------------------- loopback, job
// 1, or 0 where there is none, or -1.
static int find_secret(struct ps_trust *t, const struct trust_request *r) {
    int rc = job_secret_given(t->secret);
    t->given = rc > 0;
    return rc ? rc : secret_file_find(r->address, t->secret);
}

static int open_secret(struct ps_trust *t, const struct trust_request *r) {
    double end = now_seconds() + ps_deadline_s(r->config);
    struct trust_pair pair;
    int rc = find_secret(t, r);
    if (rc == 0 && r->role == PS_SCHEDULER) rc = job_secret_make(t->secret) ? -1 : 1;
    while (rc == 0) {
        if (r->stop && *r->stop) {
            error_quiet(1);  // the user who pressed Ctrl-C needs no line
            return fail("interrupted during login");
        }
        if (now_seconds() > end)
            return fail(
                "no secret of the scheduler at %s is to be found: start both on one host as one user (a scheduler started by "
                "hand leaves its secret to its own user), or give all roles the same " JOB_SECRET_VARIABLE
                " in the environment, or --keys DIR (starring keygen)",
                r->address);
        usleep(WAIT_US);
        rc = find_secret(t, r);
    }
    if (rc < 0) return -1;
    job_secret_pair(t->secret, "scheduler", &pair);
    memcpy(t->scheduler, pair.public_key, sizeof t->scheduler);
    if (r->role == PS_SCHEDULER) t->own = pair;
    job_secret_pair(t->secret, "member", &pair);
    memcpy(t->member, pair.public_key, sizeof t->member);
    if (r->role != PS_SCHEDULER) t->own = pair;
    trust_pair_forget(&pair);
    return 0;
}

// ---------------------------------------------------------------- curve
// The role's pair, which is the one that public.keys has of it.
static int read_own(const char *dir, const struct allow_list *list, struct trust_owner o,
                    struct trust_pair *out) {
    char name[TRUST_NAME_MAX];
    if (trust_key_read(dir, o, out) != 0) return -1;
    const uint8_t *listed = allow_list_key(list, o);
    if (listed && memcmp(listed, out->public_key, TRUST_KEY_BYTES) == 0) return 0;
    trust_pair_forget(out);
    char *path = trust_key_path(dir, o);
    trust_owner_name(o, name);
    fail("%s: %s/" TRUST_PUBLIC " has %s for %s: take both files from one `starring keygen`", path, dir,
         listed ? "another key" : "no key", name);
    free(path);
    return -1;
}

// How many ranks of its role the job has.
static int ranks_of(const struct config *c, enum ps_role role) {
    return role == PS_SCHEDULER ? 1 : role == PS_SERVER ? c->ps.servers : c->workers;
}

static int open_curve(struct ps_trust *t, const struct config *c) {
    const char *dir = c->security.keys, *role = ps_role_name(t->self.role);
    int count = ranks_of(c, t->self.role);
    t->dir = dir;
    if (t->self.rank < 0 && (t->self.rank = trust_key_only(dir, t->self.role)) < 0) return -1;
    if (t->self.rank >= count)
        return fail("%s has the key of %s %d, and the job has %d %s%s: copy the key of one of them here", dir,
                    role, t->self.rank, count, role, count == 1 ? "" : "s");
    if (!(t->list = allow_list_read(dir)) || read_own(dir, t->list, t->self, &t->own) != 0) return -1;
    memcpy(t->scheduler, allow_list_key(t->list, (struct trust_owner){PS_SCHEDULER, 0}), sizeof t->scheduler);
    return 0;
}

// All are read, so that what is wrong with one is said once, before any role starts.
int trust_check_keys(const struct config *c) {
    static const enum ps_role roles[] = {PS_SCHEDULER, PS_SERVER, PS_WORKER};
    const char *dir = c->security.keys;
    struct allow_list *list = allow_list_read(dir);
    struct trust_pair pair;
    int rc = list ? 0 : -1;
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !rc; i++) {
        int count = ranks_of(c, roles[i]), listed = allow_list_count(list, roles[i]);
        if (listed < count)
            rc = fail(
                "--keys %s: it has the keys of %d %s%s, and the job has %d: make others with starring keygen",
                dir, listed, ps_role_name(roles[i]), listed == 1 ? "" : "s", count);
        for (int r = 0; r < count && !rc; r++)
            rc = read_own(dir, list, (struct trust_owner){roles[i], r}, &pair);
        trust_pair_forget(&pair);
    }
    allow_list_destroy(&list);
    return rc;
}

// ---------------------------------------------------------------- both
int trust_open(struct ps_trust *t, const struct trust_request *r) {
    *t = (struct ps_trust){.self = {r->role, r->role == PS_SCHEDULER ? 0 : r->rank}};
    if (trust_mode_of(r, &t->mode) != 0) return -1;
    if (t->mode != TRUST_INSECURE && sodium_init() < 0) return fail("libsodium does not start");
    int rc = t->mode == TRUST_CURVE      ? open_curve(t, r->config)
             : t->mode == TRUST_INSECURE ? 0
                                         : open_secret(t, r);
    if (rc != 0) trust_close(t);
    return rc;
}

int trust_leave(struct ps_trust *t, const char *bound) {
    if (t->mode != TRUST_LOOPBACK || t->given || t->file) return 0;
    t->file = secret_file_leave(bound, t->secret);
    return t->file ? 0 : -1;
}

void trust_close(struct ps_trust *t) {
    trust_pair_forget(&t->own);
    job_secret_forget(t->secret);
    allow_list_destroy(&t->list);
    secret_file_remove(&t->file);
}

bool trust_admits(const struct ps_trust *t, const uint8_t key[TRUST_KEY_BYTES], char name[TRUST_NAME_MAX]) {
    struct trust_owner owner;
    if (t->mode == TRUST_LOOPBACK || t->mode == TRUST_JOB) {
        snprintf(name, TRUST_NAME_MAX, "%s", TRUST_MEMBER);
        return memcmp(key, t->member, TRUST_KEY_BYTES) == 0;
    }
    if (t->mode != TRUST_CURVE || !allow_list_owner(t->list, key, &owner) || owner.role == PS_SCHEDULER)
        return false;
    trust_owner_name(owner, name);
    return true;
}

char *trust_own_words(const struct ps_trust *t) {
    char name[TRUST_NAME_MAX];
    if (t->mode == TRUST_INSECURE) return xstrdup("no keys either (--insecure)");
    if (t->mode != TRUST_CURVE)
        return xstrdup("the same secret (the same user, or one " JOB_SECRET_VARIABLE ")");
    char *path = trust_key_path(t->dir, t->self);
    char *words = xasprintf("the key %s of %s", path, trust_owner_name(t->self, name));
    free(path);
    return words;
}

char *trust_peer_words(const struct ps_trust *t) {
    return t->mode == TRUST_CURVE ? xasprintf("%s/" TRUST_PUBLIC ", or uses no keys", t->dir)
                                  : xstrdup("this job's secret, or uses --keys or --insecure");
}

bool trust_may_speak(const char *name, enum ps_role role, int rank) {
    struct trust_owner owner;
    if (role != PS_WORKER && role != PS_SERVER && role != PS_SHARD) return false;
    if (!strcmp(name, TRUST_MEMBER)) return true;
    if (trust_owner_read(name, &owner) != 0 || owner.rank != rank) return false;
    return owner.role == (role == PS_SHARD ? PS_SERVER : role);
}

const uint8_t *trust_server_key(const struct ps_trust *t, int server) {
    return t->mode == TRUST_JOB ? t->member
                                : allow_list_key(t->list, (struct trust_owner){PS_SERVER, server});
}
