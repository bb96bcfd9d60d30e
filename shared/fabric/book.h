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

struct book_options {
    int size, least;  // least: rendezvous_options', as are first, anew and beat_s
    struct meet_role cast[MEET_CAST_MAX];
    const char *first;
    bool anew;
    double beat_s;
    const char *identity, *place;  // rank 0's; "host:port", for messages
    book_differs *differs;         // NULL: texts are equal or not
    double silent_s;               // a member that is not heard for so long is lost; least waits for so long
    meet_say *say;
    void (*news)(void *ctx,
                 const struct member_news *n);  // n->data becomes the listener's; NULL: nobody listens
    void *ctx;
};
struct book;
struct book *book_create(const struct book_options *o);
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
