// The reliable link (shared/fabric/link.h) under the cores of the star: how they send, what is kept of their messages, and which of a
// peer's processes it is.
//
// 1. A payload is not copied: it is said again from where it lies, or as its owner makes it anew (renew). An owner that
//    has no need of it any more says so, and an empty word goes in its place, for its number must come.
// 2. A message that comes twice is dropped here. Its owner is handed WIRE_WORD in its place: a sign that the peer lives.
// 3. A message of another process of a peer (its incarnation; the owner has checked that it may speak) begins the line anew, and
//    what was kept for the old process is dropped.
// Kinds that are repeated by themselves (heartbeats, wire_is_kept) carry words and no numbers.
//
// Memory: for each message that is not heard yet, some 400 bytes and no payload.
#ifndef STARRING_PS_NET_LINK_H
#define STARRING_PS_NET_LINK_H

#include <stdint.h>

#include "ps/net/port.h"
#include "shared/fabric/link.h"

struct link_options {
    int peers;               // that have an index; beside these each link has a line to PEER_SCHEDULER
    double repeat_most_s;    // between two questions
    struct ps_port network;  // what is below
    // A payload is to be said again. Writes it anew into m, header and all, or returns false: nobody needs it any more.
    // NULL: payloads stay where they lie until they are heard.
    bool (*renew)(void *ctx, int peer, struct ps_message *m);
    void *ctx;
};
struct link *link_create(const struct link_options *o);

// How cores above send.
struct ps_port link_port(struct link *l);
// A message of a peer has arrived, and its owner has checked its sender. Returns whether it is new; else its kind is
// WIRE_WORD from here on.
bool link_receive(struct link *l, int peer, struct wire_header *h, double now);

#endif
