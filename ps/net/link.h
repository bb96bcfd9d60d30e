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
// Kinds that are repeated by themselves (login, heartbeats, wire_is_kept) carry words and no numbers.
//
// Memory: for each message that is not heard yet, some 400 bytes and no payload; a byte for each number behind a gap.
// Threads: the one that owns the cores behind it. No sockets, no clock but `now` (seconds). Never blocks.
#ifndef STARRING_PS_NET_LINK_H
#define STARRING_PS_NET_LINK_H

#include <stdint.h>

#include "ps/net/port.h"

struct link_options {
    int peers;             // that have an index; beside these each link has lines to PEER_SCHEDULER and below
    double repeat_most_s;  // between two questions
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

// How cores above send. PEER_SENDER has no line: such a message passes through.
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
// Repeats are at most so far apart from now on: of last words.
void link_hurry(struct link *l, double most_s);
struct link_totals link_totals(const struct link *l);

// ---------------------------------------------------------------- when to ask again
// When to ask again: the retransmission timeout of RFC 6298, one of these for each peer.
//
//     SRTT, RTTVAR   smoothed round trip and its deviation (gains 1/8 and 1/4)
//     RTO            SRTT + 4 RTTVAR, within [RTO_LEAST_S, RTO_MOST_S]; RTO_FIRST_S before there is a sample
//     backoff        the pause doubles with each repetition, up to a limit of the caller's
//
// Karn's rule: only the round trip of a message that is known to be the answered one is a sample. Here each sending has a
// number of its own (wire_link.said) and words name the latest that has come, so that repeated ones can be sampled too.
//
// Plain data; seconds.
#define RTO_FIRST_S 0.1
#define RTO_LEAST_S 0.03  // a thread looks at its messages every POLL_MS, and may have to wait for a core
#define RTO_MOST_S  4.0

struct rto {
    double srtt_s, rttvar_s;
    uint64_t samples;
};

void rto_sample(struct rto *r, double rtt_s);  // negative: dropped
double rto_s(const struct rto *r);
// The pause before the next repetition, after so many: first, twice that, .. up to most.
double rto_backoff(double first_s, int repeats, double most_s);

#endif
