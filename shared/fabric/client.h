// A member's client at the rendezvous: its messages to member 0's registry (registry.h), and what it knows of the other members.
// It keeps the names it waits for, who is here, who has gone, and why the job ends. A state machine without sockets or
// clocks.
//
// Ownership   The receiver copies what it keeps of a message. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_CLIENT_H
#define STARRING_SHARED_FABRIC_CLIENT_H

#include "shared/fabric/mailbox.h"
#include "shared/time/poll_clock.h"

struct client_want {
    char name[MEET_NAME_MAX];
    void *data;  // the value, malloc'd; NULL: it has not arrived yet
    size_t bytes;
    bool polled;     // for rendezvous_try_get: the want stays until the name exists, and the client frees it
    uint64_t asked;  // the number of its GET
    struct client_want *next, **at;
};

struct client {
    int rank, size;  // rank: a member's number; size: how many ranks there are
    uint64_t incarnation;
    const char *member_0, *where;  // member_0: its name in messages; NULL: "rank 0"
    double silent_s, beat_s;       // beat_s: the time between two heartbeats; 0: MEET_RESEND_S
    bool frozen;                   // this process makes no progress: it sends no heartbeat, nor anything else
    int (*activity)(void *ctx);    // the value that a heartbeat carries; NULL: 0
    void *activity_ctx;
    meet_send *send;
    void *ctx;
    void *join;  // a struct meet_join and the identity's text
    size_t join_bytes;
    struct rendezvous_member *members;  // a rank's; NULL: not all ranks are here
    bool *lost;
    int losses, first_lost;  // -1: none
    bool heard;              // rank 0 has answered at least once
    bool begun;              // rank 0 has sent that all are here, or that this role member is let in
    char waiting[MEET_TEXT_MAX];
    uint64_t missing;   // the smallest number of absent ranks so far; 0: not known
    double progress_s;  // when `missing` last decreased
    enum meet_end end;
    char ended[MEET_TEXT_MAX];  // why the job has ended; "": it continues
    struct mailbox *mailbox;    // the connection to the registry
    struct client_want *wants;  // one per waiting thread and polled name: few
    uint64_t gets;
    int joins_sent;  // number of JOINs sent
    double join_s, ping_s;
    struct poll_clock turns;  // the clock of the next two
    double heard_s, closed_s;
};
void client_open(struct client *s, const struct meet_join *join, const char *identity);
void client_receive(struct client *s, const struct meet_message *m, const void *data, double now_s);
void client_unreachable(struct client *s, double now_s);
// Has no effect if the job has already ended.
void client_end(struct client *s, enum meet_end end, const char *why);
// Sends what is due. The next call is due within a second, and at once after a put or want.
void client_tick(struct client *s, double now_s);
void client_put(struct client *s, enum meet_kind kind, const char *name, const void *data, size_t bytes);
bool client_has_joined(const struct client *s);  // Whether all ranks are connected, or this role member is.
// Whether the registry has acknowledged all values that were put.
bool client_is_acknowledged(const struct client *s);
// w: zeroed except for its name; it must stay valid until client_unwant.
void client_want(struct client *s, struct client_want *w);
void client_unwant(struct client_want *w);
void client_close(struct client *s);

#endif
