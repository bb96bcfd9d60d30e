// The reliable link under all that processes say to each other: each message arrives at the other end once, though the network
// loses, repeats, delays and reorders. What a message says is its owner's; here it has a number.
//
//     owner                                                                                        owner
//       | link_say                                                                        link_hear ^
//     line to each peer                                                    line to each peer        |
//       number 7, said 9  ------------------------------------------------>  7 is new: handed on ---'
//       number 8, said 10 ---------------- lost
//       number 9, said 11 ------------------------------------------------>  9 is new: handed on
//       8 is missing, and something     <--------------------------  any message: heard 9 but 8, seen 11
//       said behind it was seen: it is lost
//       number 8, said 12 again  ------------------------------------------>  8 is new: handed on
//
// Invariants
// 1. A number stands for one message of a line for ever; `said` counts sendings, those that repeat included.
// 2. A message is kept until the peer's word names it as heard. Every message of a peer carries such a word.
// 3. What is bulk is said again only when it is known to be lost: the peer has seen what left behind it. When the round-trip
//    timer (below) ends, bulk that may be lost is asked about with an empty word; what is small is just said again, and asks
//    too. So on a link that is slow, not lossy, no bulk travels twice.
// 4. Messages are new in any order; in_order: what comes behind a gap is not taken, and is said again with the gap.
// 5. A line belongs to two processes: with another one it begins anew (link_forget).
//
// Memory: the owner's items, until they are heard; eight bytes for each number that is missing.
// Threads: one at a time. No sockets, no clock but `now` (seconds). Never blocks.
#ifndef STARRING_SHARED_FABRIC_LINK_H
#define STARRING_SHARED_FABRIC_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/fabric/rto.h"

#define LINK_MISSING_MAX 16

// The link's part of a message, which the link alone reads.
struct link_word {
    uint64_t number;  // of the message, 1, 2, ..; 0: it is not kept
    uint64_t said;    // sendings to the receiver, this one among them; 0: the sender has no link yet
    uint64_t heard;   // of the receiver's messages all up to this number have come, but:
    uint64_t missing[LINK_MISSING_MAX];  // ascending
    int missing_count;
    uint64_t seen;  // the largest `said` of the receiver's that has come
    bool again;     // it has been sent before
    bool asks;      // for a word, at once
};

// A message that the peer may not have: the head of what its owner keeps.
struct link_item {
    bool bulk;              // the owner's
    _Atomic int *inflight;  // while that is above 0 the transport has not sent it; NULL: it has
    struct link_item *next;
    uint64_t number, said;
    bool again;  // more than once
    double sent_s;
};

struct link_rules {
    int peers;             // 0, 1, ..: beside these each link has a line to -1
    double repeat_most_s;  // between two questions
    double word_s;         // before a message without an answer of the owner's gets an empty word
    bool in_order;
    size_t own;  // bytes that the owner keeps with the link, zeroed at first
    // Sends that item under that word; NULL: an empty word.
    void (*say)(void *own, int peer, const struct link_word *w, struct link_item *item);
    // Frees it: it has been heard, or the line has gone.
    void (*drop)(void *own, int peer, struct link_item *item);
};

struct link_totals {
    uint64_t questions;  // words that asked, and what is small said again
    uint64_t resent;     // bulk said again
    uint64_t looked;     // at items: a few for each message that comes, however many are open
};

struct link;
struct link *link_new(const struct link_rules *r);
void link_destroy(struct link **l);
void *link_own(struct link *l);

// item becomes the link's, until it is dropped.
void link_say(struct link *l, int peer, struct link_item *item);
// The word of a message that is not kept, which is sent now.
struct link_word link_word(struct link *l, int peer);
// The word of a message that has arrived, whose sender its owner has checked. Returns whether the message is new; live: it is
// more than an empty word.
bool link_hear(struct link *l, int peer, const struct link_word *w, bool live, double now);
// Says an empty word to a peer that is owed one.
void link_answer(struct link *l, int peer);
// Asks and says again what is overdue; the time of what is sent until the next call.
void link_tick(struct link *l, double now);
// Whether something is awaited of the peer, which has heard all there is: it is asked now and then whether it lives.
void link_await(struct link *l, int peer, bool awaits);
// The peer has another process: nothing is open any more.
void link_forget(struct link *l, int peer);
// Whether the peer has heard all that was said.
bool link_heard(const struct link *l, int peer);
struct link_totals link_totals(const struct link *l);

#endif
