// The proof that a socket asks of a peer that connects, and shows where it connects. Handshakes have a
// deadline, and what waits to be accepted is bounded; until one has succeeded libzmq hands on nothing of the connection.
#ifndef STARRING_SHARED_FABRIC_CURVE_H
#define STARRING_SHARED_FABRIC_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#define CURVE_KEY_BYTES 32

enum curve_way {
    CURVE_NONE,   // whoever reaches the port
    CURVE_TOKEN,  // PLAIN: a name and a token in clear
    CURVE_KEYS    // CURVE: encrypted
};

// Keys of CURVE_KEY_BYTES. A listener needs own_secret alone; whom it lets in the gatekeeper says (zap.h).
struct curve_proof {
    enum curve_way way;
    const uint8_t *own_public, *own_secret, *server;
    const char *name, *token;  // of CURVE_TOKEN
};

// A listener's answer to the handshake, as far as it is known.
enum net_refusal {
    NET_NOT_REFUSED,
    NET_KEY_REFUSED,  // it does not know our key
    NET_OTHER_KEY,    // it has not the key that we know it by
    NET_OTHER_MODE    // it wants keys and we have none, or the other way round; or it is none of ours
};

// socket: ZeroMQ's, before it listens or connects. 0, or -1 after logging.
int curve_listen(void *socket, const struct curve_proof *p);
int curve_connect(void *socket, const struct curve_proof *p);

// The fate of a socket's handshakes, watched from before it connects. NULL where that cannot be watched. The
// socket's own thread alone.
struct curve_watch;
struct curve_watch *curve_watch_start(void *context, void *socket);
enum net_refusal curve_watch_look(struct curve_watch *w);
void curve_watch_anew(struct curve_watch *w);  // forgets what it has found; NULL: nothing is done
void curve_watch_end(struct curve_watch **w, void *socket);

#endif
