// Messages between a process and its peers as a state machine, without sockets or clocks: what has been asked for is sent in
// pieces and arrives where it belongs. A lane is a sequence of messages of its own between two processes: lanes do not wait
// for each other, though all of a peer's share one connection, which keeps the order and loses nothing.
//
//     sender                              receiver
//     PIECE lane, tag, total, at, bytes   into its place; or it is kept until its message is asked for
//                                         CREDIT lane, bytes: of pieces that have come to their place
//
// Window      A sender has at most so many bytes of a lane on their way to a peer that have not come to their place: what is
//             kept, here and there, is bounded.
// Match       Messages of a lane arrive in the order of sending. The next one is received if its tag is the one asked for: with
//             another it is never received, and with another length the lane has failed.
// Trust       What comes is checked: a peer that breaks the rules is an error that names it.
// Ownership   Buffers are the caller's, until the message is done or dropped and nothing is held.
// Threads     One at a time; `held` is taken back on any.
#ifndef STARRING_SHARED_FABRIC_LANES_H
#define STARRING_SHARED_FABRIC_LANES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANES_WHY    160
#define LANES_WINDOW ((size_t)1 << 20)   // bytes
#define LANES_KEPT   ((size_t)64 << 20)  // of all peers of a lane: with many the window is smaller
#define LANES_COPIED ((size_t)4 << 10)   // of a piece that is copied rather than sent from where it lies

enum lane_kind { LANE_PIECE, LANE_CREDIT };

struct lane_head {
    uint32_t kind, lane, tag, unused;
    uint64_t total, at;  // of a credit: bytes, 0
};

// A received piece. release is called once, when its bytes are needed no more; NULL: they are the caller's.
struct lane_piece {
    const void *data;
    size_t bytes;
    void (*release)(void *hold);
    void *hold;
};

struct lanes_options {
    int rank, size, lanes;
    // Queues a piece or a credit for that peer; false: it cannot now, and is tried again. held NULL: the bytes are copied. Else
    // they are sent from where they lie, one has been added to it, and it is taken away when they are needed no more,
    // at once where it is not queued.
    bool (*say)(void *ctx, int to, const struct lane_head *h, const void *data, size_t bytes,
                _Atomic int *held);
    void *ctx;
};

struct lanes;
struct lanes *lanes_create(const struct lanes_options *o);
void lanes_destroy(struct lanes **l);

// At most one message a lane, peer and direction is under way. bytes > 0.
void lanes_send(struct lanes *l, int lane, int to, uint32_t tag, const void *at, size_t bytes);
void lanes_receive(struct lanes *l, int lane, int from, uint32_t tag, void *at, size_t bytes);
// Sends what the windows allow.
void lanes_push(struct lanes *l);
// Takes over the piece. 0, or -1: the peer has broken the rules, as why says.
int lanes_hear(struct lanes *l, int from, const struct lane_head *h, const struct lane_piece *p,
               char why[LANES_WHY]);
// 1: all of the lane is done; 0: not yet; -1: it has failed, as why says.
int lanes_done(const struct lanes *l, int lane, char why[LANES_WHY]);
// The peers that a message of the lane is under way from or to. Returns whether there are any.
bool lanes_missing(const struct lanes *l, int lane, bool *missing);
// Bytes of the lane that have come and gone: a wait in which they grow is none for the dead.
uint64_t lanes_moved(const struct lanes *l, int lane);
// Nothing more is sent from or received into the buffers of the lane, but for pieces that are held.
void lanes_drop(struct lanes *l, int lane);
bool lanes_held(const struct lanes *l);  // whether any piece is

#endif
