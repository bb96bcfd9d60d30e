// The sockets and the thread of the rendezvous; registry.c and client.c decide what is sent and when.
//
//     rank 0     ROUTER tcp://host:port and inproc  <->  the registry
//     every rank DEALER ----------------------------<->  its client
//
// Key         If there is a job's key, a process without it is refused (shared/fabric/curve.h).
#include "shared/fabric/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"
#include "shared/fabric/client.h"
#include "shared/fabric/curve.h"
#include "shared/fabric/registry.h"
#include "shared/fabric/sockets.h"
#include "shared/time/clock.h"

#define INSIDE        "inproc://rendezvous"
#define TICK_MS       100
#define REFUSALS      8  // after so many failed handshakes in a row, the listener counts as refusing this process
#define BIND_FOR_S    3.0  // time in which the port may become free: the process that has it may be ending
#define LINGER_MS     500
#define PAUSE_S       0.1  // time between two checks of a waiting thread
#define ROLES_LEAVE_S 1.0  // time in which the roles must have received the end
#define ID_MAX        40
#define BEATS         32  // heartbeats per deadline
#define OF_PROCESS    22  // descriptors of a process that has joined, its standard streams included
#define DESCRIPTORS   65536
#define MESSAGE_MAX   (1 << 19)
// Connections in addition to one per member: for members that connect again, and for strangers.
#define SPARE (DESCRIPTORS_SPARE - 1)

struct rendezvous {
    struct rendezvous_options o;
    char where[300], own[ADDRESS_MAX];
    char who[MEET_WHO_MAX];  // "rank 1: "; "" for a role member, whose messages are labelled with its role
    int members;
    bool keyed;
    struct job_key key;
    struct zap *zap;  // only in rank 0's process
    void *context, *router, *dealer;
    void *events;     // of the dealer's handshakes; of rank 0's router: its connections
    int connections;  // to the router
    int wake;         // eventfd
    pthread_t thread;
    bool started, closing, handshake_done;  // the dealer's handshake has succeeded
    bool aborted;                           // this rank has called rendezvous_abort
    bool crowded;                           // the warning about too many connections is logged
    // Connections that were accepted without a successful handshake: their process may have another key, or none.
    int shut_out;
    pthread_mutex_t lock;  // guards all below
    pthread_cond_t changed;
    struct client client;
    struct registry *
        registry;  // rank 0's; only the thread uses it, except for registry_is_over, registry_roles_here and registry_first_lost
    int refusals;
    uint64_t gathers;
    struct news_item *news, **news_end;  // for member 0's process, oldest first
    int news_fd;                         // eventfd; -1: no news is reported
    struct poll_watch poll_watch;        // what this thread knows of `turns`
    const _Atomic uint64_t *turns;
    void (*act)(void *ctx, const char *why);  // NULL: no watcher, or it was called
    void *act_ctx;
};

struct news_item {
    struct member_news news;
    struct news_item *next;
};

// ---------------------------------------------------------------- messages
static int send_parts(void *socket, const char *id, const struct meet_message *m, const void *data) {
    if (id && zmq_send(socket, id, strlen(id), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return -1;
    if (zmq_send(socket, m, sizeof *m, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return -1;
    return zmq_send(socket, data ? data : "", m->bytes, ZMQ_DONTWAIT) < 0 ? -1 : 0;
}

static void id_of(int rank, uint64_t incarnation, char id[ID_MAX]) {
    snprintf(id, ID_MAX, "rank %d %016llx", rank, (unsigned long long)incarnation);
}

static void send_to_client(void *ctx, int rank, uint64_t incarnation, const struct meet_message *m,
                           const void *data) {
    struct rendezvous *r = ctx;
    char id[ID_MAX];
    id_of(rank, incarnation, id);
    if (send_parts(r->router, id, m, data) && errno == EHOSTUNREACH)
        registry_unreachable(r->registry, rank, incarnation, now_seconds());
}

static void queue_news(void *ctx, const struct member_news *n) {
    struct rendezvous *r = ctx;
    uint64_t one = 1;
    struct news_item *item = xcalloc(1, sizeof *item);
    item->news = *n;
    *r->news_end = item;
    r->news_end = &item->next;
    if (write(r->news_fd, &one, sizeof one) < 0) return;  // it is readable already
}

static void send_to_registry(void *ctx, int rank, uint64_t incarnation, const struct meet_message *m,
                             const void *data) {
    (void)rank;
    (void)incarnation;
    send_parts(((struct rendezvous *)ctx)->dealer, NULL, m, data);  // a message that cannot be queued is sent
                                                                    // again
}

// Returns false for a message of another version, or of no rendezvous at all.
static bool receive(void *socket, bool routed, struct meet_message *m, zmq_msg_t *data) {
    zmq_msg_t parts[4];
    int count = 0, more = 1;
    while (more) {
        zmq_msg_t *at = &parts[count < 3 ? count : 3];
        if (count > 3) zmq_msg_close(at);
        zmq_msg_init(at);
        if (zmq_msg_recv(at, socket, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(at);
        count++;
    }
    int head = routed ? 1 : 0;
    bool good = !more && count == head + 2 && zmq_msg_size(&parts[head]) == sizeof *m;
    if (good) memcpy(m, zmq_msg_data(&parts[head]), sizeof *m);
    good = good && m->magic == MEET_MAGIC && m->kind < MEET_KINDS &&
           m->bytes == zmq_msg_size(&parts[head + 1]) && memchr(m->name, 0, sizeof m->name);
    if (good) zmq_msg_move(data, &parts[head + 1]);
    for (int i = 0; i < count && i < 4; i++) zmq_msg_close(&parts[i]);
    return good;
}

static void receive_all(struct rendezvous *r, void *socket, bool registry) {
    int events = 0;
    size_t size = sizeof events;
    while (zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && events & ZMQ_POLLIN) {
        struct meet_message m;
        zmq_msg_t data;
        zmq_msg_init(&data);
        if (receive(socket, registry, &m, &data)) {
            if (registry)
                registry_receive(r->registry, &m, zmq_msg_data(&data), now_seconds());
            else
                client_receive(&r->client, &m, zmq_msg_data(&data), now_seconds());
        }
        zmq_msg_close(&data);
    }
}

// A connection takes a descriptor of this process, which needs some for its files. ZeroMQ has no limit on connections,
// and its listener cannot close a single one, so one too many is shut down here. The fd may already be another file,
// or another connection to the same port, whose process then connects again.
static void count_connections(struct rendezvous *r, int event, int fd) {
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    r->connections += event == ZMQ_EVENT_ACCEPTED ? 1 : -1;
    r->shut_out += event == ZMQ_EVENT_ACCEPTED;
    if (event != ZMQ_EVENT_ACCEPTED || r->connections <= r->members + SPARE) return;
    if (getsockname(fd, (struct sockaddr *)&own, &size)) return;
    int port = own.ss_family == AF_INET    ? ntohs(((struct sockaddr_in *)&own)->sin_port)
               : own.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&own)->sin6_port)
                                           : 0;
    if (port == r->o.port) shutdown(fd, SHUT_RDWR);
    if (!r->crowded)
        warn("%d connections to %s, where %d %s meet: those above are closed. Another program connects there",
             r->connections, r->where, r->members, r->members > r->o.size ? "processes" : "ranks");
    r->crowded = true;
}

static void check_handshakes(struct rendezvous *r) {
    for (int event, value; (event = curve_watch_next(r->events, &value));) {
        if (r->router && event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            r->shut_out--;
        else if (r->router)
            count_connections(r, event, value);
        if (r->registry && event == ZMQ_EVENT_DISCONNECTED) registry_recheck(r->registry, now_seconds());
        if (r->router) continue;
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            r->refusals = 0, r->handshake_done = true;
        else if (event != ZMQ_EVENT_DISCONNECTED)
            r->refusals += event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL ? 1 : REFUSALS;
        else if (!r->handshake_done)
            r->refusals++;
        else if (!r->o.same_key)  // with same_key it may be one too many, and reconnects
            client_unreachable(&r->client, now_seconds());
    }
}

static void set_port(struct rendezvous *r, int port) {
    r->o.port = port;
    snprintf(r->where, sizeof r->where, strchr(r->o.host, ':') ? "[%s]:%d" : "%s:%d", r->o.host, port);
}

// With the lock held. Returns a sentence about who has gone, malloc'd, or NULL if all are there.
static char *loss_text(const struct client *s) {
    return *s->ended           ? xstrdup(s->ended)
           : s->first_lost < 0 ? NULL
                               : xasprintf("rank %d on %s has gone", s->first_lost,
                                           s->members ? s->members[s->first_lost].host : "its host");
}

static void *thread_main(void *arg) {
    struct rendezvous *r = arg;
    zmq_pollitem_t on[] = {{.fd = r->wake, .events = ZMQ_POLLIN},
                           {.socket = r->dealer, .events = ZMQ_POLLIN},
                           {.socket = r->events, .events = ZMQ_POLLIN},
                           {.socket = r->router, .events = ZMQ_POLLIN}};
    int tick_ms = (int)fmin(TICK_MS, fmax(500 * r->o.beat_s, 1));
    for (;;) {
        uint64_t woken;
        zmq_poll(on, r->router ? 4 : 3, tick_ms);
        if (on[0].revents && read(r->wake, &woken, sizeof woken) < 0) continue;
        pthread_mutex_lock(&r->lock);
        if (r->registry) receive_all(r, r->router, true);
        receive_all(r, r->dealer, false);
        check_handshakes(r);
        if (r->registry) registry_tick(r->registry, now_seconds());
        double turn_s = poll_clock_at(&r->client.turns, now_seconds());
        r->client.frozen =
            r->turns && poll_watch_idle_s(&r->poll_watch, atomic_load(r->turns), turn_s) > r->o.deadline_s;
        client_tick(&r->client, now_seconds());
        pthread_cond_broadcast(&r->changed);
        bool closing = r->closing;
        char *why = r->act && !closing ? loss_text(&r->client) : NULL;
        void (*act)(void *ctx, const char *why) = why ? r->act : NULL;
        if (why) r->act = NULL;
        pthread_mutex_unlock(&r->lock);
        if (act) act(r->act_ctx, why);
        free(why);
        if (closing) return NULL;
    }
}

static void wake(struct rendezvous *r) {
    uint64_t one = 1;
    if (write(r->wake, &one, sizeof one) < 0) return;  // it wakes by itself soon
}

// ---------------------------------------------------------------- sockets
static bool set(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static bool set_common(void *socket) {
    return socket && set(socket, ZMQ_LINGER, LINGER_MS) && set(socket, ZMQ_IPV6, 1) &&
           set(socket, ZMQ_SNDHWM, 0) && set(socket, ZMQ_RCVHWM, 0) &&
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &(int64_t){MESSAGE_MAX}, sizeof(int64_t)) == 0;
}

// A numeric address, or localhost, is the only address that the router listens at. A name may resolve to another
// address here than elsewhere, or to one that reaches this machine through a router; then it listens at all addresses.
static int listen_at(struct rendezvous *r, const char *address) {
    char endpoint[ADDRESS_MAX + 32];
    const struct job_key *key = r->keyed ? &r->key : NULL;
    bool only = address_is_number(r->o.host) || !strcmp(r->o.host, "localhost");
    endpoint_text(only ? address : "*", r->o.port, endpoint, sizeof endpoint);
    r->router = zmq_socket(r->context, ZMQ_ROUTER);
    bool good = set_common(r->router) && set(r->router, ZMQ_ROUTER_MANDATORY, 1) &&
                set(r->router, ZMQ_ROUTER_HANDOVER, 1);
    if (good && curve_listen(r->context, r->router, key, NULL, &r->zap)) return -1;
    const int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    good = good && (r->events = curve_watch(r->context, r->router, events));
    double until_s = now_seconds() + BIND_FOR_S;
    while (good && zmq_bind(r->router, endpoint) != 0)
        if (errno != EADDRINUSE || now_seconds() > until_s || usleep(50000)) good = false;
    size_t size = sizeof endpoint;
    if (good && !r->o.port && zmq_getsockopt(r->router, ZMQ_LAST_ENDPOINT, endpoint, &size) == 0)
        set_port(r, atoi(strrchr(endpoint, ':') + 1));
    if (good && zmq_bind(r->router, INSIDE) == 0) return 0;
    return fail("%scannot listen at %s: %s; give the job another %s%s", r->who, r->where, zmq_strerror(errno),
                errno == EADDRINUSE ? "port" : "meeting point",
                r->members > r->o.size ? ""
                : errno == EADDRINUSE  ? " (MASTER_PORT)"
                                       : " (MASTER_ADDR, MASTER_PORT)");
}

static int connect_to(struct rendezvous *r, const char *address) {
    char endpoint[ADDRESS_MAX + 32], id[ID_MAX];
    const struct job_key *key = r->keyed && !r->router ? &r->key : NULL;
    id_of(r->o.rank, r->client.incarnation, id);
    endpoint_text(address, r->o.port, endpoint, sizeof endpoint);
    r->dealer = zmq_socket(r->context, ZMQ_DEALER);
    bool good = set_common(r->dealer) && zmq_setsockopt(r->dealer, ZMQ_ROUTING_ID, id, strlen(id)) == 0;
    if (good && curve_connect(r->dealer, key, NULL)) return -1;
    if (good && !r->router) good = (r->events = curve_watch(r->context, r->dealer, CURVE_END_EVENTS));
    if (good && zmq_connect(r->dealer, r->router ? INSIDE : endpoint) == 0) return 0;
    return fail("%scannot connect to %s: %s", r->who, r->where, zmq_strerror(errno));
}

// ---------------------------------------------------------------- opening
// Processes whose monotonic clock, network and name are the same are on one machine.
static uint64_t machine_id(const char *host) {
    char net[64] = "", text[256];
    ssize_t n = readlink("/proc/self/ns/net", net, sizeof net - 1);
    snprintf(text, sizeof text, "%s %016llx %.*s", host, (unsigned long long)clock_host(), n > 0 ? (int)n : 0,
             net);
    return XXH64(text, strlen(text), 0);
}

static int stopped(const struct rendezvous *r) { return r->o.stop && *r->o.stop; }

static int resolve(struct rendezvous *r, char address[ADDRESS_MAX]) {
    double until_s = now_seconds() + r->o.deadline_s;
    int rc;
    while ((rc = address_resolve(r->o.host, address)) > 0 && now_seconds() < until_s && !stopped(r))
        usleep(500000);
    if (rc > 0)
        fail("the host %s of the meeting point: no name service answers within %g s", r->o.host,
             r->o.deadline_s);
    if (rc) return -1;
    return address_own(r->o.interface, address, r->own);
}

// With the lock held. Waits until until_s, at most for PAUSE_S.
static void pause_until(struct rendezvous *r, double until_s) {
    double left_s = until_s - now_seconds();
    struct timespec at = time_after(left_s < PAUSE_S ? left_s : PAUSE_S);
    pthread_cond_timedwait(&r->changed, &r->lock, &at);
}

// Each rank that joins extends the timeout: ranks may be started one after the other, by hand or by a queue. The time
// that this process is stopped does not count.
static int wait_for_all(struct rendezvous *r) {
    struct client *s = &r->client;
    double wait_s = r->o.deadline_s * (r->o.min_ranks ? 2 : 1);
    struct poll_clock clock = {.lost_s = wait_s, .pause_s = PAUSE_S};
    double now = poll_clock_poll(&clock, now_seconds()), since_s = now;
    pthread_mutex_lock(&r->lock);
    double progress_s = s->progress_s;
    while (!client_has_joined(s) && !*s->ended && now - since_s < wait_s && !stopped(r) &&
           (r->o.same_key || r->refusals < REFUSALS)) {
        pause_until(r, now_seconds() + PAUSE_S);
        now = poll_clock_poll(&clock, now_seconds());
        if (s->progress_s != progress_s) progress_s = s->progress_s, since_s = now;
    }
    bool here = client_has_joined(s) && !*s->ended, heard = s->heard;
    char *ended = xstrdup(s->ended), *waiting = xstrdup(s->waiting);
    int refusals = r->refusals, shut_out = r->shut_out;
    pthread_mutex_unlock(&r->lock);
    if (!here && *ended)
        fail("%s", ended);
    else if (!here && stopped(r) && r->o.rank >= r->o.size) {
        error_quiet(1);  // the user who stopped it needs no line
        fail("interrupted before the start");
    } else if (!here && stopped(r))
        fail("%sasked to end before all ranks had joined at %s", r->who, r->where);
    else if (!here && !r->o.same_key && refusals >= REFUSALS)
        fail("%swhat listens at %s does not let this process in: " JOB_KEY_DIFFERS ": give all %s", r->who,
             r->where,
             r->o.rank < r->o.size ? "ranks the same key, or the job another port"
                                   : "roles of the job the same key, or all --insecure");
    else if (!here && heard)
        fail("rank %d of %d: %s did not join at %s within %g s: see on their hosts why%s", r->o.rank,
             r->o.size, waiting, r->where, r->o.deadline_s,
             shut_out > 0 ? ": a process tried to join with another " JOB_KEY_VARIABLE ", or with none"
             : r->keyed   ? ", and whether they have the same " JOB_KEY_VARIABLE
                          : "");
    else if (!here)
        fail(
            "%snobody answers at %s within %g s: see that %s runs there, and that no firewall closes the port",
            r->who, r->where, r->o.deadline_s, r->o.member_0);
    free(ended);
    free(waiting);
    return here ? 0 : -1;
}

// Raises the limit of open files to 65,536 and no further: some programs that are started from here close every
// descriptor up to the limit.
static int claim_descriptors(const struct rendezvous *r) {
    struct rlimit l;
    int needed = OF_PROCESS + (r->o.rank ? 0 : r->members);
    if (!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur >= DESCRIPTORS) return 0;
    return descriptors_claim(needed, DESCRIPTORS - needed);
}

static int start(struct rendezvous *r, const char *address) {
    struct meet_join join = {.member.pid = getpid()};
    sigset_t all, before;
    gethostname(join.member.host, sizeof join.member.host - 1);
    snprintf(join.member.address, sizeof join.member.address, "%s", r->own);
    snprintf(join.reach, sizeof join.reach, "%s", address);
    join.machine = machine_id(join.member.host);
    for (int i = 0; i < MEET_ROLES_MAX; i++) join.counts[i] = r->o.roles[i].count;
    client_open(&r->client, &join, r->o.identity);
    if (claim_descriptors(r) || fabric_threads(r->context)) return -1;
    if (r->o.rank == 0 && listen_at(r, address)) return -1;
    if (connect_to(r, address)) return -1;
    if (r->router)
        r->registry =
            registry_create(&r->o, r->where, send_to_client, r->news_fd >= 0 ? queue_news : NULL, r);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&r->thread, NULL, thread_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->started = error == 0;
    return error ? fail("the rendezvous has no thread: %s; " ERROR_RAISE_THREADS, strerror(error)) : 0;
}

static void destroy(struct rendezvous **rendezvous) {
    struct rendezvous *r = *rendezvous;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_mutex_unlock(&r->lock);
    wake(r);
    if (r->started) pthread_join(r->thread, NULL);
    curve_watch_end(&r->events, r->router ? r->router : r->dealer);
    if (r->dealer) zmq_close(r->dealer);
    if (r->router) zmq_close(r->router);
    while (r->context && zmq_ctx_term(r->context) != 0 && errno == EINTR) continue;
    curve_end(&r->zap);
    job_key_forget(&r->key);
    registry_destroy(&r->registry);
    client_close(&r->client);
    for (struct member_news n; r->news && rendezvous_news(r, &n);) free(n.data);
    if (r->wake >= 0) close(r->wake);
    if (r->news_fd >= 0) close(r->news_fd);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r);
    *rendezvous = NULL;
}

struct rendezvous *rendezvous_open(const struct rendezvous_options *o) {
    struct rendezvous *r = xcalloc(1, sizeof *r);
    char address[ADDRESS_MAX] = "";
    r->o = *o;
    if (!o->member_0) r->o.member_0 = "rank 0";
    if (!o->identity) r->o.identity = "{}";
    if (!(o->silent_s > 0)) r->o.silent_s = o->deadline_s;
    if (!(o->beat_s > 0)) r->o.beat_s = MEET_RESEND_S;
    r->members = meet_members(o->size, o->roles);
    bool roles = r->members > o->size;
    set_port(r, o->port);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->news_fd = o->rank == 0 && roles ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    r->news_end = &r->news;
    r->context = zmq_ctx_new();
    r->client = (struct client){.rank = o->rank,
                                .size = o->size,
                                .member_0 = r->o.member_0,
                                .where = r->where,
                                .silent_s = r->o.silent_s,
                                .beat_s = r->o.beat_s,
                                .send = send_to_registry,
                                .ctx = r};
    if (o->rank < o->size && !o->member_0) snprintf(r->who, sizeof r->who, "rank %d: ", o->rank);
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    bool good = r->wake >= 0 && (r->news_fd >= 0 || o->rank || !roles) && r->context &&
                getrandom(&r->client.incarnation, sizeof r->client.incarnation, 0) ==
                    (ssize_t)sizeof r->client.incarnation;
    if (!good) fail("the rendezvous at %s: %s", r->where, strerror(errno));
    r->client.incarnation += r->client.incarnation == 0;
    int given = !good ? -1 : o->no_key ? 0 : job_key_given(&r->key);
    r->keyed = given > 0;
    if (given < 0 || resolve(r, address) || start(r, address) || (!o->no_wait && wait_for_all(r)))
        destroy(&r);
    return r;
}

int rendezvous_wait(struct rendezvous *r, const _Atomic int *stop) {
    r->o.stop = stop;
    return wait_for_all(r);
}

// ---------------------------------------------------------------- afterwards
int rendezvous_size(const struct rendezvous *r) { return r->o.size; }

int rendezvous_port(const struct rendezvous *r) { return r->o.port; }

const char *rendezvous_address(const struct rendezvous *r) { return r->own; }

uint64_t rendezvous_incarnation(const struct rendezvous *r) { return r->client.incarnation; }

void rendezvous_watch_progress(struct rendezvous *r, const _Atomic uint64_t *turns) {
    pthread_mutex_lock(&r->lock);
    r->turns = turns;
    r->poll_watch = (struct poll_watch){0};
    pthread_mutex_unlock(&r->lock);
}

void rendezvous_set_activity(struct rendezvous *r, int (*activity)(void *ctx), void *ctx) {
    pthread_mutex_lock(&r->lock);
    r->client.activity = activity;
    r->client.activity_ctx = ctx;
    pthread_mutex_unlock(&r->lock);
}

double rendezvous_heartbeat_s(double deadline_s) { return fmin(MEET_RESEND_S, fmax(deadline_s, 2) / BEATS); }

const struct rendezvous_member *rendezvous_member(const struct rendezvous *r, int rank) {
    return &r->client.members[rank];
}

int rendezvous_machines(const struct rendezvous *r) {
    int last = 0;
    for (int i = 0; i < r->o.size; i++)
        if (r->client.members[i].machine > last) last = r->client.members[i].machine;
    return last + 1;
}

static int send_message(struct rendezvous *r, enum meet_kind kind, const char *name, const void *data,
                        size_t bytes) {
    if (strlen(name) >= MEET_NAME_MAX || bytes > MEET_DATA_MAX)
        return fail("the rendezvous takes names of up to %d characters and %zu bytes at once; %s has %zu",
                    MEET_NAME_MAX - 1, MEET_DATA_MAX, name, bytes);
    pthread_mutex_lock(&r->lock);
    client_put(&r->client, kind, name, data, bytes);
    pthread_mutex_unlock(&r->lock);
    wake(r);
    return 0;
}

int rendezvous_put(struct rendezvous *r, const char *name, const void *data, size_t bytes) {
    return send_message(r, MEET_PUT, name, data, bytes);
}

int rendezvous_drop(struct rendezvous *r, const char *name) {
    return send_message(r, MEET_DROP, name, NULL, 0);
}

int rendezvous_send(struct rendezvous *r, const char *word, const void *data, size_t bytes) {
    return send_message(r, MEET_SEND, word, data, bytes);
}

int rendezvous_news_fd(const struct rendezvous *r) { return r->news_fd; }
void rendezvous_descriptors(const struct rendezvous *r, int out[2]) {
    out[0] = r->wake;
    out[1] = r->news_fd;
}

bool rendezvous_news(struct rendezvous *r, struct member_news *out) {
    uint64_t count;
    pthread_mutex_lock(&r->lock);
    struct news_item *item = r->news;
    if (item && !(r->news = item->next)) r->news_end = &r->news;
    if (!r->news && r->news_fd >= 0 && read(r->news_fd, &count, sizeof count) < 0) errno = 0;
    pthread_mutex_unlock(&r->lock);
    if (item) *out = item->news;
    free(item);
    return item != NULL;
}

void rendezvous_end_process(struct rendezvous *r, int member, uint64_t incarnation, const char *why) {
    char name[64];
    snprintf(name, sizeof name, "%d %llx", member, (unsigned long long)incarnation);
    send_message(r, MEET_END_PROCESS, name, why, strnlen(why, MEET_TEXT_MAX - 1));
}

void *rendezvous_get(struct rendezvous *r, const char *name, size_t *bytes) {
    struct poll_clock clock = {.lost_s = r->o.deadline_s, .pause_s = PAUSE_S};
    double until_s = poll_clock_poll(&clock, now_seconds()) + r->o.deadline_s;
    struct client *s = &r->client;
    struct client_want w = {0};
    snprintf(w.name, sizeof w.name, "%s", name);
    pthread_mutex_lock(&r->lock);
    int losses = s->losses;
    client_want(s, &w);
    wake(r);
    while (!w.data && !*s->ended && s->losses == losses && poll_clock_poll(&clock, now_seconds()) < until_s)
        pause_until(r, now_seconds() + PAUSE_S);
    client_unwant(&w);
    if (bytes) *bytes = w.bytes;
    char *why = *s->ended || s->losses > losses ? loss_text(s) : NULL;
    if (!w.data && why)
        fail("%s", why);
    else if (!w.data)
        fail("%swaited %g s at %s for \"%s\", which no rank has put there", r->who, r->o.deadline_s, r->where,
             name);
    pthread_mutex_unlock(&r->lock);
    free(why);
    return w.data;
}

void *rendezvous_try_get(struct rendezvous *r, const char *name, size_t *bytes) {
    struct client *s = &r->client;
    pthread_mutex_lock(&r->lock);
    struct client_want *w = s->wants;
    while (w && (!w->polled || strcmp(w->name, name) != 0)) w = w->next;
    bool asked = w != NULL;
    if (!asked) {
        w = xcalloc(1, sizeof *w);
        w->polled = true;
        snprintf(w->name, sizeof w->name, "%s", name);
        client_want(s, w);
    }
    void *data = w->data;
    *bytes = w->bytes;
    if (data) {
        client_unwant(w);
        free(w);
    }
    pthread_mutex_unlock(&r->lock);
    if (!asked) wake(r);
    return data;
}

int rendezvous_allgather(struct rendezvous *r, const void *mine, size_t bytes, void *all) {
    char name[MEET_NAME_MAX];
    size_t got = 0;
    if (bytes > MEET_DATA_MAX / (size_t)r->o.size)
        return fail("a gather of %zu bytes per rank over %d ranks is too large: at most %zu per rank", bytes,
                    r->o.size, MEET_DATA_MAX / (size_t)r->o.size);
    snprintf(name, sizeof name, "#%llu", (unsigned long long)++r->gathers);
    if (send_message(r, MEET_PART, name, mine, bytes)) return -1;
    void *data = rendezvous_get(r, name, &got);
    if (!data) return -1;
    int rc = got == bytes * (size_t)r->o.size
                 ? 0
                 : fail("round %s of all ranks: other sizes than this rank's", name);
    if (rc == 0) memcpy(all, data, got);
    free(data);
    return rc;
}

int rendezvous_lost(struct rendezvous *r) {
    pthread_mutex_lock(&r->lock);
    int rank = r->client.first_lost;
    pthread_mutex_unlock(&r->lock);
    return rank;
}

bool rendezvous_is_lost(struct rendezvous *r, int rank) {
    pthread_mutex_lock(&r->lock);
    bool gone = r->client.lost[rank];
    pthread_mutex_unlock(&r->lock);
    return gone;
}

double rendezvous_silent_s(struct rendezvous *r) {
    pthread_mutex_lock(&r->lock);
    double silent_s = poll_clock_at(&r->client.turns, now_seconds()) - r->client.heard_s;
    pthread_mutex_unlock(&r->lock);
    return silent_s;
}

const char *rendezvous_end_reason(struct rendezvous *r) {
    pthread_mutex_lock(&r->lock);
    bool ended = *r->client.ended;
    pthread_mutex_unlock(&r->lock);
    return ended ? r->client.ended : NULL;  // the text does not change once it is written
}

enum meet_end rendezvous_end_kind(struct rendezvous *r) {
    pthread_mutex_lock(&r->lock);
    enum meet_end end = r->client.end;
    pthread_mutex_unlock(&r->lock);
    return end;
}

void rendezvous_on_loss(struct rendezvous *r, void (*act)(void *ctx, const char *why), void *ctx) {
    pthread_mutex_lock(&r->lock);
    r->act = act;
    r->act_ctx = ctx;
    pthread_mutex_unlock(&r->lock);
}

void rendezvous_abort(struct rendezvous *r, const char *why) {
    char *text = xasprintf("%.*s", MEET_TEXT_MAX - 1, *why ? why : "no reason is known");
    if (send_message(r, MEET_ABORT, "", text, strlen(text)) == 0) {
        pthread_mutex_lock(&r->lock);
        client_end(&r->client, MEET_JOB_OVER, text);
        r->aborted = true;
        pthread_mutex_unlock(&r->lock);
    }
    free(text);
}

int rendezvous_close(struct rendezvous **rendezvous) {
    struct rendezvous *r = *rendezvous;
    if (!r) return 0;
    struct client *s = &r->client;
    double until_s = now_seconds() + 2 * r->o.deadline_s;  // a silent member is lost by then
    rendezvous_watch_progress(r, NULL);
    send_message(r, MEET_BYE, "", NULL, 0);
    pthread_mutex_lock(&r->lock);
    // A member that has not been let in has no goodbye to send.
    if (!r->registry && !client_has_joined(s)) until_s = 0;
    while (now_seconds() < until_s &&
           (r->registry ? !registry_is_over(r->registry)
                        : !client_is_acknowledged(s) && !s->closed_s && !*s->ended))
        pause_until(r, until_s);
    until_s = now_seconds() + ROLES_LEAVE_S;
    while (r->registry && registry_roles_here(r->registry) && now_seconds() < until_s)
        pause_until(r, until_s);
    // The registry knows of a loss before the client does.
    int lost = r->registry && !r->o.min_ranks ? registry_first_lost(r->registry) : -1;
    bool unheard = !r->registry && !client_is_acknowledged(s),
         aborted = r->aborted || (r->o.rank >= r->o.size && s->end);
    char *why = *s->ended ? xstrdup(s->ended) : NULL;
    pthread_mutex_unlock(&r->lock);
    int rc = aborted ? -1 : 0;  // the reason is logged already
    if (why && !aborted)
        rc = fail("%s, before the job had ended", why);
    else if (lost >= 0 && !aborted)
        rc = fail("rank %d on %s has gone, before the job had ended", lost, s->members[lost].host);
    else if (unheard && !aborted)
        rc = fail("%s at %s has gone, or answers no more, before the job had ended", r->o.member_0, r->where);
    free(why);
    destroy(rendezvous);
    return rc;
}
