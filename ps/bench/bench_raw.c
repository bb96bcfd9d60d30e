// The two ends of the raw streams: what ZeroMQ and a ring of shared memory reach without a star.
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/bench/bench_roles.h"
#include "ps/net/raw_stream.h"
#include "shared/core/error.h"

#define HEAD_BYTES  4096
#define RING_BYTES  ((size_t)4 << 20)  // of slots, where two of them are not more
#define SLOTS_LEAST 2
#define SLOTS_MOST  64

// Counters only grow; each side sleeps on the other's.
struct head {
    _Alignas(64) _Atomic uint32_t written;
    _Atomic uint32_t reader_sleeps;
    _Alignas(64) _Atomic uint32_t read;
    _Atomic uint32_t writer_sleeps;
};

struct bench_ring {
    struct head *head;
    char *slots;
    size_t bytes, mapped;
    uint32_t count;  // slots
};

static uint32_t slots_of(size_t bytes) {
    size_t n = RING_BYTES / bytes;
    return (uint32_t)(n < SLOTS_LEAST ? SLOTS_LEAST : n > SLOTS_MOST ? SLOTS_MOST : n);
}

static size_t mapped_bytes(size_t bytes) { return HEAD_BYTES + slots_of(bytes) * bytes; }

int bench_ring_memory(size_t bytes) {
    int fd = memfd_create("starring-bench-ring", MFD_CLOEXEC);
    if (fd < 0) return fail("bench ps: no shared memory: memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)mapped_bytes(bytes)) == 0) return fd;
    fail("bench ps: no shared memory of %zu bytes: %s", mapped_bytes(bytes), strerror(errno));
    close(fd);
    return -1;
}

struct bench_ring *bench_ring_open(int fd, size_t bytes) {
    struct bench_ring *r = xcalloc(1, sizeof *r);
    r->bytes = bytes;
    r->count = slots_of(bytes);
    r->mapped = mapped_bytes(bytes);
    void *p = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        fail("bench ps: the ring's memory cannot be mapped: %s", strerror(errno));
        free(r);
        return NULL;
    }
    r->head = p;
    r->slots = (char *)p + HEAD_BYTES;
    return r;
}

void bench_ring_close(struct bench_ring **r) {
    if (!*r) return;
    munmap((*r)->head, (*r)->mapped);
    free(*r);
    *r = NULL;
}

// Sleeps while *counter is seen, at most BENCH_RING_S. The flag is set before the counter is looked at once more, and
// advance looks at the flag after it has moved the counter: no wake-up is lost. The sleeper alone clears its flag: an
// advance that is late may come between the flag and the sleep, and the next one has to wake it.
static int await_change(_Atomic uint32_t *counter, uint32_t seen, _Atomic uint32_t *sleeps) {
    struct timespec most = {.tv_sec = BENCH_RING_S};
    while (atomic_load(counter) == seen) {
        atomic_store(sleeps, 1);
        if (atomic_load(counter) != seen) break;
        if (syscall(SYS_futex, counter, FUTEX_WAIT, seen, &most, NULL, 0) != 0 && errno == ETIMEDOUT)
            return fail("bench ps: the other end of the shared-memory ring stood still for %d s",
                        BENCH_RING_S);
    }
    atomic_store(sleeps, 0);
    return 0;
}

static void advance(_Atomic uint32_t *counter, _Atomic uint32_t *sleeps) {
    atomic_fetch_add(counter, 1);
    if (atomic_load(sleeps)) syscall(SYS_futex, counter, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// Until at most `open` slots wait for the reader.
static int await_reader(struct bench_ring *r, uint32_t open) {
    struct head *h = r->head;
    for (;;) {
        uint32_t read = atomic_load(&h->read);
        if (atomic_load(&h->written) - read <= open) return 0;
        if (await_change(&h->read, read, &h->writer_sleeps) != 0) return -1;
    }
}

int bench_ring_send(struct bench_ring *r, const char *base, int count) {
    struct head *h = r->head;
    for (int i = 0; i < count; i++) {
        if (await_reader(r, r->count - 1) != 0) return -1;
        uint32_t slot = atomic_load(&h->written) % r->count;
        memcpy(r->slots + slot * r->bytes, base + (size_t)i * r->bytes, r->bytes);
        advance(&h->written, &h->reader_sleeps);
    }
    return await_reader(r, 0);
}

int bench_ring_receive(struct bench_ring *r, int count, uint64_t *checksum) {
    struct head *h = r->head;
    *checksum = 0;
    for (int i = 0; i < count; i++) {
        uint32_t at = atomic_load(&h->read);
        while (atomic_load(&h->written) == at)
            if (await_change(&h->written, at, &h->reader_sleeps) != 0) return -1;
        *checksum ^= raw_stream_checksum(r->slots + (at % r->count) * r->bytes, r->bytes);
        advance(&h->read, &h->writer_sleeps);
    }
    return 0;
}

// ---------------------------------------------------------------- the two processes
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

int bench_sender(const struct bench_seat *seat) {
    const struct bench_plan *p = &seat->plan;
    char line[BENCH_LINE_MAX], medium[8];
    int count = bench_keys(p), rc = -1;
    char *base = xcalloc((unsigned long)count, p->bytes);
    for (int i = 0; i < count; i++) {
        bench_fill_gradient(p, base + (size_t)i * p->bytes);
        memcpy(base + (size_t)i * p->bytes, &(uint64_t){0x9e3779b97f4a7c15u * (uint64_t)(i + 1)}, 8);
    }
    uint64_t checksum = raw_stream_checksum(base, p->bytes * (size_t)count);
    struct raw_stream *tcp = raw_stream_connect(seat->address);
    struct bench_ring *ring = tcp ? bench_ring_open(seat->ring, p->bytes) : NULL;
    if (ring) rc = bench_say(seat->control, "%d", (int)getpid());
    while (!rc && !(rc = bench_hear(seat->control, line)) && strcmp(line, "end") != 0) {
        int64_t start;
        if (sscanf(line, "%7s %" SCNd64, medium, &start) != 2) {
            rc = fail("bench ps: told \"%s\"", line);
            break;
        }
        int64_t begin = bench_wait_until(start);
        rc = !strcmp(medium, "tcp") ? raw_stream_send(tcp, base, p->bytes, count)
                                    : bench_ring_send(ring, base, count);
        if (!rc) rc = bench_say(seat->control, "%" PRId64 " %" PRId64 " %" PRIu64, begin, now_ns(), checksum);
    }
    bench_ring_close(&ring);
    raw_stream_close(&tcp);
    free(base);
    return rc ? rc : bench_say(seat->control, "done");
}
