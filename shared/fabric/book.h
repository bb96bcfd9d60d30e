// Member 0's book: who is there, who has gone and why all ends, and what lies under which name. A state machine without sockets or
// clocks; what is said, and to whom, is in meet.h.
//
// Cast        One of the cast may come as soon as the book is there, leave, be lost and be replaced: the others hear nothing of it,
//             member 0's process does (news). The place of one that is here is taken where `anew` says so. A life that is past
//             does not come back by a COME that was late: it hears that the job has ended for it, and why.
// Growth      What a message costs does not depend on how many ranks and names there are. Once a second all ranks are looked
//             at, for who is silent. Who is there is told in as many bytes as there are ranks, times a few.
// Names       One is kept until it is dropped; a gather until all have taken part in the next.
// Ownership   Messages are copied by who keeps them. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_BOOK_H
#define STARRING_SHARED_FABRIC_BOOK_H

#include "shared/fabric/meet.h"

// How two identities of one job differ, and what to do, malloc'd; NULL: in nothing that counts.
typedef char *book_differs(const char *name_a, const char *a, const char *name_b, const char *b);

// A meeting, as each of its processes knows it.
struct rendezvous_options {
    const char *host;  // where rank 0 listens: a name or a number
    int port;          // 0, of member 0: any (rendezvous_port)
    int rank, size;
    // Roles that come and go, the same in every process of the job; zeros: none. rank: a member's number, meet.h.
    struct meet_role cast[MEET_CAST_MAX];
    const char *first;      // what member 0 is called in messages; NULL: "rank 0"
    bool anew;              // member 0's: another process may take the place of one of the cast that is here
    const char *identity;   // what all ranks must agree on: one whose differs from rank 0's ends the meeting
    book_differs *differs;  // rank 0's: says how
    const char *interface;  // of this rank's address; NULL: by the route there
    // 0: all must come. Else, behind the deadline, so many will do: the others are lost from the beginning, machine -1.
    int least;
    double deadline_s;  // for all to come, and for every later wait
    double silent_s;    // one that is not heard for so long is lost; 0: deadline_s
    double beat_s;      // between two signs of life; 0: MEET_AGAIN_S
    bool open;          // no key, whatever the environment has
    bool sure;   // the key is member 0's: a door that is shut is crowded, and is tried until the deadline
    bool later;  // rendezvous_open does not wait, rendezvous_wait does
    // Ends rendezvous_open; NULL: nothing does. Later waits go on: who is asked to end has to report.
    const _Atomic int *stop;
};

// place: "host:port", for messages. news: n->data becomes the listener's; NULL: nobody listens.
struct book;
struct book *book_create(const struct rendezvous_options *o, const char *place, meet_say *say,
                         void (*news)(void *ctx, const struct member_news *n), void *ctx);
// data: m->bytes of them.
void book_hear(struct book *b, const struct meet_message *m, const void *data, double now_s);
void book_unreachable(struct book *b, int rank, uint64_t life, double now_s);  // its connection has gone
// Some connection has ended, of whom is not known: all are asked.
void book_disturbed(struct book *b, double now_s);
void book_tick(struct book *b, double now_s);
bool book_over(const struct book *b);     // all ranks have said goodbye or are lost
int book_cast(const struct book *b);      // how many of the cast are here, and connected
int book_lost(const struct book *b);      // the first rank that is; -1: none
size_t book_names(const struct book *b);  // how many are kept
void book_destroy(struct book **b);

#endif
