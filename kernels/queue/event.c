#include "kernels/queue/event.h"

#include <stdlib.h>

struct queue_event {
    struct event head;
    pthread_mutex_t lock;
    struct moment last;
};

struct event *queue_event_create(struct device *d) {
    struct queue_event *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->head.dev = d;
    pthread_mutex_init(&e->lock, NULL);
    return &e->head;
}

void queue_event_destroy(struct event *head) {
    struct queue_event *e = (struct queue_event *)head;
    moment_drop(&e->last);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

// The mark of the earlier record lives on in the waits that hold it.
void queue_event_record(struct event *head, struct stream *on) {
    struct queue_event *e = (struct queue_event *)head;
    struct queue *q = (struct queue *)on;
    const struct queue_device *behind = q->ops->behind;
    struct moment now = {.on = q};
    if (behind) {
        now.mark = behind->take(q);
        if (!now.mark) return;
        behind->hold(now.mark);  // one reference for the slot, one for the event
    }
    now.count = queue_record(q, now.mark);
    pthread_mutex_lock(&e->lock);
    struct moment before = e->last;
    e->last = now;
    pthread_mutex_unlock(&e->lock);
    moment_drop(&before);
}

struct moment queue_event_moment(struct event *head) {
    struct queue_event *e = (struct queue_event *)head;
    pthread_mutex_lock(&e->lock);
    struct moment m = e->last;
    if (m.mark) m.on->ops->behind->hold(m.mark);
    pthread_mutex_unlock(&e->lock);
    return m;
}

// A queue's own past is behind it already.
void queue_wait_event(struct stream *s, struct event *e, uint64_t tag) {
    struct queue *q = (struct queue *)s;
    struct moment m = queue_event_moment(e);
    if (m.on && m.on != q)
        queue_wait(q, &m, tag);
    else
        moment_drop(&m);
}

void queue_follow_event(struct stream *s, struct event *e) {
    struct queue *q = (struct queue *)s;
    struct moment m = queue_event_moment(e);
    moment_drop(&m);
    m.mark = NULL;
    if (m.on && m.on != q) queue_wait(q, &m, 0);
}

int queue_event_sync(struct event *e) {
    struct moment m = queue_event_moment(e);
    if (!m.on) return 0;
    int rc = queue_await(m.on, m.count);
    if (rc == 0 && m.mark && m.on->ops->behind->passed(m.on, m.mark, true) < 0) rc = -1;
    // A failure from outside may have come while the device was still at work.
    if (rc == 0 && queue_state(m.on, m.count) < 0) rc = -1;
    moment_drop(&m);
    return rc;
}

int queue_event_passed(struct event *e) {
    struct moment m = queue_event_moment(e);
    if (!m.on) return 1;
    int state = queue_state(m.on, m.count);
    if (state == 1 && m.mark) state = m.on->ops->behind->passed(m.on, m.mark, false);
    moment_drop(&m);
    return state;
}
