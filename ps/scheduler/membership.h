// The members of a job, for the two files of the scheduler's state machine: scheduler_core.c changes them, rounds.c
// reads them.
//
//     absent --came--> here: it reads its files, others wait --ready: of this run?--> present --left--> gone
//     all present       --> started: all learn what the epoch resumes from (--elastic, a new epoch: after a while MIN workers are enough)
//     all workers gone  --> closing: SHUTDOWN to the servers --> each has left: done
//
// Members are numbered: workers 0..N-1, servers N..N+S-1, and in messages the servers' shards N+S..N+S+S*T-1.
#ifndef STARRING_PS_SCHEDULER_MEMBERSHIP_H
#define STARRING_PS_SCHEDULER_MEMBERSHIP_H

#include <stdio.h>

#include "ps/job/manifest.h"
#include "ps/job/shard_map.h"
#include "ps/net/notices.h"
#include "ps/net/port.h"
#include "shared/config/config.h"
#include "shared/launch/verdict.h"

// ---------------------------------------------------------------- epochs
// An epoch begins when all members are ready for it and ends with a death. The next one has
// another job number, so messages of an earlier epoch are recognized by their number and dropped.
//
//     epoch 1, job a   ready.. start | steps | a worker dies: it is over
//     epoch 2, job b   ready.. start (names the checkpoint) | steps ..
//
// Without restarts there is one epoch, and a death ends the job. Only scheduler_core.c decides what ends an epoch.
struct epoch_options {
    int restarts;     // deaths that a new epoch, or a new process of the dead rank, may follow; 0: none
    int used;         // those that earlier processes of the scheduler have used
    uint32_t first;   // number of the first epoch; 0 counts as 1
    int start;        // number of the run's command in DIR/history.jsonl
    const char *why;  // why the first epoch follows a death; NULL: it does not
    bool replaced;    // a launcher replaces a lost member; else the user can, until the start's deadline
};

struct epochs {
    struct epoch_options o;
    uint32_t epoch;
    uint64_t job;
    struct restarts restarts;
    int64_t reached;          // steps decided in the last epoch that began; -1: not known
    char why[WIRE_TEXT_MAX];  // why this epoch has begun; "": it is the first
};

// ---------------------------------------------------------------- members

// How a job lost a worker.
struct loss {
    const char *cause;  // "died", "silent", or "left": it reported that it had failed
    const char *why;    // as printed
};

// A change of the members of an elastic job (--elastic): from this step on it runs without a worker, or with it again.
struct absence {
    int64_t step;  // 1, 2, ..: the first step concerned
    int worker;
    bool away;         // true: the job runs without the worker; false: with it again
    struct loss loss;  // NULLs if away is false
};

// The values that the scheduler publishes to the job's processes at the rendezvous (ps/net/notices.h).
struct publish_port {
    void *ctx;
    void (*epoch_opened)(void *ctx, const struct epochs *e);  // a new epoch: all ranks enter it
    // All ranks are present. Called for workers, and for servers.
    void (*started)(void *ctx, enum ps_role role, const struct notice_start *s);
    void (*joined)(void *ctx, int worker, uint64_t incarnation, const struct notice_start *s);
    void (*epoch_over)(void *ctx, uint32_t epoch, const char *why);
    void (*end_process)(void *ctx, int member, uint64_t incarnation,
                        const char *why);           // that process must end: its rank is free
    void (*job_ended)(void *ctx, const char *why);  // the whole job has ended
};

// Calls of the core to the scheduler's process. Each may be NULL, except `job` if there are restarts, and `lost` if a
// launcher replaces members.
struct scheduler_host {
    void *ctx;
    uint64_t (*job)(void *ctx);  // returns the number of a new epoch's job, not 0
    // A member was lost by silence, or did not arrive: it may only be frozen, and must not run next to its
    // replacement. pid: 0 if it is not known.
    void (*lost)(void *ctx, int pid, const char *name);
    // All ranks are present. Writes what they resume from: the checkpoint ("": none) and its step. Returns 0; 1 if it
    // is not known yet, and is asked again; or -1 with error written. NULL: nothing is resumed.
    int (*starts)(void *ctx, const struct epochs *e, struct start_point *out, char error[WIRE_TEXT_MAX]);
    void (*absent)(void *ctx, const struct absence *a);
    // In a replay: the recorded batch of the worker's `step` (ps/agree/budget.h). If steps close without stragglers: a
    // value >= 0 if the gradient counted, else -1. NULL: no replay.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
};

// Options of the scheduler's core.
struct scheduler_options {
    const struct config *config;
    const struct shard_map *map;
    int lead;  // steps that may be open beyond the oldest one (ps/job/consistency.h)
    struct manifest manifest;
    uint64_t job;              // not 0
    struct start_point start;  // of the first epoch: all roles resume from it
    double start_s;            // the time of creation
    struct ps_port port;       // peers: member numbers
    struct publish_port publish;
    struct scheduler_host host;
    struct epoch_options epochs;
};

struct member {
    // The process that the registry knows: of this epoch, or (old) one that was present in an earlier epoch and must enter
    // again.
    bool here, old;
    uint64_t incarnation;  // as in the registry, and in the process's messages
    int pid;
    char host[64];
    int dead;  // pid of the rank's last process that a launcher reported dead
    // State in this epoch:
    bool present, gone;
    uint32_t process_no;  // number of the process among those of its rank since the job started: 1, 2, ..
    bool joins;           // it entered while the job was running (--elastic)
    bool admitted;        // it and the shards know that it may join
    double seen_s;        // when the rank's last process left or was lost
    int64_t step;         // the latest step in its messages
    uint64_t progress;    // pushes and initial values acknowledged so far, from its heartbeat
    double progress_s;    // when `progress` last grew
    struct roster_shard *shards;  // (threads) addresses of a server's shards
};

struct membership {
    int workers, servers, shards, count;  // count: members and shards
    int threads;                          // shards per server
    struct member *m;                     // (workers + servers)
    bool started, closing, done;
    double start_s, last_joined_s;  // when the epoch opened, and when a member last became present
    bool slow_printed;              // the wait for members that are reading their files was printed
    char *first_identity;           // identity of the first worker that became ready; NULL: none
    char first_name[48];
    char refused[WIRE_TEXT_MAX];  // why the last process was refused; "": none
    bool stop;                    // some worker was asked to stop
    struct start_point start;     // set when the epoch starts
};

static inline uint32_t membership_stop_flag(const struct membership *m) { return m->stop ? WIRE_STOP : 0; }
static inline int membership_shard(const struct membership *m, int shard) {
    return m->workers + m->servers + shard;
}
static inline const char *member_name(const struct membership *m, int i, char out[48]) {
    int shard = i - m->workers - m->servers;
    if (i < m->workers)
        snprintf(out, 48, "worker %d", i);
    else if (shard < 0)
        snprintf(out, 48, "server %d", i - m->workers);
    else
        snprintf(out, 48, "server %d shard %d", shard / m->threads, shard % m->threads);
    return out;
}

#endif
