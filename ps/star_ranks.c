#include "ps/star_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/placement.h"
#include "shared/core/error.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/peer.h"

#define KEY       "star/key"
#define SCHEDULER "star/scheduler"
#define NAME_MAX_ 48

struct star_ranks {
    struct rendezvous *meet;  // NULL: this launcher starts all
    int rank, size, machines;
    int *server_rank;  // (servers)
    int *heard;        // (size) deaths of each rank; of rank 0 the scheduler's verdicts
    int said;          // by this rank
    bool talks;        // roles may be started again, or missed
    bool bears;        // the job may go on without a rank
    bool *gone;        // (size) said to be
    bool told;         // the others have heard that this launcher ends
    char bind[96], why[400];
};

// ---------------------------------------------------------------- who starts what, and where
static int lay(struct star_ranks *s, const struct config *c) {
    struct rank_place *places = xcalloc((size_t)s->size, sizeof *places);
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    for (int r = 0; r < s->size; r++) {
        const struct rendezvous_member *m = s->meet ? rendezvous_member(s->meet, r) : NULL;
        places[r] = (struct rank_place){m ? m->host : host, m ? m->machine : 0};
    }
    s->server_rank = xcalloc((size_t)c->ps.servers, sizeof *s->server_rank);
    int rc = placement_servers(c->ps.servers_on, places, s->size, c->ps.servers, s->server_rank);
    free(places);
    return rc;
}

// The machine's address takes the host's place in parameter_server.bind; the port stays.
static void bind_here(struct star_ranks *s, struct config *c) {
    const char *address = s->machines > 1 ? rendezvous_member(s->meet, s->rank)->address : "127.0.0.1";
    const char *port = strrchr(c->ps.bind, ':');
    bool bare6 = strchr(address, ':') && *address != '[';
    char *bind = xasprintf("tcp://%s%s%s%s", bare6 ? "[" : "", address, bare6 ? "]" : "", port ? port : ":*");
    free(c->ps.bind);
    c->ps.bind = bind;
    snprintf(s->bind, sizeof s->bind, "%.*s:*", (int)(strrchr(bind, ':') - bind), bind);
}

// Rank 0 was given the key, or makes it; the others' children have the same.
static int share_key(struct star_ranks *s, const struct config *c) {
    if (c->security.insecure) return 0;
    if (s->rank == 0 && job_key_hand_down()) return -1;
    if (!s->meet) return 0;
    const char *own = getenv(JOB_KEY_VARIABLE);
    if (s->rank == 0) return rendezvous_put(s->meet, KEY, own, strlen(own));
    char *key = rendezvous_get(s->meet, KEY, &(size_t){0});
    if (!key) return -1;
    setenv(JOB_KEY_VARIABLE, key, 1);
    explicit_bzero(key, strlen(key));
    free(key);
    return 0;
}

struct star_ranks *star_ranks_open(struct run *r) {
    struct config *c = r->config;
    struct star_ranks *s = xcalloc(1, sizeof *s);
    *s = (struct star_ranks){.meet = r->meet,
                             .rank = r->meet ? r->env.rank : 0,
                             .size = c->workers,
                             .machines = r->meet ? rendezvous_machines(r->meet) : 1,
                             .talks = c->recovery.restart > 0 || ps_elastic(c),
                             .bears = ps_elastic(c)};
    s->heard = xcalloc((size_t)s->size, sizeof *s->heard);
    s->gone = xcalloc((size_t)s->size, sizeof *s->gone);
    if (s->meet) bind_here(s, c);
    if (lay(s, c) == 0 && share_key(s, c) == 0) return s;
    star_ranks_close(&s);
    return NULL;
}

void star_ranks_close(struct star_ranks **ps) {
    struct star_ranks *s = *ps;
    if (!s) return;
    free(s->server_rank);
    free(s->heard);
    free(s->gone);
    free(s);
    *ps = NULL;
}

bool star_ranks_starts_worker(const struct star_ranks *s, int worker) {
    return !s->meet || worker == s->rank;
}

bool star_ranks_starts_server(const struct star_ranks *s, int server) {
    return !s->meet || s->server_rank[server] == s->rank;
}

const char *star_ranks_bind(const struct star_ranks *s) { return s->meet ? s->bind : "tcp://127.0.0.1:*"; }

int star_ranks_scheduler(struct star_ranks *s, char *address, int size) {
    if (!s->meet) return 0;
    if (s->rank == 0) return rendezvous_put(s->meet, SCHEDULER, address, strlen(address));
    char *told = rendezvous_get(s->meet, SCHEDULER, &(size_t){0});
    if (!told) return -1;
    snprintf(address, (size_t)size, "%s", told);
    free(told);
    return 0;
}

// ---------------------------------------------------------------- while it runs
void star_ranks_said(struct star_ranks *s, const struct verdict *v) {
    char name[NAME_MAX_];
    if (!s->meet || s->rank || !s->talks) return;
    snprintf(name, sizeof name, "star/said/%d", s->said++);
    rendezvous_put(s->meet, name, v, sizeof *v);
}

void star_ranks_dead(struct star_ranks *s, const struct death *d) {
    char name[NAME_MAX_];
    snprintf(name, sizeof name, "star/dead/%d/%d", s->rank, s->said++);
    rendezvous_put(s->meet, name, d, sizeof *d);
}

// The next of what rank r says. False: there is none, or it is something else.
static bool heard_of(struct star_ranks *s, int r, void *out, size_t size) {
    char name[NAME_MAX_];
    size_t got = 0;
    if (r)
        snprintf(name, sizeof name, "star/dead/%d/%d", r, s->heard[r]);
    else
        snprintf(name, sizeof name, "star/said/%d", s->heard[r]);
    void *said = rendezvous_look(s->meet, name, &got);
    bool whole = said && got == size;
    s->heard[r] += said != NULL;
    if (whole) memcpy(out, said, size);
    free(said);
    return whole;
}

bool star_ranks_death(struct star_ranks *s, struct death *out) {
    bool got = false;
    for (int r = 1; r < s->size && s->meet && s->talks && !got; r++) got = heard_of(s, r, out, sizeof *out);
    if (got) out->name[sizeof out->name - 1] = out->why[sizeof out->why - 1] = 0;
    return got;
}

bool star_ranks_verdict(struct star_ranks *s, struct verdict *out) {
    bool got = s->talks && heard_of(s, 0, out, sizeof *out);
    if (got) out->name[sizeof out->name - 1] = out->reason[sizeof out->reason - 1] = 0;
    return got;
}

// A rank's launcher has gone, and with it its children. NULL: the scheduler says what becomes of the job.
static const char *look_for_gone(struct star_ranks *s) {
    for (int r = 0; r < s->size && rendezvous_lost(s->meet) >= 0; r++) {
        const struct rendezvous_member *m = rendezvous_member(s->meet, r);
        if (s->gone[r] || m->machine < 0 || !rendezvous_gone(s->meet, r)) continue;
        s->gone[r] = true;
        snprintf(s->why, sizeof s->why, "rank %d, on %s, has gone, with the roles that it had started%s", r,
                 m->host, s->bears ? "" : ": the run ends");
        if (!s->bears) return s->why;
        if (s->rank == 0) warn("%s", s->why);
    }
    return NULL;
}

const char *star_ranks_ends(struct star_ranks *s, const char *ends) {
    if (!s->meet) return NULL;
    if (ends) {
        char *why = xasprintf("rank %d, on %s: %s", s->rank, rendezvous_member(s->meet, s->rank)->host,
                              *ends ? ends : "interrupted");
        if (!s->told) rendezvous_abort(s->meet, why);
        s->told = true;
        free(why);
        return NULL;
    }
    const char *why = rendezvous_ended(s->meet);
    if (!why) why = look_for_gone(s);
    if (why) fail("%s", why);
    s->told = why != NULL;
    return why;
}
