#include "kernels/work.h"

#include "kernels/queue/queue.h"

bool dev_at_work(struct device *d) {
    bool work = false;
    pthread_mutex_lock(&d->lock);
    for (struct queue *q = d->queues; q && !work; q = q->next) {
        pthread_mutex_lock(&q->lock);
        work = q->done < q->queued && !q->waits && q->ring[q->done % QUEUE_SLOTS].kind != SLOT_WAIT;
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return work;
}

void stream_waits(struct stream *s, bool waits) {
    struct queue *q = (struct queue *)s;
    pthread_mutex_lock(&q->lock);
    q->waits = waits;
    pthread_mutex_unlock(&q->lock);
}
