// A role's side of the login, shared by workers, servers and shards: it says HELLO until the scheduler
// answers, is given a rank and the job's number, and waits until everyone is there.
#ifndef STARRING_PS_NET_LOGIN_H
#define STARRING_PS_NET_LOGIN_H

#include "ps/manifest.h"
#include "ps/net/clock.h"
#include "ps/net/net.h"
#include "ps/ps.h"

// The reason of a role that a signal ends; the others report it as "server 0: interrupted".
#define PS_INTERRUPTED "interrupted"

struct ps_identity {
    enum ps_role role;
    int rank;  // -1: any free one, until the scheduler has answered
    int thread;
    uint64_t incarnation;  // of this process; never 0
    uint64_t job;          // 0 until the scheduler has answered
    struct ps_clock clock;
};

struct ps_login {
    struct net_socket *socket;  // DEALER to the scheduler
    const struct ps_role_options *role;
    const struct manifest *manifest;
    const char *endpoints;  // server: one address a line; else NULL
};

uint64_t ps_random_id(void);  // never 0
void ps_stamp(const struct ps_identity *id, struct wire_header *h);
// Blocks until welcomed, refused or late. 0 with id->rank and id->job set, or -1 after logging.
int ps_login(const struct ps_login *l, struct ps_identity *id);
// Blocks until everyone is there. The endpoints of all shards (malloc'd, one a line), or NULL after logging.
char *ps_wait_start(const struct ps_login *l, const struct ps_identity *id);
// A message to the scheduler that is a kind and a text (NULL: none) alone.
void ps_say(struct net_socket *scheduler, const struct ps_identity *id, enum wire_kind kind,
            const char *text);
// Logs why the job is over for this role; -1. If a launcher has ended the job, it has printed the reason: its
// roles keep the text and print nothing.
int ps_fail(const char *why);
static inline bool ps_stopped(const _Atomic int *stop) { return stop && *stop; }

#endif
