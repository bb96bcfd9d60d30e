#include "shared/time/thread_time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/time/gate.h"

struct thread_time {
    struct thread_time_options o;
    bool open, over;
    struct span now;  // the current span; if its parts are interleaved, end: when the current part began
    int64_t interleaved_ns[THREAD_PARTS];  // of the current span's parts so far
    bool interleaves;
    int64_t start;                                   // 0: not yet
    int64_t worked_end;                              // the end of the last span of work
    int64_t ns[THREAD_PARTS], worked[THREAD_PARTS];  // per part, since the start; `worked`: up to worked_end
    int64_t gate_ns;  // gate_held_ns when the current span began: the time at a gate belongs to no part
    struct spans last, traced;
};

struct thread_time *thread_time_create(const struct thread_time_options *o) {
    struct thread_time *t = xcalloc(1, sizeof *t);
    assert(o->parts <= THREAD_PARTS);
    t->o = *o;
    // Spans that get no memory count as lost.
    if (o->kept) spans_open(&t->last, o->kept, SPANS_LAST);
    if (o->trace) spans_open(&t->traced, SPANS_TRACED, SPANS_FIRST);
    return t;
}

void thread_time_destroy(struct thread_time **at) {
    if (!*at) return;
    spans_close(&(*at)->last);
    spans_close(&(*at)->traced);
    free(*at);
    *at = NULL;
}

static bool is_in(uint32_t bits, int part) { return part < 32 && (bits >> part & 1); }

// excluded_ns: time of the span that does not count for its part.
static void add(struct thread_time *t, struct span *s, int64_t excluded_ns) {
    s->kind = SPAN_PART;
    s->name = t->o.names[s->part];
    if (t->start) {
        t->ns[s->part] += span_length(s) - excluded_ns;
        if (is_in(t->o.work, s->part)) {
            t->worked_end = s->end;
            memcpy(t->worked, t->ns, sizeof t->worked);
        }
    }
    spans_add(&t->last, s);
    if (t->o.trace && !is_in(t->o.idle, s->part)) spans_add(&t->traced, s);
}

static void close_span(struct thread_time *t, int64_t ns) {
    struct span s = t->now;
    int64_t gate_ns = gate_held_ns() - t->gate_ns;
    t->gate_ns += gate_ns;
    if (!t->interleaves) {
        s.end = ns;
        add(t, &s, gate_ns);
        return;
    }
    t->interleaved_ns[s.part] += ns - s.end;
    for (int p = 0; p < t->o.parts; p++) {  // the parts, in the order of their numbers
        if (!t->interleaved_ns[p]) continue;
        s.part = (uint8_t)p;
        s.end = s.begin + t->interleaved_ns[p];
        add(t, &s, 0);
        s.begin = s.end;
    }
    memset(t->interleaved_ns, 0, sizeof t->interleaved_ns);
    t->interleaves = false;
}

void thread_time_interleave(struct thread_time *t, int part) {
    if (!t || !t->open || t->now.part == part) return;
    int64_t ns = now_ns();
    t->interleaved_ns[t->now.part] += ns - (t->interleaves ? t->now.end : t->now.begin);
    t->interleaves = true;
    t->now.end = ns;
    t->now.part = (uint8_t)part;
}

void thread_time_enter(struct thread_time *t, int part, struct span of) {
    if (!t || t->over || (t->open && t->now.part == part && is_in(t->o.idle, part))) return;
    int64_t ns = now_ns();
    if (t->open) close_span(t, ns);
    t->open = true;
    t->now = of;
    t->now.begin = ns;
    t->now.part = (uint8_t)part;
}

void thread_time_label(struct thread_time *t, struct span of) {
    if (!t) return;
    of.begin = t->now.begin;
    of.end = t->now.end;
    of.part = t->now.part;
    t->now = of;
}

void thread_time_start(struct thread_time *t) {
    if (t && t->open && !t->start) t->start = t->now.begin;
}

void thread_time_end(struct thread_time *t) {
    if (!t) return;
    if (t->open) close_span(t, now_ns());
    t->open = false;
    t->over = true;
}

int64_t thread_time_totals(const struct thread_time *t, int64_t ns[THREAD_PARTS]) {
    memset(ns, 0, THREAD_PARTS * sizeof *ns);
    if (!t || !t->worked_end) return 0;
    int64_t all = 0;
    memcpy(ns, t->worked, sizeof t->worked);
    for (int p = 0; p < t->o.parts; p++) all += ns[p];
    return all;
}

static const struct spans none;
const struct spans *thread_time_last(const struct thread_time *t) { return t ? &t->last : &none; }
const struct spans *thread_time_traced(const struct thread_time *t) { return t ? &t->traced : &none; }
