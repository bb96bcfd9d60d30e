#include "ps/scheduler/scheduler_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/scheduler/scheduler_state.h"
#include "ps/timing.h"
#include "shared/core/error.h"

static const char *member_name(const struct scheduler_core *c, int i, char out[48]) {
    if (i < c->workers)
        snprintf(out, 48, "worker %d", i);
    else if (i < c->workers + c->servers)
        snprintf(out, 48, "server %d", i - c->workers);
    else
        snprintf(out, 48, "server %d shard %d", (i - c->workers - c->servers) / c->o.map->threads,
                 (i - c->workers - c->servers) % c->o.map->threads);
    return out;
}

static void tell(struct scheduler_core *c, int peer, const struct wire_header *h) {
    struct ps_message m = {.header = *h};
    c->o.port.send(c->o.port.ctx, peer, &m);
}

int scheduler_core_abort(struct scheduler_core *c, const char *why) {
    struct wire_header h = {.kind = WIRE_ABORT};
    if (c->error[0]) return -1;
    snprintf(c->error, sizeof c->error, "%s", why[0] ? why : "aborted without a reason");
    snprintf(h.text, sizeof h.text, "%s", c->error);
    for (int i = 0; i < c->members; i++)
        if (c->m[i].present && !c->m[i].gone) tell(c, i, &h);
    return -1;
}

static int fatal(struct scheduler_core *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fatal(struct scheduler_core *c, const char *fmt, ...) {
    char text[WIRE_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return scheduler_core_abort(c, text);
}

// ---------------------------------------------------------------- login
static int member_of(const struct scheduler_core *c, const struct wire_header *h) {
    int base, count = 0, i = h->rank;
    switch (h->role) {
        case PS_WORKER:
            base = 0;
            count = c->workers;
            break;
        case PS_SERVER:
            base = c->workers;
            count = c->servers;
            break;
        case PS_SHARD:
            base = c->workers + c->servers;
            count = c->shards;
            if (h->rank < 0 || h->thread >= c->o.map->threads) return -1;
            i = h->rank * c->o.map->threads + h->thread;
            break;
        default:
            return -1;
    }
    return i >= 0 && i < count ? base + i : -1;
}

static void refuse(struct scheduler_core *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void refuse(struct scheduler_core *c, const char *fmt, ...) {
    struct wire_header h = {.kind = WIRE_REFUSED};
    va_list args;
    va_start(args, fmt);
    vsnprintf(h.text, sizeof h.text, fmt, args);
    va_end(args);
    tell(c, PEER_SENDER, &h);
}

// The member a HELLO becomes: itself again when it repeats, the rank it asks for, or any free one.
static int seat(const struct scheduler_core *c, const struct wire_header *h) {
    int base = h->role == PS_WORKER ? 0 : c->workers, count = h->role == PS_WORKER ? c->workers : c->servers;
    if (h->rank >= 0 || h->role == PS_SHARD) return member_of(c, h);
    for (int i = base; i < base + count; i++)
        if (c->m[i].present && c->m[i].incarnation == h->incarnation) return i;
    for (int i = base; i < base + count; i++)
        if (!c->m[i].present) return i;
    return -1;
}

static int on_hello(struct scheduler_core *c, const struct wire_header *h, const struct ps_frame *frame,
                    double now) {
    int i = h->role == PS_SCHEDULER ? -1 : seat(c, h);
    if (h->manifest != c->o.manifest.hash) {
        refuse(c, "manifests differ: %s has (%.220s), scheduler has (%.220s); use one configuration",
               ps_role_name(h->role), h->text, c->o.manifest.text);
        return -1;
    }
    if (i < 0 && h->rank < 0) {
        refuse(c, "there is no place for another %s: the job has %d, and all are here", ps_role_name(h->role),
               h->role == PS_WORKER ? c->workers : c->servers);
        return -1;
    }
    if (i < 0) {
        refuse(c, "there is no place for %s %d: the job has %d workers and %d servers of %d threads",
               ps_role_name(h->role), h->rank, c->workers, c->servers, c->o.map->threads);
        return -1;
    }
    struct member *m = &c->m[i];
    if (m->present && m->incarnation != h->incarnation) {
        refuse(c, "%s %d is already here; every rank joins once", ps_role_name(h->role), h->rank);
        return -1;
    }
    if (h->role == PS_SERVER && (!frame || frame->bytes > 1 << 20)) {
        refuse(c, "server %d came without the addresses it listens on", h->rank);
        return -1;
    }
    if (h->role == PS_SERVER && !m->endpoints) {
        m->endpoints = xcalloc(frame->bytes + 1, 1);
        memcpy(m->endpoints, frame->data, frame->bytes);
    }
    m->present = true;
    m->incarnation = h->incarnation;
    m->seen_s = now;
    int rank = h->role == PS_WORKER ? i : h->role == PS_SERVER ? i - c->workers : h->rank;
    struct wire_header w = {.kind = WIRE_WELCOME, .step = rank};
    tell(c, PEER_SENDER, &w);
    return i;
}

static void send_start(struct scheduler_core *c, int member) {
    struct ps_message m = {.header = {.kind = WIRE_START}};
    char *text = NULL;
    size_t bytes = 0;
    for (int s = 0; s < c->servers; s++) {
        const char *e = c->m[c->workers + s].endpoints;
        text = xrealloc(text, bytes + strlen(e) + 1);
        memcpy(text + bytes, e, strlen(e) + 1);
        bytes += strlen(e);
    }
    m.payload = text;
    m.bytes = bytes;
    c->o.port.send(c->o.port.ctx, member, &m);
    free(text);
}

// ---------------------------------------------------------------- one step
static void round_clear(struct scheduler_core *c, int64_t step) {
    struct round *r = &c->round;
    memset(r->reported, 0, (size_t)c->workers * sizeof *r->reported);
    memset(r->summed, 0, (size_t)c->shards * sizeof *r->summed);
    memset(&r->sum, 0, sizeof r->sum);
    r->step = step;
    r->reports = r->sums = 0;
}

static uint32_t stop_flag(const struct scheduler_core *c) { return c->stop ? WIRE_STOP : 0; }

static int decide(struct scheduler_core *c) {
    struct round *r = &c->round;
    struct update_scalars s = update_decide(&r->sum, r->loss_scale, r->clip);
    double loss = r->loss[0];
    for (int w = 1; w < c->workers; w++) loss += r->loss[w];
    if (s.skip && !commit_round(c->o.config))
        return fatal(c,
                     "step %lld: %lld gradient elements are not finite, and without gradient_clipping the "
                     "servers had nothing to wait for; lower the learning rate or set gradient_clipping",
                     (long long)r->step, (long long)r->sum.nonfinite);
    uint32_t flags = s.skip ? WIRE_SKIP : 0;
    c->decision = (struct wire_header){
        .kind = WIRE_DECISION, .step = r->step, .grad_scale = s.grad_scale, .norm = s.norm, .flags = flags};
    c->step_done = (struct wire_header){
        .kind = WIRE_STEP_DONE, .step = r->step, .loss = loss, .norm = s.norm, .flags = flags | stop_flag(c)};
    for (int i = 0; i < c->shards; i++)
        if (c->o.map->shard_keys[i]) tell(c, c->workers + c->servers + i, &c->decision);
    for (int w = 0; w < c->workers; w++) tell(c, w, &c->step_done);
    round_clear(c, r->step + 1);
    return 0;
}

static int close_round(struct scheduler_core *c) {
    return consistency_completes(&c->rule, c->round.reports) && c->round.sums == c->full_shards ? decide(c)
                                                                                                : 0;
}

static int on_report(struct scheduler_core *c, int w, const struct wire_header *h, double now) {
    struct round *r = &c->round;
    if (h->step < r->step) {  // a repetition: its answer was lost
        if (h->step == c->step_done.step && c->step_done.kind) tell(c, w, &c->step_done);
        return 0;
    }
    if (h->step > r->step)
        return fatal(c, "worker %d reported step %lld while the job is at step %lld", w, (long long)h->step,
                     (long long)r->step);
    if (r->reported[w]) return 0;
    if (!r->reports) {
        r->first_worker = w;
        r->lr = h->lr;
        r->loss_scale = h->loss_scale;
        r->clip = h->clip;
    } else if (f32_to_bits(r->lr) != f32_to_bits(h->lr) ||
               f32_to_bits(r->loss_scale) != f32_to_bits(h->loss_scale) ||
               f32_to_bits(r->clip) != f32_to_bits(h->clip)) {
        return fatal(
            c, "step %lld: worker %d has lr %.9g, loss scale %.9g, clip %.9g, worker %d has %.9g, %.9g, %.9g",
            (long long)r->step, w, (double)h->lr, (double)h->loss_scale, (double)h->clip, r->first_worker,
            (double)r->lr, (double)r->loss_scale, (double)r->clip);
    }
    if (!r->reports && !r->sums) r->first_s = now;
    r->last_s = now;
    r->reported[w] = true;
    r->loss[w] = h->loss;
    if (h->flags & WIRE_STOP) c->stop = true;
    r->reports++;
    c->m[w].step = h->step;
    return close_round(c);
}

static int on_sum(struct scheduler_core *c, int shard, const struct wire_header *h, double now) {
    struct round *r = &c->round;
    if (h->step < r->step) {
        if (h->step == c->decision.step && c->decision.kind)
            tell(c, c->workers + c->servers + shard, &c->decision);
        return 0;
    }
    if (h->step > r->step || r->summed[shard] || !c->o.map->shard_keys[shard]) return 0;
    if (!r->reports && !r->sums) r->first_s = now;
    r->last_s = now;
    r->summed[shard] = true;
    exact_sum_merge(&r->sum, &h->sum);
    r->sums++;
    return close_round(c);
}

// ---------------------------------------------------------------- gathers
static int on_gather(struct scheduler_core *c, int w, const struct wire_header *h, double now) {
    struct gather *g = &c->gather;
    if (h->seq < g->seq) {
        if (c->gathered.kind && h->seq == c->gathered.seq) tell(c, w, &c->gathered);
        return 0;
    }
    if (h->seq > g->seq)
        return fatal(c, "worker %d is %llu gathers ahead of the job", w,
                     (unsigned long long)(h->seq - g->seq));
    if (g->have[w]) return 0;
    if (g->count && g->words != h->count)
        return fatal(c, "gather %llu: worker %d sent %d values, another worker %d",
                     (unsigned long long)h->seq, w, h->count, g->words);
    if (!g->count) g->first_s = now;
    g->have[w] = true;
    g->words = h->count;
    memcpy(g->values + (size_t)w * WIRE_VALUES_MAX, h->values, sizeof h->values);
    if (++g->count < c->workers) return 0;
    c->gathered = (struct wire_header){.kind = WIRE_GATHER_DONE, .seq = g->seq, .count = g->words};
    for (int i = 0; i < g->words; i++) {
        double total = g->values[i];
        for (int r = 1; r < c->workers; r++) total += g->values[(size_t)r * WIRE_VALUES_MAX + i];
        c->gathered.values[i] = total;
    }
    for (int i = 0; i < c->workers; i++) tell(c, i, &c->gathered);
    memset(g->have, 0, (size_t)c->workers * sizeof *g->have);
    g->count = 0;
    g->seq++;
    return 0;
}

// ---------------------------------------------------------------- messages
static int on_goodbye(struct scheduler_core *c, int i) {
    struct wire_header h = {.kind = WIRE_GOODBYE_ACK};
    c->m[i].gone = true;
    tell(c, i, &h);
    return 0;
}

static void on_heartbeat(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    if (h->flags & WIRE_STOP) c->stop = true;
    struct wire_header answer = {.kind = WIRE_HEARTBEAT_ACK, .flags = stop_flag(c)};
    struct member *m = &c->m[i];
    if (h->step > m->step) m->step = h->step;
    if (h->seq > m->progress) {
        m->progress = h->seq;
        m->progress_s = now;
    }
    tell(c, i, &answer);
}

static int dispatch(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    bool worker = i < c->workers, shard = i >= c->workers + c->servers;
    char name[48];
    switch (h->kind) {
        case WIRE_HEARTBEAT:
            on_heartbeat(c, i, h, now);
            return 0;
        case WIRE_REPORT:
            return worker ? on_report(c, i, h, now) : 0;
        case WIRE_GATHER:
            return worker ? on_gather(c, i, h, now) : 0;
        case WIRE_SHARD_SUM:
            return shard ? on_sum(c, i - c->workers - c->servers, h, now) : 0;
        case WIRE_GOODBYE:
            return on_goodbye(c, i);
        case WIRE_ABORT:
            return fatal(c, "%s: %.400s", member_name(c, i, name), h->text);
        default:
            return 0;
    }
}

int scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, struct ps_frame *frame,
                           double now) {
    int i = -1;
    if (h->kind == WIRE_HELLO) {
        bool again = c->started;
        i = on_hello(c, h, frame, now);
        if (i >= 0 && again) send_start(c, PEER_SENDER);
    } else {
        i = member_of(c, h);
        if (i >= 0 && (!c->m[i].present || h->job != c->o.job || h->incarnation != c->m[i].incarnation))
            i = -1;
        if (i >= 0) c->m[i].seen_s = now;
        if (i >= 0 && !c->error[0]) dispatch(c, i, h, now);
    }
    ps_frame_release(frame);
    return i;
}

// ---------------------------------------------------------------- deadlines
// Lists members in [from, to) for which missing(...) holds: "worker 1, server 0".
struct missing {
    char text[256];
    size_t at;
    int count;
};

static void missing_add(const struct scheduler_core *c, struct missing *x, int i) {
    char name[48];
    x->count++;
    if (x->at + 52 < sizeof x->text)
        x->at += (size_t)snprintf(x->text + x->at, sizeof x->text - x->at, "%s%s", x->at ? ", " : "",
                                  member_name(c, i, name));
}

static int login_tick(struct scheduler_core *c, double now) {
    struct missing x = {.count = 0};
    for (int i = 0; i < c->members; i++)
        if (!c->m[i].present) missing_add(c, &x, i);
    if (!x.count) {
        c->started = true;
        for (int i = 0; i < c->members; i++) {
            c->m[i].seen_s = now;
            send_start(c, i);
        }
        return 0;
    }
    if (now - c->o.start_s > ps_deadline_s(c->o.config))
        return fatal(c, "login: %s did not come within %lld ms", x.text,
                     (long long)c->o.config->ps.deadline_ms);
    return 0;
}

// How far member i is known to be. Asynchronous jobs have no rounds, and servers no steps of their own: a
// server is as far as the foremost worker.
static int64_t step_of(const struct scheduler_core *c, int i) {
    int64_t step = c->m[i].step > c->round.step ? c->m[i].step : c->round.step;
    for (int w = 0; w < c->workers && i >= c->workers; w++)
        if (c->m[w].step > step) step = c->m[w].step;
    return step;
}

static int lost_tick(struct scheduler_core *c, double now) {
    for (int i = 0; i < c->workers + c->servers; i++) {
        const struct member *m = &c->m[i];
        if (!m->present || m->gone || now - m->seen_s <= ps_lost_s(c->o.config)) continue;
        char name[48];
        member_name(c, i, name);
        c->m[i].gone = true;  // nobody is there to be told
        if (!c->started)
            return fatal(c, "%s was lost during login: silent for %.1f s", name, now - m->seen_s);
        return fatal(c, "%s was lost at step %lld: silent for %.1f s", name, (long long)step_of(c, i),
                     now - m->seen_s);
    }
    return 0;
}

// Missing workers that got nothing done for too long. One that still pushes is slow, not missing:
// asynchronous workers may be far apart when they come to a barrier.
static void missing_workers(const struct scheduler_core *c, struct missing *x, const bool *have,
                            double since_s, double now) {
    for (int w = 0; w < c->workers; w++) {
        double since = c->m[w].progress_s > since_s ? c->m[w].progress_s : since_s;
        if (!have[w] && now - since > ps_overdue_s(c->o.config)) missing_add(c, x, w);
    }
}

static int overdue_tick(struct scheduler_core *c, double now) {
    const struct round *r = &c->round;
    const struct gather *g = &c->gather;
    double limit = ps_overdue_s(c->o.config);
    struct missing x = {.count = 0};
    if (r->reports || r->sums) missing_workers(c, &x, r->reported, r->first_s, now);
    if (consistency_completes(&c->rule, r->reports) && now - r->last_s > limit)
        for (int i = 0; i < c->shards; i++)
            if (c->o.map->shard_keys[i] && !r->summed[i]) missing_add(c, &x, c->workers + c->servers + i);
    if (x.count)
        return fatal(c, "step %lld: nothing from %s for %.1f s", (long long)r->step, x.text,
                     now - r->first_s);
    if (g->count) missing_workers(c, &x, g->have, g->first_s, now);
    if (x.count)
        return fatal(c, "barrier %llu after step %lld: %s did not come for %.1f s",
                     (unsigned long long)g->seq, (long long)r->step, x.text, now - g->first_s);
    return 0;
}

// All workers are gone: servers are told until they say goodbye too.
static void closing_tick(struct scheduler_core *c, double now) {
    struct wire_header h = {.kind = WIRE_SHUTDOWN};
    bool all = true;
    for (int w = 0; w < c->workers; w++)
        if (!c->m[w].gone) return;
    if (!c->closing) c->closing_s = now;
    bool again = !c->closing || now - c->shutdown_s > 0.2;
    c->closing = true;
    for (int i = c->workers; i < c->workers + c->servers; i++) {
        if (c->m[i].gone) continue;
        all = false;
        if (again) tell(c, i, &h);
    }
    if (again) c->shutdown_s = now;
    c->done = all || now - c->closing_s > ps_deadline_s(c->o.config);
}

int scheduler_core_tick(struct scheduler_core *c, double now) {
    if (c->error[0]) return -1;
    if (!c->started && login_tick(c, now) != 0) return -1;
    if (!c->started) return lost_tick(c, now);
    closing_tick(c, now);
    if (c->closing) return 0;
    return lost_tick(c, now) != 0 || overdue_tick(c, now) != 0 ? -1 : 0;
}
