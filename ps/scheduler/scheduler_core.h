// The scheduler as a pure state machine: membership, manifest, gathers and barriers, the commit round,
// who died and when. No sockets, no clock but `now` (seconds). One thread.
//
// Members are numbered: workers 0..N-1, servers N..N+S-1, shards N+S..N+S+S*T-1.
//
//     login     HELLO --> manifest equal? rank free? --> WELCOME {rank, job} ; all there --> START to all
//     step t    REPORT of every worker + SHARD_SUM of every shard with keys
//                  --> update_decide (kernels/operations.h), losses added in worker order
//                  --> DECISION to the shards, STEP_DONE to the workers
//     gather    GATHER of every worker --> values added in worker order --> GATHER_DONE
//     end       GOODBYE of every worker --> SHUTDOWN to servers --> GOODBYE of every server
//
// Requests are repeated by their senders until answered; the last answers are kept for that.
// Errors: -1 with scheduler_core_error set; the ABORT to every member has then been sent.
#ifndef STARRING_PS_SCHEDULER_SCHEDULER_CORE_H
#define STARRING_PS_SCHEDULER_SCHEDULER_CORE_H

#include "ps/manifest.h"
#include "ps/net/port.h"
#include "ps/shard_map.h"
#include "shared/config/config.h"

struct scheduler_core_options {
    const struct config *config;
    const struct shard_map *map;
    struct manifest manifest;
    uint64_t job;         // not 0
    double start_s;       // now, at creation
    struct ps_port port;  // peers: member numbers, PEER_SENDER
};

struct scheduler_core;
struct scheduler_core *scheduler_core_create(const struct scheduler_core_options *o);
void scheduler_core_destroy(struct scheduler_core **c);

// The member behind a message, or -1: nobody of this job (the message was refused or dropped).
int scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, struct ps_frame *frame,
                           double now);
// Deadlines, START, SHUTDOWN. Call after every message and at least every heartbeat. 0 or -1.
int scheduler_core_tick(struct scheduler_core *c, double now);
bool scheduler_core_done(const struct scheduler_core *c);
const char *scheduler_core_error(const struct scheduler_core *c);
// Ends the job with this reason; every member is told. Always -1.
int scheduler_core_abort(struct scheduler_core *c, const char *why);
// Workers and servers that have not come; false: the job has started.
bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers);
int scheduler_core_members(const struct scheduler_core *c);

#endif
