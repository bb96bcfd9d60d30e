// The only file of the star with sockets: ZeroMQ contexts, ROUTER and DEALER sockets, framing, and the
// counting of bytes where they leave and arrive.
//
//     [routing id, ROUTER only][header][payload]        ps/net/wire.h
//
// Ownership   A struct net owns its context; sockets belong to it and are closed before it.
// Threads     A socket belongs to one thread at a time. net_create and net_destroy: the role's thread.
// Blocking    Only net_poll (up to its timeout) and net_destroy (up to linger_ms, for messages still queued).
// Order       Buffers sent with an inflight counter, and the wire count, must outlive net_destroy.
// Limits      Finite high-water marks, ZMQ_MAXMSGSIZE, ROUTER_MANDATORY. A message that cannot be queued or is for
//             nobody is dropped: the link says it again. Anything that is not a well-formed message is dropped.
// Trust       A ROUTER hears only peers that net_options.trust admits, each as the role and rank that its key is
//             for: a message in another's name is dropped. A DEALER that shows a token (loopback's data)
//             cannot tell which process listens: once it has been answered it connects to nobody else, ever.
#ifndef STARRING_PS_NET_NET_H
#define STARRING_PS_NET_NET_H

#include <stddef.h>

#include "ps/net/curve.h"
#include "ps/net/fault.h"
#include "ps/net/port.h"
#include "shared/config/config.h"
#include "shared/core/wire_count.h"

#define NET_ADDRESS_MAX 256  // bytes, with the closing zero

struct net;
struct net_socket;
struct ps_trust;

struct net_options {
    struct wire_count *wire;  // counters of the role; outlive the net
    size_t max_payload_bytes;
    size_t
        max_heard_bytes;  // by ROUTERs, which strangers reach: libzmq keeps one such frame before a handshake; 0: the same
    double patience_s;  // with an address that somebody else listens on, of a process that follows a dead one
    const _Atomic int *stop;  // ends that; NULL: nothing does
    int queue_messages;       // high-water mark of each direction
    int io_threads;           // that move payloads through sockets; 0: one
    struct fault_plan faults;
    const struct ps_trust *trust;  // decides which peers are let in; outlives the net
    const char *token;             // that data ROUTERs ask for (ps/trust/trust.h); NULL: there are none
};

struct net *net_create(const struct net_options *o);  // NULL after logging
// linger_ms: how long queued messages may still leave; 0 after a goodbye.
void net_destroy(struct net **n, int linger_ms);

// Before anything is received from it: the process of this role and rank is beside this one, and its payloads count as local.
void net_beside(struct net *n, enum ps_role role, int rank);

// Listens on address; "tcp://host:*" takes any port. bound: the real address. NULL after logging.
struct net_socket *net_router(struct net *n, enum net_plane plane, const char *address,
                              char bound[NET_ADDRESS_MAX]);
struct net_socket *net_dealer(struct net *n, const struct net_peer *to);  // connects; NULL after logging
// A dealer that was opened for nobody (NULL): on the thread that uses it. 0, or -1 after logging.
int net_connect(struct net_socket *s, const struct net_peer *to);
// Of a dealer of the control plane, until net_welcome has been called: nothing more is looked at then.
enum net_refusal net_refusal(struct net_socket *s);
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
// ZeroMQ takes any number for a port, and listens on what is left of it in 16 bits. 0, or -1 after logging.
int address_check_port(const char *address);
// The address for others: as bound, or at the advertised host, or at the advertised tcp://host:port + thread. 0, or -1
// after logging.
int address_advertised(const char *advertise, const char *bound, int thread, char out[NET_ADDRESS_MAX]);

// ---------------------------------------------------------------- descriptors
// How many descriptors a process may hold (RLIMIT_NOFILE), and whether it can start threads (RLIMIT_NPROC), looked at before
// its first socket: libzmq ends the process where it finds none left. Connections of strangers take descriptors too, for as
// long as a handshake may last.
// Of a job of so many shard threads a server: what a role holds with all members connected, generously.
int descriptors_of_scheduler(const struct config *c, int threads);
int descriptors_of_server(const struct config *c, int threads);
int descriptors_of_worker(const struct config *c, int shards);

// The soft limit becomes so many and those to spare (0: whatever the hard one allows). A listener spares few: what a stranger
// sends before a handshake is over lies in memory, for each of his connections. 0, or -1 after logging that there are too
// few, and how many are needed.
#define DESCRIPTORS_SPARE 256
// The same, of a process that hears frames of so many bytes.
int descriptors_spare(size_t heard_bytes);
int descriptors_claim(int needed, int spare);

#endif
