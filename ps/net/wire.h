// Messages of the parameter server: one plain struct, its protobuf encoding, and the checks that
// stand between the network and everything else. No sockets, no state.
//
//     worker -> scheduler   HELLO HEARTBEAT REPORT GATHER GOODBYE ABORT
//     server -> scheduler   HELLO HEARTBEAT GOODBYE ABORT        shard -> scheduler  HELLO SHARD_SUM
//     scheduler -> all      WELCOME REFUSED START HEARTBEAT_ACK ABORT
//     scheduler -> worker   STEP_DONE GATHER_DONE GOODBYE_ACK    -> shard DECISION   -> server SHUTDOWN
//     worker -> shard       ATTACH INIT PUSH PULL SNAPSHOT
//     shard -> worker       ATTACHED INIT_ACK PUSH_ACK PULL_REPLY SNAPSHOT_REPLY REFUSED
//
// A payload follows the header, or lies in the worker's segment (ps/net/segment.h) and the header says where:
//     PUSH        place, place_bytes: the gradient
//     PULL        into: where the weights are wanted; 0: the worker reads them where the server has them
//     PULL_REPLY  place_bytes: so many bytes are there now
#ifndef STARRING_PS_NET_WIRE_H
#define STARRING_PS_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/exact_sum.h"

enum wire_kind {
    WIRE_NONE,
    WIRE_HELLO,  // role rank thread incarnation manifest text(manifest in words); server: payload = endpoints
    WIRE_WELCOME,    // rank job clock
    WIRE_REFUSED,    // text
    WIRE_START,      // payload: endpoints of all shards, one a line, in shard order
    WIRE_HEARTBEAT,  // step seq(pushes taken so far) flags(STOP) ready(when it was sent, its sender's clock)
    WIRE_HEARTBEAT_ACK,  // flags(STOP) ready(of the heartbeat) peers_ready(when that came, the scheduler's clock)
    WIRE_ATTACH,         // seq text(the worker's segment; "": nothing is shared)
    WIRE_ATTACHED,       // seq text(the server's segment; "": nothing is shared) flags(HELD: text is why not)
    WIRE_INIT,           // key seq; payload fp32 masters
    WIRE_INIT_ACK,       // key seq
    WIRE_PUSH,           // key step version lr grad_scale flags(SKIP, PULLS: seq and into as of a PULL of
                         // step+1) ready; payload gradient of the run's dtype
    WIRE_PUSH_ACK,       // key step staleness flags(HELD: arrived, its turn has not come) peers_ready
    WIRE_PULL,           // key step(wanted) seq into flags(FINAL)
    WIRE_PULL_REPLY,  // key step version seq staleness(of the push before) flags(FINAL) peers_ready; payload
                      // weights of the run's dtype
    WIRE_SNAPSHOT,    // key version(the first that will do) seq
    WIRE_SNAPSHOT_REPLY,  // key version seq; payload weights of the run's dtype, always behind the header
    WIRE_SHARD_SUM,       // step sum peers_ready
    WIRE_DECISION,        // step grad_scale norm flags(SKIP) peers_ready
    WIRE_REPORT,          // step loss lr loss_scale clip flags(STOP) ready
    WIRE_STEP_DONE,       // step loss norm flags(SKIP STOP) peers_ready
    WIRE_GATHER,          // seq values (none: a barrier)
    WIRE_GATHER_DONE,     // seq values
    WIRE_GOODBYE,
    WIRE_GOODBYE_ACK,
    WIRE_SHUTDOWN,  // values: what the scheduler has cost (ps/scheduler/scheduler.c)
    WIRE_ABORT,     // text
    WIRE_KINDS
};
const char *wire_kind_name(enum wire_kind k);  // "push", ...

enum ps_role { PS_WORKER, PS_SERVER, PS_SHARD, PS_SCHEDULER, PS_ROLES };
const char *ps_role_name(enum ps_role r);

// WIRE_AGAIN: said before; what lies in a segment has not moved again.
// WIRE_STOP: this worker, or some worker, was asked to leave.
enum { WIRE_HELD = 1, WIRE_SKIP = 2, WIRE_FINAL = 4, WIRE_STOP = 8, WIRE_PULLS = 16, WIRE_AGAIN = 32 };

#define WIRE_HEADER_MAX 1023  // bytes
#define WIRE_VALUES_MAX 32    // doubles in one GATHER
#define WIRE_TEXT_MAX   512   // bytes, with the closing zero

struct wire_header {
    enum wire_kind kind;
    enum ps_role role;
    int32_t rank;
    int32_t thread;
    uint64_t job, incarnation, manifest;
    int32_t key;
    int64_t step, version;
    uint64_t seq;
    int64_t staleness;
    uint32_t flags;
    uint64_t place, place_bytes, into;  // bytes of a segment
    float lr, loss_scale, clip, grad_scale;
    double loss, norm;
    // Moments, nanoseconds of the scheduler's monotonic clock (ps/net/clock.h); 0: none. ready_ns: when the
    // sender's own part could have left. peers_ready_ns: the latest ready_ns of all that the answer needed: who
    // waited for it before that moment waited for a peer, and after it for the transfer.
    int64_t ready_ns, peers_ready_ns;
    uint64_t clock;  // ps_clock_id of the sender
    bool has_sum;
    struct exact_sum sum;
    int count;  // of values
    double values[WIRE_VALUES_MAX];
    char text[WIRE_TEXT_MAX];
};

// Bytes written to out (1..WIRE_HEADER_MAX), or 0 when the header does not fit (a programmer's error:
// the longest text and the longest values never travel together).
size_t wire_encode(const struct wire_header *h, uint8_t out[WIRE_HEADER_MAX]);
// 0, or -1 for anything that is not a well-formed header: every enum in range, counts bounded, no
// negative step, key, version or moment. Never logs, never trusts. payload_bytes: of the frame that follows,
// 0 for none; a kind that carries no payload refuses one and the other way round. One in a segment counts.
int wire_decode(const uint8_t *bytes, size_t size, size_t payload_bytes, struct wire_header *out);
// Whether the payload of this message is what the textbook formulas count (gradients and weights
// of a step); loading and the final pull are control. What lies in a segment counts as what follows a header.
bool wire_is_payload(const struct wire_header *h);
// Bytes that the message stands for beside its frames: what lies in a segment, told for the first time.
uint64_t wire_place_bytes(const struct wire_header *h);

#endif
