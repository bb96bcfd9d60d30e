// The star, as the program's main file uses it: three roles and one topology.
//
//     scheduler   membership, manifest check, barriers, commit decisions (clip, skip), who is lost and when
//     server      shard threads, each with its own ROUTER socket and keys: fp32 masters and optimizer state
//     worker      struct topology; one communication thread owns its DEALER sockets
//
// Addresses   All roles enter the job's rendezvous (shared/fabric/rendezvous.h), where the scheduler publishes its address for
//             rounds. Servers bind to config->ps.bind and publish there what they advertise; workers learn it from the scheduler.
// Errors      Every wait has config->ps.deadline_ms. A role returns -1 after naming the missing rank,
//             the key and the step.
#ifndef STARRING_PS_JOB_PS_H
#define STARRING_PS_JOB_PS_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/fabric/address.h"
#include "shared/report/rank_report.h"

struct job_key;
struct model_spec;
struct rendezvous;
struct token_source;

enum ps_role { PS_WORKER, PS_SERVER, PS_SHARD, PS_SCHEDULER, PS_ROLES };
static inline const char *ps_role_name(enum ps_role r) {
    static const char *const names[PS_ROLES] = {"worker", "server", "shard", "scheduler"};
    return (unsigned)r < PS_ROLES ? names[r] : "unknown";
}

// Whether the scheduler reads or writes files in the run's directory.
static inline bool ps_scheduler_has_files(const struct config *c) {
    return c->trace || c->recovery.restart > 0 || c->recovery.elastic || c->recovery.resume;
}

struct ps_role_options {
    const struct config *config;
    const struct layout *layout;      // for as many ranks as there are workers
    const struct model_spec *spec;    // for the manifest; NULL: only the layout describes the model
    const struct token_source *data;  // a worker's, for the manifest; NULL: this role computes nothing
    const char *scheduler;            // the job's rendezvous; for the scheduler: its own address for rounds
    const char *dir;                  // run directory, for traces; NULL: none
    struct endpoint advertise;        // for other ranks; host "": as bound; port 0: the bound one
    // The rendezvous of the job, in the scheduler's process (member 0); outlives the role.
    struct rendezvous *meet;
    const struct job_key *key;  // a process needs it to join; outlives the role. NULL: --insecure
    int rank;                   // server or worker index
    // The launcher, which is at the same rendezvous, logs why the job has ended; this role does not.
    bool launcher_logs;
    bool log_waiting;  // print which ranks are waited for; for a role started by hand
    // Non-zero: scheduler and server leave as soon as possible, which ends the job. A worker no longer waits for
    // the others; once the job has started its loop leaves at the end of a step (step_input.stop).
    const _Atomic int *stop;
    // launched: for the scheduler, launchers have started the roles. At the rendezvous they report each child's death,
    // and the end of the last child. The scheduler publishes its verdicts there (shared/launch/verdict.h). step: steps
    // known to be done, for this process's launcher; -1: none.
    bool launched;
    _Atomic int64_t *step;
    // scheduler: reads the files that it needs, and fills layout and spec here, on a thread of its own. Returns 0, or
    // -1 after logging. NULL: nothing to read.
    int (*read)(void *ctx);
    void *ctx;
};

// Run until the job ends (all workers have left) or fails. Return 0 or -1. report: memory and wire of this role.
int ps_scheduler_run(const struct ps_role_options *o);
int ps_server_run(const struct ps_role_options *o, struct rank_report *report);

struct ps_worker_options {
    struct ps_role_options role;
    struct device *dev;
    struct stream *compute;
};
struct topology *ps_worker_create(const struct ps_worker_options *o);  // Returns NULL after logging.

// Only predict: they take almost no memory, however large the model is. server: of server `rank`. Host memory outside
// the ledger: the records of a role per key, which grow with keys, workers and, where an order of arrivals is recorded
// or repeated, with steps. Bytes of server `rank`, and of each worker; SIZE_TOP (shared/core/numbers.h) if they cannot
// be counted. Returns -1 after logging what is impossible.
int64_t ps_server_records(const struct config *c, const struct layout *l, int rank);
int64_t ps_worker_records(const struct config *c, const struct layout *l);
int ps_worker_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire);
int ps_server_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire);
// The number of servers from `rank` on with the same prediction.
int ps_server_same_ranks(const struct config *c, const struct layout *l, int rank);
struct textbook ps_worker_textbook(const struct config *c);
struct textbook ps_server_textbook(const struct config *c);  // The formula's bytes are shared by all servers.

#endif
