// The work of a process that `starring bench ps` has started: it is told what to measure line by line
// over a socket, and answers with moments of CLOCK_MONOTONIC, which all processes share. The star's three are its
// real roles; the worker's loop alone is the bench's.
//
//     all          "PID .." once it is ready          "end" -> the last line, and exit
//     scheduler    "PID ADDRESS"
//     server       .. last line: payload bytes sent and received, a step
//     worker       "step START"      -> "BEGIN SUMMED END"  a whole step: when the scheduler had closed it, which it
//                                       does when all gradients are summed, and when the last weights had been read;
//                                       then an update whose weights it leaves unread
//                  "pull START REST" -> "BEGIN END"  a step that skips its update, and reports REST ns after START:
//                                       from the report to the last weights, which are read for the first time
//                  "acknowledge START" -> "ACK .."  a step of one payload at a time, in ns
//                  "latency START N" -> "ACK LANDED .."  N steps of one payload at a time, in ns
//                  .. last line: payload bytes sent, received, steps; a checksum
//     receiver     "PID ADDRESS"; "tcp" or "shm"  -> "CHECKSUM"
//     sender       "tcp START" or "shm START"     -> "BEGIN END CHECKSUM"
//     solo         "copy", "pieces", "apply", each "NAME START" -> "BEGIN END" of the thread's CPU time
#ifndef STARRING_PS_BENCH_BENCH_ROLES_H
#define STARRING_PS_BENCH_BENCH_ROLES_H

#include <inttypes.h>

#include "ps/bench/bench_plan.h"

struct bench_seat {
    const struct topology_table *topologies;
    struct bench_plan plan;
    int rank;
    int control;          // its end of the socket
    int ring;             // sender and receiver: the ring's memory
    const char *address;  // server and worker: the scheduler's; sender: the receiver's
};

// 0, or -1 after logging.
int bench_scheduler(const struct bench_seat *s);
int bench_server(const struct bench_seat *s);
int bench_worker(const struct bench_seat *s);
int bench_receiver(const struct bench_seat *s);
int bench_sender(const struct bench_seat *s);
int bench_solo(const struct bench_seat *s);

// ---- shared by them
#define BENCH_LINE_MAX 8192
int64_t bench_wait_until(int64_t ns);  // sleeps until then; returns the moment it went on
// The next line without its newline. 0, or -1: the bench has gone.
int bench_hear(int control, char line[BENCH_LINE_MAX]);
int bench_say(int control, const char *fmt, ...) __attribute__((format(printf, 2, 3)));  // a line; 0 or -1
// Fills bytes with numbers of the plan's type, small and different.
void bench_fill_gradient(const struct bench_plan *p, void *bytes);

// ---- the ring of slots that sender and receiver share
// A ring of slots in memory that two processes share, the ceiling of what the star's shared memory can reach: the
// writer copies payloads in, the reader reads every byte once where it lies. A side that finds nothing to do sleeps on
// a futex.
//
// Threads   One writer and one reader, each in its own process.
// Blocking  send and receive, up to BENCH_RING_S without a slot.
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
