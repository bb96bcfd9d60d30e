// The reliable link under all messages between processes: each message is delivered once, though the network loses,
// duplicates, delays and reorders. The owner of the link defines the content of messages; the link only numbers them.
//
//     owner                                                                                        owner
//       | link_send                                                                        link_accept ^
//     line to each peer                                                    line to each peer        |
//       number 7, said 9  ------------------------------------------------>  7 is new: delivered ----'
//       number 8, said 10 ---------------- lost
//       number 9, said 11 ------------------------------------------------>  9 is new: delivered
//       8 is missing, and something     <--------------------------  any message: heard 9 but 8, seen 11
//       sent later was seen: it is lost
//       number 8, said 12 again  ------------------------------------------>  8 is new: delivered
//
// Terms: a line is the state of the link with one peer. Every message carries an acknowledgement (struct link_ack); an
// empty acknowledgement is a message with nothing else.
//
// Invariants
// 1. A number stands for one message of a line for ever; `said` counts sendings, resends included.
// 2. A message is kept until the peer acknowledges it. Every message carries an acknowledgement.
// 3. Bulk messages are resent only when they are known to be lost: the peer has seen a message that was sent later.
//    When the round-trip timer (link.c) expires, an empty acknowledgement asks about bulk that may be lost. A small
//    message is resent at once, and asks too. So a link that is slow but not lossy carries no bulk twice.
// 4. Messages are new in any order. With in_order, a message after a gap is not accepted, and is resent with the gap.
// 5. A line belongs to two processes: with a new process it starts again (link_forget).
//
// Memory: the owner's items, until they are acknowledged; eight bytes per missing number.
// Threads: one at a time. No sockets, no clock except `now` (seconds). Never blocks.
#ifndef STARRING_SHARED_FABRIC_LINK_H
#define STARRING_SHARED_FABRIC_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/fabric/rto.h"

#define LINK_MISSING_MAX 16

// The link's header in a message; only the link reads it.
struct link_ack {
    uint64_t number;  // number of the message, 1, 2, ..; 0: the message is not kept
    uint64_t said;    // sendings to the receiver, this one included; 0: the sender has no link yet
    uint64_t heard;   // all messages of the receiver up to this number have arrived, except:
    uint64_t missing[LINK_MISSING_MAX];  // ascending
    int missing_count;
    uint64_t seen;  // the largest `said` of the receiver that has arrived
    bool again;     // the message was sent before
    bool asks;      // requests an answer at once
};

// A message that is not acknowledged yet: the first member of the owner's struct.
struct link_item {
    bool bulk;              // set by the owner
    _Atomic int *inflight;  // above 0 while the transport has not sent it; NULL: it has
    struct link_item *next;
    uint64_t number, said;
    bool again;  // it was sent more than once
    double sent_s;
};

struct link_rules {
    int peers;             // 0, 1, ..: each link also has a line to -1
    double repeat_most_s;  // the longest pause between two requests for an acknowledgement
    double ack_s;  // a message that the owner has not answered after this time gets an empty acknowledgement
    bool in_order;
    size_t own;  // bytes that the owner keeps with the link, initially zero
    // Sends the item with the acknowledgement w; item NULL: an empty acknowledgement.
    void (*send)(void *own, int peer, const struct link_ack *w, struct link_item *item);
    // Frees the item: it is acknowledged, or the line is reset.
    void (*drop)(void *own, int peer, struct link_item *item);
};

struct link_totals {
    uint64_t questions;  // empty acknowledgements that request an answer, and resends of small messages
    uint64_t resent;     // resends of bulk messages
    uint64_t looked;     // items checked: a few per arriving message, however many are open
};

struct link;
struct link *link_new(const struct link_rules *r);
void link_destroy(struct link **l);
void *link_owner(struct link *l);

// Takes ownership of item until it is dropped.
void link_send(struct link *l, int peer, struct link_item *item);
// Returns the acknowledgement for a message that is not kept and is sent now.
struct link_ack link_ack(struct link *l, int peer);
// Applies the acknowledgement of a message that has arrived; the owner has checked the sender. Returns whether the
// message is new. live: it is more than an empty acknowledgement.
bool link_accept(struct link *l, int peer, const struct link_ack *w, bool live, double now);
// Sends an empty acknowledgement if a message of the peer has not been acknowledged yet.
void link_answer(struct link *l, int peer);
// Sends the resends that are due, and empty acknowledgements that ask for an answer. `now` is the send time of all
// messages until the next call.
void link_tick(struct link *l, double now);
// awaits: an answer of the peer is awaited. A peer that has acknowledged all messages is then asked periodically
// whether it is alive.
void link_await(struct link *l, int peer, bool awaits);
// The peer is a new process: resets the line and drops its unacknowledged messages.
void link_forget(struct link *l, int peer);
// Returns whether the peer has acknowledged all messages.
bool link_is_acknowledged(const struct link *l, int peer);
struct link_totals link_totals(const struct link *l);

#endif
