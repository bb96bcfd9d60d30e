// ZeroMQ: contexts, ROUTER and DEALER sockets, and messages of two frames, whose content is the caller's.
//
//     [routing id, ROUTER only][head][payload]
//
// Ownership   A struct fabric owns its context. Its sockets are closed before it.
// Threads     A socket belongs to one thread at a time. fabric_create and fabric_destroy: one thread.
// Blocking    Only fabric_poll (up to its timeout) and fabric_destroy (up to linger_ms, for messages still queued).
// Order       Payloads that were sent without a copy must outlive fabric_destroy.
// Limits      Finite high-water marks, ZMQ_MAXMSGSIZE, ROUTER_MANDATORY. A message that cannot be queued, or whose
//             receiver is unknown, is refused: the caller sends it again if it must arrive.
// Key         A ROUTER accepts only connections with the job's key, or its token (curve.h). A DEALER that shows a
//             token cannot know which process listens: once it has been answered (fabric_heard) it never reconnects.
#ifndef STARRING_SHARED_FABRIC_SOCKETS_H
#define STARRING_SHARED_FABRIC_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/fabric/curve.h"

#define FABRIC_ADDRESS_MAX 256   // bytes, with the closing zero
#define NET_HEAD_MAX       1023  // bytes of a head
#define NET_ROUTE_MAX      255

struct fabric;
struct fabric_socket;

struct fabric_options {
    size_t max_payload_bytes;
    size_t max_heard_bytes;     // of ROUTERs, which strangers reach: libzmq keeps one such frame before a
                                // handshake; 0: max_payload_bytes
    int queue_messages;         // high-water mark of each direction
    int io_threads;             // threads that move payloads through sockets; 0: one
    const struct job_key *key;  // required of connections; outlives the fabric. NULL: all are accepted
    const char *token;  // required by ROUTERs instead of the key; outlives the fabric. NULL or "": the key is
                        // required
};

// The sender of a ROUTER's message.
struct net_route {
    uint8_t id[NET_ROUTE_MAX];
    size_t bytes;  // 0: unknown
};

// Starts a context's threads. If a thread cannot be started, it prints why and the process exits with EXIT_RUN_FAILED.
// Returns 0, or -1 after logging.
int fabric_threads(void *context);
struct fabric *fabric_create(const struct fabric_options *o);  // Returns NULL after logging.
// linger_ms: the time in which queued messages are still sent; 0 after a goodbye.
void fabric_destroy(struct fabric **f, int linger_ms);

// Listens at address ("tcp://host:*": any free port). named: dealers have names, and a dealer that connects again
// takes its name over. bound receives the real address. Returns NULL after logging.
struct fabric_socket *fabric_listen(struct fabric *f, const char *address, bool named,
                                    char bound[FABRIC_ADDRESS_MAX]);
// Creates a dealer that is not connected. name: its routing id at the listener; such a dealer reconnects only by
// fabric_ask_again. name NULL: any id. Returns NULL after logging.
struct fabric_socket *fabric_dealer(struct fabric *f, const char *name);
// Called on the thread that uses the socket. token: is sent; NULL or "": the key is used, if there is one. watched:
// fabric_ended reports the end of the connection. Returns 0, or -1 after logging.
int fabric_connect(struct fabric_socket *s, const char *address, const char *token, bool watched);
void fabric_close(struct fabric_socket **s, int linger_ms);
// Returns whether a connection of this socket has ended since the last call, or a handshake has failed. For watched
// dealers, and for listeners with named dealers.
bool fabric_ended(struct fabric_socket *s);
// Becomes readable when something may have changed, edge-triggered: check the socket again after each call of another
// function.
int fabric_fd(struct fabric_socket *s);
// Reconnects after an end: another process may have taken the port of a dead one, and answered.
void fabric_ask_again(struct fabric_socket *s);
// The caller has received a message of the listener's own protocol: from now on a dealer with a token does not
// reconnect.
void fabric_heard(struct fabric_socket *s);

struct fabric_message {
    struct net_route from;  // set by a ROUTER
    const void *head;       // valid until the next fabric_receive
    size_t head_bytes;
    struct fabric_payload *payload;  // owned by the receiver; NULL: none
    const void *data;                // the payload's bytes, which may be unaligned
    size_t bytes;
};
void fabric_payload_release(struct fabric_payload *p);

// Returns 1 with a message; 0: none is waiting (malformed ones are dropped); -1 after logging.
int fabric_receive(struct fabric_socket *s, struct fabric_message *m);
// Sends the head of a message. to: NULL for a DEALER. Returns whether it was queued. If a payload follows, the next
// call is fabric_send_payload.
bool fabric_send(struct fabric_socket *s, const struct net_route *to, const void *head, size_t bytes,
                 bool payload_follows);
// Sends the payload without a copy: let_go(data, hint) is called once, on any thread, when the transport no longer
// needs it, also if the call fails. let_go NULL: the bytes are copied. Returns whether it was queued.
bool fabric_send_payload(struct fabric_socket *s, const void *data, size_t bytes,
                         void (*let_go)(void *data, void *hint), void *hint);

struct fabric_poll_item {
    struct fabric_socket *socket;  // NULL: fd is polled instead
    int fd;
    bool ready;
};
// Waits for any item. 0, or -1 after logging.
int fabric_poll(struct fabric_poll_item *items, int count, int timeout_ms);

// ---------------------------------------------------------------- descriptors
// The limit of open descriptors (RLIMIT_NOFILE), raised before the first socket. libzmq aborts the process if no
// descriptor is left. Connections of strangers take descriptors too, for as long as a handshake may last.
//
// descriptors_claim sets the soft limit to needed + spare (spare 0: to the hard limit). Returns 0, or -1 after logging
// that the limit is too low, and the number that is needed. A process that receives large frames gets a small spare: each
// stranger's connection may hold one frame in memory before the handshake ends.
#define DESCRIPTORS_SPARE 256
// The spare descriptors of a process that receives frames of heard_bytes.
int descriptors_spare(size_t heard_bytes);
int descriptors_claim(int needed, int spare);

#endif
