// Messages between a process and its peers, sent in pieces, as a state machine without sockets or clocks. A lane is an
// independent sequence of messages between two processes: lanes do not wait for each other. All lanes of a peer share
// one connection, which keeps the order and loses nothing.
//
//     sender                              receiver
//     PIECE lane, tag, total, at, bytes   copied into its buffer; or kept until its message is asked for
//                                         CREDIT lane, bytes: of pieces that were copied into their buffer
//
// Window      A sender has at most one window of bytes per lane and peer that are not yet copied into their buffer.
//             This bounds what both sides keep.
// Match       Messages of a lane arrive in the order of sending. The next message is received if it has the tag that
//             is asked for. With another tag it is never received; with another length the lane fails.
// Trust       Arriving heads are checked: an error names the peer that breaks the rules.
// Ownership   The caller owns the buffers, and keeps them until the message is done, or until it is dropped and
//             nothing is held.
// Threads     One at a time; `held` may be decremented on any thread.
#ifndef STARRING_SHARED_FABRIC_LANES_H
#define STARRING_SHARED_FABRIC_LANES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANES_WHY    160
#define LANES_WINDOW ((size_t)1 << 20)  // bytes
// Bytes of a lane over all peers: the windows of many peers are smaller.
#define LANES_KEPT   ((size_t)64 << 20)
#define LANES_COPIED ((size_t)4 << 10)  // bytes; a larger piece is sent without a copy

enum lane_kind { LANE_PIECE, LANE_CREDIT };

struct lane_head {
    uint32_t kind, lane, tag, unused;
    uint64_t total, at;  // for a credit: its bytes, and 0
};

// A received piece. release is called once, when its bytes are no longer needed; NULL: the caller owns them.
struct lane_piece {
    const void *data;
    size_t bytes;
    void (*release)(void *hold);
    void *hold;
};

struct lanes_options {
    int rank, size, lanes;
    // Queues a piece or a credit for that peer. Returns false if the queue is full: the call is retried. held NULL:
    // the bytes are copied. Otherwise they are sent without a copy; the caller has incremented *held, and it is
    // decremented when the bytes are no longer needed, at once if nothing was queued.
    bool (*send)(void *ctx, int to, const struct lane_head *h, const void *data, size_t bytes,
                 _Atomic int *held);
    void *ctx;
};

struct lanes;
struct lanes *lanes_create(const struct lanes_options *o);
void lanes_destroy(struct lanes **l);

// At most one message is in flight per lane, peer and direction. bytes > 0.
void lanes_send(struct lanes *l, int lane, int to, uint32_t tag, const void *at, size_t bytes);
void lanes_receive(struct lanes *l, int lane, int from, uint32_t tag, void *at, size_t bytes);
// Queues what the windows allow.
void lanes_push(struct lanes *l);
// Takes ownership of the piece. Returns 0, or -1 if the peer has broken the rules; why receives the reason.
int lanes_hear(struct lanes *l, int from, const struct lane_head *h, const struct lane_piece *p,
               char why[LANES_WHY]);
// Returns 1 if all messages of the lane are done; 0: not yet; -1: the lane has failed, why receives the reason.
int lanes_done(const struct lanes *l, int lane, char why[LANES_WHY]);
// missing[i]: a message of the lane is in flight to or from peer i. Returns whether there is any.
bool lanes_missing(const struct lanes *l, int lane, bool *missing);
// Bytes of the lane that were sent and received. While they grow, the peers are alive.
uint64_t lanes_moved(const struct lanes *l, int lane);
// Stops sending from and receiving into the buffers of the lane, except pieces that are held.
void lanes_drop(struct lanes *l, int lane);
bool lanes_held(const struct lanes *l);  // whether any piece is held

#endif
