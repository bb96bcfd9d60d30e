#include "ps/net/net.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include "ps/net/curve.h"
#include "ps/net/medium.h"
#include "ps/net/zap.h"
#include "shared/core/error.h"

// How long messages may still leave to a peer whose connection ends before the socket does. A connection
// takes the value from its socket when it is made: a value set on closing is too late for a connection that
// is already ending, and with ZeroMQ's default the end of the context waits for that one without limit.
#define LINGER_MS 500

// A worker has one for each of up to 4096 shard threads, a server two for each of its own. libzmq's own limit is 1023.
#define SOCKETS_MAX 8448

// Received payloads are memory that libzmq takes from the C library. That gives blocks of this size back to the
// kernel and asks for them anew, and every new page costs a fault and is zeroed: as much as the copy. Kept, the next
// payload finds them.
#define KEEP_BLOCK_BYTES (32 << 20)
#define KEEP_TOP_BYTES   (256 << 20)

// A connection that libzmq has given up is made anew, and no more often than so.
#define REDIAL_S 0.25

#define BIND_AGAIN_US 20000

struct net {
    void *context;
    struct net_options o;
    struct net_socket *open;  // list; changed by the role's thread alone
    int sockets;              // opened so far
    struct zap *zap;          // NULL: everybody is let in, or nobody comes
    enum ps_role beside;      // the role and rank of the process beside this one, of which
    int beside_rank;          // messages are local; rank -1: there is none
};

struct net_socket {
    struct net *net;
    void *socket;
    bool router;
    struct fault_line *faults;  // NULL: messages arrive as they come
    struct curve_watch *watch;  // of a handshake that matters; NULL: none
    char *peer;                 // a dealer's; NULL: it has connected to none yet
    bool once;                  // it is not asked again after it has been heard
    bool heard;
    double dialled_s;
    struct net_socket *next;
};

struct net_frame {
    struct ps_frame frame;
    zmq_msg_t msg;
};

static void no_thread(int number) {
    static const char words[] =
        "starring: error: no thread can be started for this process's connections: " ERROR_RAISE_THREADS "\n";
    (void)number;
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) _exit(EXIT_RUN_FAILED);
    _exit(EXIT_RUN_FAILED);
}

// zmq_socket, of a context's first. libzmq starts its threads then and aborts where it cannot: this says why, and the process
// ends with status 1. NULL after logging.
static void *first_socket(void *context, int type) {
    struct sigaction tells = {.sa_handler = no_thread}, before;
    sigemptyset(&tells.sa_mask);
    sigaction(SIGABRT, &tells, &before);
    void *first = zmq_socket(context, type);
    int error = errno;
    sigaction(SIGABRT, &before, NULL);
    errno = error;
    if (!first) fail("ZeroMQ: no socket: %s", zmq_strerror(errno));
    return first;
}

struct net *net_create(const struct net_options *o) {
    struct net *n = xcalloc(1, sizeof *n);
    n->o = *o;
    n->beside_rank = -1;
    n->context = zmq_ctx_new();
    if (!n->context) {
        fail("ZeroMQ: no context: %s", zmq_strerror(errno));
        free(n);
        return NULL;
    }
    if (o->io_threads > 1) zmq_ctx_set(n->context, ZMQ_IO_THREADS, o->io_threads);
    zmq_ctx_set(n->context, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
    mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEEP_TOP_BYTES);
    void *first = first_socket(n->context, ZMQ_PAIR);
    if (first)
        zmq_close(first);
    else
        net_destroy(&n, 0);
    return n;
}

void net_beside(struct net *n, enum ps_role role, int rank) {
    n->beside = role;
    n->beside_rank = rank;
}

static void socket_shut(struct net_socket *s, int linger_ms) {
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    curve_watch_end(&s->watch, s->socket);
    zmq_close(s->socket);
    fault_line_destroy(&s->faults);
    free(s->peer);
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
    zap_join(&n->zap);
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
    bool listens = type == ZMQ_ROUTER && n->o.max_heard_bytes;
    int64_t most = (int64_t)(listens ? n->o.max_heard_bytes : n->o.max_payload_bytes);
    if (most < WIRE_HEADER_MAX) most = WIRE_HEADER_MAX;
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (s->router) zmq_setsockopt(s->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    if (message_fault_any(&n->o.faults.fault))
        s->faults = fault_line_create(&n->o.faults, n->sockets++, n->o.wire);
    s->next = n->open;
    n->open = s;
    return s;
}

struct net_socket *net_router(struct net *n, enum net_plane plane, const char *address,
                              char bound[NET_ADDRESS_MAX]) {
    if (address_check_port(address) != 0) return NULL;
    // Where nobody is kept out, nobody is asked.
    bool guards = n->o.trust->mode != TRUST_INSECURE && !n->zap;
    if (guards && !(n->zap = zap_start(n->context, n->o.trust, n->o.token))) return NULL;
    struct net_socket *s = socket_open(n, ZMQ_ROUTER);
    size_t size = NET_ADDRESS_MAX;
    double until_s = now_seconds() + n->o.patience_s;
    int rc;
    if (!s) return NULL;
    if (curve_listen(s->socket, n->o.trust, plane) != 0) return socket_discard(s);
    while ((rc = zmq_bind(s->socket, address)) != 0) {
        if (errno == EINTR) continue;
        // Somebody may have taken the address of a process that has died, and lets go of it.
        if (errno != EADDRINUSE || now_seconds() > until_s || (n->o.stop && *n->o.stop)) break;
        usleep(BIND_AGAIN_US);
    }
    if (rc != 0 || zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0) {
        fail("cannot listen on %s: %s; an address to bind reads tcp://HOST:PORT or tcp://HOST:*", address,
             zmq_strerror(errno));
        return socket_discard(s);
    }
    return s;
}

struct net_socket *net_dealer(struct net *n, const struct net_peer *to) {
    struct net_socket *s = to && address_check_port(to->address) ? NULL : socket_open(n, ZMQ_DEALER);
    if (!s || !to) return s;
    return net_connect(s, to) ? socket_discard(s) : s;
}

static int dial(struct net_socket *s) {
    int rc;
    s->dialled_s = now_seconds();
    while ((rc = zmq_connect(s->socket, s->peer)) != 0 && errno == EINTR) continue;
    return rc;
}

int net_connect(struct net_socket *s, const struct net_peer *to) {
    if (curve_connect(s->socket, s->net->o.trust, to) != 0) return -1;
    if (to->plane == NET_CONTROL) s->watch = curve_watch_start(s->net->context, s->socket);
    s->peer = xstrdup(to->address);
    s->once = curve_is_plain(s->net->o.trust, to->plane);
    if (dial(s) == 0) return 0;
    return fail("cannot connect to %s: %s; an address reads tcp://HOST:PORT", to->address,
                zmq_strerror(errno));
}

// libzmq gives a peer up that breaks the protocol, as whoever has taken a dead process's port may; and one that ends the
// connection where it was told to ask once. The queue is lost then, and the link says it again.
static void redial(struct net_socket *s) {
    if (s->router || !s->peer || (s->once && s->heard) || now_seconds() - s->dialled_s < REDIAL_S) return;
    zmq_disconnect(s->socket, s->peer);
    dial(s);
}

enum net_refusal net_refusal(struct net_socket *s) { return curve_watch_look(s->watch); }
void net_ask_again(struct net_socket *s) {
    curve_watch_anew(s->watch);
    redial(s);
}
void net_welcome(struct net_socket *s) { curve_watch_end(&s->watch, s->socket); }

// ---------------------------------------------------------------- receiving
static void frame_release(struct ps_frame *f) {
    struct net_frame *n = (struct net_frame *)f;
    zmq_msg_close(&n->msg);
    free(n);
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

// A message that leaves or has arrived, with its payload, which may lie in a segment.
static void count_bytes(struct wire_count *w, const struct wire_header *h, size_t header, size_t payload,
                        bool sent, bool local) {
    bool pays = wire_is_payload(h), copies = wire_is_replica(h);
    payload += wire_place_bytes(h);
    atomic_fetch_add(sent ? &w->control_sent : &w->control_received, header + (pays || copies ? 0 : payload));
    if (pays && local) atomic_fetch_add(sent ? &w->local_sent : &w->local_received, payload);
    pays = pays && !local;
    if (pays) atomic_fetch_add(sent ? &w->payload_sent : &w->payload_received, payload);
    if (copies) atomic_fetch_add(sent ? &w->replica_sent : &w->replica_received, payload);
}

// A process that logs in with a key of the job, and as somebody else, is told so: it would wait until its deadline.
static void tell_whose(struct net_socket *s, const zmq_msg_t *route, const struct wire_header *h,
                       const char *name) {
    char said[TRUST_NAME_MAX];
    struct net_route to = {.bytes = zmq_msg_size(route)};
    struct ps_message m = {.header = {.kind = WIRE_REFUSED, .role = PS_SCHEDULER}};
    if (h->kind != WIRE_HELLO || to.bytes > NET_ROUTE_MAX) return;
    memcpy(to.id, zmq_msg_data((zmq_msg_t *)route), to.bytes);
    trust_owner_name((struct trust_owner){h->role == PS_SHARD ? PS_SERVER : h->role, h->rank}, said);
    snprintf(
        m.header.text, sizeof m.header.text,
        "login: who says that it is %s shows the key of %s: give each role its own .key file, as starring "
        "keygen has named it",
        said, name);
    net_send(s, &to, &m);
}

// Whether the connection's key is that of the role that the message names as its sender.
static bool may_speak(struct net_socket *s, zmq_msg_t *parts, const struct wire_header *h) {
    if (s->net->o.trust->mode == TRUST_INSECURE) return true;
    const char *name = zmq_msg_gets(&parts[1], "User-Id");
    bool may = name && trust_may_speak(name, h->role, h->rank);
    if (name && !may) tell_whose(s, &parts[0], h, name);
    return may;
}

// Parts of one message: [route] header [payload]. Returns false when it is not one.
static bool assemble(struct net_socket *s, zmq_msg_t parts[3], int count, struct net_message *m) {
    int at = s->router ? 1 : 0;
    if (count <= at || count > at + 2) return false;
    size_t size = zmq_msg_size(&parts[at]), payload = count == at + 2 ? zmq_msg_size(&parts[at + 1]) : 0;
    if (wire_decode(zmq_msg_data(&parts[at]), size, payload, &m->header) != 0) return false;
    if (s->router && !may_speak(s, parts, &m->header)) return false;
    if (s->router) {
        m->from.bytes = zmq_msg_size(&parts[0]);
        if (m->from.bytes > NET_ROUTE_MAX) return false;
        memcpy(m->from.id, zmq_msg_data(&parts[0]), m->from.bytes);
    }
    s->heard = true;
    m->frame = NULL;
    if (payload) {
        struct net_frame *f = xcalloc(1, sizeof *f);
        zmq_msg_init(&f->msg);
        zmq_msg_move(&f->msg, &parts[at + 1]);
        f->frame = (struct ps_frame){zmq_msg_data(&f->msg), zmq_msg_size(&f->msg), frame_release};
        m->frame = &f->frame;
    }
    const struct net *n = s->net;
    bool local = m->header.role == n->beside && m->header.rank == n->beside_rank;
    count_bytes(n->o.wire, &m->header, size, payload, false, local);
    return true;
}

static int receive(struct net_socket *s, struct net_message *m) {
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

// Each message that has arrived goes through the line: it may be due before one that came earlier.
int net_recv(struct net_socket *s, struct net_message *m) {
    int rc;
    if (!s->faults) return receive(s, m);
    while ((rc = receive(s, m)) == 1) fault_take(s->faults, m, now_seconds());
    return rc < 0 ? rc : fault_give(s->faults, m, now_seconds());
}

// ---------------------------------------------------------------- sending
static void let_go(void *data, void *hint) {
    (void)data;
    atomic_fetch_sub((_Atomic int *)hint, 1);
}

// A payload's copy: the transport's until it is sent.
struct copy {
    struct wire_count *wire;
    size_t bytes;  // counted: those of weights and sums, not the words of a login
    char data[];
};

static void copy_let_go(void *data, void *hint) {
    (void)data;
    struct copy *c = hint;
    atomic_fetch_sub(&c->wire->copied, c->bytes);
    free(c);
}

static int payload_part(struct wire_count *wire, zmq_msg_t *msg, const struct ps_message *m) {
    if (m->inflight) {
        if (zmq_msg_init_data(msg, (void *)m->payload, m->bytes, let_go, m->inflight) != 0) return -1;
        atomic_fetch_add(m->inflight, 1);
        return 0;
    }
    struct copy *c = malloc(sizeof *c + m->bytes);
    if (!c) return -1;
    enum wire_kind kind = m->header.kind;
    bool values = kind == WIRE_PULL_REPLY || kind == WIRE_SNAPSHOT_REPLY || kind == WIRE_REPLICATE;
    *c = (struct copy){.wire = wire, .bytes = values ? m->bytes : 0};
    memcpy(c->data, m->payload, m->bytes);
    uint64_t now = atomic_fetch_add(&wire->copied, c->bytes) + c->bytes,
             most = atomic_load(&wire->copied_peak);
    while (now > most && !atomic_compare_exchange_weak(&wire->copied_peak, &most, now)) continue;
    if (zmq_msg_init_data(msg, c->data, m->bytes, copy_let_go, c) == 0) return 0;
    copy_let_go(NULL, c);
    return -1;
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
    if (zmq_send(s->socket, header, size, flags) < 0) {
        redial(s);
        return false;
    }
    if (m->bytes) {
        zmq_msg_t msg;
        if (payload_part(wire, &msg, m) != 0) {
            zmq_send(s->socket, "", 0, ZMQ_DONTWAIT);  // ends the message; the receiver drops it
            return false;
        }
        if (zmq_msg_send(&msg, s->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return false;
        }
    }
    count_bytes(wire, &m->header, size, m->bytes, true, m->local);
    if (m->header.link.again) {
        atomic_fetch_add(&wire->repeats, 1);
        atomic_fetch_add(&wire->repeated_bytes, size + m->bytes);
    }
    return true;
}

int net_poll(struct net_poll_item *items, int count, int timeout_ms) {
    double due = INFINITY;  // of the first message that a line holds
    for (int i = 0; i < count; i++)
        if (items[i].socket && items[i].socket->faults) due = fmin(due, fault_due(items[i].socket->faults));
    double left_ms = (due - now_seconds()) * 1e3;
    if (left_ms < timeout_ms) timeout_ms = left_ms > 0 ? (int)ceil(left_ms) : 0;
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
    double now = isfinite(due) ? now_seconds() : 0;
    for (int i = 0; i < count; i++) {
        const struct fault_line *line = items[i].socket ? items[i].socket->faults : NULL;
        items[i].ready = (rc > 0 && (polled[i].revents & ZMQ_POLLIN)) || (line && fault_due(line) <= now);
    }
    free(polled);
    return 0;
}

// ---------------------------------------------------------------- addresses
void address_bind(const char *base, int thread, char out[NET_ADDRESS_MAX]) {
    const char *colon = strrchr(base, ':');
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    if (port > 0 && port <= 65535)  // another one is refused as it stands: address_check_port
        snprintf(out, NET_ADDRESS_MAX, "%.*s:%ld", (int)(colon - base), base, port + thread);
    else
        snprintf(out, NET_ADDRESS_MAX, "%s", base);
}

int address_check_port(const char *address) {
    const char *port = strrchr(address, ':');
    char *end;
    if (strncmp(address, "tcp://", 6) != 0 || !port || port[1] < '0' || port[1] > '9') return 0;
    long number = strtol(port + 1, &end, 10);
    return number > 65535 || *end ? fail("%s: a port is a number from 1 to 65535", address) : 0;
}

int address_advertised(const char *advertise, const char *bound, int thread, char out[NET_ADDRESS_MAX]) {
    if (!advertise) {
        if (strstr(bound, "//0.0.0.0:") || strstr(bound, "//[::]:"))
            return fail("listening on %s: give --advertise HOST, the name other machines know this one by",
                        bound);
        snprintf(out, NET_ADDRESS_MAX, "%s", bound);
    } else if (strncmp(advertise, "tcp://", 6) == 0) {
        address_bind(advertise, thread, out);
    } else {
        snprintf(out, NET_ADDRESS_MAX, "tcp://%s%s", advertise, strrchr(bound, ':'));
    }
    return 0;
}

// ---------------------------------------------------------------- descriptors
// The descriptors of a role beside its members' connections: standard streams, ZeroMQ's contexts (a server's and a worker's
// pulses have one of their own), files and memory that it shares. Seen: 13, 21 and 24.
#define OF_SCHEDULER 20
#define OF_SERVER    36
#define OF_WORKER    36

#define OF_IO_THREAD 2

#define HELD_BY_STRANGERS_MAX ((size_t)128 << 20)  // bytes, where frames are large
#define SPARE_LEAST           64

int descriptors_of_scheduler(const struct config *c, int threads) {
    return OF_SCHEDULER + 2 * c->workers + c->ps.servers * (2 + threads);
}

// A shard thread has a ROUTER and two DEALERs, and two sockets that watch its login; its workers and a neighbour connect.
int descriptors_of_server(const struct config *c, int threads) {
    return OF_SERVER + OF_IO_THREAD * ps_io_threads(c, threads, c->workers) + threads * (9 + c->workers);
}

int descriptors_of_worker(const struct config *c, int shards) {
    return OF_WORKER + OF_IO_THREAD * ps_io_threads(c, shards, c->ps.servers) + 2 * shards;
}

int descriptors_claim(int needed, int spare) {
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return fail("no limit of open files is known: %s", strerror(errno));
    rlim_t wanted = (rlim_t)needed + (rlim_t)spare;
    l.rlim_cur = !spare || wanted > l.rlim_max ? l.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &l) != 0) getrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur >= (rlim_t)needed) return 0;
    return fail(
        "this process may have %llu files and connections open, and takes about %d for this job: raise the "
        "limit (ulimit -n %d)",
        (unsigned long long)l.rlim_cur, needed, needed);
}

int descriptors_spare(size_t heard_bytes) {
    size_t spare = HELD_BY_STRANGERS_MAX / (heard_bytes + 1);
    return spare > DESCRIPTORS_SPARE ? DESCRIPTORS_SPARE : spare < SPARE_LEAST ? SPARE_LEAST : (int)spare;
}
