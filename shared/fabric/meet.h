// The messages of the rendezvous: between the clients of its members (client.h) and member 0's registry (registry.h).
// Member 0 has a client too.
//
// Terms       The registry is member 0's state of the rendezvous, with an entry for each member. A client is the state
//             of one member. An incarnation is one process of a member: a restarted process has another one.
// Members     Members 0..size-1 are the ranks. The rendezvous begins when all of them have joined; a lost rank does
//             not return. The members from size on have roles: the workers and servers of a star. They may join and
//             leave at any time.
//
//     client                                               registry
//     JOIN host, address, identity                   ->  WAITING for the absent ranks; REFUSED
//     PUT, PART, DROP, SEND, END_PROCESS, ABORT, BYE, GET ->
//                                                    <-  GOT the value of a name, when it exists; LOST ranks; ENDED
//     PING (every beat_s)                            ->  WAITING, or PONG
//
// JOIN, PING and their answers may be lost, duplicated or late. All others use a link (mailbox.h), and arrive once, in
// order.
#ifndef STARRING_SHARED_FABRIC_MEET_H
#define STARRING_SHARED_FABRIC_MEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEET_MAGIC      0x35565a52u  // the version of these messages
#define MEET_NAME_MAX   160
#define MEET_TEXT_MAX   640
#define MEET_DATA_MAX   ((size_t)16 << 20)  // the most bytes of a value, or of all parts of a gather together
#define MEET_CHUNK      ((size_t)16 << 10)
#define MEET_WINDOW     ((size_t)256 << 10)  // bytes, with their heads
#define MEET_RESEND_S   1.0
#define MEET_PAUSE_S    0.1   // the time between two polls of the poll clock
#define MEET_CLOSED_S   3.0   // a member whose connection stays broken for so long is gone
#define MEET_TABLE      "#0"  // the name of the table of ranks; "#1", "#2", ..: gathers
#define MEET_HEARTBEATS "?"   // the name of the last heartbeat of every rank
#define MEET_ROLES_MAX  2     // kinds of roles
#define MEET_WHO_MAX    48    // bytes of a member's name, "worker 12"

struct meet_role {
    const char *word;  // "worker"
    int count;         // members size.., in the order of the roles
};
int meet_members(int size, const struct meet_role roles[MEET_ROLES_MAX]);  // Returns the number of members.
// "rank 3", "worker 1"; "" for a number that no member has. Returns out.
const char *meet_member_name(int member, int size, const struct meet_role roles[MEET_ROLES_MAX],
                             char out[MEET_WHO_MAX]);

// Why the job does not continue for a member; ENDED carries it in `count`.
enum meet_end {
    MEET_CONTINUES,
    MEET_JOB_OVER,       // for all: a member has aborted, or member 0 has left
    MEET_MEMBER_0_LOST,  // member 0 is silent
    MEET_LOST_ME,        // member 0 lost this process, its entry is free: a role may join again
    MEET_ENDED_ME        // this process was refused, replaced or ended by member 0
};

// News about the other members for member 0's process, in order per member.
enum member_news_kind {
    MEMBER_JOINED,
    MEMBER_SENT,     // word, data: what the member sent with rendezvous_send
    MEMBER_LEFT,     // it has left in order
    MEMBER_LOST,     // word: "silent", "gone" or "replaced"; why: the text after the member's name
    MEMBER_REFUSED,  // why; member: -1 if no such member exists
};
struct member_news {
    enum member_news_kind kind;
    int member;
    uint64_t incarnation;
    int pid;
    char host[64];
    char word[MEET_NAME_MAX];
    void *data;  // malloc'd, with a closing zero that is not counted; the receiver of the news frees it
    size_t bytes;
    double silent_s;  // MEMBER_LOST: how long it was silent
    char why[MEET_TEXT_MAX];
};

// A heartbeat: in the upper byte a counter from 1 to 255 that wraps to 1, in the lower byte what the member does now
// (rendezvous_set_activity). 0: none has arrived.
static inline uint16_t meet_heartbeat(uint16_t last, int is_at) {
    return (uint16_t)(((last >> 8) % 255 + 1) << 8 | (is_at & 255));
}

// A member, as every rank knows it after rendezvous_open.
struct rendezvous_member {
    char host[64];     // the host's name
    char address[64];  // the address at which the other ranks reach it
    int machine;       // 0, 1, ..: in the order of the first rank on each; ranks of one machine share it
    int local_rank;    // index among the ranks of its machine, in rank order
    int pid;
};

enum meet_kind {
    MEET_ACK,  // an acknowledgement only
    MEET_JOIN,
    MEET_PUT,
    MEET_PART,  // a rank's part of a gather; the result has all parts in rank order, and exists when all have arrived
    MEET_DROP,         // removes a name
    MEET_SEND,         // to member 0's process only
    MEET_END_PROCESS,  // member 0's: the job has ended for the member and incarnation in the name
    MEET_ABORT,
    MEET_BYE,
    MEET_GET,  // from here on messages may overtake values of many pieces (mailbox.h)
    MEET_PING,
    MEET_REFUSED,  // from here on sent by the registry
    MEET_WAITING,
    MEET_GOT,
    MEET_PONG,
    MEET_LOST,
    MEET_ENDED,
    MEET_KINDS
};

// The header on the wire, followed by `bytes` bytes of data.
struct meet_message {
    uint32_t magic, kind;
    int32_t rank;  // a member: to the registry the sender; from the registry, in ENDED, who ended the job
    int32_t size;  // JOIN: how many ranks the sender was given
    uint64_t
        incarnation;  // a random number of the process: it distinguishes processes that claim the same rank
    // WAITING: absent ranks; ENDED: an enum meet_end; GET: its number; GOT: of the last GET; PING: rendezvous_set_activity
    uint64_t count;
    uint64_t number, said, heard, seen;  // the link's acknowledgement; said 0: none
    uint64_t asks;
    uint64_t at, total;  // for a piece: its offset, and the bytes of the whole value
    uint64_t bytes;
    char name[MEET_NAME_MAX];
};

// The data of a JOIN; the identity's text follows it.
struct meet_join {
    struct rendezvous_member member;
    uint64_t machine;            // the same for all ranks of one machine
    char reach[64];              // the address at which this rank reaches rank 0
    int counts[MEET_ROLES_MAX];  // how many of each role the sender was given
};

typedef void meet_send(void *ctx, int rank, uint64_t incarnation, const struct meet_message *m,
                       const void *data);

struct meet_message meet_message(enum meet_kind kind, int rank, uint64_t incarnation);
void *meet_copy(const void *data, size_t bytes);  // malloc'd, with a closing zero
bool meet_due(double *said_s, double every_s, double now_s);
// The table of ranks as it is sent: one entry per host and address, and a few numbers per rank.
void *meet_table_write(const struct rendezvous_member *members, int size, size_t *bytes);  // malloc'd
// Returns (size) members, malloc'd, or NULL if data is not a table of so many ranks.
struct rendezvous_member *meet_table_read(const void *data, size_t bytes, int size);

#endif
