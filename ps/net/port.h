// The interface between the state machines (the cores) and the wire: how a core receives a payload, sends a message and
// fails. A core knows its peers only by number; the link (link.h) and the role's socket, or a test, deliver the
// messages.
#ifndef STARRING_PS_NET_PORT_H
#define STARRING_PS_NET_PORT_H

#include <stdatomic.h>

#include "ps/net/wire.h"
#include "shared/fabric/sockets.h"

// A received payload. Its holder calls release once; data may be unaligned.
struct ps_frame {
    const void *data;
    size_t bytes;
    void (*release)(struct ps_frame *f);
};
static inline void ps_frame_release(struct ps_frame *f) {
    if (f) f->release(f);
}

// Peers that are no plain index (an index is a worker's rank at a shard, a shard's index at a worker, a member's
// number at the scheduler).
enum { PEER_SCHEDULER = -1 };

struct ps_message {
    struct wire_header header;  // net_lines fills in the sender, below the link
    const void *payload;
    size_t bytes;
    // NULL: the payload is copied before send returns. Else it is sent without a copy: the count rises by one
    // now and falls by one, on any thread, when the transport no longer reads it.
    _Atomic int *inflight;
};

// send never blocks; what cannot be queued is dropped, and the link resends it.
struct ps_port {
    void *ctx;
    void (*send)(void *ctx, int peer, const struct ps_message *m);
};

// Sends a message without a payload.
static inline void port_tell(const struct ps_port *p, int peer, const struct wire_header *h) {
    p->send(p->ctx, peer, &(struct ps_message){.header = *h});
}

// Writes a core's error, which ends it. The first one is kept. Always returns -1.
int core_fail(char error[WIRE_TEXT_MAX], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// ---------------------------------------------------------------- received messages
// A message that has arrived, and its route.
struct net_message {
    struct net_route from;  // set by a ROUTER
    struct wire_header header;
    struct ps_frame *frame;  // owned by the receiver; NULL: no payload
};

#endif
