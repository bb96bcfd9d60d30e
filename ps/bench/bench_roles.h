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
#ifndef STARRING_PS_BENCH_BENCH_ROLES_H
#define STARRING_PS_BENCH_BENCH_ROLES_H

#include <inttypes.h>

#include "ps/bench/bench_plan.h"

struct bench_seat {
    const struct topology_table *topologies;
    struct bench_plan plan;
    int rank;
    int control;          // its end of the socket
    const char *address;  // server and worker: the scheduler's
};

// 0, or -1 after logging.
int bench_scheduler(const struct bench_seat *s);
int bench_server(const struct bench_seat *s);
int bench_worker(const struct bench_seat *s);

#define BENCH_LINE_MAX 8192  // of a line, either way

#endif
