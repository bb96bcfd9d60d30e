// The meeting point of ranks that somebody else has started, on several hosts: one TCP address, where rank 0 listens. The
// ranks learn there who is where, hand each other small things by name, and rank 0 hears who has gone.
//
//     rank 0    rendezvous_open ... listens at host:port, and is a member as the others are
//     rank r    rendezvous_open ... comes, says its rank, host and identity; returns when all have come
//               rendezvous_put / _get / _all    things by name, in pieces (meet.h)
//               rendezvous_close                says goodbye; rank 0 waits until all have, or until one is lost
//
// Trust       Without a key anybody who reaches the port may come, as with torchrun's store. With the job's key in the
//             environment (shared/fabric/job_key.h) all is encrypted and only who has it comes in.
// Ownership   One struct rendezvous per process; it has a thread of its own, which answers the others (rank 0) and notices
//             who is gone. It touches no file.
// Threads     All calls from any thread.
// Blocking    _open, _get, _all, _close: until their deadline. Nothing else does. The deadline of _open begins anew with each rank
//             that comes for the first time: it is over after as many deadlines as there are ranks at most.
// Errors      -1 or NULL after logging one sentence that names host and port, the rank and what to do.
#ifndef STARRING_SHARED_FABRIC_PEER_H
#define STARRING_SHARED_FABRIC_PEER_H

#include "shared/fabric/book.h"

struct rendezvous;

// One of the cast is let in at any time, and returns then. Asked to stop, it says nothing of it (error_last does).
struct rendezvous *rendezvous_open(const struct rendezvous_options *o);
// Of one that was opened so: until it is in. stop: as the option. 0, or -1 after logging.
int rendezvous_wait(struct rendezvous *r, const _Atomic int *stop);
int rendezvous_size(const struct rendezvous *r);  // ranks: the first of the cast is that member
int rendezvous_port(const struct rendezvous *r);
// Those that calls of a thread use that has a table of descriptors of its own (shared/core/background.h).
void rendezvous_descriptors(const struct rendezvous *r, int out[2]);
const char *rendezvous_address(const struct rendezvous *r);  // at which others reach this process
uint64_t rendezvous_life(const struct rendezvous *r);        // this process', at random; never 0
// The turns of a thread that must turn (shared/time/turn_clock.h, turning_stood): while it stands for more than deadline_s this
// process says no sign of life. NULL: none; rendezvous_close takes it away.
void rendezvous_turns(struct rendezvous *r, const _Atomic uint64_t *turns);
// What this process is at, 0 to 255, for those who ask who lives (MEET_LIVES is such a name, that is always there): each sign of life
// says it. is_at is called on the rendezvous' thread, with the rendezvous locked: it calls nothing of it. NULL: none any more.
void rendezvous_is_at(struct rendezvous *r, int (*is_at)(void *ctx), void *ctx);
// Seconds between two signs of life, for who waits for each other up to that deadline.
double rendezvous_beat(double deadline_s);
// Ranks alone know them:
const struct rendezvous_member *rendezvous_member(const struct rendezvous *r, int rank);
int rendezvous_machines(const struct rendezvous *r);

// bytes of data under that name, for everybody; a second put of a name replaces the first.
int rendezvous_put(struct rendezvous *r, const char *name, const void *data, size_t bytes);
// Nobody needs that name any more: whoever has read it last says so, or who has put it.
int rendezvous_drop(struct rendezvous *r, const char *name);
// Waits until the name is there. malloc'd, with a closing zero that is not counted; NULL after logging, also when a member
// is lost during the wait. With those who are left it goes on: a name that is there is handed out.
void *rendezvous_get(struct rendezvous *r, const char *name, size_t *bytes);
// As rendezvous_get, but it never blocks: NULL, silently, while the name is not there. Its name is asked for meanwhile.
void *rendezvous_look(struct rendezvous *r, const char *name, size_t *bytes);
// All ranks call it in the same order: everybody's bytes (the same number of each) into all (size x bytes), in rank order.
int rendezvous_all(struct rendezvous *r, const void *mine, size_t bytes, void *all);

// ---- member 0's process and the others
// To member 0's process: each arrives once, and what one member says in order (MEMBER_SAID).
int rendezvous_say(struct rendezvous *r, const char *word, const void *data, size_t bytes);
// Member 0's, where there is a cast: readable while there is news; the oldest news, or false. Of ranks too. Neither blocks.
int rendezvous_news_fd(const struct rendezvous *r);
bool rendezvous_news(struct rendezvous *r, struct member_news *out);
// Member 0's: the job has ended for that process of a member of the cast; it hears why (rendezvous_ended), and its place is free.
// Of a life that is past already only the reason changes.
void rendezvous_give_up(struct rendezvous *r, int member, uint64_t life, const char *why);

// The first rank whose process has gone without a goodbye; -1: none. Never blocks.
int rendezvous_lost(struct rendezvous *r);
bool rendezvous_gone(struct rendezvous *r, int rank);  // whether that one has
// Why the job cannot go on: rank 0 has gone, a rank has given up, or rank 0 has given this one up; NULL: it can. Never blocks;
// the text is the rendezvous'.
const char *rendezvous_ended(struct rendezvous *r);
enum meet_end rendezvous_end(struct rendezvous *r);  // the same in a word
// For how long member 0 has not been heard, in seconds of this process's turns.
double rendezvous_silent_s(struct rendezvous *r);
// Calls act, on the rendezvous' thread, once: when the first member is lost or the job ends, with a sentence that says so.
void rendezvous_watch(struct rendezvous *r, void (*act)(void *ctx, const char *why), void *ctx);
// This rank gives up: everybody's waits end with `why`, the cast's too. (One of the cast says that it has failed.)
void rendezvous_abort(struct rendezvous *r, const char *why);
// The goodbye. 0, or -1 after logging: rank 0 has not heard it, or a rank has gone without one, or has given up. A rank that
// has itself given up logs nothing more, nor one of the cast for which the job has ended. Member 0 gives the cast a moment
// to leave.
int rendezvous_close(struct rendezvous **r);

#endif
