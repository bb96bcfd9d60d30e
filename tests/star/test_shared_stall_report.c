// Waiting for a peer that stood still, from made-up moments: against its definition, nanosecond by nanosecond.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/json.h"
#include "shared/time/stall_report.h"

static void assert_near(double got, double want, double error, const char *what) {
    if (!(fabs(got - want) <= error)) fail_msg("%s: %.9f, not %.9f", what, got, want);
}

static const struct span *span_at(const struct spans *list, int64_t now) {
    for (size_t i = 0; i < spans_count(list); i++)
        if (now >= spans_at(list, i)->begin && now < spans_at(list, i)->end) return spans_at(list, i);
    return NULL;
}

// The stopped rank that continues last; -1: none.
static int last_to_go_on(struct stall_report *const *m, size_t count, size_t of, int64_t now) {
    int64_t last = 0;
    int peer = -1;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0, first = spans_count(&m[r]->stalls[STALL_PROCESS]);
             !(r != of && m[of]->alone && m[r]->exposed.ring) &&
             i < first + spans_count(&m[r]->stalls[STALL_THREAD]);
             i++) {
            const struct span *s = i < first ? spans_at(&m[r]->stalls[STALL_PROCESS], i)
                                             : spans_at(&m[r]->stalls[STALL_THREAD], i - first);
            if (now < s->begin || now >= s->end || s->end <= last) continue;
            last = s->end;
            peer = (int)r;
        }
    return peer;
}

// Nanosecond by nanosecond: what was exposed, and what a worker was waited for while it stood still for something itself, is
// another rank's that stood still; what was exposed may be the rank's own.
static void blame_by_definition(struct stall_report *const *m, size_t count, size_t of, double *out) {
    memset(out, 0, count * sizeof *out);
    for (int64_t now = 0; now < 400; now++) {
        const struct span *w = span_at(&m[of]->waits, now);
        bool exposed = span_at(&m[of]->exposed, now);
        bool named = w && !m[of]->alone && w->peer != (int)of && w->peer < 3;
        bool idle = named && (span_at(&m[w->peer]->exposed, now) || span_at(&m[w->peer]->waits, now));
        int peer = last_to_go_on(m, count, of, now);
        if (peer < 0 || !(exposed || (idle && peer != (int)of))) continue;
        out[peer]++;
        if (idle) out[w->peer]--;
    }
}

static void add_piece(void *ctx, const struct span *piece, int rank) {
    double *seconds = ctx;
    seconds[rank + 1] += 1e-9 * (double)(piece->end - piece->begin);
}

// The blame as sums; and each gap cut by it: nothing is lost, and of what was exposed each rank has what it is blamed for.
static void blame_added_up(struct stall_report *const *m, size_t count, size_t of, double *out) {
    size_t n, at = 0;
    struct blame *list = stall_blame(m, count, of, &n);
    double exposed[5] = {0}, told = 0, all = 0;
    memset(out, 0, count * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        double seconds = 1e-9 * (double)(list[i].end - list[i].begin);
        assert_true(seconds > 0 && (i == 0 || list[i].begin >= list[i - 1].end));
        out[list[i].rank] += seconds;
        if (list[i].instead >= 0) out[list[i].instead] -= seconds;
        if (list[i].instead < 0) exposed[list[i].rank + 1] -= seconds;
    }
    for (size_t i = 0; i < spans_count(&m[of]->exposed); i++) {
        const struct span *e = spans_at(&m[of]->exposed, i);
        stall_cut_gap(list, n, &at, &(struct span){.begin = e->begin, .end = e->end, .peer = -1}, add_piece,
                      exposed);
        all += 1e-9 * (double)(e->end - e->begin);
    }
    for (size_t r = 1; r <= count; r++) assert_near(1e9 * exposed[r], 0, 1e-3, "settled");
    for (size_t i = 0; i < n; i++)
        told += list[i].instead < 0 ? 1e-9 * (double)(list[i].end - list[i].begin) : 0;
    assert_near(1e9 * (exposed[0] + told), 1e9 * all, 1e-3, "nothing is lost");
    free(list);
}

static struct stall_report *made_up_moments(unsigned *seed, int64_t odd, bool server) {
    struct stall_report *m = calloc(1, sizeof *m);
    for (int k = 0; k < STALL_KINDS; k++) spans_open(&m->stalls[k], 5, SPANS_FIRST);
    if (!server) spans_open(&m->exposed, 5, SPANS_FIRST);
    spans_open(&m->waits, 5, SPANS_FIRST);
    m->alone = rand_r(seed) % 3 == 0;
    // Stops of either kind follow each other; ends of two ranks differ.
    for (int left = rand_r(seed) % 5, at = 0; left > 0; left--) {
        int k = rand_r(seed) % STALL_KINDS;
        struct span one = {.begin = at + 1 + rand_r(seed) % 40};
        one.end = (one.begin + rand_r(seed) % 50) / 4 * 4 + 4 + odd;
        spans_add(&m->stalls[k], &one);
        at = (int)one.end;
    }
    // A rank's gaps, from the last to the first: either kind is in no order.
    for (int64_t end = 330; end > 100 && !server; end -= rand_r(seed) % 30) {
        int64_t begin = end - 1 - rand_r(seed) % 70;
        bool exposed = rand_r(seed) % 2 && spans_count(&m->exposed) < 5;
        if (exposed || spans_count(&m->waits) < 5)
            spans_add(exposed ? &m->exposed : &m->waits,
                      &(struct span){.begin = begin, .end = end, .peer = exposed ? -1 : rand_r(seed) % 4});
        end = begin;
    }
    return m;
}

static void test_what_is_lost_while_a_peer_stood_still_is_waiting_for_it(void **state) {
    (void)state;
    unsigned seed = 5;
    for (int round = 0; round < 3000; round++) {
        struct stall_report *m[4];
        double want[4], got[4];
        for (int r = 0; r < 4; r++) {
            struct stall_report *made = made_up_moments(&seed, r, r == 3);
            cJSON *report = cJSON_CreateObject();  // as it comes out of a report
            cJSON_AddNumberToObject(report, "rank", r < 3 ? r : 0);
            stall_report_put(report, made);
            stall_report_free(&made);
            assert_non_null(m[r] = stall_report_read(report));
            cJSON_Delete(report);
        }
        for (size_t of = 0; of < 3; of++) {
            blame_by_definition(m, 4, of, want);
            blame_added_up(m, 4, of, got);
            for (int r = 0; r < 4; r++) assert_near(1e9 * got[r], want[r], 1e-3, "blamed");
        }
        for (int r = 0; r < 4; r++) stall_report_free(&m[r]);
    }
}

static void test_reports_without_moments_have_none(void **state) {
    (void)state;
    static const char *const texts[] = {"{}", "{\"moments\":3}", "{\"moments\":null}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *report = cJSON_Parse(texts[i]);
        assert_null(stall_report_read(report));
        cJSON_Delete(report);
    }
    cJSON *broken = cJSON_Parse(
        "{\"moments\":{\"stalls\":[[1],[-3,4],[9,5],[1e300,2e300],\"x\",[3,4]],\"exposed\":[7],\"waits\":[[1,2],[3,1,0],7,[5,6,1]],\"waited\":[null,2]}}");
    struct stall_report *m = stall_report_read(broken);
    assert_int_equal(spans_count(&m->stalls[STALL_PROCESS]), 1);
    assert_int_equal(spans_count(&m->stalls[STALL_THREAD]), 0);
    assert_int_equal(spans_count(&m->exposed), 0);
    assert_int_equal(spans_count(&m->waits), 1);
    assert_true(m->rank == -1 && m->ranks == 2 && m->waited[0] == 0 && m->waited[1] == 2 &&
                m->stood_still == 0);
    stall_report_free(&m);
    cJSON_Delete(broken);
}

// The longest are kept; what is waited for is added up for whom it was.
static void test_gaps_are_bounded(void **state) {
    (void)state;
    struct gaps g;
    assert_int_equal(gaps_open(&g, 3, false), 0);
    for (int64_t i = 0; i < 3 * GAPS_KEPT; i++)
        gaps_add(&g, &(struct span){.end = GAPS_LEAST_NS + i, .peer = -1, .kind = SPAN_EXPOSED});
    gaps_add(&g, &(struct span){.end = GAPS_LEAST_NS - 1, .peer = -1, .kind = SPAN_EXPOSED});
    assert_int_equal(spans_count(&g.exposed), GAPS_KEPT);
    for (size_t i = 0; i < GAPS_KEPT; i++)
        assert_true(spans_at(&g.exposed, i)->end >= GAPS_LEAST_NS + 2 * GAPS_KEPT);
    for (int peer = -1; peer < 4; peer++)
        gaps_add(&g, &(struct span){.end = 1000000000, .peer = peer, .kind = SPAN_WAIT});
    for (int r = 0; r < 3; r++) assert_near(g.waited[r], 1, 1e-9, "waited");
    assert_true(spans_count(&g.all) == 0 && spans_count(&g.waits) == 3);
    gaps_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_lost_while_a_peer_stood_still_is_waiting_for_it),
        cmocka_unit_test(test_reports_without_moments_have_none), cmocka_unit_test(test_gaps_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
