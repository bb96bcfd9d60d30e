#include "shared/model/step_tasks.h"

#include <inttypes.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/model/grad_buffers.h"

// ---------------------------------------------------------------- tasks
struct step_task *step_tasks_add(struct step_tasks *t, enum task_kind kind, enum task_stream stream) {
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 256;
        t->list = xrealloc(t->list, (size_t)t->room * sizeof *t->list);
    }
    struct step_task *s = &t->list[t->count];
    *s = (struct step_task){
        .kind = kind, .stream = stream, .micro = t->micro, .times = t->times, .round = t->round};
    for (int i = 0; i < t->wait_count && stream == ON_COMPUTE; i++) step_tasks_need(t, s, t->waits[i]);
    if (stream == ON_COMPUTE) {
        s->previous = t->wait_previous;
        t->wait_previous.any = false;
        t->wait_count = 0;
    }
    t->last[stream] = t->count++;
    return s;
}

// Adds `task` to a list of needed tasks. The list has one task per stream, the last one: a stream runs in order.
static void list_need(const struct step_tasks *t, int *list, uint8_t *count, int task) {
    int i = 0;
    while (i < *count && t->list[list[i]].stream != t->list[task].stream) i++;
    assert(i < TASK_NEEDS && "a task needs few streams");
    if (i == *count) list[(*count)++] = task;
    if (task > list[i]) list[i] = task;
}

// A task on the same stream runs earlier anyway, so it is not listed.
void step_tasks_need(const struct step_tasks *t, struct step_task *of, int task) {
    if (task >= 0 && t->list[task].stream != of->stream) list_need(t, of->needs, &of->need_count, task);
}

void step_tasks_wait(struct step_tasks *t, int task) {
    if (task >= 0) list_need(t, t->waits, &t->wait_count, task);
}

void step_tasks_free(struct step_tasks *t) {
    free(t->list);
    t->list = NULL;
    t->count = t->room = 0;
}

// ---------------------------------------------------------------- the walk
// The slots of the trained weights, or those of the frozen ones. Tasks are indices in the list; -1: none.
struct walk_slots {
    struct unit_schedule schedule;
    int *idle;   // (slots) the last task that used the slot
    int *ready;  // (units) the last task that fetched the unit
    void (*fetch)(void *ctx, struct step_tasks *t, int u, int idle, bool again);  // NULL: there are no slots
};

struct walk {
    struct step_tasks *t;
    const struct layout *l;
    const struct step_hooks *h;
    void *ctx;
    struct walk_slots trained, frozen;
    int freed[GRAD_SLOTS];  // the task after which the slot of gradients is free; -1: it is free
};

static void open_slots(struct walk_slots *s, const struct layout *l, const struct step_hooks *h,
                       bool frozen) {
    s->fetch = frozen ? h->fetch_frozen : h->slots ? h->fetch : NULL;
    if (!s->fetch) return;
    unit_schedule_open(&s->schedule, l, h->slots);
    int slots = unit_schedule_count(&s->schedule);
    s->idle = xcalloc((size_t)slots + 1, sizeof *s->idle);
    s->ready = xcalloc((size_t)l->count, sizeof *s->ready);
    for (int i = 0; i < slots; i++) s->idle[i] = -1;
    for (int u = 0; u < l->count; u++) s->ready[u] = -1;
}

static void close_slots(struct walk_slots *s) {
    if (s->fetch) unit_schedule_close(&s->schedule);
    free(s->idle);
    free(s->ready);
}

static void fetch(struct walk *w, struct walk_slots *s, int u, enum pass pass) {
    s->fetch(w->ctx, w->t, u, s->idle[unit_schedule_slot(&s->schedule, u)],
             unit_schedule_is_repeat(&s->schedule, u, pass));
    s->ready[u] = w->t->count - 1;
    unit_schedule_gathered(&s->schedule, u, pass);
}

static void acquire_slot(struct walk *w, struct walk_slots *s, int u, enum pass pass) {
    if (!unit_schedule_holds(&s->schedule, u, pass)) fetch(w, s, u, pass);
    step_tasks_wait(w->t, s->ready[u]);
}

static void fetch_ahead(struct walk *w, struct walk_slots *s, int u, enum pass pass) {
    if (!s->fetch || !w->h->ahead || u < 0 || u >= s->schedule.layout->count) return;
    for (int k = 0, v; (v = unit_schedule_ahead(&s->schedule, u, pass, k)) >= 0; k++)
        if (!unit_schedule_holds(&s->schedule, v, pass)) fetch(w, s, v, pass);
}

static void acquire(struct walk *w, int u, enum pass pass) {
    if (w->trained.fetch)
        acquire_slot(w, &w->trained, u, pass);
    else if (w->h->acquire)
        w->h->acquire(w->ctx, w->t, u, pass);
}

// u: number of the model's unit, whose trained and frozen tensors may be two units of the layout.
static void acquire_unit(struct walk *w, int u, enum pass pass) {
    int trained = layout_trained(w->l, u);
    if (w->frozen.fetch) acquire_slot(w, &w->frozen, u, pass);
    if (trained >= 0) acquire(w, trained, pass);
}

static void prefetch(struct walk *w, int u, enum pass pass) {
    int trained = layout_trained(w->l, u);
    fetch_ahead(w, &w->frozen, u, pass);
    if (trained >= 0) fetch_ahead(w, &w->trained, trained, pass);
}

static void compute(struct walk *w, enum task_kind kind, int u) {
    int trained = layout_trained(w->l, u);
    step_task_unit(step_tasks_add(w->t, kind, ON_COMPUTE),
                   trained < 0 ? step_tasks_frozen(w->l, u) : trained);
    int at = w->t->count - 1;
    if (w->trained.fetch && trained >= 0)
        w->trained.idle[unit_schedule_slot(&w->trained.schedule, trained)] = at;
    if (w->frozen.fetch) w->frozen.idle[unit_schedule_slot(&w->frozen.schedule, u)] = at;
}

static void grad_ready(struct walk *w, int u, bool last) {
    w->freed[grad_slot(w->l, u)] = w->h->grad_ready ? w->h->grad_ready(w->ctx, w->t, u, last) : -1;
}

static void wait_for_grad(struct walk *w, int u) {
    int trained = layout_trained(w->l, u);
    if (trained >= 0 && w->h->shared_grads) step_tasks_wait(w->t, w->freed[grad_slot(w->l, trained)]);
}

static void micro_batch(struct walk *w, bool first, bool last) {
    const struct layout *model = layout_of_model(w->l);
    bool local = w->t->every > 0;  // the topology takes part only in rounds
    int lowest = w->l->model ? 1 : 0;
    for (int u = 0; u < model->count; u++) {
        if (!local || first) acquire_unit(w, u, PASS_FORWARD);
        if (!local && u < model->count - 1) prefetch(w, u + 1, PASS_FORWARD);
        compute(w, TASK_FORWARD, u);
    }
    for (int u = model->count - 1; u >= lowest; u--) {
        bool tied = model->tied && u == model->count - 1;
        int trained = layout_trained(w->l, u);
        if (!local) acquire_unit(w, u, PASS_BACKWARD);
        if (!local) wait_for_grad(w, u);
        if (!local && tied) acquire_unit(w, 0, PASS_BACKWARD);
        if (!local && tied) wait_for_grad(w, 0);
        if (!local && u > lowest) prefetch(w, u - 1, PASS_BACKWARD);
        compute(w, TASK_BACKWARD, u);
        if (!local && trained >= 0) grad_ready(w, trained, last);
    }
}

// The end of a round of local steps: the topology's step.
static void end_round(struct walk *w) {
    step_tasks_update_whole(w->t, w->l);
    w->t->round = true;
    for (int u = w->l->count - 1; u >= 0; u--) {
        acquire(w, u, PASS_BACKWARD);
        step_task_unit(step_tasks_add(w->t, TASK_DELTA, ON_COMPUTE), u);
        w->t->list[w->t->count - 1].elements = w->l->units[u].n_pad;
        grad_ready(w, u, true);
    }
}

void step_tasks_walk(struct step_tasks *t, const struct layout *l, const struct step_hooks *h, void *ctx) {
    struct walk w = {.t = t, .l = l, .h = h, .ctx = ctx};
    int64_t all = t->micro_batches > 0 ? t->micro_batches : 1, listed = t->expanded || all < 3 ? all : 3;
    open_slots(&w.trained, l, h, false);
    open_slots(&w.frozen, l->rest, h, true);
    for (int i = 0; i < GRAD_SLOTS; i++) w.freed[i] = -1;
    for (int i = 0; i < TASK_STREAMS; i++) t->last[i] = -1;
    for (t->micro = 0; t->micro < listed; t->micro++) {
        t->times = t->micro == 1 && listed < all ? all - 2 : 1;
        micro_batch(&w, t->micro == 0, t->micro == listed - 1);
    }
    t->micro = -1;
    t->times = 1;
    if (t->every > 0) end_round(&w);
    if (h->end) h->end(ctx, t);
    close_slots(&w.trained);
    close_slots(&w.frozen);
}

void step_tasks_update_whole(struct step_tasks *t, const struct layout *l) {
    step_tasks_add(t, TASK_NORM, ON_COMPUTE)->elements = l->padded;
    step_tasks_add(t, TASK_DECIDE, ON_COMPUTE);
    for (int u = 0; u < l->count; u++) {
        struct step_task *s = step_tasks_add(t, TASK_UPDATE, ON_COMPUTE);
        step_task_unit(s, u);
        s->elements = l->units[u].n_pad;
    }
}

// ---------------------------------------------------------------- sums
static void add(uint64_t *total, int64_t times, uint64_t of_one) {
    *total = (uint64_t)size_plus((int64_t)*total, size_times(times, (int64_t)of_one));
}

struct wire_prediction step_tasks_wire(const struct step_tasks *t) {
    struct wire_prediction w = {0};
    for (const struct step_task *s = t->list; s < t->list + t->count; s++) {
        add(&w.sent_per_step, s->times, s->moves.sent);
        add(&w.received_per_step, s->times, s->moves.received);
        add(&w.across_sent_per_step, s->times, s->moves.across_sent);
        add(&w.across_received_per_step, s->times, s->moves.across_received);
        add(&w.messages_per_step, s->times, s->moves.messages);
        add(&w.messages_across_per_step, s->times, s->moves.messages_across);
        if (s->kind == TASK_DOWN) add(&w.offload.down, s->times, s->bytes);
        if (s->kind == TASK_UP) add(&w.offload.up, s->times, s->bytes);
        if (s->kind == TASK_READ) add(&w.offload.read, s->times, s->bytes);
        if (s->kind == TASK_WRITE) add(&w.offload.written, s->times, s->bytes);
    }
    return w;
}

void step_tasks_count(const struct step_tasks *t, enum task_kind kind, int64_t *out) {
    for (const struct step_task *s = t->list; s < t->list + t->count; s++)
        for (int u = s->unit; s->kind == kind && u < s->unit + s->units; u++) out[u] += s->times;
}

// ---------------------------------------------------------------- as JSON
static const char *const kinds[TASK_KINDS] = {
    "forward",    "backward", "delta", "norm",     "decide", "update", "mix",  "all_gather", "reduce_scatter",
    "all_reduce", "push",     "pull",  "exchange", "down",   "up",     "read", "write"};
static const char *const streams[TASK_STREAMS] = {"compute", "gather", "reduce", "push", "pull", "decide",
                                                  "down",    "host",   "up",     "read", "write"};
static const char *const teams[] = {NULL, "all", "within", "across"};
static const char *const patterns[] = {NULL,      "all_to_all", "ring", "neighbours",
                                       "servers", "scheduler",  "host"};

// The index of the last task of each kind and unit, (kinds, units), and of each kind. -1: none.
struct last_tasks {
    int units, *of_unit, of_kind[TASK_KINDS];
};

static struct last_tasks last_tasks_of(const struct step_tasks *t) {
    struct last_tasks l = {0};
    for (const struct step_task *s = t->list; s < t->list + t->count; s++)
        if (s->unit + s->units > l.units) l.units = s->unit + s->units;
    l.of_unit = xcalloc((size_t)TASK_KINDS * (size_t)l.units + 1, sizeof *l.of_unit);
    for (int i = 0; i < TASK_KINDS; i++) l.of_kind[i] = -1;
    for (int i = 0; i < TASK_KINDS * l.units; i++) l.of_unit[i] = -1;
    for (int i = 0; i < t->count; i++) {
        const struct step_task *s = &t->list[i];
        l.of_kind[s->kind] = i;
        for (int u = s->unit; u < s->unit + s->units; u++) l.of_unit[(int)s->kind * l.units + u] = i;
    }
    return l;
}

static int previous_of(const struct last_tasks *l, struct task_previous p) {
    if (!p.any) return -1;
    return p.unit < 0 ? l->of_kind[p.kind] : l->of_unit[(int)p.kind * l->units + p.unit];
}

static void print_moves(const struct step_task *s, FILE *f) {
    const struct task_moves *m = &s->moves;
    if (s->pattern == PATTERN_NONE) return;
    fprintf(f,
            ", \"bytes\": %" PRIu64 ", \"sent\": %" PRIu64 ", \"received\": %" PRIu64 ", \"pattern\": \"%s\"",
            s->bytes, m->sent, m->received, patterns[s->pattern]);
    if (s->control) fputs(", \"control\": true", f);
    if (s->team) fprintf(f, ", \"team\": \"%s\", \"team_size\": %d", teams[s->team], s->team_size);
    if (s->pattern == PATTERN_NEIGHBOURS) fprintf(f, ", \"neighbour\": %d", s->neighbour);
    if (m->messages) fprintf(f, ", \"messages\": %" PRIu64, m->messages);
    if (m->across_sent) fprintf(f, ", \"across_sent\": %" PRIu64, m->across_sent);
}

void step_tasks_print(const struct step_tasks *t, FILE *f) {
    struct last_tasks last = last_tasks_of(t);
    fputs("[", f);
    for (const struct step_task *s = t->list; s < t->list + t->count; s++) {
        fprintf(f, "%s\n\t\t\t{\"task\": \"%s\", \"stream\": \"%s\"", s == t->list ? "" : ",", kinds[s->kind],
                streams[s->stream]);
        if (s->units == 1) fprintf(f, ", \"unit\": %d", s->unit);
        for (int i = 0; s->units > 1 && i < s->units; i++)
            fprintf(f, "%s%d", i ? ", " : ", \"units\": [", s->unit + i);
        if (s->units > 1) fputs("]", f);
        if (s->micro >= 0) fprintf(f, ", \"micro\": %d", s->micro);
        if (s->round) fputs(", \"round\": true", f);
        if (s->elements) fprintf(f, ", \"elements\": %" PRId64, s->elements);
        print_moves(s, f);
        fputs(", \"needs\": [", f);
        for (int i = 0; i < s->need_count; i++) fprintf(f, "%s%d", i ? ", " : "", s->needs[i]);
        int previous = previous_of(&last, s->previous);
        fprintf(f, "], \"needs_previous\": [");
        if (previous >= 0) fprintf(f, "%d", previous);
        fputs("]}", f);
    }
    fputs("]", f);
    free(last.of_unit);
}
