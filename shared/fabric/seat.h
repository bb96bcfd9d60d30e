// A member's seat at the rendezvous: its messages to member 0's book (book.h), and what it knows of the other members.
// It keeps the names it waits for, who is here, who has gone, and why the job ends. A state machine without sockets or
// clocks.
//
// Ownership   The receiver copies what it keeps of a message. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_SEAT_H
#define STARRING_SHARED_FABRIC_SEAT_H

#include "shared/fabric/post.h"
#include "shared/time/turn_clock.h"

struct seat_want {
    struct meet_named named;
    void *data;  // malloc'd; NULL: not there yet
    size_t bytes;
    bool looks;      // of rendezvous_look: the want stays until the name exists; the seat frees it
    uint64_t asked;  // the number of its GET
    struct seat_want *next, **at;
};

struct seat {
    int rank, size;  // rank: a member's number; size: how many ranks there are
    uint64_t life;
    const char *first, *place;  // first: the name of member 0; NULL: "rank 0"
    double silent_s, beat_s;    // beat_s: between two heartbeats; 0: MEET_AGAIN_S
    bool still;                 // this process makes no progress: it sends no heartbeat, nor anything else
    int (*is_at)(void *ctx);    // the value that a heartbeat carries; NULL: 0
    void *is_at_ctx;
    meet_say *say;
    void *ctx;
    void *come;  // a struct meet_come and the identity's text
    size_t come_bytes;
    struct rendezvous_member *members;  // a rank's; NULL: not all ranks are here
    bool *lost;
    int losses, first_lost;  // -1: none
    bool heard;              // rank 0 has answered
    bool begun;              // rank 0 has sent that all are here, or that this cast member is let in
    char waiting[MEET_TEXT_MAX];
    uint64_t missing;  // the fewest ranks that were ever absent; 0: not known
    double came_s;     // when `missing` last decreased
    enum meet_end end;
    char ended[MEET_TEXT_MAX];  // "": the job continues
    struct post *post;          // to the book
    struct seat_want *wants;
    struct meet_names names;  // the wants'
    uint64_t gets;
    int comes;  // how many COMEs were sent
    double come_s, ping_s;
    struct turn_clock turns;  // the clock of the next two
    double heard_s, gone_s;
};
void seat_open(struct seat *s, const struct meet_come *come, const char *identity);
void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s);
void seat_unreachable(struct seat *s, double now_s);
void seat_end(struct seat *s, enum meet_end end, const char *why);  // no effect once the job has ended
// Sends what is due. The next call is due within a second, and at once after a put or want.
void seat_tick(struct seat *s, double now_s);
void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes);
bool seat_in(const struct seat *s);     // all ranks are here, or this cast member is
bool seat_heard(const struct seat *s);  // the book has acknowledged all that was put
// w: zeroed except for its name; it must stay valid until seat_unwant.
void seat_want(struct seat *s, struct seat_want *w);
void seat_unwant(struct seat *s, struct seat_want *w);
void seat_close(struct seat *s);

#endif
