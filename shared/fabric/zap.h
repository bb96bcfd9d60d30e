// The ZAP handler, which libzmq asks about each connection before it accepts a message (ZAP: ZeroMQ's RFC 27). It is a
// thread that listens at inproc://zeromq.zap.01. It compares the public key of the connecting side with the one
// derived from the job's key, or its token with the token. An accepted connection gets the name ZAP_MEMBER, which
// libzmq returns with each of its messages ("User-Id").
//
// Threads     One of its own. It ends with the context: zap_join comes after zmq_ctx_term.
#ifndef STARRING_SHARED_FABRIC_ZAP_H
#define STARRING_SHARED_FABRIC_ZAP_H

#include "shared/fabric/job_key.h"

#define ZAP_MEMBER "member"

struct zap;

// context: ZeroMQ's, before its first socket listens. key, token: NULL: every one is refused; both outlive the
// handler. Returns NULL after logging.
struct zap *zap_start(void *context, const struct job_key *key, const char *token);
void zap_join(struct zap **z);  // NULL: nothing is done

#endif
