// Messages of the parameter server: one plain struct, its protobuf encoding, and the checks
// between the network and everything else. No sockets, no state. proto/ps.proto lists what each kind carries;
// other fields of the struct are not sent.
//
//     worker -> scheduler   HEARTBEAT REPORT GATHER      server -> scheduler   HEARTBEAT      shard -> scheduler   SHARD_SUM
//     worker -> scheduler   TAKE          scheduler -> worker  TAKEN      where workers run ahead of each other
//     worker -> scheduler   JOIN          scheduler -> worker  JOINED     } --elastic
//     shard -> scheduler    ARRIVED       scheduler -> shard   SET MEMBER }
//     scheduler -> worker   HEARTBEAT_ACK STEP_DONE GATHER_DONE REFUSED (a JOIN)    -> shard DECISION
//     scheduler -> server   HEARTBEAT_ACK SHUTDOWN
//     worker -> shard       ATTACH INIT PUSH PULL SNAPSHOT
//     shard -> worker       ATTACHED INIT_ACK PUSH_ACK PULL_REPLY SNAPSHOT_REPLY REFUSED
//     any two               WORD, of the link (shared/fabric/link.h)
//
// A payload follows the header, or is in the worker's segment (shared/core/segment.h) and the header has its offset:
//     PUSH        data_offset, data_bytes: the gradient
//     PULL        reply_offset: where the weights are wanted; 0: the worker reads the server's weights in place
//     PULL_REPLY  data_bytes: bytes that are there now
// PULL_REPLY acknowledges the receiver's pushes of the key too: all before its step, except the last `pending_pushes` of them.
#ifndef STARRING_PS_NET_WIRE_H
#define STARRING_PS_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/exact_sum.h"
#include "ps/job/ps.h"
#include "shared/fabric/link.h"

enum wire_kind {  // in the order of PsMessage.body
    WIRE_NONE,
    WIRE_REFUSED,
    WIRE_HEARTBEAT,
    WIRE_HEARTBEAT_ACK,
    WIRE_ATTACH,
    WIRE_ATTACHED,
    WIRE_INIT,
    WIRE_INIT_ACK,
    WIRE_PUSH,
    WIRE_PUSH_ACK,
    WIRE_PULL,
    WIRE_PULL_REPLY,
    WIRE_SNAPSHOT,
    WIRE_SNAPSHOT_REPLY,
    WIRE_SHARD_SUM,
    WIRE_DECISION,
    WIRE_REPORT,
    WIRE_STEP_DONE,
    WIRE_GATHER,
    WIRE_GATHER_DONE,
    WIRE_SHUTDOWN,
    WIRE_ARRIVED,
    WIRE_SET,
    WIRE_JOIN,
    WIRE_JOINED,
    WIRE_MEMBER,
    WIRE_TAKE,
    WIRE_TAKEN,
    WIRE_WORD,
    WIRE_KINDS
};
const char *wire_kind_name(enum wire_kind k);  // "push", ...

// WIRE_STOP: this worker, or some worker, was asked to leave.
// WIRE_FINAL: it follows no push, and counts as control: a pull of the last weights, or those of a checkpoint, an
// evaluation or a jump. With STOP: no worker pushes any more. In MEMBER: that worker no longer pushes. In TAKEN: no
// batch is left. In REFUSED: the job is complete.
// WIRE_HELD: arrived, and not in the sum yet (PUSH_ACK). WIRE_NOT_SHARED: the memory is refused (ATTACHED, the same bit).
// WIRE_SKIP: the step is skipped. WIRE_PULLS: the push asks for the weights of the next step too.
// WIRE_KEEP: the state after this step goes into a checkpoint. All workers set it for the same steps. Worker 0's counts,
// and any worker's where late pushes are dropped.
// WIRE_LATE: the step was closed without the receiver's gradient (STEP_DONE).
// WIRE_UNUSED: no update has the gradient (PUSH_ACK, PULL_REPLY): it was too late, too old, or skipped.
// WIRE_DRAINS: the push asks for the weights after its own step, whatever delay is allowed.
enum {
    WIRE_HELD = 1,
    WIRE_NOT_SHARED = 1,
    WIRE_SKIP = 2,
    WIRE_FINAL = 4,
    WIRE_STOP = 8,
    WIRE_PULLS = 16,
    WIRE_KEEP = 32,
    WIRE_LATE = 64,
    WIRE_DRAINS = 128,
    WIRE_UNUSED = 256,
    WIRE_FLAGS = 511  // all flags
};

#define WIRE_HEADER_MAX 1023  // bytes
#define WIRE_VALUES_MAX 32    // doubles in one GATHER
#define WIRE_TEXT_MAX   512   // bytes, with the closing zero

struct wire_header {
    enum wire_kind kind;
    enum ps_role role;
    int32_t rank;
    int32_t thread;
    uint64_t job, incarnation;
    int32_t key;
    int64_t step, version;
    int64_t updates;  // updates of the optimizer: fewer than versions if an update has several pushes
    int64_t batch;  // the batch of the budget (ps/job/batches.h), or the micro-batch (ps/server/push_units.c)
    uint64_t seq;
    int64_t staleness;
    int64_t pending_pushes;  // the receiver's last pushes before `step` that the key has not taken yet
    uint32_t flags;
    uint64_t data_offset, data_bytes, reply_offset;  // offsets and bytes in a segment
    uint64_t mask;                                   // bit w: worker w
    uint32_t process_no;  // the process of the sender's rank: 1, 2, ..; 0: never replaced
    float lr, loss_scale, clip, grad_scale;
    double loss, norm;
    int64_t tokens,
        mean_tokens;  // tokens of a worker's batch, and those over which its gradient is averaged; 0: not sent
    // Times in nanoseconds of the scheduler's monotonic clock (ps/net/clock.h); 0: none. ready_ns: when the
    // sender's own data was ready; with the rank in a worker's push and report (ps_time_with_rank).
    // peers_ready_ns: the latest ready_ns of all that the answer needed. A receiver waited for a peer
    // before that time, and for the transfer after it.
    int64_t ready_ns, peers_ready_ns;
    struct link_ack link;  // only the link reads it
    bool has_sum;
    int count;             // of values
    struct exact_sum sum;  // from here on: fields that few kinds use
    double values[WIRE_VALUES_MAX];
    char text[WIRE_TEXT_MAX];
};

// Returns the bytes written to out (1..WIRE_HEADER_MAX), or 0 if the header does not fit (a programmer's error:
// the longest text and the longest values are never sent together).
size_t wire_encode(const struct wire_header *h, uint8_t out[WIRE_HEADER_MAX]);
// Returns 0, or -1 for anything that is not a well-formed header: every enum in range, counts bounded, no
// negative step, key, version or time. It never logs. payload_bytes: of the frame that follows, 0 for none. A kind
// without a payload refuses one, and a kind with one requires it. A payload in a segment counts.
int wire_decode(const uint8_t *bytes, size_t size, size_t payload_bytes, struct wire_header *out);
// Whether the link keeps messages of this kind until they are acknowledged. The others are sent regularly anyway:
// heartbeats.
bool wire_is_kept(enum wire_kind k);
// Whether the textbook formulas count this message's payload (gradients and weights
// of a step). Loading, the final pull and resent messages are control. A payload in a segment counts like one that
// follows a header.
bool wire_is_payload(const struct wire_header *h);
// Bytes of the message's payload in a segment, 0 if it is resent.
uint64_t wire_data_bytes(const struct wire_header *h);

#endif
