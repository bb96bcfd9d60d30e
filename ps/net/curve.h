// The proof that a socket asks of a peer that connects, and shows where it connects (ps/trust/trust.h has the table). Handshakes have a
// deadline, and what waits to be accepted is bounded; until one has succeeded libzmq hands on nothing of the connection.
#ifndef STARRING_PS_NET_CURVE_H
#define STARRING_PS_NET_CURVE_H

#include <stdbool.h>

struct ps_trust;

// Control: to and from the scheduler. Data: to and from a server's shards.
enum net_plane { NET_CONTROL, NET_DATA };

// The peer that a DEALER connects to.
struct net_peer {
    const char *address;
    enum net_plane plane;
    int server;         // data: the shard's
    const char *token;  // data: its (ps/net/roster.h)
};

// The scheduler's answer to the handshake, as far as it is known.
enum net_refusal {
    NET_NOT_REFUSED,
    NET_KEY_REFUSED,  // it does not know our key
    NET_OTHER_KEY,    // it has not the key that we know it by
    NET_OTHER_MODE    // it wants keys and we have none, or the other way round; or it is no scheduler
};

// socket: ZeroMQ's, before it listens or connects. 0, or -1 after logging.
int curve_listen(void *socket, const struct ps_trust *t, enum net_plane plane);
int curve_connect(void *socket, const struct ps_trust *t, const struct net_peer *to);

// Whether a client of that plane shows a token, and cannot tell which process listens.
bool curve_is_plain(const struct ps_trust *t, enum net_plane plane);

// The fate of a socket's handshakes, watched from before it connects. NULL where that cannot be watched. The
// socket's own thread alone.
struct curve_watch;
struct curve_watch *curve_watch_start(void *context, void *socket);
enum net_refusal curve_watch_look(struct curve_watch *w);
void curve_watch_anew(struct curve_watch *w);  // forgets what it has found; NULL: nothing is done
void curve_watch_end(struct curve_watch **w, void *socket);

#endif
