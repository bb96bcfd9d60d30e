// How the ranks of a hub move bytes: in host memory at once, in device memory by work that they enqueue.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
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

// ---------------------------------------------------------------- memory of other processes
bool hub_can_read(const struct hub *h, int rank) {
    const struct hub_rank *r = &h->memory->ranks[rank];
    uint64_t word = 0;
    struct iovec to = {&word, sizeof word}, from = {(void *)(uintptr_t)r->own_word, sizeof word};
    return process_vm_readv(r->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word &&
           word == hub_own_word(r->pid, rank);
}

static bool never(const void *arg) {
    (void)arg;
    return false;
}

// A rank that has died is waited for, until its launcher says how it ended or the deadline names it.
int hub_read(struct collective_hub *t, enum collective_primitive p, int rank, void *dst, const void *src,
             size_t bytes) {
    struct hub_memory *m = t->hub->memory;
    for (size_t done = 0; done < bytes;) {
        struct iovec to = {(char *)dst + done, bytes - done};
        struct iovec from = {(char *)(uintptr_t)src + done, bytes - done};
        ssize_t n = process_vm_readv(m->ranks[rank].pid, &to, 1, &from, 1, 0);
        int error = errno;
        if (n > 0) done += (size_t)n;
        if (n > 0) continue;
        if (last_word(&m->end)) return hub_fail_aborted(t, p);
        if (n < 0 && error == ESRCH) return hub_wait_for(t, &m->questions, never, NULL, p, rank);
        char text[COLLECTIVE_ERROR_BYTES];
        snprintf(text, sizeof text, "%s on channel %d: the memory of rank %d cannot be read: %s",
                 collective_name(p), t->index, rank, strerror(n < 0 ? error : EFAULT));
        return hub_fail_and_abort(t, text);
    }
    return 0;
}

// ---------------------------------------------------------------- the way to peers' memory
// GPUs: sums need the direct way; copies use it where it is open. Processes agree: one that cannot read is enough.
int hub_greet(struct collective_hub *t, enum collective_primitive p) {
    t->seat->greeted = true;
    for (int i = t->size - 1; i >= 0 && t->enqueues; i--)
        if (dev_reach(t->dev, hub_shown(t, i)->owner->dev) != 0)
            t->unreachable = collective_member(t->seat->team, i);
    if (!t->hub->processes) return 0;
    bool reads = dev_host_memory(t->dev);
    for (int i = 0; i < t->size && reads; i++)
        reads = hub_can_read(t->hub, collective_member(t->seat->team, i));
    atomic_store(&hub_slot(t, t->rank)->reads, reads);
    if (hub_meet_again(t, p, 0)) return -1;
    for (int i = 0; i < t->size; i++) reads = reads && atomic_load(&hub_slot(t, i)->reads);
    t->seat->direct = reads;
    return 0;
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
