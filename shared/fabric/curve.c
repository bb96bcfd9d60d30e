#include "shared/fabric/curve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/core/error.h"

#define HANDSHAKE_MS 3000
#define BACKLOG      256  // connections that wait for accept

// ---------------------------------------------------------------- the ZAP handler
// libzmq asks it about each connection before it accepts a message (ZAP: ZeroMQ's RFC 27). It compares the public key of
// the connecting side with the one derived from the job's key, or its token with the token.
#define ENDPOINT  "inproc://zeromq.zap.01"
#define FRAMES    8  // version, request, domain, address, identity, mechanism, credentials
#define FRAME_MAX 255

struct zap {
    void *socket;
    bool keyed;
    uint8_t member[JOB_PAIR_BYTES];  // the public key of all connecting processes
    const char *token;
    pthread_t thread;
};

struct request {
    char frame[FRAMES][FRAME_MAX + 1];  // with a closing zero
    int bytes[FRAMES];                  // -1: longer than any valid frame
    int count;
};

// Receives the next request. Returns false if the context ends.
static bool receive_request(void *socket, struct request *r) {
    int more = 1;
    size_t size = sizeof more;
    char rest[FRAME_MAX + 1] = "";
    memset(r, 0, sizeof *r);
    while (more) {
        bool kept = r->count < FRAMES;
        int n = zmq_recv(socket, kept ? r->frame[r->count] : rest, FRAME_MAX, 0);
        if (n < 0 && errno == ETERM) return false;
        if (n < 0) continue;
        if (kept) r->bytes[r->count] = n > FRAME_MAX ? -1 : n;
        r->count += kept;
        // The context is being terminated.
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) return false;
    }
    return true;
}

static bool is(const struct request *r, int i, const char *text) {
    return r->bytes[i] == (int)strlen(text) && memcmp(r->frame[i], text, strlen(text)) == 0;
}

static bool admits(const struct zap *z, const struct request *r) {
    if (r->count == 7 && is(r, 0, "1.0") && is(r, 5, "CURVE") && r->bytes[6] == JOB_PAIR_BYTES)
        return z->keyed && sodium_memcmp(r->frame[6], z->member, JOB_PAIR_BYTES) == 0;
    if (r->count != 8 || !is(r, 0, "1.0") || !is(r, 5, "PLAIN") || !is(r, 6, CURVE_MEMBER)) return false;
    if (!z->token || !*z->token || r->bytes[7] != (int)strlen(z->token)) return false;
    return sodium_memcmp(r->frame[7], z->token, strlen(z->token)) == 0;
}

static void answer(void *socket, const struct request *r, bool let_in) {
    const char *words[] = {let_in ? "200" : "400", let_in ? "OK" : "not of this job",
                           let_in ? CURVE_MEMBER : "", ""};
    bool good = zmq_send(socket, "1.0", 3, ZMQ_SNDMORE) >= 0 &&
                zmq_send(socket, r->frame[1], r->bytes[1] > 0 ? (size_t)r->bytes[1] : 0, ZMQ_SNDMORE) >= 0;
    for (int i = 0; i < 4 && good; i++)
        good = zmq_send(socket, words[i], strlen(words[i]), i < 3 ? ZMQ_SNDMORE : 0) >= 0;
}

static void *zap_main(void *arg) {
    struct zap *z = arg;
    struct request r;
    while (receive_request(z->socket, &r)) answer(z->socket, &r, admits(z, &r));
    zmq_close(z->socket);
    return NULL;
}

static struct zap *zap_start(void *context, const struct job_key *key, const char *token) {
    struct zap *z = xcalloc(1, sizeof *z);
    sigset_t all, before;
    int linger_ms = 0;
    *z = (struct zap){.socket = zmq_socket(context, ZMQ_REP), .keyed = key, .token = token};
    if (key) {
        struct job_pairs p;
        job_pairs_of(key, &p);
        memcpy(z->member, p.connect_public, sizeof z->member);
        job_pairs_forget(&p);
    }
    if (z->socket) zmq_setsockopt(z->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    bool good = z->socket && zmq_bind(z->socket, ENDPOINT) == 0;
    int error = errno;
    if (good) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&z->thread, NULL, zap_main, z);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        good = error == 0;
    }
    if (good) return z;
    fail("the check of who may join cannot start: %s%s", zmq_strerror(error),
         error == EAGAIN ? "; " ERROR_RAISE_THREADS : "");
    if (z->socket) zmq_close(z->socket);
    free(z);
    return NULL;
}

void curve_end(struct zap **at) {
    if (!*at) return;
    pthread_join((*at)->thread, NULL);
    free(*at);
    *at = NULL;
}

// ---------------------------------------------------------------- the options of sockets
static bool set_number(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static bool set_key(void *socket, int option, const uint8_t key[JOB_PAIR_BYTES]) {
    return zmq_setsockopt(socket, option, key, JOB_PAIR_BYTES) == 0;
}

static bool set_text(void *socket, int option, const char *text) {
    return zmq_setsockopt(socket, option, text, strlen(text)) == 0;
}

static int done(bool good) {
    if (good) return 0;
    return fail("this libzmq cannot keep strangers out: %s; it is to be built with CURVE (libsodium)%s",
                zmq_strerror(errno), zmq_has("curve") ? "" : ", and is not");
}

static bool has(const char *token) { return token && *token; }

int curve_listen(void *context, void *socket, const struct job_key *key, const char *token,
                 struct zap **zap) {
    bool good =
        set_number(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) && set_number(socket, ZMQ_BACKLOG, BACKLOG);
    if (!key && !has(token)) return done(good);
    // Without a ZAP handler a connection would get no User-Id.
    if (!*zap && !(*zap = zap_start(context, key, token))) return -1;
    good = good && set_text(socket, ZMQ_ZAP_DOMAIN, "starring");
    if (has(token)) return done(good && set_number(socket, ZMQ_PLAIN_SERVER, 1));
    struct job_pairs p;
    job_pairs_of(key, &p);
    good = good && set_number(socket, ZMQ_CURVE_SERVER, 1) &&
           set_key(socket, ZMQ_CURVE_SECRETKEY, p.listen_secret);
    job_pairs_forget(&p);
    return done(good);
}

int curve_connect(void *socket, const struct job_key *key, const char *token) {
    bool good = set_number(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    // No reconnecting: another process may take the port after the listener's death, and would get the token and the
    // queue.
    if (has(token))
        return done(good && set_number(socket, ZMQ_RECONNECT_IVL, -1) &&
                    set_text(socket, ZMQ_PLAIN_USERNAME, CURVE_MEMBER) &&
                    set_text(socket, ZMQ_PLAIN_PASSWORD, token));
    if (!key) return done(good);
    struct job_pairs p;
    job_pairs_of(key, &p);
    good = good && set_key(socket, ZMQ_CURVE_SERVERKEY, p.listen_public) &&
           set_key(socket, ZMQ_CURVE_PUBLICKEY, p.connect_public) &&
           set_key(socket, ZMQ_CURVE_SECRETKEY, p.connect_secret);
    job_pairs_forget(&p);
    return done(good);
}

// ---------------------------------------------------------------- handshake events
void *curve_watch(void *context, void *socket, int events) {
    char name[64];
    snprintf(name, sizeof name, "inproc://handshakes-%p", socket);
    if (zmq_socket_monitor(socket, name, events) != 0) return NULL;
    void *watch = zmq_socket(context, ZMQ_PAIR);
    if (watch && set_number(watch, ZMQ_LINGER, 0) && zmq_connect(watch, name) == 0) return watch;
    curve_watch_end(&watch, socket);
    return NULL;
}

// An event has two frames: its number with a value, and an address.
int curve_watch_next(void *watch, int *value) {
    unsigned char head[6], address[256];
    uint16_t event;
    if (!watch || zmq_recv(watch, head, sizeof head, ZMQ_DONTWAIT) != (int)sizeof head) return 0;
    memcpy(&event, head, sizeof event);
    memcpy(value, head + sizeof event, sizeof *value);
    zmq_recv(watch, address, sizeof address, ZMQ_DONTWAIT);
    return event;
}

void curve_watch_end(void **watch, void *socket) {
    if (socket) zmq_socket_monitor(socket, NULL, 0);
    if (*watch) zmq_close(*watch);
    *watch = NULL;
}
