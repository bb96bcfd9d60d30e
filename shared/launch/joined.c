#include "shared/launch/joined.h"

#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/topology_row.h"
#include "shared/fabric/address.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/peer.h"
#include "shared/launch/rank_files.h"
#include "shared/report/run_dir.h"
#include "shared/train/job.h"

#define RUN_DIR "run/dir"  // rank 0's

bool run_meets(const struct run *r) { return rank_env_joins(&r->env) && !r->life; }

// Of ranks that mpirun has started on several hosts nobody but MPI knows where rank 0 is.
static int find_rank_0(struct run *r) {
    char host[sizeof r->env.host] = "";
    gethostname(host, sizeof host - 1);
    if (!r->tell || r->tell(host, sizeof host))
        return fail("nobody tells where rank 0 is; set MASTER_ADDR to its host");
    snprintf(r->env.host, sizeof r->env.host, "%s", host);
    return 0;
}

// A rank that was given no --out takes rank 0's.
static int agree_on_dir(struct run *r) {
    struct config *c = r->config;
    if (r->env.rank == 0 && !c->out && !(c->out = run_dir_make(c))) return -1;
    if (r->env.rank == 0) return rendezvous_put(r->meet, RUN_DIR, c->out, strlen(c->out));
    char *dir = rendezvous_get(r->meet, RUN_DIR, &(size_t){0});
    if (dir && !c->out) c->out = xstrdup(dir);
    free(dir);
    return dir ? 0 : -1;
}

// Ranks of several hosts that nobody has told an interface take the one that PyTorch's or NCCL's variables name. NULL: none.
static const char *interface_of(const struct run *r) {
    const char *gloo = getenv("GLOO_SOCKET_IFNAME"), *nccl = getenv("NCCL_SOCKET_IFNAME");
    const char *named = gloo && *gloo ? gloo : nccl && *nccl ? nccl : NULL;
    if (r->config->interface || !named || r->env.local_size == r->env.size) return r->config->interface;
    if (r->env.rank == 0)
        info("--interface %s, as %s says", named,
             named == gloo ? "GLOO_SOCKET_IFNAME" : "NCCL_SOCKET_IFNAME");
    return named;
}

static void say_open(const struct run *r) {
    const char *key = getenv(JOB_KEY_VARIABLE);
    bool inside = address_is_loopback(rendezvous_member(r->meet, 0)->address);
    if (r->env.rank || (key && *key) || inside || r->config->security.insecure) return;
    warn(
        "no key: whoever reaches port %d of %s can join this job, read what its ranks are told, or end it. Give all ranks the "
        "same one: " JOB_KEY_MAKE,
        r->env.port, r->env.host);
}

int run_join(struct run *r, int *status) {
    *status = EXIT_RUN_FAILED;
    if (!*r->env.host && find_rank_0(r)) return -1;
    const struct identity_source source = job_identity(&r->job);
    struct identity *identity = identity_make(&source);
    char *text = identity_text(identity);
    struct rendezvous_options o = {.host = r->env.host,
                                   .port = r->env.port,
                                   .rank = r->env.rank,
                                   .size = r->env.size,
                                   .identity = text,
                                   .differs = identity_texts_disagreement,
                                   .least = r->config->recovery.elastic_min,
                                   .interface = interface_of(r),
                                   .deadline_s = (double)r->config->deadline_ms * 1e-3};
    if (r->config->row->meet) r->config->row->meet(r->config, &o);
    // NCCL looks for one by itself; it takes names, exactly so behind "=".
    if (o.interface && if_nametoindex(o.interface)) {
        char *name = xasprintf("=%s", o.interface);
        setenv("NCCL_SOCKET_IFNAME", name, 0);
        free(name);
    }
    r->meet = rendezvous_open(&o);
    free(text);
    identity_destroy(&identity);
    if (!r->meet) return -1;
    say_open(r);
    r->job.ranks_here = 0;
    for (int i = 0; i < o.size; i++)
        r->job.ranks_here +=
            rendezvous_member(r->meet, i)->machine == rendezvous_member(r->meet, o.rank)->machine;
    int rc = agree_on_dir(r);
    if (rc) rendezvous_abort(r->meet, error_last());
    if (!rc) rc = rank_files_begin(r);
    if (!rc) return 0;
    *status = rc > 0 ? 0 : o.rank == 0 ? EXIT_USAGE : EXIT_RUN_FAILED;
    rendezvous_close(&r->meet);
    if (!*status && o.rank == 0) *status = run_show(r);
    return -1;
}

int run_part(struct run *r, int status) {
    if (status) rendezvous_abort(r->meet, error_last());
    rank_files_end(r, status);
    int rc = rendezvous_close(&r->meet);
    return status ? status : rc ? EXIT_RUN_FAILED : 0;
}

int run_leave(struct run *r, int status, int number) {
    if (r->env.rank == 0) return run_end(r, status, number);
    return status || !number ? status : 128 + number;
}
