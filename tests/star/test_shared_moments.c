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

#include "shared/config/json.h"
#include "shared/time/moments.h"

static void assert_near(double got, double want, double error, const char *what) {
    if (!(fabs(got - want) <= error)) fail_msg("%s: %.9f, not %.9f", what, got, want);
}

static bool inside(const struct stall *list, size_t count, int64_t now) {
    for (size_t i = 0; i < count; i++)
        if (now >= list[i].begin && now < list[i].end) return true;
    return false;
}

static const struct moment_wait *wait_at(const struct moments *m, int64_t now) {
    for (size_t i = 0; i < m->wait_count; i++)
        if (now >= m->waits[i].begin && now < m->waits[i].end) return &m->waits[i];
    return NULL;
}

// Of those that stood still the one that goes on last; -1: none.
static int last_to_go_on(struct moments *const *m, size_t count, size_t of, int64_t now) {
    int64_t last = 0;
    int peer = -1;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; !(r != of && m[of]->alone && m[r]->exposed) &&
                           i < m[r]->stall_count[STALL_PROCESS] + m[r]->stall_count[STALL_PART];
             i++) {
            size_t first = m[r]->stall_count[STALL_PROCESS];
            const struct stall *s =
                i < first ? &m[r]->stalls[STALL_PROCESS][i] : &m[r]->stalls[STALL_PART][i - first];
            if (now < s->begin || now >= s->end || s->end <= last) continue;
            last = s->end;
            peer = (int)r;
        }
    return peer;
}

// Nanosecond by nanosecond: what was exposed, and what a worker was waited for while it stood still for something itself, is
// another rank's that stood still; what was exposed may be the rank's own.
static void blame_by_definition(struct moments *const *m, size_t count, size_t of, double *out) {
    memset(out, 0, count * sizeof *out);
    for (int64_t now = 0; now < 400; now++) {
        const struct moment_wait *w = wait_at(m[of], now);
        bool exposed = inside(m[of]->exposed, m[of]->exposed_count, now);
        bool named = w && !m[of]->alone && w->peer != (int)of && w->peer < 3;
        bool idle = named &&
                    (inside(m[w->peer]->exposed, m[w->peer]->exposed_count, now) || wait_at(m[w->peer], now));
        int peer = last_to_go_on(m, count, of, now);
        if (peer < 0 || !(exposed || (idle && peer != (int)of))) continue;
        out[peer]++;
        if (idle) out[w->peer]--;
    }
}

static void add_piece(void *ctx, const struct split_gap *piece, int rank) {
    double *seconds = ctx;
    seconds[rank + 1] += 1e-9 * (double)(piece->end - piece->begin);
}

// The blame as sums; and each gap cut by it: nothing is lost, and of what was exposed each rank has what it is blamed for.
static void blame_added_up(struct moments *const *m, size_t count, size_t of, double *out) {
    size_t n, at = 0;
    struct blame *list = moments_blame(m, count, of, &n);
    double exposed[5] = {0}, told = 0, all = 0;
    memset(out, 0, count * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        double seconds = 1e-9 * (double)(list[i].end - list[i].begin);
        assert_true(seconds > 0 && (i == 0 || list[i].begin >= list[i - 1].end));
        out[list[i].rank] += seconds;
        if (list[i].instead >= 0) out[list[i].instead] -= seconds;
        if (list[i].instead < 0) exposed[list[i].rank + 1] -= seconds;
    }
    for (size_t i = 0; i < m[of]->exposed_count; i++) {
        const struct stall *e = &m[of]->exposed[i];
        moments_settle(list, n, &at, &(struct split_gap){.begin = e->begin, .end = e->end, .peer = -1},
                       add_piece, exposed);
        all += 1e-9 * (double)(e->end - e->begin);
    }
    for (size_t r = 1; r <= count; r++) assert_near(1e9 * exposed[r], 0, 1e-3, "settled");
    for (size_t i = 0; i < n; i++)
        told += list[i].instead < 0 ? 1e-9 * (double)(list[i].end - list[i].begin) : 0;
    assert_near(1e9 * (exposed[0] + told), 1e9 * all, 1e-3, "nothing is lost");
    free(list);
}

static struct moments *made_up_moments(unsigned *seed, int64_t odd, bool server) {
    struct moments *m = calloc(1, sizeof *m);
    for (int k = 0; k < STALL_KINDS; k++) m->stalls[k] = calloc(5, sizeof *m->stalls[k]);
    m->exposed = server ? NULL : calloc(5, sizeof *m->exposed);
    m->waits = calloc(5, sizeof *m->waits);
    m->alone = rand_r(seed) % 3 == 0;
    // Of either kind one behind the other; ends of two ranks differ.
    for (int left = rand_r(seed) % 5, at = 0; left > 0; left--) {
        int k = rand_r(seed) % STALL_KINDS;
        struct stall *one = &m->stalls[k][m->stall_count[k]++];
        one->begin = at + 1 + rand_r(seed) % 40;
        one->end = (one->begin + rand_r(seed) % 50) / 4 * 4 + 4 + odd;
        at = (int)one->end;
    }
    // A rank's gaps, from the last to the first: either kind is in no order.
    for (int64_t end = 330; end > 100 && !server; end -= rand_r(seed) % 30) {
        int64_t begin = end - 1 - rand_r(seed) % 70;
        if (rand_r(seed) % 2 && m->exposed_count < 5)
            m->exposed[m->exposed_count++] = (struct stall){begin, end};
        else if (m->wait_count < 5)
            m->waits[m->wait_count++] = (struct moment_wait){begin, end, rand_r(seed) % 4};
        end = begin;
    }
    return m;
}

static void test_what_is_lost_while_a_peer_stood_still_is_waiting_for_it(void **state) {
    (void)state;
    unsigned seed = 5;
    for (int round = 0; round < 3000; round++) {
        struct moments *m[4];
        double want[4], got[4];
        for (int r = 0; r < 4; r++) {
            struct moments *made = made_up_moments(&seed, r, r == 3);
            cJSON *report = cJSON_CreateObject();  // as it comes out of a report
            cJSON_AddNumberToObject(report, "rank", r < 3 ? r : 0);
            moments_put(report, made);
            moments_free(&made);
            assert_non_null(m[r] = moments_read(report));
            cJSON_Delete(report);
        }
        for (size_t of = 0; of < 3; of++) {
            blame_by_definition(m, 4, of, want);
            blame_added_up(m, 4, of, got);
            for (int r = 0; r < 4; r++) assert_near(1e9 * got[r], want[r], 1e-3, "blamed");
        }
        for (int r = 0; r < 4; r++) moments_free(&m[r]);
    }
}

static void test_reports_without_moments_have_none(void **state) {
    (void)state;
    static const char *const texts[] = {"{}", "{\"moments\":3}", "{\"moments\":null}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *report = cJSON_Parse(texts[i]);
        assert_null(moments_read(report));
        cJSON_Delete(report);
    }
    cJSON *broken = cJSON_Parse(
        "{\"moments\":{\"stalls\":[[1],[-3,4],[9,5],[1e300,2e300],\"x\",[3,4]],\"exposed\":[7],\"waits\":[[1,2],[3,1,0],7,[5,6,1]],\"waited\":[null,2]}}");
    struct moments *m = moments_read(broken);
    assert_int_equal(m->stall_count[STALL_PROCESS], 1);
    assert_int_equal(m->stall_count[STALL_PART], 0);
    assert_int_equal(m->exposed_count, 0);
    assert_int_equal(m->wait_count, 1);
    assert_true(m->rank == -1 && m->ranks == 2 && m->waited[0] == 0 && m->waited[1] == 2 &&
                m->stood_still == 0);
    moments_free(&m);
    cJSON_Delete(broken);
}

// The longest are kept; what is waited for is added up for whom it was.
static void test_gaps_are_bounded(void **state) {
    (void)state;
    struct gaps *g = gaps_create(3, false);
    for (int64_t i = 0; i < 3 * GAPS_KEPT; i++)
        gaps_note(g, &(struct gap){.of = {.begin = 0, .end = GAPS_LEAST_NS + i, .peer = -1}});
    gaps_note(g, &(struct gap){.of = {.begin = 0, .end = GAPS_LEAST_NS - 1, .peer = -1}});
    assert_int_equal(g->exposed_count, GAPS_KEPT);
    for (size_t i = 0; i < GAPS_KEPT; i++) assert_true(g->exposed[i].of.end >= GAPS_LEAST_NS + 2 * GAPS_KEPT);
    for (int peer = -1; peer < 4; peer++)
        gaps_note(g, &(struct gap){.of = {.begin = 0, .end = 1000000000, .peer = peer, .wait = true}});
    for (int r = 0; r < 3; r++) assert_near(g->waited[r], 1, 1e-9, "waited");
    assert_true(g->all_count == 0 && g->lost == 0);
    gaps_destroy(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_lost_while_a_peer_stood_still_is_waiting_for_it),
        cmocka_unit_test(test_reports_without_moments_have_none), cmocka_unit_test(test_gaps_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
