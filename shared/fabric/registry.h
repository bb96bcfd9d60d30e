// Member 0's registry: which members are connected or lost, why the job ends, and the values by name. A state machine
// without sockets or clocks. meet.h lists its messages.
//
// Roles       A member with a role may join, leave, be lost and be replaced at any time. Only member 0's process is
//             notified (news). A new process replaces a connected one only if `replace` is set. A late JOIN does not
//             bring an ended process back: the process is sent the reason why the job has ended for it.
// Growth      The cost of a message does not depend on the number of ranks and names. Silent members are looked for at
//             least every LOOK_S. The table of ranks takes a few bytes per rank.
// Names       A name is kept until it is dropped; a gather until all ranks have taken part in the next one.
// Ownership   The receiver copies what it keeps of a message. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_REGISTRY_H
#define STARRING_SHARED_FABRIC_REGISTRY_H

#include "shared/fabric/meet.h"

// Returns how two identities of one job differ, and what to do, malloc'd; NULL: they differ in nothing that matters.
typedef char *identity_differs(const char *name_a, const char *a, const char *name_b, const char *b);

// A rendezvous, as each of its processes is configured.
struct rendezvous_options {
    const char *host;  // where rank 0 listens: a name or a numeric address
    int port;          // 0, for member 0: any free port (rendezvous_port)
    int rank, size;
    // Roles that may join and leave; the same in every process of the job; zeros: none. rank: the member's number,
    // meet.h.
    struct meet_role roles[MEET_ROLES_MAX];
    const char *member_0;  // the name of member 0 in messages; NULL: "rank 0"
    bool replace;          // member 0's: a new process may replace a connected one with its role
    const char *identity;  // what all ranks must agree on: a difference from rank 0's ends the rendezvous
    identity_differs *differs;  // rank 0's: describes the difference
    const char *interface;      // interface of this rank's address; NULL: that of the route to rank 0
    // 0: all ranks must join. Otherwise so many suffice after silent_s; the absent ranks are lost from the start
    // (machine -1).
    int min_ranks;
    double deadline_s;  // timeout until all have joined, and of every later wait
    double silent_s;    // a member that is silent for so long is lost; 0: deadline_s
    double beat_s;      // the time between two heartbeats; 0: MEET_RESEND_S
    bool no_key;        // no key, even if the environment has one
    bool
        same_key;  // member 0 has the same key: a failed handshake means too many connections, and is retried
                   // until the timeout ends
    bool no_wait;  // rendezvous_open does not wait; rendezvous_wait does
    // Nonzero: rendezvous_open returns early. NULL: never. Later waits continue, so that a stopped process can still
    // report.
    const _Atomic int *stop;
};

// where: "host:port", for messages. news: takes ownership of n->data; NULL: no news is reported.
struct registry;
struct registry *registry_create(const struct rendezvous_options *o, const char *where, meet_send *send,
                                 void (*news)(void *ctx, const struct member_news *n), void *ctx);
// data: m->bytes bytes.
void registry_receive(struct registry *b, const struct meet_message *m, const void *data, double now_s);
void registry_unreachable(struct registry *b, int rank, uint64_t incarnation,
                          double now_s);  // Its connection is closed.
// Some connection has closed, of an unknown member: all members are asked.
void registry_recheck(struct registry *b, double now_s);
void registry_tick(struct registry *b, double now_s);
bool registry_is_over(const struct registry *b);       // Whether all ranks have left or are lost.
int registry_roles_here(const struct registry *b);     // Returns the number of connected members with roles.
int registry_first_lost(const struct registry *b);     // Returns the first lost rank; -1: none.
size_t registry_name_count(const struct registry *b);  // Returns the number of stored names.
void registry_destroy(struct registry **b);

#endif
