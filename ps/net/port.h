// Between the state machines (the cores) and the wire: how a core receives a payload, sends a message and
// fails. A core knows its peers by number alone; behind it are the link (link.h) and the role's socket, or a test.
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

// Peers other than a plain index (a worker's rank at a shard, a shard's index at a worker, a member's
// number at the scheduler).
enum { PEER_SCHEDULER = -1 };

struct ps_message {
    struct wire_header header;  // who speaks is filled in below the link (net_lines)
    const void *payload;
    size_t bytes;
    // NULL: the payload is copied before send returns. Else it is sent from where it lies: one is added
    // now and taken away, on any thread, when the transport has let go of it.
    _Atomic int *inflight;
};

// send never blocks; what cannot be queued is dropped, and the link says it again.
struct ps_port {
    void *ctx;
    void (*send)(void *ctx, int peer, const struct ps_message *m);
};

// A message of a header alone.
static inline void port_tell(const struct ps_port *p, int peer, const struct wire_header *h) {
    p->send(p->ctx, peer, &(struct ps_message){.header = *h});
}

// Writes a core's error, which ends it. The first one is kept. Always -1.
int core_fail(char error[WIRE_TEXT_MAX], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// ---------------------------------------------------------------- what has come
// A message that has arrived, and where from.
struct net_message {
    struct net_route from;  // ROUTER
    struct wire_header header;
    struct ps_frame *frame;  // owned by the receiver; NULL: no payload
};

#endif
