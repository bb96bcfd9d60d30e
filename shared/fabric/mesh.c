#include "shared/fabric/mesh.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/fabric/sockets.h"

#define MAGIC        0x6873656du  // the version of these messages
#define QUEUE_PIECES 1000         // per connection and direction: far more than the windows allow
#define DIAL_AGAIN_S 0.25         // pause after a failed connection
// Pause if the attempt has neither failed nor succeeded: longer than a handshake may last.
#define DIAL_ANEW_S 4.0
#define LOOKS       16   // connections per check, so that checking many peers does not take a whole core
#define COME_MS     20   // between two checks for peers that have joined
#define GONE_S      0.3  // time in which messages may still arrive after the end of their connection
#define LAST_S      0.5  // time in which pieces of a dropped lane may still be sent
#define LEAVE_S     5.0  // time in which the goodbye must be acknowledged; the deadline, if that is longer
#define PROBES_S    2.0  // time in which an ended connection may still accept messages
#define LINGER_MS   500
#define RANK_NAME   24
#define DESCRIPTORS 40  // descriptors besides those of connections

enum { WAKE_FD, ROUTER_FD, DEALER_FD /* of rank 0 */ };

enum kind { KIND_PIECE, KIND_CREDIT, KIND_WORD, KIND_COME, KIND_HERE, KIND_BYE, KIND_HEARD, KINDS };

struct head {
    uint32_t magic, kind;
    struct lane_head lane;
};

// A rank's address and token, which all ranks exchange.
struct card {
    char address[FABRIC_ADDRESS_MAX], token[JOB_TOKEN_MAX];
};

struct peer {
    struct fabric_socket *dealer;  // NULL: the peer connects to this process, or is this process
    struct net_route route;
    bool here;         // its handshake of the mesh is complete
    bool left, heard;  // left: it has said goodbye; heard: it has acknowledged this rank's goodbye
    bool failed;       // a connection to it failed before its handshake was complete
    double dialled_s;
    double gone_s;  // when its connection was found to have ended; 0: it has not
    char why[LANES_WHY];
};

struct mesh {
    struct mesh_options o;
    struct fabric *fabric;  // NULL: all connections are closed
    struct fabric_socket *router;
    struct card *cards;  // (size)
    struct card own;
    int next;              // the peer that is checked next
    double ended_s;        // when the last connection to the router ended
    struct peer *peers;    // (size)
    struct pollfd *fds;    // of the eventfd, the router and the dealers
    int fd_count, wake;    // eventfd
    pthread_mutex_t lock;  // guards everything, sockets too
    pthread_cond_t changed;
    bool polls;             // a thread sleeps in poll()
    _Atomic bool releases;  // a waiting thread wants to know when held pieces are released
    struct lanes *lanes;
};

// ---------------------------------------------------------------- sending
static void wake(struct mesh *m) {
    uint64_t one = 1;
    if (write(m->wake, &one, sizeof one) < 0) return;  // the eventfd is already readable
}

struct hold {
    struct mesh *mesh;
    _Atomic int *held;
};

static void let_go(void *data, void *hint) {
    struct hold *h = hint;
    struct mesh *m = h->mesh;
    (void)data;
    if (atomic_fetch_sub(h->held, 1) == 1 && atomic_load(&m->releases)) wake(m);
    free(h);
}

// With the lock held. held: see lanes_options.send.
static bool post(struct mesh *m, int to, enum kind kind, const struct lane_head *lane, const void *data,
                 size_t bytes, _Atomic int *held) {
    struct peer *p = &m->peers[to];
    struct head h = {.magic = MAGIC, .kind = kind};
    if (lane) h.lane = *lane;
    struct fabric_socket *s = p->dealer ? p->dealer : m->router;
    bool good = m->fabric && s && p->gone_s == 0 &&
                fabric_send(s, p->dealer ? NULL : &p->route, &h, sizeof h, bytes > 0);
    if (good && bytes && held) {
        struct hold *hold = xcalloc(1, sizeof *hold);
        *hold = (struct hold){m, held};
        return fabric_send_payload(s, data, bytes, let_go, hold);
    }
    if (good && bytes) good = fabric_send_payload(s, data, bytes, NULL, NULL);
    if (!good && held) atomic_fetch_sub(held, 1);
    return good;
}

static bool say_lane(void *ctx, int to, const struct lane_head *h, const void *data, size_t bytes,
                     _Atomic int *held) {
    return post(ctx, to, h->kind == LANE_PIECE ? KIND_PIECE : KIND_CREDIT, h, data, bytes, held);
}

static void set_gone(struct mesh *m, int peer, const char *why) {
    struct peer *p = &m->peers[peer];
    if (p->gone_s > 0) return;
    p->gone_s = now_seconds();
    snprintf(p->why, sizeof p->why, "%s", p->left ? "it has ended" : why);
}

// ---------------------------------------------------------------- receiving
static void release(void *hold) { fabric_payload_release(hold); }

// Returns the rank that sent a message to the listener, by its dealer's name; -1: none.
static int sender(const struct mesh *m, const struct fabric_message *got) {
    char text[RANK_NAME] = "", *end;
    if (got->from.bytes >= sizeof text) return -1;
    memcpy(text, got->from.id, got->from.bytes);
    long rank = strncmp(text, "rank ", 5) ? -1 : strtol(text + 5, &end, 10);
    if (rank <= m->o.rank || rank >= m->o.size || *end) return -1;
    return (int)rank;
}

// With the lock held. Returns whether the payload has been taken over.
static bool take_message(struct mesh *m, int from, const struct fabric_message *got) {
    struct peer *p = &m->peers[from];
    struct head h;
    char why[LANES_WHY];
    if (got->head_bytes != sizeof h) return false;
    memcpy(&h, got->head, sizeof h);
    if (h.magic != MAGIC || h.kind >= KINDS) return false;
    if (h.kind == KIND_COME && !p->dealer) {
        p->here = true;
        post(m, from, KIND_HERE, NULL, NULL, 0, NULL);
    }
    if (h.kind == KIND_HERE && p->dealer) {
        p->here = true;
        fabric_heard(p->dealer);
    }
    if (!p->here) return false;
    if (h.kind == KIND_WORD && got->bytes <= MESH_WORD_MAX) m->o.word(m->o.ctx, from, got->data, got->bytes);
    if (h.kind == KIND_BYE) {
        p->left = true;
        post(m, from, KIND_HEARD, NULL, NULL, 0, NULL);
    }
    if (h.kind == KIND_HEARD) p->heard = true;
    if (h.kind > KIND_CREDIT) return false;
    struct lane_piece piece = {got->data, got->bytes, got->payload ? release : NULL, got->payload};
    h.lane.kind = h.kind == KIND_PIECE ? LANE_PIECE : LANE_CREDIT;
    if (lanes_hear(m->lanes, from, &h.lane, &piece, why)) set_gone(m, from, why);
    return true;
}

static bool hear_all(struct mesh *m, struct fabric_socket *s, int from) {
    struct fabric_message got;
    bool any = false;
    while (fabric_receive(s, &got) == 1) {
        int rank = from >= 0 ? from : sender(m, &got);
        bool taken = rank >= 0 && take_message(m, rank, &got);
        if (!taken && got.payload) fabric_payload_release(got.payload);
        any = true;
    }
    return any;
}

// The end of an incoming connection is found by sending to the peer.
static void check_incoming_ends(struct mesh *m) {
    static const char why[] = "its connection has ended";
    double now = now_seconds();
    if (fabric_ended(m->router)) m->ended_s = now;
    bool ended = m->ended_s > 0 && now - m->ended_s < PROBES_S;
    for (int k = 0; k < m->o.size && (k < LOOKS || ended); k++) {
        int i = m->next;
        struct peer *p = &m->peers[i];
        m->next = (i + 1) % m->o.size;
        if (p->dealer && fabric_ended(p->dealer) && p->here) set_gone(m, i, why);
        if (p->dealer && p->gone_s > 0 && now - p->gone_s > PROBES_S && !m->polls) {
            m->fds[DEALER_FD + i].fd = -1;
            fabric_close(&p->dealer, 0);
        }
        if (p->dealer || !ended || i == m->o.rank || !p->here || p->gone_s > 0) continue;
        errno = 0;
        if (!post(m, i, KIND_HERE, NULL, NULL, 0, NULL) && errno == EHOSTUNREACH) set_gone(m, i, why);
    }
}

// With the lock held. Moves all that can be moved now. Receiving is last: poll() does not report messages that arrived
// before a send.
static void turn(struct mesh *m) {
    bool any = true, moved = false;
    while (m->fabric && any) {
        lanes_push(m->lanes);
        any = hear_all(m, m->router, -1);
        for (int i = 0; i < m->o.rank; i++)
            if (m->peers[i].dealer && hear_all(m, m->peers[i].dealer, i)) any = true;
        moved = moved || any;
    }
    if (!moved) return;
    pthread_cond_broadcast(&m->changed);
    if (m->polls) wake(m);
}

// With the lock held, except while it sleeps.
static void sleep_on_descriptors(struct mesh *m, int limit_ms) {
    uint64_t woken;
    m->polls = true;
    pthread_mutex_unlock(&m->lock);
    if (poll(m->fds, (nfds_t)m->fd_count, limit_ms) > 0 && m->fds[0].revents &&
        read(m->wake, &woken, sizeof woken) < 0)
        errno = 0;
    pthread_mutex_lock(&m->lock);
    m->polls = false;
    pthread_cond_broadcast(&m->changed);
}

// ---------------------------------------------------------------- messages
void mesh_send(struct mesh *m, int lane, int to, uint32_t tag, const void *at, size_t bytes) {
    pthread_mutex_lock(&m->lock);
    if (bytes) lanes_send(m->lanes, lane, to, tag, at, bytes);
    pthread_mutex_unlock(&m->lock);
}

void mesh_receive(struct mesh *m, int lane, int from, uint32_t tag, void *at, size_t bytes) {
    pthread_mutex_lock(&m->lock);
    if (bytes) lanes_receive(m->lanes, lane, from, tag, at, bytes);
    pthread_mutex_unlock(&m->lock);
}

void mesh_turn(struct mesh *m) {
    pthread_mutex_lock(&m->lock);
    turn(m);
    pthread_mutex_unlock(&m->lock);
}

void mesh_look(struct mesh *m) {
    pthread_mutex_lock(&m->lock);
    if (m->fabric) check_incoming_ends(m);
    turn(m);
    pthread_mutex_unlock(&m->lock);
}

int mesh_wait(struct mesh *m, int lane, int limit_ms, char why[LANES_WHY]) {
    double until = now_seconds() + limit_ms * 1e-3;
    struct timespec at = time_after(limit_ms * 1e-3);
    int done;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        turn(m);
        if ((done = lanes_done(m->lanes, lane, why)) != 0 || now_seconds() >= until) break;
        atomic_store(&m->releases, true);  // and check again: a piece may have been released just before
        if ((done = lanes_done(m->lanes, lane, why)) != 0) break;
        if (m->polls)
            pthread_cond_timedwait(&m->changed, &m->lock, &at);
        else
            sleep_on_descriptors(m, limit_ms);
    }
    if (done == 0 && m->fabric) check_incoming_ends(m);
    pthread_mutex_unlock(&m->lock);
    return done;
}

bool mesh_missing(struct mesh *m, int lane, bool *missing) {
    pthread_mutex_lock(&m->lock);
    bool any = lanes_missing(m->lanes, lane, missing);
    pthread_mutex_unlock(&m->lock);
    return any;
}

uint64_t mesh_moved(struct mesh *m, int lane) {
    pthread_mutex_lock(&m->lock);
    uint64_t moved = lanes_moved(m->lanes, lane);
    pthread_mutex_unlock(&m->lock);
    return moved;
}

// With the lock held. Closing all connections releases all pieces.
static void end_connections(struct mesh *m, int linger_ms) {
    for (int i = 0; i < m->o.size; i++) {
        m->peers[i].dealer = NULL;
        set_gone(m, i, "all connections have been given up");
    }
    m->router = NULL;
    m->fd_count = 1;
    fabric_destroy(&m->fabric, linger_ms);
    wake(m);
}

void mesh_drop(struct mesh *m, int lane) {
    double until = now_seconds() + LAST_S;
    pthread_mutex_lock(&m->lock);
    lanes_drop(m->lanes, lane);
    while (m->fabric && lanes_held(m->lanes) && now_seconds() < until) {
        turn(m);
        pthread_mutex_unlock(&m->lock);
        usleep(1000);
        pthread_mutex_lock(&m->lock);
    }
    if (lanes_held(m->lanes) && m->fabric) end_connections(m, 0);
    pthread_mutex_unlock(&m->lock);
}

bool mesh_say(struct mesh *m, int to, const void *word, size_t bytes) {
    pthread_mutex_lock(&m->lock);
    bool good = post(m, to, KIND_WORD, NULL, word, bytes, NULL);
    if (m->polls) wake(m);
    pthread_mutex_unlock(&m->lock);
    return good;
}

int mesh_gone(struct mesh *m, const bool *missing, char why[LANES_WHY]) {
    int found = -1;
    double now = now_seconds();
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->o.size && found < 0; i++)
        if (missing[i] && m->peers[i].gone_s > 0 && now - m->peers[i].gone_s > GONE_S) found = i;
    if (found >= 0) snprintf(why, LANES_WHY, "%s", m->peers[found].why);
    pthread_mutex_unlock(&m->lock);
    return found;
}

// ---------------------------------------------------------------- opening
static int listen_here(struct mesh *m) {
    if (!m->o.key && job_token_make(m->own.token)) return -1;
    struct fabric_options o = {.max_payload_bytes = LANES_WINDOW,
                               .queue_messages = QUEUE_PIECES,
                               .key = m->o.key,
                               .token = m->own.token};
    if (descriptors_claim(DESCRIPTORS + 3 * m->o.size, 0)) return -1;
    if (!(m->fabric = fabric_create(&o))) return -1;
    m->router = fabric_listen(m->fabric, m->o.listen, true, m->own.address);
    return m->router ? 0 : -1;
}

static int dial(struct mesh *m, int to) {
    struct peer *p = &m->peers[to];
    char name[RANK_NAME];
    snprintf(name, sizeof name, "rank %d", m->o.rank);
    p->dealer = fabric_dealer(m->fabric, name);
    if (!p->dealer) return -1;
    return fabric_connect(p->dealer, m->cards[to].address, m->cards[to].token, true);
}

// Connects again if the handshake did not complete.
static void reconnect(struct mesh *m, int to) {
    struct peer *p = &m->peers[to];
    bool first = p->dialled_s == 0;
    if (fabric_ended(p->dealer)) p->failed = true;
    if (!first && now_seconds() - p->dialled_s < (p->failed ? DIAL_AGAIN_S : DIAL_ANEW_S)) return;
    p->dialled_s = now_seconds();
    p->failed = false;
    if (!first) fabric_ask_again(p->dealer);
    post(m, to, KIND_COME, NULL, NULL, 0, NULL);
}

// With the lock held. Returns whether all peers are here.
static bool all_here(struct mesh *m, int *first) {
    for (int i = 0; i < m->o.size; i++)
        if (i != m->o.rank && !m->peers[i].here) return *first = i, false;
    return true;
}

static int wait_for_all(struct mesh *m) {
    double until = now_seconds() + m->o.deadline_s;
    int missing = 0;
    pthread_mutex_lock(&m->lock);
    while (!all_here(m, &missing) && (m->o.deadline_s <= 0 || now_seconds() < until)) {
        for (int i = 0; i < m->o.rank; i++)
            if (!m->peers[i].here) reconnect(m, i);
        turn(m);
        if (!all_here(m, &missing)) sleep_on_descriptors(m, COME_MS);
    }
    bool all = all_here(m, &missing);
    pthread_mutex_unlock(&m->lock);
    if (all) return 0;
    return fail(
        "rank %d, at %s, has no connection with rank %d, at %s, within %g s: each must reach the other on any port",
        m->o.rank, m->own.address, missing, m->cards[missing].address, m->o.deadline_s);
}

static int start(struct mesh *m) {
    if (listen_here(m) || m->o.meet(m->o.meet_ctx, &m->own, sizeof m->own, m->cards)) return -1;
    for (int i = 0; i < m->o.size; i++)
        m->cards[i].address[FABRIC_ADDRESS_MAX - 1] = m->cards[i].token[JOB_TOKEN_MAX - 1] = 0;
    m->fds[m->fd_count++] = (struct pollfd){.fd = fabric_fd(m->router), .events = POLLIN};
    for (int i = 0; i < m->o.size; i++) {
        struct net_route *route = &m->peers[i].route;
        route->bytes = (size_t)snprintf((char *)route->id, sizeof route->id, "rank %d", i);
        if (i < m->o.rank && dial(m, i)) return -1;
        if (i < m->o.rank)
            m->fds[m->fd_count++] = (struct pollfd){.fd = fabric_fd(m->peers[i].dealer), .events = POLLIN};
    }
    return wait_for_all(m);
}

int mesh_open(struct mesh **out, const struct mesh_options *o) {
    struct mesh *m = xcalloc(1, sizeof *m);
    m->o = *o;
    m->cards = xcalloc((size_t)o->size, sizeof *m->cards);
    m->peers = xcalloc((size_t)o->size, sizeof *m->peers);
    m->fds = xcalloc((size_t)o->size + 2, sizeof *m->fds);
    m->lanes = lanes_create(&(struct lanes_options){
        .rank = o->rank, .size = o->size, .lanes = o->lanes, .send = say_lane, .ctx = m});
    pthread_mutex_init(&m->lock, NULL);
    cond_init(&m->changed);
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->fds[m->fd_count++] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    int rc = m->wake < 0 ? fail("the ranks' connections: %s", strerror(errno)) : 0;
    if (!rc && o->size > 1) rc = start(m);
    if (rc) mesh_close(&m);
    *out = m;
    return rc;
}

// With the lock held. A peer that has acknowledged the goodbye has received all messages before it.
static bool all_have_acknowledged(const struct mesh *m) {
    for (int i = 0; i < m->o.size; i++)
        if (i != m->o.rank && !m->peers[i].heard && m->peers[i].gone_s == 0) return false;
    return true;
}

void mesh_leave(struct mesh *m) {
    double until = now_seconds() + (m->o.deadline_s > LEAVE_S ? m->o.deadline_s : LEAVE_S);
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->o.size; i++)
        if (i != m->o.rank) post(m, i, KIND_BYE, NULL, NULL, 0, NULL);
    while (m->fabric && !all_have_acknowledged(m) && now_seconds() < until) {
        check_incoming_ends(m);
        turn(m);
        if (!all_have_acknowledged(m)) sleep_on_descriptors(m, COME_MS);
    }
    pthread_mutex_unlock(&m->lock);
}

void mesh_close(struct mesh **at) {
    struct mesh *m = *at;
    if (!m) return;
    if (m->fabric) end_connections(m, LINGER_MS);
    lanes_destroy(&m->lanes);
    if (m->wake >= 0) close(m->wake);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    free(m->cards);
    free(m->peers);
    free(m->fds);
    free(m);
    *at = NULL;
}
