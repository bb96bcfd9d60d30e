// A process that `starring bench ps` has started. It receives commands as lines over a socket, and answers with times
// of CLOCK_MONOTONIC, which all processes share. Scheduler and server run the star's real code; only the worker's loop
// is the bench's.
//
//     all          "PID .." when it is ready          "end" -> the last line, and exit
//     scheduler    "PID ADDRESS"
//     server       .. last line: payload bytes sent and received, per step
//     worker       "step START"      -> "BEGIN SUMMED END"  a whole step. SUMMED: the scheduler has closed the step, as
//                                       all gradients are summed. END: the last weights have been read. Then it makes
//                                       an update whose weights it does not read
//                  "pull START REST" -> "BEGIN END"  a step that skips its update, and reports REST ns after START:
//                                       from the report to the last weights, which are read for the first time
//                  "acknowledge START" -> "ACK .."  a step of one payload at a time, in ns
//                  "latency START N" -> "ACK LANDED .."  N steps of one payload at a time, in ns
//                  .. last line: payload bytes sent, received, steps; a checksum
#ifndef STARRING_PS_BENCH_BENCH_ROLES_H
#define STARRING_PS_BENCH_BENCH_ROLES_H

#include <inttypes.h>

#include "ps/bench/bench_plan.h"

struct bench_role_options {
    const struct topology_table *topologies;
    struct bench_plan plan;
    int rank;
    int control;          // the process's end of the socket
    const char *address;  // for server and worker: the scheduler's address
};

// 0, or -1 after logging.
int bench_scheduler(const struct bench_role_options *s);
int bench_server(const struct bench_role_options *s);
int bench_worker(const struct bench_role_options *s);

#define BENCH_LINE_MAX 8192  // bytes of a line, in both directions
// Sends a line to the other end. Returns 0, or -1: the other process has ended.
__attribute__((format(printf, 2, 3))) int bench_send_line(int control, const char *fmt, ...);

#endif
