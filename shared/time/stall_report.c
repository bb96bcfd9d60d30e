#include "shared/time/stall_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "shared/core/error.h"
#include "shared/core/json.h"

// ---------------------------------------------------------------- of this rank
static struct spans new_spans(size_t room) {
    struct spans s = {.ring = xcalloc(room + 1, sizeof *s.ring), .room = room + 1};
    return s;
}

static struct spans copy_of(const struct spans *all, int64_t offset) {
    struct spans s = new_spans(spans_count(all));
    for (size_t i = 0; i < spans_count(all); i++) {
        struct span one = *spans_at(all, i);
        one.begin += offset;
        one.end += offset;
        spans_add(&s, &one);
    }
    return s;
}

struct stall_report *stall_report_take(const struct stall_report_options *o) {
    struct stall_report *m = xcalloc(1, sizeof *m);
    struct span *stalls = xcalloc(STALLS, sizeof *stalls);
    int64_t still = stall_total(o->watch);
    m->alone = o->alone;
    for (int k = 0; k < STALL_KINDS; k++) {
        size_t all = stall_list(o->watch, (enum stall_kind)k, o->timeline, 0, stalls, STALLS);
        m->stalls[k] = new_spans(all);
        for (size_t i = 0; i < all; i++) {
            struct span one = {.begin = stalls[i].begin + o->offset, .end = stalls[i].end + o->offset};
            if (stalls[i].end > o->begin)
                spans_add(&m->stalls[k], &one);
            else if (k == STALL_PROCESS)
                still -= span_length(&one);
        }
    }
    free(stalls);
    m->stood_still = fmax(0, (double)still * 1e-9);
    if (!o->timeline) return m;
    const struct gaps *gaps = timeline_gaps(o->timeline);
    m->exposed = copy_of(&gaps->exposed, o->offset);
    m->waits = copy_of(&gaps->waits, o->offset);
    m->ranks = gaps->ranks;
    m->waited = xcalloc((unsigned long)m->ranks + 1, sizeof *m->waited);
    memcpy(m->waited, gaps->waited, (size_t)m->ranks * sizeof *m->waited);
    return m;
}

void stall_report_free(struct stall_report **report) {
    struct stall_report *m = *report;
    if (!m) return;
    spans_close(&m->exposed);
    for (int k = 0; k < STALL_KINDS; k++) spans_close(&m->stalls[k]);
    spans_close(&m->waits);
    spans_close(&m->idle);
    free(m->waited);
    free(m);
    *report = NULL;
}

// ---------------------------------------------------------------- the blame
// The gaps of rank `of` that a stall may have caused.
struct suspects {
    struct spans list;  // in order of time. peer: index of the worker that rank `of` waited for; -1: none
    size_t at, of;
    struct blame *out;
    size_t blamed, blame_room;
};

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void suspect(struct suspects *s, int64_t begin, int64_t end, int peer) {
    if (end > begin) spans_add(&s->list, &(struct span){.begin = begin, .end = end, .peer = peer});
}

static void blame_one(void *ctx, const struct span *g) {
    struct suspects *s = ctx;
    size_t count = spans_count(&s->list);
    if (g->kind != SPAN_WAIT) return;
    while (s->at < count && spans_at(&s->list, s->at)->end <= g->begin) s->at++;
    for (size_t i = s->at; i < count && spans_at(&s->list, i)->begin < g->end; i++) {
        const struct span *m = spans_at(&s->list, i);
        int64_t begin = later(m->begin, g->begin), end = earlier(m->end, g->end);
        if (m->peer >= 0 && g->peer == (int)s->of) continue;  // its own stall: it would have waited anyway
        if (end <= begin) continue;
        if (s->blamed == s->blame_room) {
            s->blame_room = s->blame_room ? 2 * s->blame_room : 64;
            s->out = xrealloc(s->out, s->blame_room * sizeof *s->out);
        }
        s->out[s->blamed++] = (struct blame){begin, end, g->peer, m->peer};
    }
}

// Adds the sections of a wait in which the awaited worker (index) was itself blocked by another rank.
static void suspect_wait(struct suspects *s, const struct span *w, const struct spans *idle, int index) {
    size_t low = 0, high = spans_count(idle);
    while (low < high) {  // finds the first gap that ends after the wait's begin
        size_t middle = (low + high) / 2;
        if (spans_at(idle, middle)->end <= w->begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < spans_count(idle) && spans_at(idle, low)->begin < w->end; low++) {
        const struct span *i = spans_at(idle, low);
        suspect(s, later(i->begin, w->begin), earlier(i->end, w->end), index);
    }
}

static struct suspects suspects_of(struct stall_report *const *ranks, size_t count, size_t of) {
    const struct stall_report *m = ranks[of];
    size_t exposed = spans_count(&m->exposed), waits = spans_count(&m->waits), room = exposed + waits;
    for (size_t r = 0; r < count; r++) room += ranks[r] ? spans_count(&ranks[r]->idle) : 0;
    struct suspects s = {.list = new_spans(room), .of = of};
    for (size_t i = 0; i < exposed; i++)
        suspect(&s, spans_at(&m->exposed, i)->begin, spans_at(&m->exposed, i)->end, -1);
    for (size_t i = 0; i < waits && !m->alone; i++) {
        const struct span *w = spans_at(&m->waits, i);
        size_t index = 0;  // of the awaited worker
        while (index < count &&
               !(ranks[index] && ranks[index]->exposed.ring && ranks[index]->rank == w->peer))
            index++;
        if (index < count && index != of) suspect_wait(&s, w, &ranks[index]->idle, (int)index);
    }
    spans_sort(&s.list);
    return s;
}

static int by_begin(const void *a, const void *b) {
    const struct split_block *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

// Calls time_split_of with the suspects as the gaps of a step and the stalls as the transfers that blocked it: it then
// assigns a stall to each gap (blame_one).
struct blame *stall_blame(struct stall_report *const *ranks, size_t count, size_t of, size_t *n) {
    const struct stall_report *m = ranks[of];
    size_t stalls = 0;
    struct time_split unused;
    *n = 0;
    for (size_t r = 0; m && r < count; r++)
        for (int k = 0; ranks[r] && k < STALL_KINDS; k++) stalls += spans_count(&ranks[r]->stalls[k]);
    if (!m || !m->exposed.ring || !stalls) return NULL;
    struct suspects s = suspects_of(ranks, count, of);
    struct split_input in = {.gap = blame_one, .ctx = &s};
    in.busy = xcalloc(spans_count(&s.list) + 1, sizeof *in.busy);
    for (size_t i = 0; i < spans_count(&s.list); i++) {
        const struct span *e = spans_at(&s.list, i);
        if (e->begin > in.end) in.busy[in.busy_count++] = (struct span){.begin = in.end, .end = e->begin};
        in.end = later(in.end, e->end);
    }
    in.blocked = xcalloc(stalls, sizeof *in.blocked);
    for (size_t r = 0; r < count; r++) {
        // With `alone` this worker waits only for servers, so stalls of other workers (reports with exposed gaps) do not count.
        if (!ranks[r] || (r != of && m->alone && ranks[r]->exposed.ring)) continue;
        for (int k = 0; k < STALL_KINDS; k++)
            for (size_t i = 0; i < spans_count(&ranks[r]->stalls[k]); i++) {
                const struct span *one = spans_at(&ranks[r]->stalls[k], i);
                in.blocked[in.blocked_count++] =
                    (struct split_block){one->begin, one->end, 0, one->end, 0, (int)r};
            }
    }
    qsort(in.blocked, in.blocked_count, sizeof *in.blocked, by_begin);
    time_split_of(&in, &unused);
    free(in.busy);
    free(in.blocked);
    spans_close(&s.list);
    *n = s.blamed;
    return s.out;
}

void stall_cut_gap(const struct blame *blame, size_t n, size_t *at, const struct span *gap,
                   stall_section_fn *each, void *ctx) {
    struct span rest = *gap;
    while (*at < n && blame[*at].end <= gap->begin) ++*at;
    for (size_t i = *at; i < n && blame[i].begin < gap->end; i++) {
        struct span before = rest, part = rest;
        before.end = part.begin = later(blame[i].begin, rest.begin);
        rest.begin = part.end = earlier(blame[i].end, gap->end);
        if (before.end > before.begin) each(ctx, &before, -1);
        if (part.end > part.begin) each(ctx, &part, blame[i].rank);
    }
    if (rest.end > rest.begin) each(ctx, &rest, -1);
}

// ---------------------------------------------------------------- in a report
static const char *const stall_names[STALL_KINDS] = {"stalls", "without_core"};

// Lists of [begin, end]; for waits [begin, end, peer].
static void put_list(cJSON *o, const char *name, const struct spans *list, int numbers) {
    cJSON *all = cJSON_AddArrayToObject(o, name);
    for (size_t i = 0; i < spans_count(list); i++) {
        const struct span *s = spans_at(list, i);
        const double one[3] = {(double)s->begin, (double)s->end, s->peer};
        cJSON_AddItemToArray(all, cJSON_CreateDoubleArray(one, numbers));
    }
}

static struct spans read_list(const cJSON *o, const char *name, int numbers) {
    const cJSON *all = json_item(o, name), *one;
    if (!cJSON_IsArray(all)) return (struct spans){0};
    struct spans list = new_spans((size_t)cJSON_GetArraySize(all));
    cJSON_ArrayForEach(one, all) {
        double at[3] = {-1, -1, -1};
        for (int i = 0; i < numbers; i++) {
            const cJSON *number = cJSON_GetArrayItem(one, i);
            at[i] = cJSON_IsNumber(number) ? number->valuedouble : NAN;
        }
        if (!(at[0] >= 0 && at[1] >= at[0] && at[1] < 0x1p62 && fabs(at[2]) < INT32_MAX)) continue;
        spans_add(&list, &(struct span){.begin = (int64_t)at[0], .end = (int64_t)at[1], .peer = (int)at[2]});
    }
    return list;
}

void stall_report_put(struct cJSON *report, const struct stall_report *m) {
    if (!m) return;
    cJSON *o = cJSON_AddObjectToObject(report, "moments");
    json_put(o, "stood_still", m->stood_still);
    for (int k = 0; k < STALL_KINDS; k++) put_list(o, stall_names[k], &m->stalls[k], 2);
    if (!m->exposed.ring) return;
    cJSON_AddBoolToObject(o, "alone", m->alone);
    put_list(o, "exposed", &m->exposed, 2);
    put_list(o, "waits", &m->waits, 3);
    cJSON_AddItemToObject(o, "waited", cJSON_CreateDoubleArray(m->waited, m->ranks));
}

struct stall_report *stall_report_read(const struct cJSON *report) {
    const cJSON *o = json_item(report, "moments"), *waited = json_item(o, "waited");
    if (!cJSON_IsObject(o)) return NULL;
    struct stall_report *m = xcalloc(1, sizeof *m);
    double still = json_number(o, "stood_still");
    m->stood_still = isfinite(still) ? still : 0;
    m->alone = cJSON_IsTrue(json_item(o, "alone"));
    for (int k = 0; k < STALL_KINDS; k++) m->stalls[k] = read_list(o, stall_names[k], 2);
    m->exposed = read_list(o, "exposed", 2);
    m->waits = read_list(o, "waits", 3);
    spans_sort(&m->exposed);
    m->idle = new_spans(spans_count(&m->exposed) + spans_count(&m->waits));
    for (size_t i = 0; i < spans_count(&m->exposed); i++) spans_add(&m->idle, spans_at(&m->exposed, i));
    for (size_t i = 0; i < spans_count(&m->waits); i++) spans_add(&m->idle, spans_at(&m->waits, i));
    spans_sort(&m->idle);
    double rank = json_number(report, "rank");
    m->rank = rank >= 0 && rank < INT32_MAX ? (int)rank : -1;
    m->ranks = cJSON_GetArraySize(waited);
    m->waited = xcalloc((unsigned long)m->ranks + 1, sizeof *m->waited);
    for (int r = 0; r < m->ranks; r++) {
        const cJSON *one = cJSON_GetArrayItem(waited, r);
        m->waited[r] = cJSON_IsNumber(one) ? one->valuedouble : 0;
    }
    return m;
}

// ---------------------------------------------------------------- all ranks
struct stall_reports *stall_reports_read(const struct cJSON *reports) {
    struct stall_reports *m = xcalloc(1, sizeof *m);
    unsigned long room = (unsigned long)cJSON_GetArraySize(reports) + 1;
    const cJSON *r;
    m->all = xcalloc(room, sizeof(struct stall_report *));
    m->roles = xcalloc(room, sizeof(const char *));
    m->ranks = xcalloc(room, sizeof *m->ranks);
    cJSON_ArrayForEach(r, reports) {
        double rank = json_number(r, "rank");
        m->all[m->count] = stall_report_read(r);
        m->roles[m->count] = json_text(r, "role", "");
        m->ranks[m->count++] = rank >= 0 && rank < INT32_MAX ? (int)rank : -1;
    }
    return m;
}

void stall_reports_free(struct stall_reports **reports) {
    struct stall_reports *m = *reports;
    if (!m) return;
    for (size_t i = 0; i < m->count; i++) stall_report_free(&m->all[i]);
    free(m->all);
    free(m->roles);
    free(m->ranks);
    free(m);
    *reports = NULL;
}

int stall_reports_index(const struct stall_reports *m, const char *role, int rank) {
    for (size_t i = 0; i < m->count; i++)
        if (m->ranks[i] == rank && !strcmp(m->roles[i], role)) return (int)i;
    return -1;
}
