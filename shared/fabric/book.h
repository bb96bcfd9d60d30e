// The rendezvous as two state machines, without sockets or clocks: rank 0's book of who is there and what lies under which
// name, and every rank's seat (rank 0 has one too), which says what its rank wants until the book has heard it.
//
//     seat                                             book
//     COME host, address, identity (every second)  ->  WAITING for whom; ALL_HERE the table; ENDED, REFUSED
//     PUT, PART, ABORT, BYE  numbered 1, 2, ..     ->  PONG the last number that has come in order
//     GET name (every two)                         ->  GOT the bytes, now or when they are put
//     PING losses known (every second)             ->  the next LOST rank or the end that the seat does not know
//                                                      PONG every second, so that a broken connection shows
//
// All may be lost, come twice or late: what is numbered is said again until a PONG has its number and is taken in order and
// once; the rest is safe to repeat.
//
// Ownership   Messages are copied by who keeps them. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_BOOK_H
#define STARRING_SHARED_FABRIC_BOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/time/turn_clock.h"

#define MEET_MAGIC    0x31565a52u  // of this version of these messages
#define MEET_NAME_MAX 160
#define MEET_TEXT_MAX 640
#define MEET_DATA_MAX ((size_t)16 << 20)

// A member, as all know it after rendezvous_open.
struct rendezvous_member {
    char host[64];     // its name
    char address[64];  // at which the others reach it
    int machine;       // 0, 1, ..: in the order of the first rank on each; ranks of one machine share it
    int local_rank;    // which of the ranks of its machine, in rank order
    int pid;
};

enum meet_kind {
    MEET_COME,
    MEET_PUT,
    MEET_PART,  // a put of everybody's, under one name: it is there when all have come, in rank order
    MEET_GET,
    MEET_PING,
    MEET_ABORT,
    MEET_BYE,
    MEET_REFUSED,  // from here on the book's
    MEET_WAITING,
    MEET_ALL_HERE,
    MEET_GOT,
    MEET_PONG,
    MEET_LOST,
    MEET_ENDED,
    MEET_KINDS
};

// As it goes over the wire, followed by `bytes` bytes of data.
struct meet_message {
    uint32_t magic, kind;
    int32_t rank;   // to the book: whose; from it: of LOST and ENDED which
    int32_t size;   // COME: how many ranks the sender was told of
    uint64_t life;  // a random number of the process: which of those that say they are this rank
    uint64_t
        number;  // of a numbered one; PONG: the last that has come; PING: losses known; WAITING: how many are missing
    uint64_t bytes;
    char name[MEET_NAME_MAX];
};

// What follows a COME, and behind it the identity's text.
struct meet_come {
    struct rendezvous_member member;
    uint64_t machine;  // the same for the ranks of one machine
    char reach[64];    // the address at which this rank reaches rank 0
};

typedef void meet_say(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data);

// ---------------------------------------------------------------- rank 0's book
// How two identities of one job differ, and what to do, malloc'd; NULL: in nothing that counts.
typedef char *book_differs(const char *name_a, const char *a, const char *name_b, const char *b);

struct book_options {
    int size, least;               // least: rendezvous_options'
    const char *identity, *place;  // rank 0's; "host:port", for messages
    book_differs *differs;         // NULL: texts are equal or not
    double silent_s;               // a member that is not heard for so long is lost; least waits for so long
    meet_say *say;
    void *ctx;
};
struct book;
struct book *book_create(const struct book_options *o);
// data: m->bytes of them.
void book_hear(struct book *b, const struct meet_message *m, const void *data, double now_s);
void book_unreachable(struct book *b, int rank, uint64_t life, double now_s);  // its connection has gone
void book_tick(struct book *b, double now_s);
bool book_over(const struct book *b);  // all have said goodbye or are lost
int book_lost(const struct book *b);   // the first rank that is; -1: none
void book_destroy(struct book **b);

// ---------------------------------------------------------------- a rank's seat
struct seat_put;
struct seat_want {
    char name[MEET_NAME_MAX];
    void *data;  // malloc'd; NULL: it is not there yet
    size_t bytes;
    double said_s;
    bool looks;  // it stays until the name is there, and is the seat's to free
    struct seat_want *next;
};

struct seat {
    int rank, size;
    uint64_t life;
    const char *place;
    double silent_s;
    meet_say *say;
    void *ctx;
    void *come;  // a struct meet_come and the identity's text
    size_t come_bytes;
    struct rendezvous_member *members;  // NULL: not all are here
    bool *lost;
    int losses, first_lost;  // -1: none
    bool heard;              // rank 0 has answered
    char waiting[MEET_TEXT_MAX];
    uint64_t missing;           // the fewest ranks that have been waited for; 0: not known
    double came_s;              // since then
    char ended[MEET_TEXT_MAX];  // "" : it goes on
    struct seat_put *puts;      // said and not heard, in order
    struct seat_want *wants;
    uint64_t said, acknowledged;
    double come_s, ping_s, progress_s;
    struct turn_clock turns;  // of the two that follow
    double heard_s, gone_s;
};
void seat_open(struct seat *s, const struct meet_come *come, const char *identity);
void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s);
void seat_unreachable(struct seat *s, double now_s);
void seat_end(struct seat *s, const char *why);  // if nothing has ended it
// Says what is due. The next is due within a second, and after a put or want at once.
void seat_tick(struct seat *s, double now_s);
void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes);
// w: zeroed but for its name; it stays until it is taken away.
void seat_want(struct seat *s, struct seat_want *w);
void seat_unwant(struct seat *s, struct seat_want *w);
void seat_close(struct seat *s);

#endif
