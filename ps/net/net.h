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

#include "ps/net/clock.h"
#include "ps/net/fault.h"
#include "ps/net/port.h"
#include "shared/config/config.h"
#include "shared/core/wire_count.h"
#include "shared/fabric/descriptors.h"
#include "shared/fabric/sockets.h"

struct net;
struct net_socket;

// The peer that a DEALER connects to.
struct net_peer {
    const char *address;
    const char *token;  // a shard's (ps/net/roster.h); NULL or "": none
};

// The process beside this one (ps_beside): what the two tell each other counts as local. peers: how many a link has in such a
// process, the one of `rank` behind those of lower ranks; 0: there is none beside.
struct net_beside {
    enum ps_role role;
    int rank, peers;
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
    struct net_beside beside;
};

struct net *net_create(const struct net_options *o);  // NULL after logging
// linger_ms: how long queued messages may still leave; 0 after a goodbye.
void net_destroy(struct net **n, int linger_ms);

// Listens on address; "tcp://host:*" takes any port. bound: the real address. NULL after logging.
struct net_socket *net_router(struct net *n, const char *address, char bound[NET_ADDRESS_MAX]);
struct net_socket *net_dealer(struct net *n, const struct net_peer *to);  // connects; NULL after logging

// 1: a message; 0: none waiting (malformed ones are dropped on the way); -1 after logging.
int net_recv(struct net_socket *s, struct net_message *m);
// to: NULL for a DEALER. m->header is complete. local: as net_beside. Returns whether it was queued.
bool net_send(struct net_socket *s, const struct net_route *to, const struct ps_message *m, bool local);

// ---------------------------------------------------------------- below a link
// The speaker. It fills in what a core leaves open in its headers.
struct ps_identity {
    enum ps_role role;
    int rank;
    int thread;
    uint64_t incarnation;  // its life at the meeting; never 0
    uint64_t job;          // 0 until the epoch has been found
    uint32_t life;         // which process of its rank, of member_starts; 0: nobody takes another's place
    bool joins;            // the job is under way (ps/worker/enter.h), of member_starts
    uint32_t epoch;        // which life of the job, 1, 2, ..
    struct ps_clock clock;
};

// The sockets of a thread by the peers of its link: to each peer a DEALER, or all at one ROUTER by the route that the peer's last
// message took.
struct net_lines {
    const struct ps_identity *id;
    struct net_socket *scheduler;  // of PEER_SCHEDULER
    struct net_socket **dealers;   // (peers); NULL:
    struct net_socket *router;
    struct net_route
        *routes;  // (peers); without bytes: it has not spoken yet. Nothing goes to it, and it will ask
};
// link_options.network. lines: struct net_lines, which outlives the link.
void net_lines_send(void *lines, int peer, const struct ps_message *m);

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
