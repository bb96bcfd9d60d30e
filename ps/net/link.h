// The reliable link under the cores of the star: each message that a core sends arrives at the other core once, though the
// network loses, repeats, delays and reorders. Order is not promised.
//
//     core                                                                                          core
//       | send                                                                                 message ^
//     link: line to each peer                                                link: line to each peer   |
//       number 7, said 9  ------------------------------------------------>  7 is new: handed on ------'
//       number 8, said 10 ---------------- lost
//       number 9, said 11 ------------------------------------------------>  9 is new: handed on
//       8 is missing, and something     <--------------------------  any message: heard 9 but 8, seen 11
//       said behind it was seen: it is lost
//       number 8, said 12 again  ------------------------------------------>  8 is new: handed on
//
// Invariants
// 1. A number stands for one message of a line for ever; `said` counts sendings, those that repeat included.
// 2. A message is kept until the peer's word names it as heard. Every message of a peer carries such a word.
// 3. A payload is not copied: it is said again from where it lies, or as its owner makes it anew (renew). An owner that
//    has no need of it any more says so, and an empty word goes in its place, for its number must come.
// 4. A payload is said again only when it is known to be lost: the peer has seen what left behind it. When the round-trip
//    timer (below) ends, a payload that may be lost is asked about with an empty word; a message that is a header alone is
//    just said again, and asks too. So on a link that is slow, not lossy, no payload travels twice.
// 5. A message that comes twice is dropped here. Its owner is handed WIRE_WORD in its place: a sign that the peer lives.
// 6. A line belongs to two processes. A message of another process of that peer (its incarnation; the owner has checked
//    that it may speak) begins the line anew, and what was kept for the old process is dropped.
// Kinds that are repeated by themselves (heartbeats, wire_is_kept) carry words and no numbers.
//
// Memory: for each message that is not heard yet, some 400 bytes and no payload; a byte for each number behind a gap.
// Threads: the one that owns the cores behind it. No sockets, no clock but `now` (seconds). Never blocks.
#ifndef STARRING_PS_NET_LINK_H
#define STARRING_PS_NET_LINK_H

#include <stdint.h>

#include "ps/net/port.h"
#include "shared/fabric/rto.h"

struct link_options {
    int peers;               // that have an index; beside these each link has a line to PEER_SCHEDULER
    double repeat_most_s;    // between two questions
    struct ps_port network;  // what is below
    // A payload is to be said again. Writes it anew into m, header and all, or returns false: nobody needs it any more.
    // NULL: payloads stay where they lie until they are heard.
    bool (*renew)(void *ctx, int peer, struct ps_message *m);
    void *ctx;
};

struct link_totals {
    uint64_t questions;  // words that asked, and headers said again
    uint64_t resent;     // payloads said again
    uint64_t
        looked;  // at messages that the peer may not have: a few for each that comes, however many are open
};

struct link;
struct link *link_create(const struct link_options *o);
void link_destroy(struct link **l);

// How cores above send.
struct ps_port link_port(struct link *l);
// A message of a peer has arrived, and its owner has checked its sender. Returns whether it is new; else its kind is
// WIRE_WORD from here on.
bool link_receive(struct link *l, int peer, struct wire_header *h, double now);
// Asks and says again what is overdue; the time of what is sent until the next call. At least every POLL_MS.
void link_tick(struct link *l, double now);
// Whether something is awaited of the peer, which has heard all there is: it is asked now and then whether it lives.
void link_await(struct link *l, int peer, bool awaits);
// The peer has another process, or the job another epoch: nothing is open any more.
void link_forget(struct link *l, int peer);
// Whether the peer has heard all that was said.
bool link_heard(const struct link *l, int peer);
struct link_totals link_totals(const struct link *l);

#endif
