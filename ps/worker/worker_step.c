// A worker's way from a unit's gradient to the end of the step.
#include "ps/worker/worker_state.h"
#include "shared/core/error.h"

#define NOTICED_NS 1000  // shorter waits are none: what was waited for was there

struct published worker_refresh(struct worker *w) {
    struct published p = comm_published(w->comm);
    const struct ps_clock *clock = &p.status.clock;
    int64_t error = ps_later(clock->worst_ns, ps_clock_error(clock, now_ns()));
    timeline_set_clock(w->t.timeline, (struct timeline_clock){clock->offset_ns, error});
    w->t.staleness = p.status.staleness;
    return p;
}

int worker_await(struct worker *w, enum comm_event event, int u, uint64_t id, const char *what) {
    int64_t begin = now_ns();
    int rc = comm_wait(w->comm, event, u, w->step, what);
    int64_t end = now_ns();
    if (end - begin > NOTICED_NS) timeline_blocked(w->t.timeline, id, begin, end);
    return rc;
}

// On the compute stream, or behind the copy from the device: the unit's gradient is complete.
static int hand_over(void *arg) {
    struct unit_task *task = arg;
    struct command c = {.kind = COMMAND_PUSH, .unit = task->unit, .push = task->push, .ids = task->ids};
    c.push.ready_ns = now_ns();
    timeline_own_ready(c.ids.in, c.ids.gradients, c.push.ready_ns);
    timeline_own_ready(c.ids.in, c.ids.weights, c.push.ready_ns);
    comm_command(task->worker->comm, &c);
    return 0;
}

// A compute stream that pushes by itself does not compute meanwhile.
static void enqueue_hand_over(struct worker *w, struct unit_task *task, enum phase phase) {
    struct stream *s = staging_push_stream(w->staging, w->t.compute);
    if (s == w->t.compute) stream_phase(s, PHASE_COMM);
    stream_host(s, "push", hand_over, task);
    if (s == w->t.compute) stream_phase(s, phase);
}

void worker_push_unit(struct worker *w, int u, enum phase phase) {
    struct transfer x = {.unit = u, .bytes = w->buffers.push_bytes[u], .kind = TRANSFER_GRADIENTS};
    struct transfer_ids *ids = &w->tasks[u].ids;
    ids->in = w->t.timeline;
    ids->gradients = timeline_ask(ids->in, &x);
    x.kind = TRANSFER_WEIGHTS;
    x.bytes = (uint64_t)w->t.layout->units[u].n_pad * dtype_size(w->t.dtype);
    ids->weights = timeline_ask(ids->in, &x);
    if (w->c->no_overlap)
        hand_over(&w->tasks[u]);  // by the host: compute has nothing to do any more
    else
        enqueue_hand_over(w, &w->tasks[u], phase);
}

float worker_lr(const struct worker *w) {
    return schedule_lr(&w->c->schedule, w->c->optimizer.lr,
                       schedule_steps(w->t.plan.samples, w->c->train_batch));
}

// Without overlap gradients leave when the backward pass has ended: first they all are where pushes read them.
static int fetch_all(struct worker *w, int64_t step) {
    for (int u = w->t.layout->count - 1; u >= 0; u--) staging_fetch_grad(w->staging, u, step);
    event_record(w->words_read, staging_push_stream(w->staging, w->t.compute));
    if (event_sync(w->words_read) == 0) return 0;
    return fail("step %lld: %s", (long long)step + 1, dev_error(w->t.dev));
}

// The last unit's first, as with overlap.
static void push_all(struct worker *w) {
    for (int u = w->t.layout->count - 1; u >= 0; u--) worker_push_unit(w, u, PHASE_OTHER);
}

// And nothing is computed before all weights are there. w->step is the next one.
static int await_all(struct worker *w) {
    for (int u = 0; u < w->t.layout->count; u++) {
        struct transfer_ids ids = w->tasks[u].ids;
        if (worker_await(w, COMM_LANDED, u, ids.weights, "new weights have not landed") != 0 ||
            worker_await(w, COMM_FREE, u, ids.gradients, "the last step's gradient has not been taken") != 0)
            return -1;
        staging_await_weights(w->staging, u, ids);
    }
    return 0;
}

// Copies the step's results to the host: one copy and the step's one wait for the device.
static int read_words(struct worker *w, const struct step_input *in, struct worker_words *out) {
    struct stream *compute = w->t.compute;
    struct worker_words *words = w->buffers.words, *seen = w->buffers.wire_words;
    if (words) dev_copy(compute, &words->loss_sum, in->loss_sum, sizeof(double));
    if (seen && words)
        dev_copy(compute, seen, words, sizeof *words);
    else if (seen)
        dev_copy(compute, &seen->loss_sum, in->loss_sum, sizeof(double));
    event_record(w->words_read, compute);
    if (event_sync(w->words_read) != 0)
        return fail("step %lld: %s", (long long)in->step + 1, dev_error(w->t.dev));
    *out = seen ? *seen : words ? *words : (struct worker_words){.loss_sum = *in->loss_sum};
    return 0;
}

static int step_together(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_words(w, in, &words) != 0) return -1;
    if (w->c->no_overlap) push_all(w);
    uint64_t id = timeline_ask(w->t.timeline, &(struct transfer){.kind = TRANSFER_CONTROL, .unit = -1});
    struct command c = {.kind = COMMAND_REPORT,
                        .report = {.in = *in,
                                   .loss = words.loss_sum / in->loss_tokens,
                                   .ready_ns = now_ns(),
                                   .deal = w->t.plan.in_part ? &w->deal : NULL}};
    const char *late = "the scheduler did not close the step";
    timeline_own_ready(w->t.timeline, id, c.report.ready_ns);
    comm_command(w->comm, &c);
    if (worker_await(w, COMM_STEP_DONE, -1, id, late) != 0) return -1;
    struct published p = comm_published(w->comm);
    timeline_peers_ready(w->t.timeline, id, p.status.done_peers_ns, ps_moment_rank(p.status.done_peers_ns));
    timeline_done(w->t.timeline, id, p.status.done_ns);
    *out = p.status.stats;
    if (!w->t.plan.in_part) return 0;
    w->deal = p.status.deal;
    w->t.plan.samples = w->deal.state.samples;
    w->t.plan.dealt = w->deal.state.dealt;
    w->t.plan.workers = w->deal.contributors;
    return 0;
}

// The whole gradient is this worker's own: norm, clip and skip are decided here. loss and norm in the
// stats are this worker's.
static int step_alone(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_words(w, in, &words) != 0) return -1;
    struct update_scalars s = update_decide(&words.sum, in->loss_scale, in->clip);
    *out = (struct step_stats){
        .loss = words.loss_sum / in->loss_tokens, .grad_norm = s.norm, .skipped = s.skip != 0};
    if (commit_round(w->c)) {
        struct push_info push = {.step = in->step,
                                 .lr = in->lr,
                                 .grad_scale = s.grad_scale,
                                 .skip = s.skip != 0,
                                 .keep = w->t.plan.keep,
                                 .batch = w->take.batch};
        for (int u = 0; u < w->t.layout->count; u++) {
            w->tasks[u].push = push;
            worker_push_unit(w, u, PHASE_OTHER);
        }
        return 0;
    }
    if (w->c->no_overlap) push_all(w);
    if (s.skip)
        return fail(
            "step %lld: %lld gradient elements are not finite and were pushed as "
            "they came; lower the learning rate or set gradient_clipping",
            (long long)in->step, (long long)words.sum.nonfinite);
    return 0;
}

void worker_ask_batch(struct worker *w, int64_t step) {
    bool first = w->take.asked < 0;
    if (w->take.asked >= step) return;
    w->take.asked = step;
    w->take.id = timeline_ask(w->t.timeline, &(struct transfer){.kind = TRANSFER_CONTROL, .unit = -1});
    w->take.asked_ns = now_ns();
    timeline_own_ready(w->t.timeline, w->take.id, w->take.asked_ns);
    comm_command(w->comm,
                 &(struct command){.kind = COMMAND_TAKE, .step = step, .done = first ? &w->take.done : NULL});
}

// A worker that decides alone exchanges nothing with the scheduler at the end of a step: heartbeats carry the
// request to stop.
static bool stop_alone(struct worker *w, bool own) {
    if (own) comm_command(w->comm, &(struct command){.kind = COMMAND_STOP});
    return own || comm_published(w->comm).status.stopped;
}

int worker_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct worker *w = (struct worker *)t;
    if (in->step != w->step)
        return fail("step %lld: the topology is at step %lld", (long long)in->step, (long long)w->step);
    if (f32_to_bits(in->lr) != f32_to_bits(worker_lr(w)))
        return fail("step %lld: gradients went out with the schedule's learning rate %.9g, the loop has %.9g",
                    (long long)in->step, (double)worker_lr(w), (double)in->lr);
    if (w->c->no_overlap && fetch_all(w, in->step) != 0) return -1;
    int rc = is_alone(w) ? step_alone(w, in, out) : step_together(w, in, out);
    worker_refresh(w);
    if (rc != 0) return -1;
    if (is_alone(w)) out->stop = stop_alone(w, in->stop);
    // The answer is on its way while the weights are.
    if (is_alone(w) && !out->stop) worker_ask_batch(w, in->step + 1);
    if (!out->skipped) push_errors_keep(&w->errors, w->t.compute, in->step, in->loss_scale);
    w->t.own_number.value = f32_to_bits(w->errors.scale);
    out->snapshot = in->snapshot;  // worker 0 has it collected by itself
    step_plan_over(t, out->skipped);
    w->step++;
    if (!out->skipped) w->updates++;
    return w->c->no_overlap ? await_all(w) : 0;
}
