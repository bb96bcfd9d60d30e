#include "shared/fabric/zap.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/core/error.h"

#define ENDPOINT  "inproc://zeromq.zap.01"
#define FRAMES    8  // version, request, domain, address, identity, mechanism, credentials
#define FRAME_MAX 255

struct zap {
    void *socket;
    bool keyed;
    uint8_t member[JOB_PAIR_BYTES];  // the public key of all that connect
    const char *token;
    pthread_t thread;
};

struct request {
    char frame[FRAMES][FRAME_MAX + 1];  // with a closing zero
    int bytes[FRAMES];                  // -1: longer than any valid frame
    int count;
};

// Receives the next request. Returns false if the context ends.
static bool hear(void *socket, struct request *r) {
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
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) return false;  // the context ends
    }
    return true;
}

static bool is(const struct request *r, int i, const char *text) {
    return r->bytes[i] == (int)strlen(text) && memcmp(r->frame[i], text, strlen(text)) == 0;
}

static bool admits(const struct zap *z, const struct request *r) {
    if (r->count == 7 && is(r, 0, "1.0") && is(r, 5, "CURVE") && r->bytes[6] == JOB_PAIR_BYTES)
        return z->keyed && sodium_memcmp(r->frame[6], z->member, JOB_PAIR_BYTES) == 0;
    if (r->count != 8 || !is(r, 0, "1.0") || !is(r, 5, "PLAIN") || !is(r, 6, ZAP_MEMBER)) return false;
    if (!z->token || !*z->token || r->bytes[7] != (int)strlen(z->token)) return false;
    return sodium_memcmp(r->frame[7], z->token, strlen(z->token)) == 0;
}

static void answer(void *socket, const struct request *r, bool let_in) {
    const char *words[] = {let_in ? "200" : "400", let_in ? "OK" : "not of this job",
                           let_in ? ZAP_MEMBER : "", ""};
    bool good = zmq_send(socket, "1.0", 3, ZMQ_SNDMORE) >= 0 &&
                zmq_send(socket, r->frame[1], r->bytes[1] > 0 ? (size_t)r->bytes[1] : 0, ZMQ_SNDMORE) >= 0;
    for (int i = 0; i < 4 && good; i++)
        good = zmq_send(socket, words[i], strlen(words[i]), i < 3 ? ZMQ_SNDMORE : 0) >= 0;
}

static void *zap_main(void *arg) {
    struct zap *z = arg;
    struct request r;
    while (hear(z->socket, &r)) answer(z->socket, &r, admits(z, &r));
    zmq_close(z->socket);
    return NULL;
}

struct zap *zap_start(void *context, const struct job_key *key, const char *token) {
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
    fail("nobody can be asked who may join: %s%s", zmq_strerror(error),
         error == EAGAIN ? "; " ERROR_RAISE_THREADS : "");
    if (z->socket) zmq_close(z->socket);
    free(z);
    return NULL;
}

void zap_join(struct zap **at) {
    if (!*at) return;
    pthread_join((*at)->thread, NULL);
    free(*at);
    *at = NULL;
}
