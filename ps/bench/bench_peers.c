// The two ends of the raw streams: what ZeroMQ and shared memory reach without a star.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/bench/bench_ring.h"
#include "ps/bench/bench_roles.h"
#include "ps/net/raw_stream.h"
#include "shared/core/error.h"

int bench_receiver(const struct bench_seat *s) {
    char address[NET_ADDRESS_MAX], line[BENCH_LINE_MAX];
    int count = bench_keys(&s->plan), rc = -1;
    struct raw_stream *tcp = raw_stream_listen(address);
    struct bench_ring *ring = tcp ? bench_ring_open(s->ring, s->plan.bytes) : NULL;
    if (ring) rc = bench_say(s->control, "%d %s", (int)getpid(), address);
    while (!rc && !(rc = bench_hear(s->control, line)) && strcmp(line, "end") != 0) {
        uint64_t checksum;
        rc = !strcmp(line, "tcp") ? raw_stream_receive(tcp, s->plan.bytes, count, &checksum)
                                  : bench_ring_receive(ring, count, &checksum);
        if (!rc) rc = bench_say(s->control, "%" PRIu64, checksum);
    }
    bench_ring_close(&ring);
    raw_stream_close(&tcp);
    return rc ? rc : bench_say(s->control, "done");
}

struct sender {
    const struct bench_seat *seat;
    struct raw_stream *tcp;
    struct bench_ring *ring;
    char *base;  // (keys) payloads
    uint64_t checksum;
};

static int send_all(const struct sender *s, const char *line) {
    const struct bench_plan *p = &s->seat->plan;
    char medium[8];
    int64_t start;
    if (sscanf(line, "%7s %" SCNd64, medium, &start) != 2) return fail("bench ps: told \"%s\"", line);
    int64_t begin = bench_wait_until(start);
    int rc = !strcmp(medium, "tcp") ? raw_stream_send(s->tcp, s->base, p->bytes, bench_keys(p))
                                    : bench_ring_send(s->ring, s->base, bench_keys(p));
    return rc ? rc
              : bench_say(s->seat->control, "%" PRId64 " %" PRId64 " %" PRIu64, begin, bench_now(),
                          s->checksum);
}

int bench_sender(const struct bench_seat *seat) {
    struct sender s = {.seat = seat};
    const struct bench_plan *p = &seat->plan;
    char line[BENCH_LINE_MAX];
    int count = bench_keys(p), rc = -1;
    s.base = xcalloc((unsigned long)count, p->bytes);
    for (int i = 0; i < count; i++) {
        bench_fill_gradient(p, s.base + (size_t)i * p->bytes);
        memcpy(s.base + (size_t)i * p->bytes, &(uint64_t){0x9e3779b97f4a7c15u * (uint64_t)(i + 1)}, 8);
    }
    s.checksum = raw_stream_checksum(s.base, p->bytes * (size_t)count);
    if ((s.tcp = raw_stream_connect(seat->address))) s.ring = bench_ring_open(seat->ring, p->bytes);
    if (s.ring) rc = bench_say(seat->control, "%d", (int)getpid());
    while (!rc && !(rc = bench_hear(seat->control, line)) && strcmp(line, "end") != 0)
        rc = send_all(&s, line);
    bench_ring_close(&s.ring);
    raw_stream_close(&s.tcp);
    free(s.base);
    return rc ? rc : bench_say(seat->control, "done");
}
