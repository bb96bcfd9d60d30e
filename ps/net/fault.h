// Faults of a network, on a network that has none: between a socket and its reader. Messages that have arrived are
// lost, doubled, and wait until they are due (shared/core/message_fault.h).
//
// Threads   The socket's.
#ifndef STARRING_PS_NET_FAULT_H
#define STARRING_PS_NET_FAULT_H

#include "ps/net/port.h"
#include "shared/core/message_fault.h"
#include "shared/core/wire_count.h"

// How a role's sockets are troubled: all alike, and each by numbers of its own.
struct fault_plan {
    struct message_fault fault;
    uint64_t role;  // tells the roles of a job apart
};

struct config;
// Of the role of this rank (-1: any). c->fault has been checked.
struct fault_plan fault_plan_of(const struct config *c, enum ps_role role, int rank);

struct fault_line;
// socket: its number in the role. counts outlive the line.
struct fault_line *fault_line_create(const struct fault_plan *plan, int socket, struct wire_count *counts);
void fault_line_destroy(struct fault_line **l);  // what waits is lost
// Takes over a message.
void fault_take(struct fault_line *l, const struct net_message *m, double now);
// The next one that is due; false: none.
bool fault_give(struct fault_line *l, struct net_message *m, double now);
double fault_due(const struct fault_line *l);  // when the next one is; INFINITY: nothing waits

#endif
