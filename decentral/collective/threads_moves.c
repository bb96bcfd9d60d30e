// How ranks that are threads move bytes: in host memory at once, in device memory by work that they enqueue.
#include <string.h>
#include <unistd.h>

#include "decentral/collective/threads_impl.h"

int threads_moves_open(struct collective_threads *t, struct stream *s) {
    t->stream = s;
    if (t->dev) return 0;
    t->dev = stream_device(s);
    t->enqueues = !dev_host_memory(t->dev);
    t->unreachable = -1;
    for (int p = 0; p < THREADS_POINTS && t->enqueues; p++)
        if (!(t->points[p] = event_create(t->dev)))
            return collective_impl_fail(&t->impl, "channel %d: an event cannot be created: %s", t->index,
                                        dev_error(t->dev));
    return 0;
}

void threads_moves_close(struct collective_threads *t) {
    // This ends soon: between the last meeting and its points no peer waits for another.
    for (int i = 0; i < THREADS_SEATS; i++) {
        const struct threads_seat *s = &t->seats[i];
        while (s->channel &&
               atomic_load(&s->channel->left) < (uint64_t)s->team.count * s->channel->slots[s->rank].passed)
            usleep(20);
    }
    for (int p = 0; p < THREADS_POINTS; p++) event_destroy(&t->points[p]);
}

// Sums need the direct way to the peers' memory; copies use it where it is open.
void threads_greet(struct collective_threads *t) {
    for (int i = t->size - 1; i >= 0 && t->enqueues && !t->seat->greeted; i--)
        if (dev_reach(t->dev, threads_shown(t, i)->owner->dev) != 0)
            t->unreachable = collective_member(t->seat->team, i);
    t->seat->greeted = true;
}

void threads_copy(struct collective_threads *t, void *dst, const void *src, size_t bytes) {
    if (t->enqueues)
        dev_copy(t->stream, dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

int threads_sum(struct collective_threads *t, void *out, size_t n, enum dtype dt) {
    struct reduce_args a = {.out = out, .inputs = t->inputs, .count = t->size, .n = (int64_t)n, .dt = dt};
    if (!t->enqueues) return collective_sum(&t->impl, &a);
    if (t->unreachable >= 0)
        return collective_impl_fail(&t->impl,
                                    "channel %d: the GPU of rank %d cannot read the memory of rank %d's "
                                    "directly: use --collective nccl",
                                    t->index, t->impl.head.rank, t->unreachable);
    if (n == 0) return 0;
    if (dt == DT_U8) return collective_impl_fail(&t->impl, "there is no sum of uint8; use int64");
    op_reduce(t->stream, &a);
    return 0;
}

// Calls inside of the stream's function return no errors; a device that has failed reports them here.
int threads_mark(struct collective_threads *t, const struct collective_call *call, enum threads_point p) {
    if (!t->enqueues) return 0;
    event_record(t->points[p], t->stream);
    const char *why = dev_error(t->dev);
    if (!*why) return 0;
    return collective_impl_fail(&t->impl, "%s on channel %d: %s", collective_name(call->primitive), t->index,
                                why);
}

void threads_follow(struct collective_threads *t, struct collective_threads *peer, enum threads_point p) {
    if (t->enqueues) stream_wait_event(t->stream, peer->points[p]);
}

void threads_drain(struct collective_threads *t) {
    if (t->enqueues) stream_sync(t->stream);
}

void threads_await(struct collective_threads *t, struct collective_threads *peer, enum threads_point p) {
    if (t->enqueues) event_sync(peer->points[p]);
}
