#include "kernels/work.h"

#include "kernels/queue/queue.h"

bool dev_at_work(struct device *d) {
    bool work = false;
    pthread_mutex_lock(&d->lock);
    for (struct queue *q = d->queues; q && !work; q = q->next) {
        pthread_mutex_lock(&q->lock);
        work = q->done < q->queued;
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return work;
}
