// The authentication that a listening socket requires of connections, and that a connecting socket shows. Handshakes
// have a timeout, and the accept backlog is bounded. libzmq delivers nothing of a connection before its handshake has
// succeeded.
//
//     token    PLAIN: the connecting side sends it in clear; nothing is encrypted
//     key      CURVE: each side proves that it has the job's key; all is encrypted
//     neither  NULL: every connection is accepted
//
// CURVE       CurveZMQ is ZeroMQ's RFC 26; libzmq's zmq_curve(7) describes its options. Both sides derive two key
//             pairs from the job's key: one for all listeners, one for all that connect. The connecting side seals its
//             HELLO to the listeners' public key, which is never sent; only that key opens the answer. A library that
//             accepts points of small order (libzmq with its own TweetNaCl) lets a stranger forge such a HELLO. So the
//             ZAP handler (curve.c) also checks the connecting side's public key, for which the handshake requires the
//             secret key. With two pairs, one side's proof cannot be sent back as the other's.
#ifndef STARRING_SHARED_FABRIC_CURVE_H
#define STARRING_SHARED_FABRIC_CURVE_H

#include "shared/fabric/job_key.h"

#define CURVE_MEMBER "member"  // libzmq's "User-Id" of the messages of connections that were accepted

struct zap;
// socket: ZeroMQ's, before it listens or connects. key or token may be NULL; an empty token counts as none. With either
// one the first listener of a context starts the context's ZAP handler, a thread: *zap is NULL before. key and token
// outlive it. Both functions return 0, or -1 after logging.
int curve_listen(void *context, void *socket, const struct job_key *key, const char *token, struct zap **zap);
void curve_end(
    struct zap **zap);  // Called after zmq_ctx_term, which ends the handler's thread. Does nothing for NULL.
int curve_connect(void *socket, const struct job_key *key, const char *token);

// Watches a socket's connections and handshakes, from before it connects: events of zmq_socket_monitor(3). CURVE_END_EVENTS
// are the events that end or complete a connection. Returns a socket to poll, or NULL if watching fails. Only the
// socket's own thread uses it.
#define CURVE_END_EVENTS                                                                                     \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_DISCONNECTED)
void *curve_watch(void *context, void *socket, int events);
int curve_watch_next(void *watch, int *value);  // Returns the next event, with its value in *value; 0: none.
void curve_watch_end(void **watch, void *socket);

#endif
