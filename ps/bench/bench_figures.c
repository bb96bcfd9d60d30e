#include "ps/bench/bench_figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

const char *bench_medium_name(enum bench_medium m) { return m == BENCH_SHM ? "shm" : "tcp"; }

const char *bench_role_name(enum bench_role r) {
    static const char *const names[BENCH_ROLES] = {"worker", "server", "scheduler"};
    return names[r];
}

const char *bench_direction_name(enum bench_direction d) { return d == BENCH_PUSH ? "push" : "pull"; }

// ---------------------------------------------------------------- series
void bench_series_add(struct bench_series *s, double value) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        s->values = xrealloc(s->values, (unsigned long)s->capacity * sizeof *s->values);
    }
    s->values[s->count++] = value;
}

void bench_series_free(struct bench_series *s) {
    free(s->values);
    *s = (struct bench_series){0};
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// A sorted copy, which the caller frees.
static double *sorted(const struct bench_series *s) {
    double *v = xcalloc((unsigned long)s->count, sizeof *v);
    memcpy(v, s->values, (size_t)s->count * sizeof *v);
    qsort(v, (size_t)s->count, sizeof *v, ascending);
    return v;
}

double bench_series_quantile(const struct bench_series *s, double share) {
    if (!s->count) return 0;
    double *v = sorted(s);
    int at = (int)ceil(share * s->count) - 1;
    double value = v[at < 0 ? 0 : at];
    free(v);
    return value;
}

double bench_series_median(const struct bench_series *s) {
    if (!s->count) return 0;
    double *v = sorted(s);
    double value = 0.5 * (v[(s->count - 1) / 2] + v[s->count / 2]);
    free(v);
    return value;
}

double bench_series_spread(const struct bench_series *s) {
    double range = bench_series_quantile(s, 1) - bench_series_quantile(s, 0);
    return bench_ratio(range, bench_series_median(s));
}

// ---------------------------------------------------------------- figures
double bench_timed_rate(const struct bench_timed *t) {
    return bench_ratio(t->bytes, bench_series_median(&t->seconds));
}

double bench_apply_bytes(int64_t n, int workers, enum dtype dt) {
    double size = (double)dtype_size(dt), states = 3 * 2 * sizeof(float);
    double sums = (workers - 1) * 2.0 * sizeof(float), weight = dt == DT_F32 ? 0 : size;
    return (double)n * (workers * size + sums + states + weight);
}

double bench_worker_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d) {
    return bench_timed_rate(&r->star[m].moved[d]);
}

double bench_server_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d) {
    return bench_worker_rate(r, m, d) * r->workers / r->servers;
}

double bench_share_of_raw(const struct bench_row *r, enum bench_medium m, enum bench_direction d) {
    return bench_ratio(bench_worker_rate(r, m, d) * r->workers, bench_timed_rate(&r->raw[m].moved));
}

double bench_shm_over_tcp(const struct bench_row *r, enum bench_direction d) {
    return bench_ratio(bench_worker_rate(r, BENCH_SHM, d), bench_worker_rate(r, BENCH_TCP, d));
}

double bench_over_peer(const struct bench_row *r, enum bench_direction d) {
    const struct bench_series *star = &r->star[BENCH_TCP].moved[d].seconds, *peer = &r->peer.moved[d].seconds;
    struct bench_series ratios = {0};
    for (int i = 0; i < star->count && i < peer->count; i++)
        bench_series_add(&ratios, bench_ratio(peer->values[i], star->values[i]));
    double median = bench_series_median(&ratios);
    bench_series_free(&ratios);
    return median;
}

double bench_latency_over_peer(const struct bench_row *r) {
    return bench_ratio(bench_series_median(&r->star[BENCH_TCP].acknowledged),
                       bench_series_median(&r->peer.acknowledged));
}

static void star_free(struct bench_star *s) {
    for (int d = 0; d < BENCH_DIRECTIONS; d++) bench_series_free(&s->moved[d].seconds);
    bench_series_free(&s->step.seconds);
    bench_series_free(&s->acknowledged);
    bench_series_free(&s->landed);
}

void bench_row_free(struct bench_row *r) {
    bench_series_free(&r->copy.seconds);
    bench_series_free(&r->pieces.seconds);
    bench_series_free(&r->apply.seconds);
    for (int m = 0; m < BENCH_MEDIA; m++) {
        bench_series_free(&r->raw[m].moved.seconds);
        star_free(&r->star[m]);
    }
    star_free(&r->peer);
}
