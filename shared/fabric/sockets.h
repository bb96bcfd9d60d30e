// ZeroMQ: contexts, ROUTER and DEALER sockets, and messages of two frames. It knows what a message means as little as who
// sends it.
//
//     [routing id, ROUTER only][head][payload]
//
// Ownership   A struct fabric owns its context; sockets belong to it and are closed before it.
// Threads     A socket belongs to one thread at a time. fabric_create and fabric_destroy: one thread.
// Blocking    Only fabric_poll (up to its timeout) and fabric_destroy (up to linger_ms, for messages still queued).
// Order       Payloads that were sent from where they lie must outlive fabric_destroy.
// Limits      Finite high-water marks, ZMQ_MAXMSGSIZE, ROUTER_MANDATORY. A message that cannot be queued or is for
//             nobody is refused: whoever needs it says it again.
// Key         A ROUTER hears only who has the job's key, or its token (curve.h). A DEALER that shows a token cannot tell which process listens: once
//             it has been answered (fabric_heard) it connects to nobody else, ever.
#ifndef STARRING_SHARED_FABRIC_SOCKETS_H
#define STARRING_SHARED_FABRIC_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/fabric/curve.h"

#define NET_ADDRESS_MAX 256   // bytes, with the closing zero
#define NET_HEAD_MAX    1023  // bytes of a head
#define NET_ROUTE_MAX   255

struct fabric;
struct fabric_socket;

struct fabric_options {
    size_t max_payload_bytes;
    size_t
        max_heard_bytes;  // by ROUTERs, which strangers reach: libzmq keeps one such frame before a handshake; 0: the same
    int queue_messages;         // high-water mark of each direction
    int io_threads;             // that move payloads through sockets; 0: one
    const struct job_key *key;  // who has it is let in; outlives the fabric. NULL: everybody is
    const char
        *token;  // that ROUTERs ask for in its place; outlives it too. NULL or "": the key is asked for
};

// The sender of a ROUTER's message.
struct net_route {
    uint8_t id[NET_ROUTE_MAX];
    size_t bytes;  // 0: unknown
};

// Starts a context's threads: where none can be started this says why, and the process ends with status 1. -1 after logging.
int fabric_threads(void *context);
struct fabric *fabric_create(const struct fabric_options *o);  // NULL after logging
// linger_ms: how long queued messages may still leave; 0 after a goodbye.
void fabric_destroy(struct fabric **f, int linger_ms);

// Listens at address ("tcp://host:*" takes any port). named: dealers have names, and one that comes anew takes its name back. bound: the
// real address. NULL after logging.
struct fabric_socket *fabric_listen(struct fabric *f, const char *address, bool named,
                                    char bound[NET_ADDRESS_MAX]);
// A dealer that has connected to nobody yet. name: its routing id at the other end, where a connection that has ended is not made
// anew but by fabric_ask_again; NULL: any. NULL after logging.
struct fabric_socket *fabric_dealer(struct fabric *f, const char *name);
// On the thread that uses it. token: that it shows; NULL or "": it shows the key, if there is one. watched: fabric_ended says
// what becomes of it. 0, or -1 after logging.
int fabric_connect(struct fabric_socket *s, const char *address, const char *token, bool watched);
void fabric_close(struct fabric_socket **s, int linger_ms);
// Whether a connection of this socket has ended since the last call, or its handshake has failed. Of watched dealers, and of
// listeners of names.
bool fabric_ended(struct fabric_socket *s);
// Readable when something may have changed, edge by edge: look behind each call of another function again.
int fabric_fd(struct fabric_socket *s);
// Behind an end: another process may have answered, at the port of one that has died.
void fabric_ask_again(struct fabric_socket *s);
// The peer sent a message of its own.
void fabric_heard(struct fabric_socket *s);

struct fabric_message {
    struct net_route from;  // ROUTER
    const void *head;       // valid until the next receiving
    size_t head_bytes;
    struct fabric_payload *payload;  // owned by the receiver; NULL: none
    const void *data;                // of the payload, may be unaligned
    size_t bytes;
};
void fabric_payload_release(struct fabric_payload *p);

// 1: a message; 0: none waiting (what is none is dropped on the way); -1 after logging.
int fabric_receive(struct fabric_socket *s, struct fabric_message *m);
// The head of a message. to: NULL for a DEALER. Returns whether it was queued. Where a payload follows, fabric_send_payload is
// the next call.
bool fabric_send(struct fabric_socket *s, const struct net_route *to, const void *head, size_t bytes,
                 bool payload_follows);
// From where it lies: let_go(data, hint) is called once, on any thread, when the transport needs it no more, also when the call
// fails; NULL: the bytes are copied. Returns whether it was queued.
bool fabric_send_payload(struct fabric_socket *s, const void *data, size_t bytes,
                         void (*let_go)(void *data, void *hint), void *hint);

struct fabric_poll_item {
    struct fabric_socket *socket;  // or NULL: fd
    int fd;
    bool ready;
};
// Waits for any item. 0, or -1 after logging.
int fabric_poll(struct fabric_poll_item *items, int count, int timeout_ms);

// ZeroMQ takes any number for a port, and listens on what is left of it in 16 bits. 0, or -1 after logging.
int address_check_port(const char *address);

#endif
