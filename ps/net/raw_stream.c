#include "ps/net/raw_stream.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "ps/net/net.h"
#include "shared/core/error.h"

#define HEADER_BYTES 48  // as long as a push's header usually is
#define LINGER_MS    0
#define LANES        8

struct raw_stream {
    void *context, *socket;
    _Atomic int inflight;
};

void raw_stream_close(struct raw_stream **at) {
    struct raw_stream *s = *at;
    if (!s) return;
    if (s->socket) zmq_close(s->socket);
    while (s->context && zmq_ctx_term(s->context) != 0 && errno == EINTR) continue;
    free(s);
    *at = NULL;
}

static struct raw_stream *stream_open(int type) {
    struct raw_stream *s = xcalloc(1, sizeof *s);
    int linger_ms = LINGER_MS, wait_ms = RAW_STREAM_S * 1000, unlimited = 0;
    s->context = zmq_ctx_new();
    if (!s->context) fail("ZeroMQ: no context: %s", zmq_strerror(errno));
    s->socket = s->context ? net_first_socket(s->context, type) : NULL;
    if (!s->socket) {
        raw_stream_close(&s);
        return NULL;
    }
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(s->socket, ZMQ_SNDTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(s->socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
    return s;
}

// The receiver's allocator keeps the memory of messages: a ceiling does not pay for fresh pages with each. glibc
// takes no larger threshold.
struct raw_stream *raw_stream_listen(char address[NET_ADDRESS_MAX]) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    struct raw_stream *s = stream_open(ZMQ_ROUTER);
    size_t size = NET_ADDRESS_MAX;
    if (s && (zmq_bind(s->socket, "tcp://127.0.0.1:*") != 0 ||
              zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, address, &size) != 0)) {
        fail("raw stream: cannot listen on this host: %s", zmq_strerror(errno));
        raw_stream_close(&s);
    }
    return s;
}

struct raw_stream *raw_stream_connect(const char *address) {
    struct raw_stream *s = stream_open(ZMQ_DEALER);
    if (s && zmq_connect(s->socket, address) != 0) {
        fail("raw stream: cannot connect to %s: %s", address, zmq_strerror(errno));
        raw_stream_close(&s);
    }
    return s;
}

// ---------------------------------------------------------------- sending
static void let_go(void *data, void *hint) {
    (void)data;
    atomic_fetch_sub((_Atomic int *)hint, 1);
}

static int send_one(struct raw_stream *s, const char *payload, size_t bytes) {
    static const char header[HEADER_BYTES];
    zmq_msg_t msg;
    if (zmq_send(s->socket, header, sizeof header, ZMQ_SNDMORE) < 0) return -1;
    if (zmq_msg_init_data(&msg, (void *)payload, bytes, let_go, &s->inflight) != 0) return -1;
    atomic_fetch_add(&s->inflight, 1);
    if (zmq_msg_send(&msg, s->socket, 0) >= 0) return 0;
    zmq_msg_close(&msg);
    return -1;
}

int raw_stream_send(struct raw_stream *s, const char *base, size_t bytes, int count) {
    char word[8];
    for (int i = 0; i < count; i++)
        if (send_one(s, base + (size_t)i * bytes, bytes) != 0)
            return fail("raw stream: sending: %s", zmq_strerror(errno));
    if (zmq_recv(s->socket, word, sizeof word, 0) < 0)
        return fail("raw stream: no word of the receiver: %s", zmq_strerror(errno));
    return 0;
}

// ---------------------------------------------------------------- receiving
uint64_t raw_stream_checksum(const void *p, size_t bytes) {
    uint64_t lane[LANES] = {0}, x = 0;
    const char *at = p;
    size_t i = 0;
    for (; i + sizeof lane <= bytes; i += sizeof lane) {
        uint64_t word[LANES];
        memcpy(word, at + i, sizeof word);
        for (int j = 0; j < LANES; j++) lane[j] ^= word[j];
    }
    for (; i + sizeof x <= bytes; i += sizeof x) {
        memcpy(&x, at + i, sizeof x);
        lane[0] ^= x;
    }
    x = 0;
    for (int j = 0; j < LANES; j++) x ^= lane[j];
    return x;
}

// The payload of the next message into msg, which the caller closes; the sender's routing id before it.
static int take_one(struct raw_stream *s, zmq_msg_t *msg, uint8_t route[NET_ROUTE_MAX], int *route_bytes) {
    char header[HEADER_BYTES];
    *route_bytes = zmq_recv(s->socket, route, NET_ROUTE_MAX, 0);
    if (*route_bytes < 0 || zmq_recv(s->socket, header, sizeof header, 0) < 0) return -1;
    return zmq_msg_recv(msg, s->socket, 0) < 0 ? -1 : 0;
}

int raw_stream_receive(struct raw_stream *s, size_t bytes, int count, uint64_t *checksum) {
    uint8_t route[NET_ROUTE_MAX];
    int route_bytes = 0;
    *checksum = 0;
    for (int i = 0; i < count; i++) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        int rc = take_one(s, &msg, route, &route_bytes);
        if (rc == 0 && zmq_msg_size(&msg) != bytes) errno = EPROTO, rc = -1;
        if (rc == 0) *checksum ^= raw_stream_checksum(zmq_msg_data(&msg), bytes);
        zmq_msg_close(&msg);
        if (rc != 0) return fail("raw stream: message %d of %d: %s", i + 1, count, zmq_strerror(errno));
    }
    if (zmq_send(s->socket, route, (size_t)route_bytes, ZMQ_SNDMORE) < 0 ||
        zmq_send(s->socket, "read", 4, 0) < 0)
        return fail("raw stream: answering: %s", zmq_strerror(errno));
    return 0;
}
