// How ranks that are threads move bytes: in host memory at once, in device memory by work that they enqueue.
#include <string.h>
#include <unistd.h>

#include "decentral/collective/threads_impl.h"

static struct reduce_args sum_of(const struct collective_threads *t, void *out, size_t n, enum dtype dt) {
    return (struct reduce_args){
        .out = out, .inputs = t->inputs, .count = t->impl.head.size, .n = (int64_t)n, .dt = dt};
}

// ---------------------------------------------------------------- host memory
static void host_greet(struct collective_threads *t) { (void)t; }

static void host_copy(struct collective_threads *t, void *dst, const void *src, size_t bytes) {
    (void)t;
    memcpy(dst, src, bytes);
}

static int host_sum(struct collective_threads *t, void *out, size_t n, enum dtype dt) {
    struct reduce_args a = sum_of(t, out, n, dt);
    return collective_sum(&t->impl, &a);
}

static int host_mark(struct collective_threads *t, const struct collective_call *call, enum threads_point p) {
    (void)t, (void)call, (void)p;
    return 0;
}

static void host_follow(struct collective_threads *t, struct collective_threads *peer, enum threads_point p) {
    (void)t, (void)peer, (void)p;
}

static void host_drain(struct collective_threads *t) { (void)t; }
static void host_await(struct collective_threads *peer, enum threads_point p) { (void)peer, (void)p; }

static const struct threads_moves host_moves = {
    .greet = host_greet,
    .copy = host_copy,
    .sum = host_sum,
    .mark = host_mark,
    .follow = host_follow,
    .drain = host_drain,
    .await = host_await,
};

// ---------------------------------------------------------------- device memory
// Sums need the direct way to the peers' memory; copies use it where it is open.
static void device_greet(struct collective_threads *t) {
    for (int i = t->hub->size - 1; i >= 0 && !t->greeted; i--)
        if (dev_reach(t->dev, t->channel->slots[i].owner->dev) != 0) t->unreachable = i;
    t->greeted = true;
}

static void device_copy(struct collective_threads *t, void *dst, const void *src, size_t bytes) {
    dev_copy(t->stream, dst, src, bytes);
}

static int device_sum(struct collective_threads *t, void *out, size_t n, enum dtype dt) {
    if (t->unreachable >= 0)
        return collective_impl_fail(&t->impl,
                                    "channel %d: the GPU of rank %d cannot read the memory of rank %d's "
                                    "directly: use --collective nccl",
                                    t->index, t->impl.head.rank, t->unreachable);
    if (n == 0) return 0;
    if (dt == DT_U8) return collective_impl_fail(&t->impl, "there is no sum of uint8; use int64");
    struct reduce_args a = sum_of(t, out, n, dt);
    op_reduce(t->stream, &a);
    return 0;
}

// Calls inside of the stream's function return no errors; a device that has failed reports them here.
static int device_mark(struct collective_threads *t, const struct collective_call *call,
                       enum threads_point p) {
    event_record(t->points[p], t->stream);
    const char *why = dev_error(t->dev);
    if (!*why) return 0;
    return collective_impl_fail(&t->impl, "%s on channel %d: %s", collective_name(call->primitive), t->index,
                                why);
}

static void device_follow(struct collective_threads *t, struct collective_threads *peer,
                          enum threads_point p) {
    stream_wait_event(t->stream, peer->points[p]);
}

static void device_drain(struct collective_threads *t) { stream_sync(t->stream); }

static void device_await(struct collective_threads *peer, enum threads_point p) {
    event_sync(peer->points[p]);
}

static const struct threads_moves device_moves = {
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
int threads_moves_open(struct collective_threads *t, struct stream *s) {
    t->stream = s;
    if (t->moves) return 0;
    t->dev = stream_device(s);
    t->unreachable = -1;
    t->moves = dev_host_memory(t->dev) ? &host_moves : &device_moves;
    for (int p = 0; p < THREADS_POINTS && t->moves == &device_moves; p++)
        if (!(t->points[p] = event_create(t->dev)))
            return collective_impl_fail(&t->impl, "channel %d: an event cannot be created: %s", t->index,
                                        dev_error(t->dev));
    return 0;
}

void threads_moves_close(struct collective_threads *t) {
    const struct threads_slot *mine = &t->channel->slots[t->impl.head.rank];
    // This ends soon: between the last meeting and its points no peer waits for another.
    while (atomic_load(&t->channel->left) < (uint64_t)t->hub->size * mine->passed) usleep(20);
    for (int p = 0; p < THREADS_POINTS; p++) event_destroy(&t->points[p]);
}
