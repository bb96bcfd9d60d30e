#include "ps/bench/bench_figures.h"

const char *bench_medium_name(enum bench_medium m) { return m == BENCH_SHM ? "shm" : "tcp"; }

const char *bench_role_name(enum bench_role r) {
    static const char *const names[BENCH_ROLES] = {"worker", "server", "scheduler"};
    return names[r];
}

const char *bench_direction_name(enum bench_direction d) { return d == BENCH_PUSH ? "push" : "pull"; }

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
    return bench_series_ratio(&r->peer.moved[d].seconds, &r->star[BENCH_TCP].moved[d].seconds);
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
