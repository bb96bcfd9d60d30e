// Simulated faults of a network, between a socket and its reader. Messages that have arrived are
// lost, duplicated or delayed (shared/core/trouble.h).
//
// Threads   The socket's.
#ifndef STARRING_PS_NET_FAULT_H
#define STARRING_PS_NET_FAULT_H

#include "ps/net/port.h"
#include "shared/core/topology.h"
#include "shared/core/trouble.h"

// The faults of a role's sockets: the same plan for all, with random numbers of its own for each.
struct fault_plan {
    struct message_fault fault;
    uint64_t role;  // distinguishes the roles of a job
};

struct config;
// The plan of the role with this rank (-1: any). c->fault was checked.
struct fault_plan fault_plan_of(const struct config *c, enum ps_role role, int rank);

struct fault_line;
// socket: its number in the role. counts outlive the line.
struct fault_line *fault_line_create(const struct fault_plan *plan, int socket, struct wire_count *counts);
void fault_line_destroy(struct fault_line **l);  // Messages that still wait are lost.
// Takes ownership of a message.
void fault_take(struct fault_line *l, const struct net_message *m, double now);
// Gives the next due message; false: none.
bool fault_give(struct fault_line *l, struct net_message *m, double now);
// Returns the time when the next message is due; INFINITY: none waits.
double fault_due(const struct fault_line *l);

#endif
