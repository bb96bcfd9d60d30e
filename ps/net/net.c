#include "ps/net/net.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/core/error.h"

// How long messages may still leave to a peer whose connection ends before the socket does. A connection
// takes the value from its socket when it is made: a value set on closing is too late for a connection that
// is already ending, and with ZeroMQ's default the end of the context waits for that one without limit.
#define LINGER_MS 500

// Received payloads are memory that libzmq takes from the C library. That gives blocks of this size back to the
// kernel and asks for them anew, and every new page costs a fault and is zeroed: as much as the copy. Kept, the next
// payload finds them.
#define KEEP_BLOCK_BYTES (32 << 20)
#define KEEP_TOP_BYTES   (256 << 20)

struct net {
    void *context;
    struct net_options o;
    struct net_socket *open;  // list; changed by the role's thread alone
};

struct net_socket {
    struct net *net;
    void *socket;
    bool router;
    struct net_socket *next;
};

struct net_frame {
    struct ps_frame frame;
    zmq_msg_t msg;
};

struct net *net_create(const struct net_options *o) {
    struct net *n = xcalloc(1, sizeof *n);
    n->o = *o;
    n->context = zmq_ctx_new();
    if (!n->context) {
        fail("ZeroMQ: no context: %s", zmq_strerror(errno));
        free(n);
        return NULL;
    }
    if (o->io_threads > 1) zmq_ctx_set(n->context, ZMQ_IO_THREADS, o->io_threads);
    mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEEP_TOP_BYTES);
    return n;
}

static void socket_shut(struct net_socket *s, int linger_ms) {
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_close(s->socket);
    free(s);
}

// The socket opened last cannot be used. NULL.
static struct net_socket *socket_discard(struct net_socket *s) {
    s->net->open = s->next;
    socket_shut(s, 0);
    return NULL;
}

void net_destroy(struct net **net, int linger_ms) {
    struct net *n = *net;
    if (!n) return;
    while (n->open) {
        struct net_socket *s = n->open;
        n->open = s->next;
        socket_shut(s, linger_ms);
    }
    while (zmq_ctx_term(n->context) != 0 && errno == EINTR) continue;
    free(n);
    *net = NULL;
}

static struct net_socket *socket_open(struct net *n, int type) {
    struct net_socket *s = xcalloc(1, sizeof *s);
    s->net = n;
    s->router = type == ZMQ_ROUTER;
    s->socket = zmq_socket(n->context, type);
    if (!s->socket) {
        fail("ZeroMQ: no socket: %s", zmq_strerror(errno));
        free(s);
        return NULL;
    }
    int one = 1, hwm = n->o.queue_messages, linger_ms = LINGER_MS;
    int64_t most = (int64_t)n->o.max_payload_bytes;
    if (most < WIRE_HEADER_MAX) most = WIRE_HEADER_MAX;
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (s->router) zmq_setsockopt(s->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    s->next = n->open;
    n->open = s;
    return s;
}

// ZeroMQ takes any number for a port, and listens on what is left of it in 16 bits.
static int check_port(const char *address) {
    const char *port = strrchr(address, ':');
    char *end;
    if (strncmp(address, "tcp://", 6) != 0 || !port || port[1] < '0' || port[1] > '9') return 0;
    long number = strtol(port + 1, &end, 10);
    return number > 65535 || *end ? fail("%s: a port is a number from 1 to 65535", address) : 0;
}

struct net_socket *net_router(struct net *n, const char *address, char bound[NET_ADDRESS_MAX]) {
    struct net_socket *s = check_port(address) ? NULL : socket_open(n, ZMQ_ROUTER);
    size_t size = NET_ADDRESS_MAX;
    int rc;
    if (!s) return NULL;
    while ((rc = zmq_bind(s->socket, address)) != 0 && errno == EINTR) continue;
    if (rc != 0 || zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0) {
        fail("cannot listen on %s: %s; an address to bind reads tcp://HOST:PORT or tcp://HOST:*", address,
             zmq_strerror(errno));
        return socket_discard(s);
    }
    return s;
}

struct net_socket *net_dealer(struct net *n, const char *address) {
    struct net_socket *s = check_port(address) ? NULL : socket_open(n, ZMQ_DEALER);
    int rc;
    if (!s) return NULL;
    while ((rc = zmq_connect(s->socket, address)) != 0 && errno == EINTR) continue;
    if (rc != 0) {
        fail("cannot connect to %s: %s; an address reads tcp://HOST:PORT", address, zmq_strerror(errno));
        return socket_discard(s);
    }
    return s;
}

// ---------------------------------------------------------------- receiving
static void frame_release(struct ps_frame *f) {
    struct net_frame *n = (struct net_frame *)f;
    zmq_msg_close(&n->msg);
    free(n);
}

static struct ps_frame *frame_take(zmq_msg_t *msg) {
    struct net_frame *f = xcalloc(1, sizeof *f);
    zmq_msg_init(&f->msg);
    zmq_msg_move(&f->msg, msg);
    f->frame = (struct ps_frame){zmq_msg_data(&f->msg), zmq_msg_size(&f->msg), frame_release};
    return &f->frame;
}

// One part; *more: another follows. 1, 0 nothing there, -1 error.
static int part_recv(struct net_socket *s, zmq_msg_t *msg, bool *more) {
    zmq_msg_init(msg);
    while (zmq_msg_recv(msg, s->socket, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR) continue;
        int rc = errno == EAGAIN ? 0 : fail("receiving: %s", zmq_strerror(errno));
        zmq_msg_close(msg);
        return rc;
    }
    *more = zmq_msg_more(msg) != 0;
    return 1;
}

static void count_received(struct wire_count *wire, const struct wire_header *h, size_t header,
                           size_t payload) {
    bool pays = wire_is_payload(h);
    payload += wire_place_bytes(h);
    atomic_fetch_add(&wire->control_received, header + (pays ? 0 : payload));
    if (pays) atomic_fetch_add(&wire->payload_received, payload);
}

// Parts of one message: [route] header [payload]. Returns false when it is not one.
static bool assemble(struct net_socket *s, zmq_msg_t parts[3], int count, struct net_message *m) {
    int at = s->router ? 1 : 0;
    if (count <= at || count > at + 2) return false;
    size_t size = zmq_msg_size(&parts[at]), payload = count == at + 2 ? zmq_msg_size(&parts[at + 1]) : 0;
    if (wire_decode(zmq_msg_data(&parts[at]), size, payload, &m->header) != 0) return false;
    if (s->router) {
        m->from.bytes = zmq_msg_size(&parts[0]);
        if (m->from.bytes > NET_ROUTE_MAX) return false;
        memcpy(m->from.id, zmq_msg_data(&parts[0]), m->from.bytes);
    }
    m->frame = payload ? frame_take(&parts[at + 1]) : NULL;
    count_received(s->net->o.wire, &m->header, size, payload);
    return true;
}

int net_recv(struct net_socket *s, struct net_message *m) {
    for (;;) {
        zmq_msg_t parts[3];
        int count = 0, rc = 1;
        bool more = true;
        while (more && rc == 1) {
            zmq_msg_t extra;
            rc = part_recv(s, count < 3 ? &parts[count] : &extra, &more);
            if (rc == 1 && count >= 3) zmq_msg_close(&extra);
            if (rc == 1) count++;
        }
        if (count == 0) return rc;
        bool good = rc == 1 && assemble(s, parts, count, m);
        for (int i = 0; i < count && i < 3; i++) zmq_msg_close(&parts[i]);
        if (good) return 1;
        if (rc < 0) return rc;
    }
}

// ---------------------------------------------------------------- sending
static void let_go(void *data, void *hint) {
    (void)data;
    atomic_fetch_sub((_Atomic int *)hint, 1);
}

static int payload_part(zmq_msg_t *msg, const struct ps_message *m) {
    if (m->inflight) {
        if (zmq_msg_init_data(msg, (void *)m->payload, m->bytes, let_go, m->inflight) != 0) return -1;
        atomic_fetch_add(m->inflight, 1);
        return 0;
    }
    if (zmq_msg_init_size(msg, m->bytes) != 0) return -1;
    memcpy(zmq_msg_data(msg), m->payload, m->bytes);
    return 0;
}

bool net_send(struct net_socket *s, const struct net_route *to, const struct ps_message *m) {
    uint8_t header[WIRE_HEADER_MAX];
    size_t size = wire_encode(&m->header, header);
    struct wire_count *wire = s->net->o.wire;
    if (!size) return false;
    if (s->router &&
        (!to || !to->bytes || zmq_send(s->socket, to->id, to->bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0))
        return false;
    // The peer took the first part, so the queue takes the rest of the same message.
    int flags = ZMQ_DONTWAIT | (m->bytes ? ZMQ_SNDMORE : 0);
    if (zmq_send(s->socket, header, size, flags) < 0) return false;
    bool pays = wire_is_payload(&m->header);
    if (m->bytes) {
        zmq_msg_t msg;
        if (payload_part(&msg, m) != 0) {
            zmq_send(s->socket, "", 0, ZMQ_DONTWAIT);  // ends the message; the receiver drops it
            return false;
        }
        if (zmq_msg_send(&msg, s->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return false;
        }
    }
    size_t payload = m->bytes + wire_place_bytes(&m->header);
    atomic_fetch_add(&wire->control_sent, size + (pays ? 0 : payload));
    if (pays) atomic_fetch_add(&wire->payload_sent, payload);
    return true;
}

int net_poll(struct net_poll_item *items, int count, int timeout_ms) {
    zmq_pollitem_t *polled = xcalloc((unsigned long)count + 1, sizeof *polled);
    for (int i = 0; i < count; i++)
        polled[i] = (zmq_pollitem_t){.socket = items[i].socket ? items[i].socket->socket : NULL,
                                     .fd = items[i].fd,
                                     .events = ZMQ_POLLIN};
    int rc = zmq_poll(polled, count, timeout_ms);
    if (rc < 0 && errno != EINTR) {
        free(polled);
        return fail("polling: %s", zmq_strerror(errno));
    }
    for (int i = 0; i < count; i++) items[i].ready = rc > 0 && (polled[i].revents & ZMQ_POLLIN);
    free(polled);
    return 0;
}
