// Events: an event names the moment of a queue at which it was recorded last (kernels/queue/queue.h). A wait copies
// the moment when it is enqueued, so recording again, or destroying the event, does not touch waits that are
// already queued. What kernels/backend.h says of ownership and threads holds; most functions here stand in the
// backends' tables as they are.
#ifndef STARRING_KERNELS_QUEUE_EVENT_H
#define STARRING_KERNELS_QUEUE_EVENT_H

#include "kernels/queue/queue.h"

struct event *queue_event_create(struct device *d);
void queue_event_destroy(struct event *e);
void queue_event_record(struct event *e, struct stream *s);
void queue_wait_event(struct stream *s, struct event *e, uint64_t tag);
// Only the queue's thread waits, until the device behind e's queue has been given what came before.
void queue_follow_event(struct stream *s, struct event *e);
int queue_event_sync(struct event *e);
int queue_event_passed(struct event *e);
// The moment that an event names now, with a reference of the caller's own to be dropped.
struct moment queue_event_moment(struct event *e);

#endif
