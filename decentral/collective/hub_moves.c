// How the ranks of a hub move bytes: in host memory at once, in device memory by work that they enqueue.
#include <string.h>
#include <unistd.h>

#include "decentral/collective/hub_impl.h"

int hub_moves_open(struct collective_hub *t, struct stream *s) {
    t->stream = s;
    if (t->dev) return 0;
    t->dev = stream_device(s);
    t->enqueues = !t->hub->processes && !dev_host_memory(t->dev);
    t->unreachable = -1;
    for (int p = 0; p < HUB_POINTS && t->enqueues; p++)
        if (!(t->points[p] = event_create(t->dev)))
            return collective_impl_fail(&t->impl, "channel %d: an event cannot be created: %s", t->index,
                                        dev_error(t->dev));
    return 0;
}

void hub_moves_close(struct collective_hub *t) {
    // This ends soon: between the last meeting and its points no peer waits for another.
    for (int i = 0; i < HUB_SEATS && t->enqueues; i++) {
        const struct hub_seat *s = &t->seats[i];
        uint64_t passed = hub_line(t->hub, t->impl.head.rank, t->index)->slots[i].passed;
        for (int k = 0; s->gate && k < s->team.count; k++) {
            int peer = collective_member(s->team, k);
            while (atomic_load(&hub_line(t->hub, peer, t->index)->slots[i].left) < passed) usleep(20);
        }
    }
    for (int p = 0; p < HUB_POINTS; p++) event_destroy(&t->points[p]);
}

// Sums need the direct way to the peers' memory; copies use it where it is open.
void hub_greet(struct collective_hub *t) {
    for (int i = t->size - 1; i >= 0 && t->enqueues && !t->seat->greeted; i--)
        if (dev_reach(t->dev, hub_shown(t, i)->owner->dev) != 0)
            t->unreachable = collective_member(t->seat->team, i);
    t->seat->greeted = true;
}

void hub_copy(struct collective_hub *t, void *dst, const void *src, size_t bytes) {
    if (t->enqueues)
        dev_copy(t->stream, dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

int hub_sum(struct collective_hub *t, void *out, size_t n, enum dtype dt) {
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
int hub_mark_point(struct collective_hub *t, enum collective_primitive p, enum hub_point point) {
    if (!t->enqueues) return 0;
    event_record(t->points[point], t->stream);
    const char *why = dev_error(t->dev);
    if (!*why) return 0;
    return collective_impl_fail(&t->impl, "%s on channel %d: %s", collective_name(p), t->index, why);
}

void hub_follow(struct collective_hub *t, struct collective_hub *peer, enum hub_point p) {
    if (t->enqueues) stream_wait_event(t->stream, peer->points[p]);
}

void hub_drain(struct collective_hub *t) {
    if (t->enqueues) stream_sync(t->stream);
}

void hub_await(struct collective_hub *t, struct collective_hub *peer, enum hub_point p) {
    if (t->enqueues) event_sync(peer->points[p]);
}
