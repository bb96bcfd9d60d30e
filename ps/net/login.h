// A role's side of the login, shared by workers, servers and shards: it says HELLO until the scheduler
// answers, is given a rank and the job's number, and waits until everyone is there.
#ifndef STARRING_PS_NET_LOGIN_H
#define STARRING_PS_NET_LOGIN_H

#include "ps/job/manifest.h"
#include "ps/job/ps.h"
#include "ps/net/clock.h"
#include "ps/net/link.h"
#include "ps/net/net.h"
#include "ps/net/roster.h"

// The reason of a role that a signal ends; the others report it as "server 0: interrupted".
#define PS_INTERRUPTED "interrupted"

struct ps_identity {
    enum ps_role role;
    int rank;  // -1: any free one, until the scheduler has answered
    int thread;
    uint64_t incarnation;  // of this process; never 0
    uint64_t job;          // 0 until the scheduler has answered
    uint32_t life;         // which process of its rank, of ps_login; 0: nobody takes another's place
    bool joins;            // the job is under way (ps/worker/enter.h), of ps_wait_start
    uint32_t epoch;        // which life of the job, 1, 2, ..; 0 until the scheduler has answered
    struct ps_clock clock;
    char checkpoint[WIRE_TEXT_MAX];  // that the job goes on from, "": none; of ps_wait_start
    uint64_t seal;                   // of that
};

struct ps_login {
    struct net_socket *socket;  // DEALER to the scheduler
    const struct ps_role_options *role;
    const struct manifest *manifest;
    const char *endpoints;  // server: its shards, a line each (roster.h); else NULL
    int shards;             // of the job
};

uint64_t ps_random_id(void);  // never 0
void ps_stamp(const struct ps_identity *id, struct wire_header *h);
// HELLO. A scheduler that knows this role answers with WELCOME, and with START once the job has started: a role that
// waits for START repeats HELLO, every ps_hello_s.
void ps_hello(const struct ps_login *l, const struct ps_identity *id);
// Blocks until welcomed, refused or late. 0 with id->rank and id->job set, or -1 after logging.
int ps_login(const struct ps_login *l, struct ps_identity *id);
// A worker's. Blocks until everyone is there; id->checkpoint is set. The job's shards, or NULL after logging.
struct roster *ps_wait_start(const struct ps_login *l, struct ps_identity *id);
// A message to the scheduler that is a kind and a text (NULL: none) alone.
void ps_say(struct net_socket *scheduler, const struct ps_identity *id, enum wire_kind kind,
            const char *text);
// The last word of a role waits until the scheduler has heard it, for LAST_WORD_S at most: ABORT, where ROLLBACK will do too,
// for then the job has gone on; and the GOODBYE of a server. (The scheduler's own last words, scheduler_core_part, wait until
// all have said GOODBYE.) The thread that owns the socket and the link; whatever else arrives is dropped. text: NULL: none.
#define LAST_WORD_S       1.0  // a scheduler that does not answer for so long has ended
#define LAST_WORD_EVERY_S 0.06
void ps_abort(struct net_socket *scheduler, struct link *l, const struct ps_identity *id, const char *text);
void ps_part(struct net_socket *scheduler, struct link *l);
// What START names: the shards, and so many workers. NULL after logging: it is not of a job as this role knows it.
struct roster *ps_read_start(const struct ps_role_options *role, int shards, int workers,
                             const struct ps_frame *frame);
// Logs why the job is over for this role; -1. If a launcher has ended the job, it has printed the reason: its
// roles keep the text and print nothing.
int ps_fail(const char *why);
bool ps_was_interrupted(const char *why);  // it ends so
// The same of ABORT or REFUSED, of the scheduler.
int ps_told(const struct ps_role_options *role, const struct wire_header *h);
static inline bool ps_stopped(const _Atomic int *stop) { return stop && *stop; }

#endif
