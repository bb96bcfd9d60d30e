// The star's messages over the fabric's sockets (shared/fabric/sockets.h): headers (ps/net/wire.h), which role may
// send what, and the counting of bytes.
//
// Ownership   A struct net owns its sockets, which are closed before it.
// Threads     A socket belongs to one thread at a time. net_create and net_destroy: the role's thread.
// Blocking    Only net_poll (up to its timeout) and net_destroy (up to linger_ms, for messages still queued).
// Order       Buffers sent with an inflight counter, and the wire count, must outlive net_destroy.
// Limits      Finite high-water marks, ZMQ_MAXMSGSIZE, ROUTER_MANDATORY. A message that cannot be queued, or whose
//             receiver is unknown, is dropped: the link resends it. Malformed messages are dropped.
// Key         A ROUTER accepts only connections with the job's key, or its token. A DEALER that shows a token
//             (ps/job/security.h) cannot know which process listens: once it has been answered it never reconnects.
#ifndef STARRING_PS_NET_NET_H
#define STARRING_PS_NET_NET_H

#include <stddef.h>

#include "ps/net/clock.h"
#include "ps/net/fault.h"
#include "ps/net/port.h"
#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/fabric/sockets.h"

struct net;
struct net_socket;

// The peer that a DEALER connects to.
struct net_peer {
    const char *address;
    const char *token;  // a shard's (ps/net/notices.h); NULL or "": none
};

// The process on the same machine as this one (ps_beside): messages between the two count as local. peers: how many
// peers a link has in such a process; they are numbered by rank, so those of `rank` follow those of lower ranks. 0:
// there is no such process.
struct net_beside {
    enum ps_role role;
    int rank, peers;
};

struct net_options {
    struct wire_count *wire;  // counters of the role; outlive the net
    struct fabric_options fabric;
    struct fault_plan faults;
    struct net_beside beside;
};

struct net *net_create(const struct net_options *o);  // Returns NULL after logging.
// linger_ms: how long queued messages may still leave; 0 after a goodbye.
void net_destroy(struct net **n, int linger_ms);

// Listens at address; "tcp://host:*": any free port. bound receives the real address. Returns NULL after logging.
struct net_socket *net_router(struct net *n, const char *address, char bound[FABRIC_ADDRESS_MAX]);
// Connects. Returns NULL after logging.
struct net_socket *net_dealer(struct net *n, const struct net_peer *to);

// Returns 1 with a message; 0: none is waiting (malformed ones are dropped); -1 after logging.
int net_recv(struct net_socket *s, struct net_message *m);
// to: NULL for a DEALER. m->header is complete. local: see net_beside. Returns whether it was queued.
bool net_send(struct net_socket *s, const struct net_route *to, const struct ps_message *m, bool local);

// ---------------------------------------------------------------- below a link
// The sender. It fills in the fields that a state machine leaves empty in its headers.
struct ps_identity {
    enum ps_role role;
    int rank;
    int thread;
    uint64_t incarnation;  // its incarnation at the rendezvous; never 0
    uint64_t job;          // 0 until the epoch is known
    uint32_t process_no;   // which process of its rank, from member_starts; 0: processes are never replaced
    bool joins;            // the job is already running (ps/worker/enter.h), from member_starts
    uint32_t epoch;        // the job's epoch: 1, 2, ..
    struct ps_clock clock;
};

// The sockets of a thread, by the peers of its link: one DEALER per peer, or one ROUTER for all, with the route of
// each peer's last message.
struct net_lines {
    const struct ps_identity *id;
    struct net_socket *scheduler;  // to PEER_SCHEDULER
    struct net_socket **dealers;   // (peers); NULL: the router is used
    struct net_socket *router;
    // (peers) Without bytes: the peer has not sent anything yet. Nothing is sent to it; it will ask.
    struct net_route *routes;
};
// For star_link_options.network. lines: a struct net_lines, which outlives the link.
void net_lines_send(void *lines, int peer, const struct ps_message *m);

struct net_poll_item {
    struct net_socket *socket;  // NULL: fd is polled instead
    int fd;
    bool ready;
};
// Waits for any item. Returns 0, or -1 after logging.
int net_poll(struct net_poll_item *items, int count, int timeout_ms);

// ---------------------------------------------------------------- descriptors
// The descriptors that a role holds, generously, with all members connected. threads, shards: shard threads per server.
int descriptors_of_scheduler(const struct config *c, int threads);
int descriptors_of_server(const struct config *c, int threads);
int descriptors_of_worker(const struct config *c, int shards);

#endif
