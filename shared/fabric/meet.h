// What the processes of a job say to each other where they meet: messages between member 0's book (book.h) and every member's seat
// (seat.h; member 0 has one too), and what both keep by name.
//
// Members     0..size-1 are the ranks: the meeting begins when all of them have come, and each is lost for good. Behind them are
//             the cast: roles that come and go while it lasts, workers and servers of a star.
//
//     seat                                               book
//     COME host, address, identity                   ->  WAITING for whom; REFUSED
//     PUT, PART, DROP, SAY, OUT, ABORT, BYE, GET     ->
//                                                    <-  GOT what lies under a name, when it is there; LOST ranks; ENDED
//     PING (every second)                            ->  WAITING, or PONG
//
// What a COME or a PING is about is safe to lose, to come twice or late. All else goes over a link (post.h), and comes once, in order.
#ifndef STARRING_SHARED_FABRIC_MEET_H
#define STARRING_SHARED_FABRIC_MEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEET_MAGIC    0x35565a52u  // of this version of these messages
#define MEET_NAME_MAX 160
#define MEET_TEXT_MAX 640
#define MEET_DATA_MAX ((size_t)16 << 20)  // of a value; of a gather all parts together
#define MEET_PIECE    ((size_t)16 << 10)
#define MEET_WINDOW   ((size_t)256 << 10)  // bytes, with their heads
#define MEET_AGAIN_S  1.0
#define MEET_PAUSE_S  0.1   // between two turns
#define MEET_GONE_S   3.0   // a broken connection that is not made anew by then is a process that has gone
#define MEET_TABLE    "#0"  // the name of who is there; "#1", "#2", ..: of gathers
#define MEET_LIVES    "?"   // the name of what is known of all ranks: the last sign of life of each
#define MEET_CAST_MAX 2     // kinds of roles
#define MEET_WHO_MAX  48    // of a member's name, "worker 12"

struct meet_role {
    const char *word;  // "worker"
    int count;         // members size.., in the order of the roles
};
int meet_members(int size, const struct meet_role cast[MEET_CAST_MAX]);  // how many there are
// "rank 3", "worker 1"; "" of a number that no member has. Returns out.
const char *meet_member_name(int member, int size, const struct meet_role cast[MEET_CAST_MAX],
                             char out[MEET_WHO_MAX]);

// Why it does not go on for a member, as ENDED has it in its number.
enum meet_end {
    MEET_GOES_ON,
    MEET_JOB_OVER,    // for all: somebody has given up, or member 0 has left
    MEET_FIRST_GONE,  // member 0 is not heard any more
    MEET_LOST_ME,     // this process was not heard, and its place is free: one of the cast may come anew
    MEET_OUT_ME       // this process was refused, replaced or given up
};

// What member 0's process hears of the others, in the order of each member's life.
enum member_news_kind {
    MEMBER_CAME,
    MEMBER_SAID,     // word, data: its rendezvous_say
    MEMBER_LEFT,     // it has said goodbye
    MEMBER_LOST,     // word: "silent", "gone" or "replaced"; why: what goes on behind its name
    MEMBER_REFUSED,  // why; member: -1 where there is no such place
};
struct member_news {
    enum member_news_kind kind;
    int member;
    uint64_t life;
    int pid;
    char host[64];
    char word[MEET_NAME_MAX];
    void *data;  // malloc'd, with a closing zero that is not counted; whoever takes the news frees it
    size_t bytes;
    double silent_s;  // MEMBER_LOST: for so long it had not been heard
    char why[MEET_TEXT_MAX];
};

// A sign of life: which it is, from 1 to 255 and again from 1 on, and what the member was at (rendezvous_is_at). 0: none has come.
static inline uint16_t meet_sign(uint16_t last, int is_at) {
    return (uint16_t)(((last >> 8) % 255 + 1) << 8 | (is_at & 255));
}

// A member, as all know it after rendezvous_open.
struct rendezvous_member {
    char host[64];     // its name
    char address[64];  // at which the others reach it
    int machine;       // 0, 1, ..: in the order of the first rank on each; ranks of one machine share it
    int local_rank;    // which of the ranks of its machine, in rank order
    int pid;
};

enum meet_kind {
    MEET_WORD,  // of the link alone
    MEET_COME,
    MEET_PUT,
    MEET_PART,  // a put of everybody's, under one name: it is there when all have come, in rank order
    MEET_DROP,  // nobody needs that name any more
    MEET_SAY,   // to member 0's process alone
    MEET_OUT,   // member 0's: the job has ended for the member and life of that name
    MEET_ABORT,
    MEET_BYE,
    MEET_GET,  // from here on they may overtake values of many pieces (post.h)
    MEET_PING,
    MEET_REFUSED,  // from here on the book's
    MEET_WAITING,
    MEET_GOT,
    MEET_PONG,
    MEET_LOST,
    MEET_ENDED,
    MEET_KINDS
};

// As it goes over the wire, followed by `bytes` bytes of data.
struct meet_message {
    uint32_t magic, kind;
    int32_t rank;   // a member's. To the book: whose; from it: of ENDED which
    int32_t size;   // COME: how many ranks the sender was told of
    uint64_t life;  // a random number of the process: which of those that say they are this rank
    // WAITING: how many are missing; ENDED: an enum meet_end; GET: its number; GOT: of the last GET; PING: rendezvous_is_at
    uint64_t count;
    uint64_t number, said, heard, seen;  // the link's word; said 0: none
    uint64_t asks;
    uint64_t at, total;  // of a piece: from which byte on, of how many
    uint64_t bytes;
    char name[MEET_NAME_MAX];
};

// What follows a COME, and behind it the identity's text.
struct meet_come {
    struct rendezvous_member member;
    uint64_t machine;           // the same for the ranks of one machine
    char reach[64];             // the address at which this rank reaches rank 0
    int counts[MEET_CAST_MAX];  // how many of each role the sender was told of
};

typedef void meet_say(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data);

struct meet_message meet_message(enum meet_kind kind, int rank, uint64_t life);
void *meet_copy(const void *data, size_t bytes);  // malloc'd, with a closing zero
bool meet_due(double *said_s, double every_s, double now_s);
// The table of who is there, as it is handed out: a home for each host and address, and for each rank a few numbers.
void *meet_table_write(const struct rendezvous_member *members, int size, size_t *bytes);  // malloc'd
// (size), malloc'd; NULL: it is none of so many ranks.
struct rendezvous_member *meet_table_read(const void *data, size_t bytes, int size);

// ---------------------------------------------------------------- things by name
struct meet_named {
    char name[MEET_NAME_MAX];
    struct meet_named *next;  // of those of one hash
};
struct meet_names {
    struct meet_named **rows;
    size_t room, count;  // room: a power of two, or 0
};
// The first that has the name; behind another one the next; NULL: there is none.
struct meet_named *meet_names_find(const struct meet_names *n, const char *name,
                                   const struct meet_named *behind);
void meet_names_add(struct meet_names *n, struct meet_named *it);
void meet_names_remove(struct meet_names *n, const struct meet_named *it);

#endif
