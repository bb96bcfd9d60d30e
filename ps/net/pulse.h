// Heartbeats from a thread that does nothing else: a process whose other threads are slow, or wait for a disk, is alive as
// long as this one runs. It has a context and a socket of its own, and expects no answers.
//
//     silent   the whole process stands still (frozen, gone, cut off), or a thread that must turn has not for too long
#ifndef STARRING_PS_NET_PULSE_H
#define STARRING_PS_NET_PULSE_H

#include <stdatomic.h>

#include "ps/net/login.h"

struct pulse_options {
    const struct ps_role_options *role;
    struct ps_identity id;          // logged in
    struct wire_count *wire;        // counts its bytes too; outlives the pulse
    const _Atomic uint64_t *turns;  // of a thread that must turn, once it has begun; NULL: none
};

struct pulse;
struct pulse *pulse_start(const struct pulse_options *o);  // NULL after logging
void pulse_stop(struct pulse **p);

// The same of a member that has not logged in yet: it reads its model and data, perhaps from a file system that stands still, or
// opens its device, and the scheduler waits for it (ps/scheduler/membership.h). role: its configuration and the scheduler's address
// are known. What stands in the way is not said: the role will say it.
struct coming;
struct coming *coming_start(const struct ps_role_options *o, enum ps_role role);
void coming_stop(struct coming **c);  // the role has logged in, or given that up

#endif
