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
int64_t bench_now(void);               // ns of CLOCK_MONOTONIC
int64_t bench_wait_until(int64_t ns);  // sleeps until then; returns the moment it went on
// The next line without its newline. 0, or -1: the bench has gone.
int bench_hear(int control, char line[BENCH_LINE_MAX]);
int bench_say(int control, const char *fmt, ...) __attribute__((format(printf, 2, 3)));  // a line; 0 or -1
// Fills bytes with numbers of the plan's type, small and different.
void bench_fill_gradient(const struct bench_plan *p, void *bytes);

#endif
