// What processes that meet say to each other over a link (link.h), either way: messages with values of up to MEET_DATA_MAX bytes come
// once and in order, but those from MEET_GET on do not wait for values of other names that go in many pieces. Of a
// peer's pieces at most MEET_WINDOW bytes are on their way or not heard, so that nothing waits in memory for a slow link; the
// others wait where they lie, whole, however many peers they are for.
//
// Ownership   A value is freed by the last that lets go of it. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_POST_H
#define STARRING_SHARED_FABRIC_POST_H

#include "shared/fabric/meet.h"

struct meet_value {
    int users;
    size_t bytes;
    char *data;  // with a closing zero that is not counted; NULL: its only user has taken it
};
struct meet_value *meet_value_of(void *data, size_t bytes);  // of one user; data: malloc'd, the value's
void meet_value_free(struct meet_value *v);                  // one user's; NULL: nothing

struct post;
// say: sends the message. own: bytes of data are m->bytes.
struct post *post_open(int peers, void (*say)(void *ctx, int peer, struct meet_message *m, const void *data),
                       void *ctx);
void post_close(struct post **p);
// To be said by pushes; m: its kind and what goes with it. A user of v goes over to the post.
void post_put(struct post *p, int peer, const struct meet_message *m, struct meet_value *v);
// Says what the window allows, if lets, and a word where one is owed.
void post_push(struct post *p, int peer, bool lets);
// What is safe to lose, at once.
void post_say(struct post *p, int peer, struct meet_message m, const void *data);
// A message has come. Returns the value when it is a numbered one and whole: the caller is its user. Else NULL.
struct meet_value *post_hear(struct post *p, int peer, const struct meet_message *m, const void *data,
                             double now_s);
void post_tick(struct post *p, double now_s);
void post_forget(struct post *p, int peer);  // another process
bool post_heard(const struct post *p, int peer);

#endif
