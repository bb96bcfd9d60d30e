// Who is in the job: logins, heartbeats, who is lost, the end. One half of the scheduler's state machine: no
// sockets, no clock but `now` (seconds). It knows nothing of what a step is.
//
//     absent --HELLO: manifest equal? rank free?--> present --GOODBYE, or silent for too long--> gone
//     all present       --> started: START to all
//     all workers gone  --> closing: SHUTDOWN to the servers until each has said GOODBYE --> done
//
// Members are numbered: workers 0..N-1, servers N..N+S-1, shards N+S..N+S+S*T-1.
// Errors: -1 with `error` set.
#ifndef STARRING_PS_SCHEDULER_MEMBERSHIP_H
#define STARRING_PS_SCHEDULER_MEMBERSHIP_H

#include "ps/manifest.h"
#include "ps/net/port.h"
#include "ps/shard_map.h"
#include "shared/config/config.h"

// What the scheduler's core and its two halves are made from.
struct scheduler_options {
    const struct config *config;
    const struct shard_map *map;
    struct manifest manifest;
    uint64_t job;         // not 0
    uint64_t clock;       // ps_clock_id
    double start_s;       // now, at creation
    struct ps_port port;  // peers: member numbers, PEER_SENDER
};

struct member {
    bool present, gone;
    uint64_t incarnation;
    double seen_s;      // when it was heard last
    int64_t step;       // the furthest it has named
    uint64_t progress;  // pushes and initial values taken so far, as its heartbeat says
    double progress_s;  // when that last grew
    char *endpoints;    // servers: one address a line
};

// Read by the scheduler's other files, changed by membership.c alone.
struct membership {
    struct scheduler_options o;
    int workers, servers, shards, count;  // count: of all members
    struct member *m;                     // (count)
    bool started, closing, done;
    double closing_s, shutdown_s;  // since when; when SHUTDOWN was sent last
    bool stop;                     // some worker was asked to leave
    char error[WIRE_TEXT_MAX];
};

void membership_init(struct membership *c, const struct scheduler_options *o);
void membership_free(struct membership *c);

// ---- messages
// The member that a HELLO becomes, or -1 after refusing it. frame: a server's endpoints; stays the caller's.
int membership_hello(struct membership *c, const struct wire_header *h, const struct ps_frame *frame,
                     double now);
// The member behind any other message, or -1: nobody of this job. Notes what each message says of its sender.
int membership_heard(struct membership *c, const struct wire_header *h, double now);
void membership_heartbeat(struct membership *c, int member, const struct wire_header *h, double now);
void membership_goodbye(struct membership *c, int member);

// ---- time
// Starts and closes the job, notices who is late or lost. step: the job's, for texts. 0 or -1.
int membership_tick(struct membership *c, int64_t step, double now);

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
