#include "ps/net/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/medium.h"
#include "shared/core/error.h"

struct net {
    struct fabric *fabric;
    struct net_options o;
    struct net_socket *open;  // only the role's thread changes the list
    int sockets;              // opened so far
};

struct net_socket {
    struct net *net;
    struct fabric_socket *socket;
    bool router;
    struct fault_line *faults;  // NULL: messages are delivered as they arrive
    struct net_socket *next;
};

struct net_frame {
    struct ps_frame frame;
    struct fabric_payload *payload;
};

struct net *net_create(const struct net_options *o) {
    struct net *n = xcalloc(1, sizeof *n);
    n->o = *o;
    n->fabric = fabric_create(&o->fabric);
    if (n->fabric) return n;
    free(n);
    return NULL;
}

void net_destroy(struct net **net, int linger_ms) {
    struct net *n = *net;
    if (!n) return;
    fabric_destroy(&n->fabric, linger_ms);
    while (n->open) {
        struct net_socket *s = n->open;
        n->open = s->next;
        fault_line_destroy(&s->faults);
        free(s);
    }
    free(n);
    *net = NULL;
}

// socket: the fabric's; NULL: it could not be opened.
static struct net_socket *keep(struct net *n, struct fabric_socket *socket, bool router) {
    if (!socket) return NULL;
    struct net_socket *s = xcalloc(1, sizeof *s);
    *s = (struct net_socket){.net = n, .socket = socket, .router = router, .next = n->open};
    if (message_fault_any(&n->o.faults.fault))
        s->faults = fault_line_create(&n->o.faults, n->sockets++, n->o.wire);
    n->open = s;
    return s;
}

struct net_socket *net_router(struct net *n, const char *address, char bound[FABRIC_ADDRESS_MAX]) {
    return keep(n, fabric_listen(n->fabric, address, false, bound), true);
}

struct net_socket *net_dealer(struct net *n, const struct net_peer *to) {
    struct net_socket *s = keep(n, fabric_dealer(n->fabric, NULL), false);
    return s && fabric_connect(s->socket, to->address, to->token, false) ? NULL : s;
}

// ---------------------------------------------------------------- receiving
static void frame_release(struct ps_frame *f) {
    fabric_payload_release(((struct net_frame *)f)->payload);
    free(f);
}

// Counts a message that is sent or has arrived, with its payload, which may be in a shared segment.
static void count_bytes(struct wire_count *w, const struct wire_header *h, size_t header, size_t payload,
                        bool sent, bool local) {
    bool pays = wire_is_payload(h);
    payload += wire_data_bytes(h);
    atomic_fetch_add(sent ? &w->control_sent : &w->control_received, header + (pays ? 0 : payload));
    if (pays && local) atomic_fetch_add(sent ? &w->local_sent : &w->local_received, payload);
    pays = pays && !local;
    if (pays) atomic_fetch_add(sent ? &w->payload_sent : &w->payload_received, payload);
}

// Decodes what has arrived. Returns false if it is not a message.
static bool assemble(struct net_socket *s, const struct fabric_message *got, struct net_message *m) {
    if (wire_decode(got->head, got->head_bytes, got->bytes, &m->header) != 0) return false;
    // A scheduler never connects, so such a message is forged.
    if (s->router && m->header.role == PS_SCHEDULER) return false;
    fabric_heard(s->socket);
    m->from = got->from;
    m->frame = NULL;
    if (got->payload) {
        struct net_frame *f = xcalloc(1, sizeof *f);
        *f = (struct net_frame){{got->data, got->bytes, frame_release}, got->payload};
        m->frame = &f->frame;
    }
    const struct net_beside *b = &s->net->o.beside;
    bool local = b->peers && m->header.role == b->role && m->header.rank == b->rank;
    count_bytes(s->net->o.wire, &m->header, got->head_bytes, got->bytes, false, local);
    return true;
}

static int receive(struct net_socket *s, struct net_message *m) {
    struct fabric_message got;
    int rc;
    while ((rc = fabric_receive(s->socket, &got)) == 1 && !assemble(s, &got, m))
        if (got.payload) fabric_payload_release(got.payload);
    return rc;
}

// Each arriving message passes through the fault line: it may be due before one that arrived earlier.
int net_recv(struct net_socket *s, struct net_message *m) {
    int rc;
    if (!s->faults) return receive(s, m);
    while ((rc = receive(s, m)) == 1) fault_take(s->faults, m, now_seconds());
    return rc < 0 ? rc : fault_give(s->faults, m, now_seconds());
}

// ---------------------------------------------------------------- sending
static void release_payload(void *data, void *hint) {
    (void)data;
    atomic_fetch_sub((_Atomic int *)hint, 1);
}

// A copy of a payload; the transport owns it until it is sent.
struct copy {
    struct wire_count *wire;
    size_t bytes;  // bytes to count, if the payload is weights or sums; else 0
    char data[];
};

static void release_copy(void *data, void *hint) {
    (void)data;
    struct copy *c = hint;
    atomic_fetch_sub(&c->wire->copied, c->bytes);
    free(c);
}

// Returns NULL if there is no memory.
static struct copy *copy_of(struct wire_count *wire, const struct ps_message *m) {
    struct copy *c = malloc(sizeof *c + m->bytes);
    if (!c) return NULL;
    enum wire_kind kind = m->header.kind;
    bool values = kind == WIRE_PULL_REPLY || kind == WIRE_SNAPSHOT_REPLY;
    *c = (struct copy){.wire = wire, .bytes = values ? m->bytes : 0};
    memcpy(c->data, m->payload, m->bytes);
    uint64_t now = atomic_fetch_add(&wire->copied, c->bytes) + c->bytes,
             most = atomic_load(&wire->copied_peak);
    while (now > most && !atomic_compare_exchange_weak(&wire->copied_peak, &most, now)) continue;
    return c;
}

static bool send_payload(struct net_socket *s, const struct ps_message *m) {
    if (m->inflight) {
        atomic_fetch_add(m->inflight, 1);
        return fabric_send_payload(s->socket, m->payload, m->bytes, release_payload, m->inflight);
    }
    struct copy *c = copy_of(s->net->o.wire, m);
    if (c) return fabric_send_payload(s->socket, c->data, m->bytes, release_copy, c);
    // There is no memory: an empty payload ends the message, and the receiver drops it.
    fabric_send_payload(s->socket, "", 0, NULL, NULL);
    return false;
}

bool net_send(struct net_socket *s, const struct net_route *to, const struct ps_message *m, bool local) {
    uint8_t header[WIRE_HEADER_MAX];
    size_t size = wire_encode(&m->header, header);
    struct wire_count *wire = s->net->o.wire;
    if (!size) return false;
    if (!fabric_send(s->socket, to, header, size, m->bytes > 0)) return false;
    if (m->bytes && !send_payload(s, m)) return false;
    count_bytes(wire, &m->header, size, m->bytes, true, local);
    if (m->header.link.again) {
        atomic_fetch_add(&wire->repeats, 1);
        atomic_fetch_add(&wire->repeated_bytes, size + m->bytes);
    }
    return true;
}

void net_lines_send(void *lines, int peer, const struct ps_message *message) {
    const struct net_lines *l = lines;
    struct ps_message m = *message;
    bool routed = peer != PEER_SCHEDULER && !l->dealers;
    struct net_socket *s = peer == PEER_SCHEDULER ? l->scheduler : routed ? l->router : l->dealers[peer];
    const struct net_beside *b = &s->net->o.beside;
    if (routed && !l->routes[peer].bytes) return;
    m.header.role = l->id->role;
    m.header.rank = l->id->rank;
    m.header.thread = l->id->thread;
    m.header.incarnation = l->id->incarnation;
    m.header.job = l->id->job;
    if (l->id->role == PS_WORKER)
        m.header.process_no = l->id->process_no;  // the scheduler sends the other roles their number
    net_send(s, routed ? &l->routes[peer] : NULL, &m, b->peers && peer >= 0 && peer / b->peers == b->rank);
}

int net_poll(struct net_poll_item *items, int count, int timeout_ms) {
    double due = INFINITY;  // when the first message that a line holds is due
    for (int i = 0; i < count; i++)
        if (items[i].socket && items[i].socket->faults) due = fmin(due, fault_due(items[i].socket->faults));
    double left_ms = (due - now_seconds()) * 1e3;
    if (left_ms < timeout_ms) timeout_ms = left_ms > 0 ? (int)ceil(left_ms) : 0;
    struct fabric_poll_item *polled = xcalloc((unsigned long)count + 1, sizeof *polled);
    for (int i = 0; i < count; i++)
        polled[i] = (struct fabric_poll_item){.socket = items[i].socket ? items[i].socket->socket : NULL,
                                              .fd = items[i].fd};
    int rc = fabric_poll(polled, count, timeout_ms);
    double now = isfinite(due) ? now_seconds() : 0;
    for (int i = 0; i < count; i++) {
        const struct fault_line *line = items[i].socket ? items[i].socket->faults : NULL;
        items[i].ready = rc == 0 && (polled[i].ready || (line && fault_due(line) <= now));
    }
    free(polled);
    return rc;
}

// ---------------------------------------------------------------- descriptors
// The descriptors of a role in addition to its members' connections: standard streams, ZeroMQ's contexts (the
// rendezvous has its own), files and shared memory. Measured: 13, 21 and 24.
#define OF_SCHEDULER 20
#define OF_SERVER    36
#define OF_WORKER    36

#define OF_IO_THREAD 2

int descriptors_of_scheduler(const struct config *c, int threads) {
    return OF_SCHEDULER + 2 * c->workers + c->ps.servers * (2 + threads);
}

// A shard thread has a ROUTER and a DEALER, and its workers connect.
int descriptors_of_server(const struct config *c, int threads) {
    return OF_SERVER + OF_IO_THREAD * ps_io_threads(c, threads, c->workers) + threads * (4 + c->workers);
}

int descriptors_of_worker(const struct config *c, int shards) {
    return OF_WORKER + OF_IO_THREAD * ps_io_threads(c, shards, c->ps.servers) + 2 * shards;
}
