#include "shared/time/moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "shared/config/json.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- of this rank
static struct stall *new_stalls(size_t count) { return xcalloc(count + 1, sizeof(struct stall)); }

static void take_worker(struct moments *m, const struct moments_options *o) {
    const struct gaps *gaps = timeline_gaps(o->timeline);
    m->exposed_count = gaps->exposed_count;
    m->exposed = new_stalls(m->exposed_count);
    for (size_t i = 0; i < m->exposed_count; i++)
        m->exposed[i] =
            (struct stall){gaps->exposed[i].of.begin + o->offset, gaps->exposed[i].of.end + o->offset};
    m->wait_count = gaps->wait_count;
    m->waits = xcalloc(m->wait_count + 1, sizeof *m->waits);
    for (size_t i = 0; i < m->wait_count; i++) {
        const struct split_gap *g = &gaps->waits[i].of;
        m->waits[i] = (struct moment_wait){g->begin + o->offset, g->end + o->offset, g->peer};
    }
    m->ranks = gaps->ranks;
    m->waited = xcalloc((unsigned long)m->ranks + 1, sizeof *m->waited);
    memcpy(m->waited, gaps->waited, (size_t)m->ranks * sizeof *m->waited);
}

struct moments *moments_take(const struct moments_options *o) {
    struct moments *m = xcalloc(1, sizeof *m);
    int64_t still = stall_total(o->watch);
    m->alone = o->alone;
    for (int k = 0; k < STALL_KINDS; k++) {
        m->stalls[k] = new_stalls(STALLS);
        size_t all = stall_list(o->watch, (enum stall_kind)k, o->timeline, 0, m->stalls[k], STALLS);
        for (size_t i = 0; i < all; i++) {
            struct stall one = m->stalls[k][i];
            if (one.end > o->begin)
                m->stalls[k][m->stall_count[k]++] =
                    (struct stall){one.begin + o->offset, one.end + o->offset};
            else if (k == STALL_PROCESS)
                still -= one.end - one.begin;
        }
    }
    m->stood_still = fmax(0, (double)still * 1e-9);
    if (o->timeline) take_worker(m, o);
    return m;
}

void moments_free(struct moments **moments) {
    struct moments *m = *moments;
    if (!m) return;
    free(m->exposed);
    for (int k = 0; k < STALL_KINDS; k++) free(m->stalls[k]);
    free(m->waits);
    free(m->idle);
    free(m->waited);
    free(m);
    *moments = NULL;
}

// ---------------------------------------------------------------- the blame
// Of what begins with its begin.
static int by_begin(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

// Moments that may be another rank's doing, in order. peer: the index of the worker that they were waited for; -1: none.
struct suspects {
    struct moment_wait *list;
    size_t count, room, at, of;
    struct blame *out;
    size_t blamed, blame_room;
};

static void suspect(struct suspects *s, struct moment_wait one) {
    if (one.end > one.begin && s->count < s->room) s->list[s->count++] = one;
}

static void blame_one(void *ctx, const struct split_gap *g) {
    struct suspects *s = ctx;
    if (!g->wait) return;
    while (s->at < s->count && s->list[s->at].end <= g->begin) s->at++;
    for (size_t i = s->at; i < s->count && s->list[i].begin < g->end; i++) {
        const struct moment_wait *m = &s->list[i];
        int64_t begin = m->begin > g->begin ? m->begin : g->begin, end = m->end < g->end ? m->end : g->end;
        if (m->peer >= 0 && g->peer == (int)s->of) continue;  // it would have waited all the same
        if (end <= begin) continue;
        if (s->blamed == s->blame_room) {
            s->blame_room = s->blame_room ? 2 * s->blame_room : 64;
            s->out = xrealloc(s->out, s->blame_room * sizeof *s->out);
        }
        s->out[s->blamed++] = (struct blame){begin, end, g->peer, m->peer};
    }
}

static int index_of(struct moments *const *ranks, size_t count, int worker) {
    for (size_t r = 0; r < count; r++)
        if (ranks[r] && ranks[r]->exposed && ranks[r]->rank == worker) return (int)r;
    return -1;
}

// The parts of a wait in which the worker that was waited for stood still for something itself.
static void suspect_wait(struct suspects *s, const struct moment_wait *w, const struct moments *worker,
                         int index) {
    size_t low = 0, high = worker->idle_count;
    while (low < high) {  // the first that ends behind the wait's begin
        size_t middle = (low + high) / 2;
        if (worker->idle[middle].end <= w->begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < worker->idle_count && worker->idle[low].begin < w->end; low++) {
        const struct stall *i = &worker->idle[low];
        suspect(s, (struct moment_wait){i->begin > w->begin ? i->begin : w->begin,
                                        i->end < w->end ? i->end : w->end, index});
    }
}

static struct suspects suspects_of(struct moments *const *ranks, size_t count, size_t of) {
    const struct moments *m = ranks[of];
    struct suspects s = {.room = m->exposed_count, .of = of};
    for (size_t r = 0; r < count; r++) s.room += ranks[r] ? ranks[r]->idle_count : 0;
    s.room += m->wait_count;
    s.list = xcalloc(s.room + 1, sizeof *s.list);
    for (size_t i = 0; i < m->exposed_count; i++)
        suspect(&s, (struct moment_wait){m->exposed[i].begin, m->exposed[i].end, -1});
    for (size_t i = 0; i < m->wait_count && !m->alone; i++) {
        int index = index_of(ranks, count, m->waits[i].peer);
        if (index >= 0 && index != (int)of) suspect_wait(&s, &m->waits[i], ranks[index], index);
    }
    qsort(s.list, s.count, sizeof *s.list, by_begin);
    return s;
}

// What is not suspected is busy.
static size_t put_busy(const struct suspects *s, struct split_input *in) {
    size_t n = 0;
    int64_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct moment_wait *e = &s->list[i];
        if (e->begin > at) in->busy[n++] = (struct split_span){at, e->begin, PHASE_OTHER};
        if (e->end > at) at = e->end;
    }
    in->end = at;
    return n;
}

struct blame *moments_blame(struct moments *const *ranks, size_t count, size_t of, size_t *n) {
    const struct moments *m = ranks[of];
    size_t stalls = 0;
    struct time_split unused;
    *n = 0;
    for (size_t r = 0; m && r < count; r++)
        for (int k = 0; ranks[r] && k < STALL_KINDS; k++) stalls += ranks[r]->stall_count[k];
    if (!m || !m->exposed || !stalls) return NULL;
    struct suspects s = suspects_of(ranks, count, of);
    struct split_input in = {.gap = blame_one, .ctx = &s};
    in.busy = xcalloc(s.count + 1, sizeof *in.busy);
    in.blocked = xcalloc(stalls, sizeof *in.blocked);
    in.busy_count = put_busy(&s, &in);
    for (size_t r = 0; r < count; r++) {
        // A worker that waits for no other one's part waits for servers: those that leave no exposed moments.
        if (!ranks[r] || (r != of && m->alone && ranks[r]->exposed)) continue;
        for (int k = 0; k < STALL_KINDS; k++)
            for (size_t i = 0; i < ranks[r]->stall_count[k]; i++) {
                const struct stall *one = &ranks[r]->stalls[k][i];
                in.blocked[in.blocked_count++] =
                    (struct split_block){one->begin, one->end, 0, one->end, 0, (int)r};
            }
    }
    qsort(in.blocked, in.blocked_count, sizeof *in.blocked, by_begin);
    time_split_of(&in, &unused);
    free(in.busy);
    free(in.blocked);
    free(s.list);
    *n = s.blamed;
    return s.out;
}

void moments_settle(const struct blame *blame, size_t n, size_t *at, const struct split_gap *gap,
                    moments_tell *tell, void *ctx) {
    struct split_gap rest = *gap;
    while (*at < n && blame[*at].end <= gap->begin) ++*at;
    for (size_t i = *at; i < n && blame[i].begin < gap->end; i++) {
        struct split_gap before = rest, part = rest;
        part.begin = blame[i].begin > rest.begin ? blame[i].begin : rest.begin;
        before.end = part.begin;
        part.end = blame[i].end < gap->end ? blame[i].end : gap->end;
        rest.begin = part.end;
        if (before.end > before.begin) tell(ctx, &before, -1);
        if (part.end > part.begin) tell(ctx, &part, blame[i].rank);
    }
    if (rest.end > rest.begin) tell(ctx, &rest, -1);
}

// ---------------------------------------------------------------- in a report
static const char *const stall_names[STALL_KINDS] = {"stalls", "without_core"};

static void put_list(cJSON *o, const char *name, const struct stall *list, size_t count) {
    cJSON *all = cJSON_AddArrayToObject(o, name);
    for (size_t i = 0; i < count; i++) {
        const double pair[2] = {(double)list[i].begin, (double)list[i].end};
        cJSON_AddItemToArray(all, cJSON_CreateDoubleArray(pair, 2));
    }
}

void moments_put(struct cJSON *report, const struct moments *m) {
    if (!m) return;
    cJSON *o = cJSON_AddObjectToObject(report, "moments");
    json_put(o, "stood_still", m->stood_still);
    for (int k = 0; k < STALL_KINDS; k++) put_list(o, stall_names[k], m->stalls[k], m->stall_count[k]);
    if (!m->exposed) return;
    cJSON_AddBoolToObject(o, "alone", m->alone);
    put_list(o, "exposed", m->exposed, m->exposed_count);
    cJSON *waits = cJSON_AddArrayToObject(o, "waits");
    for (size_t i = 0; i < m->wait_count; i++) {
        const double one[3] = {(double)m->waits[i].begin, (double)m->waits[i].end, m->waits[i].peer};
        cJSON_AddItemToArray(waits, cJSON_CreateDoubleArray(one, 3));
    }
    cJSON_AddItemToObject(o, "waited", cJSON_CreateDoubleArray(m->waited, m->ranks));
}

static bool read_pair(const cJSON *pair, struct stall *out) {
    const cJSON *begin = cJSON_GetArrayItem(pair, 0), *end = cJSON_GetArrayItem(pair, 1);
    if (!cJSON_IsNumber(begin) || !cJSON_IsNumber(end)) return false;
    if (!(begin->valuedouble >= 0 && end->valuedouble >= begin->valuedouble && end->valuedouble < 0x1p62))
        return false;
    *out = (struct stall){(int64_t)begin->valuedouble, (int64_t)end->valuedouble};
    return true;
}

static struct stall *read_list(const cJSON *o, const char *name, size_t *count) {
    const cJSON *all = json_item(o, name), *pair;
    if (!cJSON_IsArray(all)) return NULL;
    struct stall *list = new_stalls((size_t)cJSON_GetArraySize(all));
    *count = 0;
    cJSON_ArrayForEach(pair, all) *count += read_pair(pair, &list[*count]);
    return list;
}

static void read_waits(const cJSON *o, struct moments *m) {
    const cJSON *all = json_item(o, "waits"), *one;
    struct stall when;
    m->waits = xcalloc((size_t)cJSON_GetArraySize(all) + 1, sizeof *m->waits);
    cJSON_ArrayForEach(one, all) {
        const cJSON *peer = cJSON_GetArrayItem(one, 2);
        if (cJSON_IsNumber(peer) && read_pair(one, &when))
            m->waits[m->wait_count++] = (struct moment_wait){when.begin, when.end, peer->valueint};
    }
}

// Everything that a worker stood still for.
static void note_idle(struct moments *m) {
    m->idle = new_stalls(m->exposed_count + m->wait_count);
    for (size_t i = 0; i < m->exposed_count; i++) m->idle[m->idle_count++] = m->exposed[i];
    for (size_t i = 0; i < m->wait_count; i++)
        m->idle[m->idle_count++] = (struct stall){m->waits[i].begin, m->waits[i].end};
    qsort(m->idle, m->idle_count, sizeof *m->idle, by_begin);
    if (m->exposed) qsort(m->exposed, m->exposed_count, sizeof *m->exposed, by_begin);
}

struct moments *moments_read(const struct cJSON *report) {
    const cJSON *o = json_item(report, "moments"), *waited = json_item(o, "waited");
    if (!cJSON_IsObject(o)) return NULL;
    struct moments *m = xcalloc(1, sizeof *m);
    double still = json_number(o, "stood_still");
    m->stood_still = isfinite(still) ? still : 0;
    m->alone = cJSON_IsTrue(json_item(o, "alone"));
    for (int k = 0; k < STALL_KINDS; k++) m->stalls[k] = read_list(o, stall_names[k], &m->stall_count[k]);
    m->exposed = read_list(o, "exposed", &m->exposed_count);
    read_waits(o, m);
    note_idle(m);
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
struct meeting *meeting_of(const struct cJSON *reports) {
    struct meeting *m = xcalloc(1, sizeof *m);
    unsigned long room = (unsigned long)cJSON_GetArraySize(reports) + 1;
    const cJSON *r;
    m->moments = xcalloc(room, sizeof(struct moments *));
    m->roles = xcalloc(room, sizeof(const char *));
    m->ranks = xcalloc(room, sizeof *m->ranks);
    cJSON_ArrayForEach(r, reports) {
        double rank = json_number(r, "rank");
        m->moments[m->count] = moments_read(r);
        m->roles[m->count] = json_text(r, "role", "");
        m->ranks[m->count++] = rank >= 0 && rank < INT32_MAX ? (int)rank : -1;
    }
    return m;
}

void meeting_free(struct meeting **meeting) {
    struct meeting *m = *meeting;
    if (!m) return;
    for (size_t i = 0; i < m->count; i++) moments_free(&m->moments[i]);
    free(m->moments);
    free(m->roles);
    free(m->ranks);
    free(m);
    *meeting = NULL;
}

int meeting_index(const struct meeting *m, const char *role, int rank) {
    for (size_t i = 0; i < m->count; i++)
        if (m->ranks[i] == rank && !strcmp(m->roles[i], role)) return (int)i;
    return -1;
}
