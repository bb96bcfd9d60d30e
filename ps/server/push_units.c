// Pushes of workers that keep two units at a time (parameter_server.resident "units"). Each micro-batch pushes each
// key, and a worker uses its gradient's buffer for another unit as soon as the server has the push. The sums are those
// of a ring's stage 3 (ODC, arXiv 2601.19362, has servers beside workers; stage 3: Rajbhandari et al. 2020). For each
// micro-batch all workers' gradients are added in worker order and rounded once to the gradient type. The
// micro-batches' sums are added in fp32 and rounded once.
//
//     PUSH w (t, m) --> m is being summed, and it is w's turn? --no--> HELD: a copy, unless it arrived in a frame
//                            | yes, or once it is
//                            v
//          micro += gradient --> PUSH_ACK
//                            | after worker N-1
//                            v
//          sum += round(micro); m+1 --> .. the last one: round(sum), its squares, the update, as of any step (push_in_order.c)
//
// So no worker waits for another one before the end of a step: a faster worker leaves its gradients here, as far as its
// credits reach (HELD lends them, PUSH_ACK returns them). They are transport memory, reported as held. With one
// micro-batch per step the sums are those of push_in_order.c, bit for bit.
//
// Weights may be read again within a step: a key's update waits for the last micro-batch's push of every worker, and a
// worker sends that push after its last use of the key's weights.
#include <stdlib.h>
#include <string.h>

#include "ps/server/server_state.h"
#include "shared/core/error.h"

struct micro_key {
    int count, workers;  // M, micro-batches of a step; N
    int at;     // the micro-batch being summed; slot.next_worker is the worker whose gradient is next
    int *next;  // (N) the micro-batch that the worker pushes next
    // (M - 1, N) gradients that no sum contains yet; the slot holds those of the last micro-batch.
    struct gradient *early;
};

static int64_t units_bytes(const struct config *c) {
    return (int64_t)sizeof(struct micro_key) + c->workers * (int64_t)sizeof(int) +
           (c->accumulation - 1) * c->workers * (int64_t)sizeof(struct gradient);
}

static void units_open(struct server_core *c, struct server_key *k) {
    unsigned long workers = (unsigned long)c->rule.workers;
    struct micro_key *m = xcalloc(1, sizeof *m);
    m->count = (int)c->o.config->accumulation;
    m->workers = c->rule.workers;
    m->next = xcalloc(workers, sizeof *m->next);
    m->early = xcalloc((unsigned long)(m->count - 1) * workers, sizeof *m->early);
    k->own = m;
}

static void units_close(struct server_key *k) {
    struct micro_key *m = k->own;
    for (int i = 0; i < (m->count - 1) * m->workers; i++) ps_frame_release(m->early[i].frame);
    free(m->next);
    free(m->early);
    free(m);
}

// (N) Where gradients of the micro-batch are held.
static struct gradient *held_of(const struct server_core *c, const struct server_key *k, int micro) {
    const struct micro_key *m = k->own;
    return micro + 1 == m->count ? slot_of(c, k, k->step)->held : &m->early[micro * m->workers];
}

static const char *units_unfit(const struct server_core *c, const struct server_key *k,
                               const struct wire_header *h) {
    if (h->batch != ((const struct micro_key *)k->own)->next[h->rank])
        return "another micro-batch of the step is expected: give all roles the same gradient_accumulation_steps";
    return in_order_unfit(c, k, h);
}

// All gradients of the step are here: `sum` has those of the last micro-batch that are not added yet.
static int end_step(struct server_core *c, struct server_key *k, struct sum_args *sum) {
    struct micro_key *m = k->own;
    bool at_once;
    int count = sum->count;
    if (m->count > 1) {
        sum_finish(sum, 0, k->n, k->buf.part_acc);
        c->grads[0] = k->buf.part_acc;
        *sum =
            (struct sum_args){.acc = k->buf.acc, .grads = c->grads, .count = 1, .n = k->n, .dtype = c->dtype};
    }
    if (add_up(c, k, sum, &at_once) != 0) return -1;
    release_added(c, k, held_of(c, k, m->at), m->at, count);
    m->at = 0;
    return close_slot(c, k, at_once);
}

static int units_advance(struct server_core *c, struct server_key *k) {
    struct micro_key *m = k->own;
    struct slot *s = slot_of(c, k, k->step);
    while (!s->complete) {
        struct gradient *held = held_of(c, k, m->at);
        struct sum_args sum = next_gradients(c, k, held);
        if (m->count > 1) sum.acc = k->buf.part_acc;
        int count = sum.count;
        bool whole = s->next_worker + count == c->rule.workers;
        if (!count) return 0;
        if (whole && m->at + 1 == m->count) return end_step(c, k, &sum);
        work_on(c, SERVER_SUM, span_for(k->step, k->key, s->next_worker, count));
        if (!whole) {
            sum_add(&sum);
            release_added(c, k, held, m->at, count);
            return 0;
        }
        sum_finish(&sum, 0, k->n, k->buf.part_acc);
        c->grads[0] = k->buf.part_acc;
        sum_add(&(struct sum_args){.acc = k->buf.acc,
                                   .grads = c->grads,
                                   .count = 1,
                                   .n = k->n,
                                   .dtype = c->dtype,
                                   .first = m->at == 0});
        release_added(c, k, held, m->at, count);
        m->at++;
        s->next_worker = 0;
    }
    return commit_key(c, k);
}

static void copy_release(struct ps_frame *f) { free(f); }

static int units_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                       const struct gradient *g) {
    struct micro_key *m = k->own;
    int w = h->rank, micro = (int)h->batch;
    struct gradient *place = &held_of(c, k, micro)[w];
    if (micro + 1 == m->count) {
        if (slot_add_push(c, k, h, g) != 0) return -1;
    } else {
        slot_of(c, k, k->step)->ready_ns[w] = h->ready_ns;
        gradient_hold(c, place, g);
    }
    m->next[w] = (micro + 1) % m->count;
    if (units_advance(c, k) != 0) return -1;
    if (!place->data) return 0;
    if (!place->frame) {  // a copy: the worker uses its buffer in the segment for another unit next
        struct ps_frame *f = xrealloc(NULL, sizeof *f + place->bytes);
        memcpy(f + 1, place->data, place->bytes);
        *f = (struct ps_frame){f + 1, place->bytes, copy_release};
        *place = (struct gradient){f + 1, place->bytes, f};
        c->totals.held_bytes += place->bytes;
    }
    update_held_peak(c);
    acknowledge_micro(c, k, w, k->step, micro, true);
    return 0;
}

static void units_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out) {
    if (c->accumulation > 1) out->part_acc = arena_take(a, MEM_GRADIENT, (size_t)n * sizeof(float));
}

// Workers keep almost no weights and gradients, so the formula counts the servers'.
static size_t units_textbook(const struct config *c) {
    return (c->dtype == DT_F32 ? 0 : dtype_size(c->dtype)) + sizeof(float);
}

// With shared memory gradients wait as well: they are copied, since the worker reuses the unit's buffer.
static double units_waiting(const struct config *c, double gradients, double weights) {
    (void)weights;
    return c->workers * gradients;
}

const struct push_policy push_units = {.carve = units_carve,
                                       .textbook = units_textbook,
                                       .key_bytes = units_bytes,
                                       .waiting = units_waiting,
                                       .pulls_apart = true,
                                       .unfit = units_unfit,
                                       .admit = units_admit,
                                       .may_read = in_order_may_read,
                                       .advance = units_advance,
                                       .open = units_open,
                                       .close = units_close};
