#include "shared/fabric/curve.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/core/error.h"
#include "shared/fabric/zap.h"

#define HANDSHAKE_MS 3000
#define BACKLOG      256  // connections that wait for accept

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

int curve_listen(void *socket, const struct job_key *key, const char *token) {
    bool good =
        set_number(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) && set_number(socket, ZMQ_BACKLOG, BACKLOG);
    if (!key && !has(token)) return done(good);
    // Without a ZAP handler (zap.h) a connection would get no User-Id.
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
                    set_text(socket, ZMQ_PLAIN_USERNAME, ZAP_MEMBER) &&
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
