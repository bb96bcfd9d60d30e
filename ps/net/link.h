// The reliable link (shared/fabric/link.h) under the state machines of the star. The link defines how they send, which
// of their messages are kept, and which process of a peer is current. The terms "line" and "acknowledgement"
// are those of shared/fabric/link.h; an empty acknowledgement is a message of kind WIRE_WORD.
//
// 1. A payload is not copied: it is resent from its buffer, or its owner writes it again (renew). If the owner no
//    longer needs it, an empty acknowledgement with its number is sent instead, because the number must arrive.
// 2. A message that arrives twice is dropped here. Its owner gets WIRE_WORD instead, as a heartbeat of the peer.
// 3. A message from a new process of a peer (a new incarnation; the owner has checked that it is allowed) resets the
//    line, and all that was kept for the old process is dropped.
//
// Kinds that are repeated by themselves (heartbeats; wire_is_kept is false) carry acknowledgements and no numbers.
//
// A star's link is a struct link, so calls of both headers apply to it (star_link_* here, link_* there).
//
// Memory: about 400 bytes per message that is not acknowledged yet, without its payload.
#ifndef STARRING_PS_NET_LINK_H
#define STARRING_PS_NET_LINK_H

#include <stdint.h>

#include "ps/net/port.h"
#include "shared/fabric/link.h"

struct star_link_options {
    int peers;               // peers that have an index; each link also has a line to PEER_SCHEDULER
    double repeat_most_s;    // the longest pause between two requests for an acknowledgement
    struct ps_port network;  // the layer below
    // Called when a payload is resent. Writes the message into m again, with its header, or returns false if it is no
    // longer needed. NULL: payloads stay in their buffers until they are acknowledged.
    bool (*renew)(void *ctx, int peer, struct ps_message *m);
    void *ctx;
};
struct link *star_link_create(const struct star_link_options *o);

// The port through which the state machines send.
struct ps_port star_link_port(struct link *l);
// Handles a message of a peer that has arrived; the owner has checked its sender. Returns whether it is new; otherwise
// its kind becomes WIRE_WORD.
bool star_link_receive(struct link *l, int peer, struct wire_header *h, double now);

#endif
