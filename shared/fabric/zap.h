// The gatekeeper, which libzmq asks about each connection before it reads a part of a message (ZAP, ZeroMQ's RFC 27): a thread
// of the context that listens at inproc://zeromq.zap.01. The public key of whoever connects is compared with the one that the
// job's key makes, a token with the token. Whoever is let in has the name ZAP_MEMBER, which libzmq hands out with each message of the
// connection ("User-Id").
//
// Threads     One of its own. It ends when the context does: zap_join comes behind zmq_ctx_term.
#ifndef STARRING_SHARED_FABRIC_ZAP_H
#define STARRING_SHARED_FABRIC_ZAP_H

#include "shared/fabric/job_key.h"

#define ZAP_MEMBER "member"

struct zap;

// context: ZeroMQ's, before its first socket listens. key, token: NULL: none is good; both outlive it. NULL after logging.
struct zap *zap_start(void *context, const struct job_key *key, const char *token);
void zap_join(struct zap **z);  // NULL: nothing is done

#endif
