// A ring of slots in memory that two processes share, the ceiling of what the star's shared memory can reach: the
// writer copies payloads in, the reader reads every byte once where it lies. A side that finds nothing to do sleeps on
// a futex. For `starring bench ps` alone.
//
// Threads   One writer and one reader, each in its own process.
// Blocking  send and receive, up to BENCH_RING_S without a slot.
#ifndef STARRING_PS_BENCH_BENCH_RING_H
#define STARRING_PS_BENCH_BENCH_RING_H

#include <stddef.h>
#include <stdint.h>

#define BENCH_RING_S 20

struct bench_ring;

// A memory without a name for a ring with slots of `bytes` (a multiple of 64), closed on exec; -1 after logging.
// It goes with the last process that has it.
int bench_ring_memory(size_t bytes);
// Maps that memory. The descriptor stays the caller's. NULL after logging.
struct bench_ring *bench_ring_open(int fd, size_t bytes);
void bench_ring_close(struct bench_ring **r);

// Writes `count` payloads from base + i * bytes and waits until all have been read. 0, or -1 after logging.
int bench_ring_send(struct bench_ring *r, const char *base, int count);
// Reads `count` payloads; *checksum: raw_stream_checksum over all of them. 0, or -1 after logging.
int bench_ring_receive(struct bench_ring *r, int count, uint64_t *checksum);

#endif
