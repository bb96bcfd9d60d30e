#include "shared/fabric/sockets.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"

// How long queued messages may still leave if the connection ends before the socket is closed. A connection takes the
// value from its socket when it is made: a value that is set on closing is too late for a connection that is already
// ending. With ZeroMQ's default, zmq_ctx_term would wait for that connection without limit.
#define LINGER_MS 500

// A worker has one socket for each of up to 4096 shard threads, a server two for each of its own. libzmq's own limit
// is 1023.
#define SOCKETS_MAX 8448

// libzmq allocates received payloads with malloc. glibc returns blocks of this size to the kernel and requests them
// again; each new page costs a fault and is zeroed, as much as the copy. With these limits the memory is kept for the
// next payload.
#define KEEP_BLOCK_BYTES (32 << 20)
#define KEEP_TOP_BYTES   (256 << 20)

// The least time between two attempts to renew a connection that libzmq has given up.
#define REDIAL_S 0.25

#define NEVER_MS 3600000

struct fabric {
    void *context;
    struct fabric_options o;
    struct fabric_socket *open;  // only the owner's thread changes it
    struct zap *zap;             // NULL: no authentication, or no listener yet
};

struct fabric_socket {
    struct fabric *fabric;
    void *socket;
    bool router;
    bool named;   // the dealer reconnects only when fabric_ask_again is called
    void *watch;  // watches its handshakes; NULL: not watched
    char *peer;   // a dealer's peer; NULL: not connected yet
    bool once;    // the dealer does not reconnect after the listener has sent something
    bool heard;
    double dialled_s;
    bool holds;  // last holds a head
    zmq_msg_t last;
    struct fabric_socket *next;
};

struct fabric_payload {
    zmq_msg_t msg;
};

static void no_thread(int number) {
    static const char words[] =
        "starring: error: no thread can be started for this process's connections: " ERROR_RAISE_THREADS "\n";
    (void)number;
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) _exit(EXIT_RUN_FAILED);
    _exit(EXIT_RUN_FAILED);
}

// libzmq starts a context's threads with its first socket, and aborts if it cannot.
int fabric_threads(void *context) {
    struct sigaction tells = {.sa_handler = no_thread}, before;
    sigemptyset(&tells.sa_mask);
    sigaction(SIGABRT, &tells, &before);
    void *first = zmq_socket(context, ZMQ_PAIR);
    int error = errno;
    sigaction(SIGABRT, &before, NULL);
    if (!first) return fail("ZeroMQ: no socket: %s", zmq_strerror(error));
    zmq_close(first);
    return 0;
}

struct fabric *fabric_create(const struct fabric_options *o) {
    struct fabric *f = xcalloc(1, sizeof *f);
    f->o = *o;
    f->context = zmq_ctx_new();
    if (!f->context) {
        fail("ZeroMQ: no context: %s", zmq_strerror(errno));
        free(f);
        return NULL;
    }
    if (o->io_threads > 1) zmq_ctx_set(f->context, ZMQ_IO_THREADS, o->io_threads);
    zmq_ctx_set(f->context, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
    mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEEP_TOP_BYTES);
    if (fabric_threads(f->context)) fabric_destroy(&f, 0);
    return f;
}

void fabric_close(struct fabric_socket **at, int linger_ms) {
    struct fabric_socket *s = *at, **on;
    if (!s) return;
    for (on = &s->fabric->open; *on != s;) on = &(*on)->next;
    *on = s->next;
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    if (s->watch) curve_watch_end(&s->watch, s->socket);
    if (s->holds) zmq_msg_close(&s->last);
    zmq_close(s->socket);
    free(s->peer);
    free(s);
    *at = NULL;
}

void fabric_destroy(struct fabric **fabric, int linger_ms) {
    struct fabric *f = *fabric;
    if (!f) return;
    while (f->open) fabric_close(&(struct fabric_socket *){f->open}, linger_ms);
    while (zmq_ctx_term(f->context) != 0 && errno == EINTR) continue;
    curve_end(&f->zap);
    free(f);
    *fabric = NULL;
}

static struct fabric_socket *socket_open(struct fabric *f, int type) {
    struct fabric_socket *s = xcalloc(1, sizeof *s);
    s->fabric = f;
    s->router = type == ZMQ_ROUTER;
    s->socket = zmq_socket(f->context, type);
    if (!s->socket) {
        fail("ZeroMQ: no socket: %s", zmq_strerror(errno));
        free(s);
        return NULL;
    }
    int one = 1, hwm = f->o.queue_messages, linger_ms = LINGER_MS;
    bool listens = type == ZMQ_ROUTER && f->o.max_heard_bytes;
    int64_t most = (int64_t)(listens ? f->o.max_heard_bytes : f->o.max_payload_bytes);
    if (most < NET_HEAD_MAX) most = NET_HEAD_MAX;
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (s->router) zmq_setsockopt(s->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    s->next = f->open;
    f->open = s;
    return s;
}

// libzmq accepts an IPv6 address only with this option.
static void set_family(struct fabric_socket *s, const char *address) {
    int six = strchr(address, '[') != NULL;
    zmq_setsockopt(s->socket, ZMQ_IPV6, &six, sizeof six);
}

struct fabric_socket *fabric_listen(struct fabric *f, const char *address, bool named,
                                    char bound[FABRIC_ADDRESS_MAX]) {
    struct endpoint at;
    if (endpoint_read("cannot listen on", address, &at)) return NULL;
    struct fabric_socket *s = socket_open(f, ZMQ_ROUTER);
    size_t size = FABRIC_ADDRESS_MAX;
    int rc;
    if (!s) return NULL;
    if (curve_listen(f->context, s->socket, f->o.key, f->o.token, &f->zap) != 0) {
        fabric_close(&s, 0);
        return NULL;
    }
    if (named) {
        zmq_setsockopt(s->socket, ZMQ_ROUTER_HANDOVER, &(int){1}, sizeof(int));
        s->watch = curve_watch(f->context, s->socket, CURVE_END_EVENTS);
    }
    set_family(s, address);
    while ((rc = zmq_bind(s->socket, address)) != 0 && errno == EINTR) continue;
    if (rc == 0 && zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0) return s;
    fail("cannot listen on %s: %s; %s", address, zmq_strerror(errno),
         errno == EADDRINUSE
             ? "give another port, or * for any that is free"
             : "it is to be of this machine, a number or an interface: tcp://10.0.0.1:9100, tcp://eth0:*");
    fabric_close(&s, 0);
    return NULL;
}

struct fabric_socket *fabric_dealer(struct fabric *f, const char *name) {
    struct fabric_socket *s = socket_open(f, ZMQ_DEALER);
    if (s && name) zmq_setsockopt(s->socket, ZMQ_ROUTING_ID, name, strlen(name));
    if (s) s->named = name != NULL;
    return s;
}

static int dial(struct fabric_socket *s) {
    int rc;
    s->dialled_s = now_seconds();
    while ((rc = zmq_connect(s->socket, s->peer)) != 0 && errno == EINTR) continue;
    return rc;
}

int fabric_connect(struct fabric_socket *s, const char *address, const char *token, bool watched) {
    if (curve_connect(s->socket, s->fabric->o.key, token) != 0) return -1;
    // With -1 libzmq would discard messages of a closed connection that have arrived and are not read yet.
    if (s->named) zmq_setsockopt(s->socket, ZMQ_RECONNECT_IVL, &(int){NEVER_MS}, sizeof(int));
    if (watched) s->watch = curve_watch(s->fabric->context, s->socket, CURVE_END_EVENTS);
    s->peer = xstrdup(address);
    set_family(s, address);
    s->once = token && *token;
    if (dial(s) == 0) return 0;
    return fail("cannot connect to %s: %s", address, zmq_strerror(errno));
}

// libzmq gives up a peer that breaks the protocol: another program may have taken a dead process's port. It also gives
// up a peer that closed the connection if reconnecting is off. The queue is lost then, and its messages are sent
// again.
static void redial(struct fabric_socket *s) {
    if (s->router || !s->peer || (s->once && s->heard) || now_seconds() - s->dialled_s < REDIAL_S) return;
    zmq_disconnect(s->socket, s->peer);
    dial(s);
}

bool fabric_ended(struct fabric_socket *s) {
    bool ended = false;
    for (int event, value; (event = curve_watch_next(s->watch, &value));)
        ended = ended || event != ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    return ended;
}
void fabric_ask_again(struct fabric_socket *s) { redial(s); }
int fabric_fd(struct fabric_socket *s) {
    int fd = -1;
    size_t size = sizeof fd;
    zmq_getsockopt(s->socket, ZMQ_FD, &fd, &size);
    return fd;
}

void fabric_heard(struct fabric_socket *s) { s->heard = true; }

// ---------------------------------------------------------------- receiving
void fabric_payload_release(struct fabric_payload *p) {
    zmq_msg_close(&p->msg);
    free(p);
}

// Receives one frame. *more: another one follows. Returns 1; 0: nothing has arrived; -1 on error.
static int part_recv(struct fabric_socket *s, zmq_msg_t *msg, bool *more) {
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

// Builds a message from its frames: [route] head [payload]. Returns false if they are not a message.
static bool assemble(struct fabric_socket *s, zmq_msg_t parts[3], int count, struct fabric_message *m) {
    int at = s->router ? 1 : 0;
    if (count <= at || count > at + 2) return false;
    // The ZAP handler sets this name for each accepted connection.
    if (s->router && s->fabric->o.key && !zmq_msg_gets(&parts[1], "User-Id")) return false;
    *m = (struct fabric_message){.payload = NULL};
    if (s->router) {
        m->from.bytes = zmq_msg_size(&parts[0]);
        if (m->from.bytes > NET_ROUTE_MAX) return false;
        memcpy(m->from.id, zmq_msg_data(&parts[0]), m->from.bytes);
    }
    if (s->holds) zmq_msg_close(&s->last);
    s->holds = true;
    zmq_msg_init(&s->last);
    zmq_msg_move(&s->last, &parts[at]);
    m->head = zmq_msg_data(&s->last);
    m->head_bytes = zmq_msg_size(&s->last);
    if (count == at + 1 || zmq_msg_size(&parts[at + 1]) == 0) return true;
    m->payload = xcalloc(1, sizeof *m->payload);
    zmq_msg_init(&m->payload->msg);
    zmq_msg_move(&m->payload->msg, &parts[at + 1]);
    m->data = zmq_msg_data(&m->payload->msg);
    m->bytes = zmq_msg_size(&m->payload->msg);
    return true;
}

int fabric_receive(struct fabric_socket *s, struct fabric_message *m) {
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
bool fabric_send(struct fabric_socket *s, const struct net_route *to, const void *head, size_t bytes,
                 bool payload_follows) {
    if (s->router &&
        (!to || !to->bytes || zmq_send(s->socket, to->id, to->bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0))
        return false;
    // The queue has accepted the first frame, so it also accepts the rest of the message.
    if (zmq_send(s->socket, head, bytes, ZMQ_DONTWAIT | (payload_follows ? ZMQ_SNDMORE : 0)) >= 0)
        return true;
    redial(s);
    return false;
}

bool fabric_send_payload(struct fabric_socket *s, const void *data, size_t bytes,
                         void (*let_go)(void *data, void *hint), void *hint) {
    zmq_msg_t msg;
    if (!let_go) return zmq_send(s->socket, data, bytes, ZMQ_DONTWAIT) >= 0;
    if (zmq_msg_init_data(&msg, (void *)(uintptr_t)data, bytes, let_go, hint) != 0) {
        // An empty payload ends the message, and the receiver drops it.
        zmq_send(s->socket, "", 0, ZMQ_DONTWAIT);
        let_go((void *)(uintptr_t)data, hint);
        return false;
    }
    if (zmq_msg_send(&msg, s->socket, ZMQ_DONTWAIT) >= 0) return true;
    zmq_msg_close(&msg);
    return false;
}

int fabric_poll(struct fabric_poll_item *items, int count, int timeout_ms) {
    zmq_pollitem_t *polled = xcalloc((unsigned long)count + 1, sizeof *polled);
    for (int i = 0; i < count; i++)
        polled[i] = (zmq_pollitem_t){.socket = items[i].socket ? items[i].socket->socket : NULL,
                                     .fd = items[i].fd,
                                     .events = ZMQ_POLLIN};
    int rc = zmq_poll(polled, count, timeout_ms), error = errno;
    for (int i = 0; i < count; i++) items[i].ready = rc > 0 && polled[i].revents & ZMQ_POLLIN;
    free(polled);
    return rc < 0 && error != EINTR ? fail("polling: %s", zmq_strerror(error)) : 0;
}

// ---------------------------------------------------------------- descriptors
#define HELD_BY_STRANGERS_MAX ((size_t)128 << 20)  // bytes, if frames are large
#define SPARE_LEAST           64

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
