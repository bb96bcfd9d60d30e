// The proof that a socket asks of whoever connects, and shows where it connects. Handshakes have a deadline, and what
// waits to be accepted is bounded; until one has succeeded libzmq hands on nothing of the connection.
//
//     token    PLAIN: who connects shows it in clear, and nothing is encrypted
//     key      CURVE: each side shows that it has the job's key, and all is encrypted
//     neither  NULL: nobody is asked
//
// CURVE       CurveZMQ is ZeroMQ's RFC 26; libzmq's zmq_curve(7) has its options. Both sides derive two pairs from the key: one is
//             of all who listen, the other of all who connect. Who connects seals its HELLO to the listeners' public key,
//             which is never sent; the answer opens to that key alone. A library that takes points of small order (libzmq with
//             its own TweetNaCl) makes such a HELLO from nothing, so knowing that public key is not enough: the gatekeeper
//             (zap.h) asks for the public key of those who connect, for which the handshake demands their secret one. With
//             two pairs no side's proof is the other's, sent back.
#ifndef STARRING_SHARED_FABRIC_CURVE_H
#define STARRING_SHARED_FABRIC_CURVE_H

#include "shared/fabric/job_key.h"

// socket: ZeroMQ's, before it listens or connects. key, token: NULL: none; token "": none. A listener with either needs a gatekeeper
// in its context. 0, or -1 after logging.
int curve_listen(void *socket, const struct job_key *key, const char *token);
int curve_connect(void *socket, const struct job_key *key, const char *token);

// What becomes of a socket's connections and handshakes, watched from before it connects: events of zmq_socket_monitor(3). A socket
// to poll; NULL where that cannot be watched. The socket's own thread alone.
#define CURVE_FATES                                                                                          \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_DISCONNECTED)
void *curve_watch(void *context, void *socket, int events);
int curve_watch_next(void *watch, int *value);  // the next event and its value; 0: there is none
void curve_watch_end(void **watch, void *socket);

#endif
