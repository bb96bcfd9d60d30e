// How the local collectives move bytes: in host memory at once, in device memory by what they enqueue. See
// local_impl.h.
#include <string.h>
#include <unistd.h>

#include "decentral/collective/local_impl.h"

// ---------------------------------------------------------------- host memory

static void host_greet(struct collective_local *l) { (void)l; }

static void host_copy(struct collective_local *l, void *dst, const void *src, size_t bytes) {
    (void)l;
    memcpy(dst, src, bytes);
}

static int host_sum(struct collective_local *l, void *out, size_t n, enum dtype dt) {
    return collective_sum(&l->impl, out, l->inputs, (int64_t)n, dt);
}

static int host_mark(struct collective_local *l, const struct collective_call *call, enum local_point p) {
    (void)l, (void)call, (void)p;
    return 0;
}

static void host_follow(struct collective_local *l, struct collective_local *peer, enum local_point p) {
    (void)l, (void)peer, (void)p;
}

static void host_drain(struct collective_local *l) { (void)l; }
static void host_await(struct collective_local *peer, enum local_point p) { (void)peer, (void)p; }

static const struct local_moves host_moves = {
    .greet = host_greet,
    .copy = host_copy,
    .sum = host_sum,
    .mark = host_mark,
    .follow = host_follow,
    .drain = host_drain,
    .await = host_await,
};

// ---------------------------------------------------------------- device memory

// Copies take the direct way as well once it is open, but would find another one.
static void device_greet(struct collective_local *l) {
    for (int i = l->hub->size - 1; i >= 0 && !l->greeted; i--)
        if (dev_reach(l->dev, l->channel->slots[i].owner->dev) != 0) l->unreachable = i;
    l->greeted = true;
}

static void device_copy(struct collective_local *l, void *dst, const void *src, size_t bytes) {
    dev_copy(l->stream, dst, src, bytes);
}

static int device_sum(struct collective_local *l, void *out, size_t n, enum dtype dt) {
    if (l->unreachable >= 0)
        return collective_impl_fail(&l->impl,
                                    "channel %d: the GPU of rank %d cannot read the memory of rank %d's "
                                    "directly: use --collective nccl",
                                    l->index, l->impl.head.rank, l->unreachable);
    if (n == 0) return 0;
    if (dt == DT_U8) return collective_impl_fail(&l->impl, "there is no sum of uint8; use int64");
    op_reduce(l->stream,
              &(struct reduce_args){
                  .out = out, .inputs = l->inputs, .count = l->impl.head.size, .n = (int64_t)n, .dt = dt});
    return 0;
}

// What the calls inside of the stream's function could not say: a device that has failed runs nothing more.
static int device_mark(struct collective_local *l, const struct collective_call *call, enum local_point p) {
    event_record(l->points[p], l->stream);
    const char *why = dev_error(l->dev);
    if (!*why) return 0;
    return collective_impl_fail(&l->impl, "%s on channel %d: %s", collective_op_name(call->op), l->index,
                                why);
}

static void device_follow(struct collective_local *l, struct collective_local *peer, enum local_point p) {
    stream_wait_event(l->stream, peer->points[p]);
}

static void device_drain(struct collective_local *l) { stream_sync(l->stream); }

static void device_await(struct collective_local *peer, enum local_point p) { event_sync(peer->points[p]); }

static const struct local_moves device_moves = {
    .waits = true,
    .greet = device_greet,
    .copy = device_copy,
    .sum = device_sum,
    .mark = device_mark,
    .follow = device_follow,
    .drain = device_drain,
    .await = device_await,
};

// ---------------------------------------------------------------- both

int local_moves_open(struct collective_local *l, struct stream *s) {
    l->stream = s;
    if (l->moves) return 0;
    l->dev = stream_device(s);
    l->unreachable = -1;
    l->moves = dev_host_memory(l->dev) ? &host_moves : &device_moves;
    for (int p = 0; p < LOCAL_POINTS && l->moves == &device_moves; p++)
        if (!(l->points[p] = event_create(l->dev)))
            return collective_impl_fail(&l->impl, "channel %d: an event cannot be created: %s", l->index,
                                        dev_error(l->dev));
    return 0;
}

void local_moves_close(struct collective_local *l) {
    const struct local_slot *mine = &l->channel->slots[l->impl.head.rank];
    // Peers are on their way: between the last meeting and its points nothing waits for anyone.
    while (atomic_load(&l->channel->left) < (uint64_t)l->hub->size * mine->passed) usleep(20);
    for (int p = 0; p < LOCAL_POINTS; p++) event_destroy(&l->points[p]);
}
