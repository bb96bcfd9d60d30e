// Messages between the members of a rendezvous over a link (link.h), in either direction. Messages with values of up
// to MEET_DATA_MAX bytes arrive once and in order. Messages from MEET_GET on may overtake values of other names that
// are sent in many pieces. At most MEET_WINDOW bytes per peer are sent and not acknowledged, so that no memory fills
// up for a slow link. All other values wait unsplit in the queue; one value is shared by all its receivers.
//
// Ownership   A value is freed by its last user. Threads: one at a time. Nothing blocks.
#ifndef STARRING_SHARED_FABRIC_MAILBOX_H
#define STARRING_SHARED_FABRIC_MAILBOX_H

#include "shared/fabric/meet.h"

struct meet_value {
    int users;
    size_t bytes;
    char *data;  // with a closing zero that is not counted; NULL: its only user has taken it
};
// Returns a value with one user. Takes ownership of data (malloc'd).
struct meet_value *meet_value_of(void *data, size_t bytes);
void meet_value_free(struct meet_value *v);  // Removes one user. Does nothing for NULL.

struct mailbox;
// send: sends a message with m->bytes bytes of data.
struct mailbox *mailbox_open(int peers,
                             void (*send)(void *ctx, int peer, struct meet_message *m, const void *data),
                             void *ctx);
void mailbox_close(struct mailbox **p);
// Queues a message for mailbox_flush. m: its kind, name and count. Takes over one user of v.
void mailbox_queue(struct mailbox *p, int peer, const struct meet_message *m, struct meet_value *v);
// Sends what the window allows, if lets, and an empty acknowledgement if a message is not acknowledged yet.
void mailbox_flush(struct mailbox *p, int peer, bool lets);
// Sends a message that may be lost, at once.
void mailbox_send_once(struct mailbox *p, int peer, struct meet_message m, const void *data);
// Handles a message that has arrived. Returns the value of a numbered message when it is complete: the caller is its
// user. Otherwise NULL.
struct meet_value *mailbox_receive(struct mailbox *p, int peer, const struct meet_message *m,
                                   const void *data, double now_s);
void mailbox_tick(struct mailbox *p, double now_s);
void mailbox_reset(struct mailbox *p, int peer);  // Called when the peer is a new process.
bool mailbox_is_acknowledged(const struct mailbox *p, int peer);

#endif
