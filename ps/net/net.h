// The star's messages over the fabric's sockets (shared/fabric/sockets.h): headers (ps/net/wire.h), who may say what, and the
// counting of bytes where they leave and arrive.
//
// Ownership   A struct net owns its sockets, which are closed before it.
// Threads     A socket belongs to one thread at a time. net_create and net_destroy: the role's thread.
// Blocking    Only net_poll (up to its timeout) and net_destroy (up to linger_ms, for messages still queued).
// Order       Buffers sent with an inflight counter, and the wire count, must outlive net_destroy.
// Limits      Finite high-water marks, ZMQ_MAXMSGSIZE, ROUTER_MANDATORY. A message that cannot be queued or is for
//             nobody is dropped: the link says it again. Anything that is not a well-formed message is dropped.
// Key         A ROUTER hears only who has the job's key, or its token. A DEALER that shows a token (ps/job/security.h)
//             cannot tell which process listens: once it has been answered it connects to nobody else, ever.
#ifndef STARRING_PS_NET_NET_H
#define STARRING_PS_NET_NET_H

#include <stddef.h>

#include "ps/net/fault.h"
#include "ps/net/port.h"
#include "shared/config/config.h"
#include "shared/core/wire_count.h"
#include "shared/fabric/descriptors.h"
#include "shared/fabric/sockets.h"

struct net;
struct net_socket;

// Control: to and from the scheduler. Data: to and from a server's shards.
enum net_plane { NET_CONTROL, NET_DATA };

// The peer that a DEALER connects to.
struct net_peer {
    const char *address;
    enum net_plane plane;
    const char *token;  // data: the shard's (ps/net/roster.h); NULL or "": none
};

struct net_options {
    struct wire_count *wire;  // counters of the role; outlive the net
    size_t max_payload_bytes;
    size_t
        max_heard_bytes;  // by ROUTERs, which strangers reach: libzmq keeps one such frame before a handshake; 0: the same
    int queue_messages;  // high-water mark of each direction
    int io_threads;      // that move payloads through sockets; 0: one
    struct fault_plan faults;
    const struct job_key *key;  // who has it is let in; outlives the net. NULL: everybody is
    const char *token;          // that ROUTERs ask for in its place; NULL or "": the key is asked for
};

struct net *net_create(const struct net_options *o);  // NULL after logging
// linger_ms: how long queued messages may still leave; 0 after a goodbye.
void net_destroy(struct net **n, int linger_ms);

// Before anything is received from it: the process of this role and rank is beside this one, and its payloads count as local.
void net_beside(struct net *n, enum ps_role role, int rank);

// Listens on address; "tcp://host:*" takes any port. bound: the real address. NULL after logging.
struct net_socket *net_router(struct net *n, const char *address, char bound[NET_ADDRESS_MAX]);
struct net_socket *net_dealer(struct net *n, const struct net_peer *to);  // connects; NULL after logging
// Of a dealer of the control plane, until net_welcome has been called: nothing more is looked at then.
bool net_refused(struct net_socket *s);
// After a refusal: another process may have answered, at the port of one that has died.
void net_ask_again(struct net_socket *s);
void net_welcome(struct net_socket *s);

// 1: a message; 0: none waiting (malformed ones are dropped on the way); -1 after logging.
int net_recv(struct net_socket *s, struct net_message *m);
// to: NULL for a DEALER. m->header is complete. Returns whether it was queued.
bool net_send(struct net_socket *s, const struct net_route *to, const struct ps_message *m);

struct net_poll_item {
    struct net_socket *socket;  // or NULL: fd
    int fd;
    bool ready;
};
// Waits for any item. 0, or -1 after logging.
int net_poll(struct net_poll_item *items, int count, int timeout_ms);

// ---------------------------------------------------------------- addresses
// The addresses that a server's shard threads bind and tell others.
// The address shard `thread` binds: "tcp://host:*" as it is, "tcp://host:port" counts upwards from port.
void address_bind(const char *base, int thread, char out[NET_ADDRESS_MAX]);
// The address for others: as bound, or at the advertised host, or at the advertised tcp://host:port + thread. 0, or -1
// after logging.
int address_advertised(const char *advertise, const char *bound, int thread, char out[NET_ADDRESS_MAX]);

// ---------------------------------------------------------------- descriptors
// Of a job of so many shard threads a server: what a role holds with all members connected, generously.
int descriptors_of_scheduler(const struct config *c, int threads);
int descriptors_of_server(const struct config *c, int threads);
int descriptors_of_worker(const struct config *c, int shards);

#endif
