// The gatekeeper, which libzmq asks about each connection before it reads a part of a message (ZAP, ZeroMQ's RFC 27): a thread
// of the context that listens at inproc://zeromq.zap.01. Its rule says whose public key comes in; a token is compared.
// Its answer, the user's id, is handed out by libzmq with each message of the connection.
//
// Threads     One of its own. It ends when the context does: zap_join comes behind zmq_ctx_term.
#ifndef STARRING_SHARED_FABRIC_ZAP_H
#define STARRING_SHARED_FABRIC_ZAP_H

#include <stdbool.h>
#include <stdint.h>

#define ZAP_NAME_MAX 32  // bytes, with the closing zero

struct zap_rule {
    // The name of a public key's owner (CURVE_KEY_BYTES); false: it may not join. On the gatekeeper's thread. NULL: everybody
    // who reaches the port comes in, and nobody is asked.
    bool (*admits)(const void *ctx, const uint8_t *key, char name[ZAP_NAME_MAX]);
    const void *ctx;
    const char *member, *token;  // of whoever shows both in clear; token NULL: nobody does
};

struct zap;

// context: ZeroMQ's, before its first socket listens. What the rule points to outlives it. NULL after logging.
struct zap *zap_start(void *context, const struct zap_rule *rule);
void zap_join(struct zap **z);  // NULL: nothing is done

#endif
