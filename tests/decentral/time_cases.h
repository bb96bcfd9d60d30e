// A ring that computes nothing: one of its ranks is late, or its link is slow, by as much as the case says. Its
// timeline is compared with what was done to it. The same cases serve threads and processes.
#ifndef STARRING_TESTS_DECENTRAL_TIME_CASES_H
#define STARRING_TESTS_DECENTRAL_TIME_CASES_H

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "decentral/collective/collective_impl.h"
#include "decentral/zero/zero.h"
#include "shared/core/error.h"
#include "shared/time/timeline.h"
#include "tests/decentral/zero_reference.h"

#define TIME_STEPS    3
#define TIME_DELAY_S  0.4  // rank 1 is late by so much in every step
#define TIME_LINK_S   0.3  // what a step's bytes take on the slow link
#define TIME_AHEAD_NS INT64_C(10000000000)
#define TIME_LEAST \
    0.5  // of these that must show: a loaded machine, late by itself, hides some, and adds to any part

static inline void time_doze(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&t, &t)) {
    }
}

// ---------------------------------------------------------------- a slow link
// One for all channels of a rank: a transfer that comes while another one is under way queues behind it. One that comes
// soon after has been there all along: its thread only was late to wake up.
#define TIME_SOON_S 0.025
struct time_link {
    struct collective_source under;
    double bytes_per_s, free_at_s;
    pthread_mutex_t busy;
};

struct time_passage {
    struct time_link *link;
    double bytes;
};

// Stands for a channel of the source below, with the link behind each of its calls.
struct time_channel {
    struct collective_impl impl;  // first: its text is asked for
    struct collective *under;
    struct time_link *link;
    struct time_passage *passages;
    int count;
};

static inline int time_pass(void *arg) {
    struct time_passage *p = arg;
    struct time_link *l = p->link;
    pthread_mutex_lock(&l->busy);
    double now = now_seconds(), begin = now < l->free_at_s + TIME_SOON_S ? l->free_at_s : now;
    double end = l->free_at_s = begin + p->bytes / l->bytes_per_s;
    pthread_mutex_unlock(&l->busy);
    if (end > now) time_doze(end - now);
    return 0;
}

static inline void time_enqueue(struct collective *c, const struct collective_call *call) {
    struct time_channel *t = (struct time_channel *)c;
    struct collective_plan plan = collective_plan_of(call, c->rank, c->size);
    struct time_passage *p = &t->passages[t->count++];
    *p = (struct time_passage){t->link, (double)collective_volume(&plan).sent};
    t->under->ops->enqueue(t->under, call);
    stream_host(call->stream, "the link", time_pass, p);
}

static inline void time_abort(struct collective *c, const char *why) {
    collective_abort(((struct time_channel *)c)->under, why);
}

static inline void time_destroy(struct collective *c) {
    struct time_channel *t = (struct time_channel *)c;
    collective_destroy(&t->under);
    collective_impl_fini(&t->impl);
    free(t->passages);
    free(t);
}

static inline struct collective *time_create(void *world, int rank, int channel,
                                             const struct collective_options *o) {
    static const struct collective_ops ops = {
        .name = "slow", .enqueue = time_enqueue, .abort = time_abort, .destroy = time_destroy};
    struct time_link *link = world;
    struct collective *under = link->under.kind->create(link->under.world, rank, channel, o);
    if (!under || o->control) return under;
    struct time_channel *t = calloc(1, sizeof *t);
    collective_impl_init(&t->impl, &ops, rank, link->under.size, o);
    t->under = under;
    t->link = link;
    t->passages = calloc(4096, sizeof *t->passages);
    return &t->impl.head;
}

// ---------------------------------------------------------------- one rank
struct time_case {
    int stage;
    bool slow_link;   // else rank 1 is late
    bool other_host;  // rank 1 has a clock that is ten seconds ahead
};

struct time_rank {
    const struct time_case *c;
    const struct layout *layout;
    struct topology *t;
    struct timeline *tl;
};

static inline int time_be_late(void *arg) {
    (void)arg;
    time_doze(TIME_DELAY_S);
    return 0;
}

static inline int time_step(struct time_rank *r, int step, const double *loss) {
    struct topology *t = r->t;
    struct unit_view view;
    struct step_stats stats;
    struct step_input in = {.step = step, .lr = 1e-3f, .loss_scale = 1, .loss_sum = loss, .loss_tokens = 1};
    int n = r->layout->count;
    timeline_step(r->tl, step);
    stream_phase(t->compute, PHASE_FORWARD);
    if (topology_begin_micro(t, 0, 1)) return -1;
    for (int u = 0; u < n; u++) {
        if (topology_acquire(t, u, PASS_FORWARD, &view)) return -1;
        topology_prefetch(t, u + 1, PASS_FORWARD);
        if (u == 1 && t->rank == 1 && !r->c->slow_link) stream_host(t->compute, "late", time_be_late, NULL);
        if (topology_release(t, u, PASS_FORWARD)) return -1;
    }
    stream_phase(t->compute, PHASE_BACKWARD);
    for (int u = n - 1; u >= 0; u--) {
        if (topology_acquire(t, u, PASS_BACKWARD, &view)) return -1;
        topology_prefetch(t, u - 1, PASS_BACKWARD);
        if (topology_grad_ready(t, u)) return -1;
    }
    return topology_step(t, &in, &stats);
}

// Every rank was ready for every transfer before it was done, and has been told by the others.
static inline int time_check_transfers(struct time_rank *r) {
    struct timeline_view v;
    int wrong = 0;
    for (int back = 0; timeline_view(r->tl, back, &v); back++) {
        for (size_t i = 0; i < v.transfer_count; i++) {
            const struct transfer_times *t = &v.transfers[i];
            if (t->asked > 0 && t->own_ready >= t->asked && t->peers_ready >= t->own_ready &&
                t->first_byte >= t->asked && t->done >= t->first_byte && t->done >= t->peers_ready - 1000000)
                continue;
            if (!wrong++)
                fprintf(stderr,
                        "zero:%d rank %d step %lld: transfer %zu: asked 0, own %lld, peers %lld, first %lld, "
                        "done %lld ns\n",
                        r->c->stage, r->t->rank, (long long)v.step, i, (long long)(t->own_ready - t->asked),
                        (long long)(t->peers_ready - t->asked), (long long)(t->first_byte - t->asked),
                        (long long)(t->done - t->asked));
        }
        if (v.transfer_count < (size_t)r->layout->count) wrong++;
        timeline_view_free(&v);
    }
    return wrong;
}

// Seconds that the slow link was needed within the steps. The gathers of stages 1 and 2 after the last one are
// outside.
static inline double time_on_link(const struct time_rank *r) {
    double steps = r->c->stage == 1 || r->c->stage == 2 ? TIME_STEPS - 0.5 : TIME_STEPS;
    return TIME_LINK_S * steps;
}

// Each disturbance of the ring appears under its own name, and under no other. 0, or 1 after saying what is off.
static inline int time_judge(const struct time_rank *r, const struct time_split *s, double wall) {
    double late = TIME_DELAY_S * TIME_STEPS, link = time_on_link(r);
    bool good = time_split_parts(s) < (1 + TIME_TOLERANCE) * wall;
    if (r->c->slow_link)
        good = good && s->comm_exposed > TIME_LEAST * link && s->wait < s->comm_exposed;
    else if (r->t->rank == 1)
        good = good && s->forward > 0.99 * late && s->wait + s->comm_exposed < s->forward;
    else
        good = good && s->wait > TIME_LEAST * late && s->comm_exposed < s->wait;
    if (good) return 0;
    fprintf(
        stderr,
        "zero:%d rank %d, %s %.3f s: wait %.3f, exposed %.3f, forward %.3f, host %.3f, total %.3f, wall %.3f s\n",
        r->c->stage, r->t->rank, r->c->slow_link ? "link" : "late", r->c->slow_link ? link : late, s->wait,
        s->comm_exposed, s->forward, s->host, s->total, wall);
    return 1;
}

// Rank 0's clock is told from the others' by meetings, and how well.
static inline int time_check_clock(const struct time_rank *r) {
    int64_t error = timeline_clock(r->tl).error_ns, offset = timeline_clock(r->tl).offset_ns;
    if (!r->c->other_host) return error != 0 || offset != 0;
    bool good =
        error >= 0 && error < TIME_AHEAD_NS / 10 && llabs(offset) <= error && (r->t->rank == 0 || error > 0);
    if (!good)
        fprintf(stderr, "rank %d: offset %lld, error %lld ns\n", r->t->rank, (long long)offset,
                (long long)error);
    return !good;
}

static inline int time_train(struct time_rank *r) {
    const double loss = 1;
    struct time_split split;
    for (int u = 0; u < r->layout->count; u++) {
        float *values = calloc((size_t)r->layout->units[u].n_pad, sizeof *values);
        int rc = topology_load_unit(r->t, u, values);
        free(values);
        if (rc) return -1;
    }
    double nothing = 0;
    if (topology_sum(r->t, &nothing, 1)) return -1;
    double begin = now_seconds();
    for (int step = 0; step < TIME_STEPS; step++)
        if (time_step(r, step, &loss)) return -1;
    if (stream_sync(r->t->compute)) return -1;
    timeline_pause(r->tl);
    double wall = now_seconds() - begin;
    if (topology_finish(r->t)) return -1;
    timeline_end(r->tl);
    timeline_split(r->tl, &split);
    double off = time_judge(r, &split, wall) + time_check_transfers(r) + time_check_clock(r);
    return topology_sum(r->t, &off, 1) || off != 0 ? -1 : 0;
}

// 0, or -1: it failed, or some rank's times are off.
static inline int time_case_rank(const struct time_case *c, const struct collective_source *source,
                                 const struct layout *layout) {
    struct device *dev;
    struct time_link link = {.under = *source, .busy = PTHREAD_MUTEX_INITIALIZER};
    const struct collective_kind slow = {
        .name = "slow", .create = time_create, .staging_bytes = source->kind->staging_bytes};
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, &dev))
        return -1;
    struct stream *compute = stream_create(dev, "compute");
    const struct config config =
        zero_case_config(&(struct zero_case){.world = source->size, .stage = c->stage, .micro = 1});
    struct zero_options o = {
        .config = &config, .layout = layout, .dev = dev, .compute = compute, .source = source};
    struct zero_clock far = {.host = 1, .ahead_ns = TIME_AHEAD_NS};
    struct collective_source slowed = {&slow, &link, source->rank, source->size, false};
    struct time_rank r = {.c = c, .layout = layout};
    int rc = -1;
    if (c->slow_link) o.source = &slowed;
    if (c->other_host && source->rank == 1) o.clock = &far;
    if ((r.t = zero_create(&o))) {
        link.bytes_per_s = (double)r.t->wire_predicted.sent_per_step / TIME_LINK_S;
        r.t->timeline = r.tl =
            timeline_create(&(struct timeline_options){compute, layout, 1, 2, false, NULL});
        rc = r.tl ? time_train(&r) : -1;
        if (rc < 0) topology_abort(r.t, "a rank of the test failed");
        topology_destroy(&r.t);
    }
    timeline_destroy(&r.tl);
    stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

#endif
