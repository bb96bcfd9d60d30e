// The members of the job: logins, heartbeats, losses, the end. One half of the scheduler's state machine: no
// sockets, no clock but `now` (seconds). It knows nothing of what a step is.
//
//     absent --HELLO: manifest equal? rank free?--> present --GOODBYE, or silent for too long--> gone
//            --PULSE of no job--> absent, and coming: it reads its files, and is waited for
//                     (a rank that is taken, by another process: scheduler_core.c knows what that means)
//     all present       --> started: START to workers and servers (--elastic, a new epoch: after a while MIN workers are
//                           enough); again to who still says HELLO, once for each end of a timer
//     all workers gone  --> closing: SHUTDOWN to the servers --> each has said GOODBYE: done; one that falls silent
//     before is lost
//
// Members are numbered: workers 0..N-1, servers N..N+S-1, shards N+S..N+S+S*T-1.
// Errors: -1 with `error` set.
#ifndef STARRING_PS_SCHEDULER_MEMBERSHIP_H
#define STARRING_PS_SCHEDULER_MEMBERSHIP_H

#include "ps/agree/start_point.h"
#include "ps/job/manifest.h"
#include "ps/job/shard_map.h"
#include "ps/net/port.h"
#include "ps/net/roster.h"
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

// Options of the scheduler's core and its two halves.
struct scheduler_options {
    const struct config *config;
    const struct shard_map *map;
    int lead;  // steps that may be open beyond the oldest one (ps/job/consistency.h)
    struct manifest manifest;
    uint64_t job;              // not 0
    struct start_point start;  // of the first epoch: all roles go on from there (START names it)
    uint64_t clock;            // ps_clock_id
    double start_s;            // now, at creation
    struct ps_port port;       // peers: member numbers, PEER_SENDER
    struct epoch_options epochs;
    // All are there. Writes what START names: the checkpoint to go on from ("": none) and its step. 0; 1: it is not known
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
    bool present, gone;
    uint64_t incarnation;
    uint32_t life;  // which process of its rank since the job has started: 1, 2, ..
    bool joins;     // it came when the job was under way (--elastic)
    int32_t pid;    // of its process, as it says
    char host[WIRE_HOST_MAX];
    double seen_s;                // when it was heard last, also before it was present
    int64_t step;                 // the furthest it has named
    uint64_t progress;            // pushes and initial values taken so far, as its heartbeat says
    double progress_s;            // when that last grew
    bool let_in;                  // the shards have been told of it (joins)
    struct roster_shard *shards;  // (threads) servers: where they listen
    double start_s;               // when START was sent to it last
    int starts;                   // how often
};

// The payload of START for all members of a kind, written once an epoch: it is sent from where it lies, and stays until the
// transport has let go of it.
struct start_text {
    struct start_text *before;
    char *text;
    size_t bytes;
    int members;
    _Atomic int leaving[];  // (members)
};

// Read by the scheduler's other files, changed by membership.c alone.
struct membership {
    struct scheduler_options o;
    int workers, servers, shards, count;  // count: of all members
    struct member *m;                     // (count)
    bool started, closing, done;
    double came_s;     // when a member came that was not there, or one without a rank was heard on its way
    bool said_coming;  // that the members on their way are waited for
    char *first_identity;  // of the worker that came first; NULL: none has
    char first_name[48];
    char refused[WIRE_TEXT_MAX];  // why the last HELLO was; "": none
    bool stop;                    // some worker was asked to leave
    bool late;                    // `error` names the members that did not come (membership_late)
    int lost;                     // the member that `error` says was lost; -1: it says something else
    const struct epochs *epochs;  // NULL: of a job without any
    struct start_point start;     // once started
    struct start_text *texts[2];  // for workers, for servers; NULL: not written yet
    struct start_text *former;    // of earlier epochs
    char error[WIRE_TEXT_MAX];
};

// Of {0}; or of one in use, which becomes that of the next epoch: nobody is there.
void membership_init(struct membership *c, const struct scheduler_options *o);
// Behind the end of the transport (net_destroy).
void membership_free(struct membership *c);

// ---- messages
// The number of the member that a HELLO would become (itself again where it repeats), or -1.
int membership_assign(const struct membership *c, const struct wire_header *h);
// The member that a HELLO becomes, or -1 after refusing it. frame: its payload; stays the caller's.
int membership_hello(struct membership *c, const struct wire_header *h, const struct ps_frame *frame,
                     double now);
// Before the start: a worker or server (and its shards) that is not there after all.
void membership_forget(struct membership *c, int member);
// The member behind any other message, or -1: nobody of this job.
int membership_find(const struct membership *c, const struct wire_header *h);
// The same. Notes what each message says of its sender.
int membership_heard(struct membership *c, const struct wire_header *h, double now);
void membership_heartbeat(struct membership *c, int member, const struct wire_header *h, double now);
void membership_goodbye(struct membership *c, int member);

// ---- workers that come and go
// The job goes on without it: its rank is free.
void membership_lose(struct membership *c, int worker);
// It has come since the job has started, and may come to the servers: the shards are told which process it is, once, and the
// sender START where it has asked for it.
void membership_let_in(struct membership *c, int worker, bool asks, double now);

// ---- time
// Starts and closes the job, notices late and lost members. step: the job's, for texts. 0 or -1.
int membership_tick(struct membership *c, int64_t step, double now);
// Whether that worker, server or shard is not there, and nothing has been heard of it for a deadline.
bool membership_late(const struct membership *c, int member, double now);
// Whether members have been on the way for long and are to be named, in text; once.
bool membership_slow(struct membership *c, double now, char text[WIRE_TEXT_MAX]);

// ---- for the other half
// To every member that is there.
void membership_tell_all(struct membership *c, const struct wire_header *h);
static inline uint32_t membership_stop_flag(const struct membership *c) { return c->stop ? WIRE_STOP : 0; }
static inline int membership_shard(const struct membership *c, int shard) {
    return c->workers + c->servers + shard;
}
const char *member_name(const struct membership *c, int member, char out[48]);

// A list of names: "worker 1, server 0".
struct member_names {
    char text[256];
    size_t at;
    int count;
};
void member_names_add(const struct membership *c, struct member_names *x, int member);

#endif
