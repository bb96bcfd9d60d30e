#include "ps/diary/diary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/core/error.h"

struct diary {
    struct diary_options o;
    bool open;
    struct diary_span now;           // under way; end_ns: since when its part lasts, where parts are woven
    int64_t woven[DIARY_PARTS_MAX];  // ns of its parts so far
    bool weaves;
    int64_t start_ns;                                      // 0: not yet
    int64_t worked_ns;                                     // the end of the last work
    int64_t ns[DIARY_PARTS_MAX], worked[DIARY_PARTS_MAX];  // since the start; up to worked_ns
    struct diary_span *ring;                               // (o.kept)
    size_t written;                                        // to the ring, ever
    struct diary_span *all;
    size_t count, capacity, dropped;
};

struct diary *diary_create(const struct diary_options *o) {
    struct diary *d = xcalloc(1, sizeof *d);
    assert(o->parts <= DIARY_PARTS_MAX);
    d->o = *o;
    d->ring = xcalloc(o->kept + 1, sizeof *d->ring);
    return d;
}

void diary_destroy(struct diary **at) {
    if (!*at) return;
    free((*at)->ring);
    free((*at)->all);
    free(*at);
    *at = NULL;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void keep(struct diary *d, const struct diary_span *s) {
    if (d->count == d->capacity) {
        size_t want = d->capacity ? 2 * d->capacity : 4096;
        struct diary_span *more = want > DIARY_TRACE_MAX ? NULL : realloc(d->all, want * sizeof *more);
        if (!more) {
            d->dropped++;
            return;
        }
        d->all = more;
        d->capacity = want;
    }
    d->all[d->count++] = *s;
}

static bool is_in(uint32_t bits, int part) { return part < 32 && (bits >> part & 1); }

static void write_down(struct diary *d, const struct diary_span *s) {
    if (d->start_ns) {
        d->ns[s->part] += s->end_ns - s->begin_ns;
        if (is_in(d->o.work, s->part)) {
            d->worked_ns = s->end_ns;
            memcpy(d->worked, d->ns, sizeof d->worked);
        }
    }
    if (d->o.kept) d->ring[d->written++ % d->o.kept] = *s;
    if (d->o.trace) keep(d, s);
}

// The parts of a woven span, in the order of their numbers.
static void write_woven(struct diary *d) {
    struct diary_span s = d->now;
    for (int p = 0; p < d->o.parts; p++) {
        if (!d->woven[p]) continue;
        s.part = p;
        s.end_ns = s.begin_ns + d->woven[p];
        write_down(d, &s);
        s.begin_ns = s.end_ns;
    }
    memset(d->woven, 0, sizeof d->woven);
    d->weaves = false;
}

static void close_span(struct diary *d, int64_t ns) {
    if (d->weaves) {
        d->woven[d->now.part] += ns - d->now.end_ns;
        write_woven(d);
        return;
    }
    d->now.end_ns = ns;
    write_down(d, &d->now);
}

void diary_weave(struct diary *d, int part) {
    if (!d || !d->open || d->now.part == part) return;
    int64_t ns = now_ns();
    d->woven[d->now.part] += ns - (d->weaves ? d->now.end_ns : d->now.begin_ns);
    d->weaves = true;
    d->now.end_ns = ns;
    d->now.part = part;
}

void diary_enter(struct diary *d, int part, const struct diary_of *of) {
    if (!d || (d->open && d->now.part == part && is_in(d->o.idle, part))) return;
    int64_t ns = now_ns();
    if (d->open) close_span(d, ns);
    d->open = true;
    d->now = (struct diary_span){.begin_ns = ns, .part = part, .of = *of};
}

void diary_label(struct diary *d, const struct diary_of *of) {
    if (d) d->now.of = *of;
}

void diary_start(struct diary *d) {
    if (d && d->open && !d->start_ns) d->start_ns = d->now.begin_ns;
}

void diary_end(struct diary *d) {
    if (!d || !d->open) return;
    close_span(d, now_ns());
    d->open = false;
}

// ---------------------------------------------------------------- what it says
const char *diary_part_name(const struct diary *d, int part) { return d->o.names[part]; }
bool diary_is_idle(const struct diary *d, int part) { return is_in(d->o.idle, part); }

int64_t diary_totals(const struct diary *d, int64_t ns[DIARY_PARTS_MAX]) {
    memset(ns, 0, DIARY_PARTS_MAX * sizeof *ns);
    if (!d || !d->worked_ns) return 0;
    memcpy(ns, d->worked, sizeof d->worked);
    return d->worked_ns - d->start_ns;
}

size_t diary_last(const struct diary *d) {
    if (!d) return 0;
    return d->written < d->o.kept ? d->written : d->o.kept;
}

const struct diary_span *diary_last_span(const struct diary *d, size_t i) {
    return &d->ring[(d->written - diary_last(d) + i) % d->o.kept];
}

size_t diary_all(const struct diary *d) { return d ? d->count : 0; }
const struct diary_span *diary_all_span(const struct diary *d, size_t i) { return &d->all[i]; }
size_t diary_dropped(const struct diary *d) { return d ? d->dropped : 0; }
