// A member's seat at the meeting: its post to member 0's book (book.h), what it wants until that is there, who is here, who has gone, and why all ends. A state machine without sockets or clocks.
//
// Ownership   Messages are copied by who keeps them. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_SEAT_H
#define STARRING_SHARED_FABRIC_SEAT_H

#include "shared/fabric/post.h"
#include "shared/time/turn_clock.h"

struct seat_want {
    struct meet_named named;
    void *data;  // malloc'd; NULL: it is not there yet
    size_t bytes;
    bool looks;      // it stays until the name is there, and is the seat's to free
    uint64_t asked;  // the number of its GET
    struct seat_want *next, **at;
};

struct seat {
    int rank, size;  // rank: a member's number; size: how many ranks there are
    uint64_t life;
    const char *first, *place;  // first: what member 0 is called; NULL: "rank 0"
    double silent_s, beat_s;    // beat_s: between two signs of life; 0: MEET_AGAIN_S
    bool still;                 // it says no sign of life, nor anything else
    int (*is_at)(void *ctx);    // what a sign of life says; NULL: 0
    void *is_at_ctx;
    meet_say *say;
    void *ctx;
    void *come;  // a struct meet_come and the identity's text
    size_t come_bytes;
    struct rendezvous_member *members;  // a rank's; NULL: not all are here
    bool *lost;
    int losses, first_lost;  // -1: none
    bool heard;              // rank 0 has answered
    bool begun;              // it has said that all are here, or that this one of the cast is let in
    char waiting[MEET_TEXT_MAX];
    uint64_t missing;  // the fewest ranks that have been waited for; 0: not known
    double came_s;     // since then
    enum meet_end end;
    char ended[MEET_TEXT_MAX];  // "" : it goes on
    struct post *post;          // to the book
    struct seat_want *wants;
    struct meet_names names;  // the wants'
    uint64_t gets;
    int comes;  // it has said so
    double come_s, ping_s;
    struct turn_clock turns;  // of the two that follow
    double heard_s, gone_s;
};
void seat_open(struct seat *s, const struct meet_come *come, const char *identity);
void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s);
void seat_unreachable(struct seat *s, double now_s);
void seat_end(struct seat *s, enum meet_end end, const char *why);  // if nothing has ended it
// Says what is due. The next is due within a second, and after a put or want at once.
void seat_tick(struct seat *s, double now_s);
void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes);
bool seat_in(const struct seat *s);     // all ranks are here, or this one of the cast is
bool seat_heard(const struct seat *s);  // the book has heard all that was put
// w: zeroed but for its name; it stays until it is taken away.
void seat_want(struct seat *s, struct seat_want *w);
void seat_unwant(struct seat *s, struct seat_want *w);
void seat_close(struct seat *s);

#endif
