// The members of a job, as the two files of the scheduler's state machine see them: scheduler_core.c changes them, rounds.c reads them.
//
//     absent --came--> here: it reads its files, and is waited for --ready: of this run?--> present --left--> gone
//     all present       --> started: all hear where the epoch goes on (--elastic, a new epoch: after a while MIN workers are enough)
//     all workers gone  --> closing: SHUTDOWN to the servers --> each has left: done
//
// Members are numbered: workers 0..N-1, servers N..N+S-1; behind them, in messages, the servers' shards N+S..N+S+S*T-1.
#ifndef STARRING_PS_SCHEDULER_MEMBERSHIP_H
#define STARRING_PS_SCHEDULER_MEMBERSHIP_H

#include <stdio.h>

#include "ps/job/manifest.h"
#include "ps/job/shard_map.h"
#include "ps/net/meeting.h"
#include "ps/net/port.h"
#include "ps/scheduler/epochs.h"
#include "shared/config/config.h"

// How a job lost a worker.
struct loss {
    const char *cause;  // "died", "silent", "left": it said that it had failed
    const char *why;    // in words
};

// A step from which on a job went without a worker, where they may come and go (--elastic), or with it again.
struct absence {
    int64_t step;  // 1, 2, ..: the first one that it concerns
    int worker;
    bool away;         // else it is back
    struct loss loss;  // NULLs where it is back
};

// The listener. changed may be NULL.
struct absence_port {
    void *ctx;
    void (*changed)(void *ctx, const struct absence *a);
};

// What the scheduler tells the processes of the job where they meet (ps/net/meeting.h).
struct meeting_port {
    void *ctx;
    void (*opens)(void *ctx, const struct epochs *e);  // an epoch: all are to come to it
    // All are there. Told for workers, and for servers.
    void (*starts)(void *ctx, enum ps_role role, const struct meeting_start *s);
    void (*joins)(void *ctx, int worker, uint64_t life, const struct meeting_start *s);
    void (*over)(void *ctx, uint32_t epoch, const char *why);
    void (*gives_up)(void *ctx, int member, uint64_t life,
                     const char *why);         // that process: its place is free
    void (*ends)(void *ctx, const char *why);  // the job
};

// Options of the scheduler's core.
struct scheduler_options {
    const struct config *config;
    const struct shard_map *map;
    int lead;  // steps that may be open beyond the oldest one (ps/job/consistency.h)
    struct manifest manifest;
    uint64_t job;              // not 0
    struct start_point start;  // of the first epoch: all roles go on from there
    double start_s;            // now, at creation
    struct ps_port port;       // peers: member numbers
    struct meeting_port meeting;
    struct epoch_options epochs;
    // All are there. Writes where they go on: the checkpoint ("": none) and its step. 0; 1: it is not known
    // yet, and asked for again; or -1 with error written. NULL: nothing is gone on from.
    int (*starts)(void *ctx, const struct epochs *e, struct start_point *out, char error[WIRE_TEXT_MAX]);
    void *starts_ctx;
    struct absence_port absent;
    // A replay: the batch that worker's `step` had (ps/agree/budget.h); where steps go without the late, at least 0 if its
    // gradient counted. NULL: none.
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *recorded_ctx;
};

struct member {
    // The process that the book has: of this epoch, or one that was present in an earlier one and is to begin anew.
    bool here, old;
    uint64_t incarnation;  // its life in the book, and in its messages
    int pid;
    char host[64];
    int dead;  // the last process of the rank whose death a launcher has told of
    // In this epoch.
    bool present, gone;
    uint32_t life;                // which process of its rank since the job has started: 1, 2, ..
    bool joins;                   // it came when the job was under way (--elastic)
    bool let_in;                  // it and the shards have been told (joins)
    double seen_s;                // when it came to be here no more
    int64_t step;                 // the furthest it has named
    uint64_t progress;            // pushes and initial values taken so far, as its heartbeat says
    double progress_s;            // when that last grew
    struct roster_shard *shards;  // (threads) servers: where they listen
};

struct membership {
    int workers, servers, shards, count;  // count: of all members and shards
    int threads;                          // of a server: shards
    struct member *m;                     // (workers + servers)
    bool started, closing, done;
    double start_s, came_s;  // when the epoch was opened, and when a member came to be present
    bool said_coming;        // that the members on their way are waited for
    char *first_identity;    // of the worker that came first; NULL: none has
    char first_name[48];
    char refused[WIRE_TEXT_MAX];  // why the last process was; "": none
    bool stop;                    // some worker was asked to leave
    struct start_point start;     // once started
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
