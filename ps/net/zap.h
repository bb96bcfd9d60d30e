// The gatekeeper, which libzmq asks about each connection before it reads a part of a message (ZAP, ZeroMQ's RFC 27): a thread
// of the context that listens at inproc://zeromq.zap.01. A public key is looked up in the trust, a token is compared.
// Its answer, the user's id, is handed out by libzmq with each message of the connection.
//
// Threads     One of its own. It ends when the context does: zap_join comes behind zmq_ctx_term.
#ifndef STARRING_PS_NET_ZAP_H
#define STARRING_PS_NET_ZAP_H

#include "ps/trust/trust.h"

struct zap;

// context: ZeroMQ's, before its first socket listens. trust and token (of a server's data sockets; NULL: none) outlive
// it. NULL after logging.
struct zap *zap_start(void *context, const struct ps_trust *trust, const char *token);
void zap_join(struct zap **z);  // NULL: nothing is done

#endif
