// Whether a device is at work, or the thread beside it.
#include "kernels/work.h"

#include "kernels/queue/queue.h"

enum dev_work dev_at_work(struct device *d) {
    bool work = false;
    pthread_mutex_lock(&d->lock);
    for (struct queue *q = d->queues; q && !work; q = q->next) {
        pthread_mutex_lock(&q->lock);
        work = q->done < q->queued && !q->waits && q->ring[q->done % QUEUE_SLOTS].kind != SLOT_WAIT;
        pthread_mutex_unlock(&q->lock);
    }
    bool host = d->has_host && !atomic_load(&d->host_rests);
    pthread_mutex_unlock(&d->lock);
    return work ? DEV_COMPUTES : host ? DEV_HOST_WORKS : DEV_RESTS;
}

const char *dev_work_says(enum dev_work w) {
    static const char *const says[] = {"it rests", "it is computing",
                                       "it reads or writes a file, most likely"};
    return says[w];
}

void stream_waits(struct stream *s, bool waits) {
    struct queue *q = (struct queue *)s;
    pthread_mutex_lock(&q->lock);
    q->waits = waits;
    pthread_mutex_unlock(&q->lock);
}
