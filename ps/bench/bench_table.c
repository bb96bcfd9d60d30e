#include "ps/bench/bench_table.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define GB(rate) ((rate)*1e-9)
#define US(s)    ((s)*1e6)

// ---------------------------------------------------------------- table
static void print_load(const char *when) {
    double load[1] = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(load, 1) == 1) printf("# load %s: %.1f on %ld cores\n", when, load[0], cores);
}

void bench_table_head(const struct bench_request *q) {
    printf(
        "# bench ps: %s, medians of %d rounds; GB/s of payload, each worker's (times workers / servers: each "
        "server's)\n",
        dtype_name(q->plan.dtype), q->rounds);
    print_load("before");
    printf("#%9s %3s %3s %5s %6s | %7s %7s %5s %7s %5s | %8s %8s %8s %8s | %6s %6s | %6s %6s %6s\n", "bytes",
           "srv", "wrk", "keys", "medium", "raw", "push", "/raw", "pull", "/raw", "ack us", "p95", "pull us",
           "p95", "wk s/GB", "sv s/GB", "apply", "copy", "/copy");
}

static void print_medium(const struct bench_row *r, enum bench_medium m) {
    const struct bench_star *s = &r->star[m];
    double apply = bench_timed_rate(&r->apply), copy = bench_timed_rate(&r->copy);
    printf(
        "%10zu %3d %3d %5d %6s | %7.3f %7.3f %5.2f %7.3f %5.2f | %8.1f %8.1f %8.1f %8.1f | %7.2f %7.2f | %6.2f "
        "%6.2f %6.2f\n",
        r->bytes, r->servers, r->workers, r->keys, bench_medium_name(m),
        GB(bench_timed_rate(&r->raw[m].moved)), GB(bench_worker_rate(r, m, BENCH_PUSH)),
        bench_share_of_raw(r, m, BENCH_PUSH), GB(bench_worker_rate(r, m, BENCH_PULL)),
        bench_share_of_raw(r, m, BENCH_PULL), US(bench_series_median(&s->acknowledged)),
        US(bench_series_quantile(&s->acknowledged, 0.95)), US(bench_series_median(&s->landed)),
        US(bench_series_quantile(&s->landed, 0.95)), bench_cpu_per_gb(&s->cpu[BENCH_WORKER]),
        bench_cpu_per_gb(&s->cpu[BENCH_SERVER]), GB(apply), GB(copy), bench_ratio(apply, copy));
}

static void print_peer(const struct bench_row *r) {
    const struct bench_star *p = &r->peer;
    printf(
        "#%9zu ps-lite: push %.3f, pull %.3f, ack us %.1f; star / ps-lite: push %.2f, pull %.2f, ack %.2f\n",
        r->bytes, GB(bench_timed_rate(&p->moved[BENCH_PUSH])), GB(bench_timed_rate(&p->moved[BENCH_PULL])),
        US(bench_series_median(&p->acknowledged)), bench_over_peer(r, BENCH_PUSH),
        bench_over_peer(r, BENCH_PULL), bench_latency_over_peer(r));
}

void bench_table_row(const struct bench_row *r) {
    for (int m = 0; m < BENCH_MEDIA; m++)
        if (r->star[m].there) print_medium(r, (enum bench_medium)m);
    if (bench_shm_over_tcp(r, BENCH_PUSH) > 0)
        printf("#%9zu shm / tcp: push %.2f, pull %.2f\n", r->bytes, bench_shm_over_tcp(r, BENCH_PUSH),
               bench_shm_over_tcp(r, BENCH_PULL));
    if (r->peer.there) print_peer(r);
    fflush(stdout);
}

void bench_table_notes(void) {
    print_load("after");
    puts(
        "# raw: ZeroMQ without a star (tcp), a ring of shared memory (shm); the receiver reads every byte once.\n"
        "# apply: a shard thread's sum of all workers, AdamW and weights; copy: memcpy of large arrays; both count\n"
        "# bytes read and written. All take turns in each round: what else runs falls on all, ratios suffer less.");
}

// ---------------------------------------------------------------- JSON
static void put(cJSON *o, const char *key, double value) { cJSON_AddNumberToObject(o, key, value); }

static cJSON *put_timed(cJSON *o, const char *key, const struct bench_timed *t) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    put(x, "bytes", t->bytes);
    put(x, "seconds", bench_series_median(&t->seconds));
    put(x, "bytes_per_second", bench_timed_rate(t));
    put(x, "spread", bench_series_spread(&t->seconds));
    put(x, "samples", t->seconds.count);
    return x;
}

static void put_latency(cJSON *o, const char *key, const struct bench_series *s) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    put(x, "median_us", US(bench_series_median(s)));
    put(x, "p95_us", US(bench_series_quantile(s, 0.95)));
    put(x, "samples", s->count);
}

static void put_raw(cJSON *o, const char *key, const struct bench_raw *r) {
    cJSON *x = put_timed(o, key, &r->moved);
    put(x, "sender_cpu_seconds_per_gb", bench_cpu_per_gb(&r->sender));
    put(x, "receiver_cpu_seconds_per_gb", bench_cpu_per_gb(&r->receiver));
}

static void put_wire(cJSON *o, const struct bench_wire *w) {
    cJSON *x = cJSON_AddObjectToObject(o, "wire");
    put(x, "steps", w->steps);
    put(x, "expected_bytes", w->expected);
    put(x, "worker_sent_bytes", w->worker_sent);
    put(x, "worker_received_bytes", w->worker_received);
    put(x, "server_expected_bytes_per_step", w->server_expected);
    put(x, "server_sent_bytes_per_step", w->server_sent);
    put(x, "server_received_bytes_per_step", w->server_received);
}

static void put_star(cJSON *o, const struct bench_row *r, enum bench_medium m) {
    const struct bench_star *s = &r->star[m];
    cJSON *x = cJSON_AddObjectToObject(o, bench_medium_name(m));
    for (int i = 0; i < BENCH_DIRECTIONS; i++) {
        enum bench_direction d = (enum bench_direction)i;
        cJSON *moved = put_timed(x, bench_direction_name(d), &s->moved[d]);
        put(moved, "server_bytes_per_second", bench_server_rate(r, m, d));
        put(moved, "share_of_raw", bench_share_of_raw(r, m, d));
    }
    cJSON *cpu = cJSON_AddObjectToObject(x, "cpu_seconds_per_gb");
    for (int role = 0; role < BENCH_ROLES; role++)
        put(cpu, bench_role_name((enum bench_role)role), bench_cpu_per_gb(&s->cpu[role]));
    put_timed(x, "whole_step", &s->step);
    put_latency(x, "push_to_acknowledgement", &s->acknowledged);
    put_latency(x, "push_to_weights", &s->landed);
    put_wire(x, &s->wire);
}

static void put_peer(cJSON *o, const struct bench_row *r) {
    cJSON *x = cJSON_AddObjectToObject(o, "peer");
    cJSON_AddStringToObject(x, "name", "ps-lite");
    cJSON *over = cJSON_AddObjectToObject(x, "star_over_peer");
    for (int i = 0; i < BENCH_DIRECTIONS; i++) {
        enum bench_direction d = (enum bench_direction)i;
        put_timed(x, bench_direction_name(d), &r->peer.moved[d]);
        put(over, bench_direction_name(d), bench_over_peer(r, d));
    }
    put_latency(x, "push_to_acknowledgement", &r->peer.acknowledged);
    cJSON *cpu = cJSON_AddObjectToObject(x, "cpu_seconds_per_gb");
    for (int role = 0; role < BENCH_ROLES; role++)
        put(cpu, bench_role_name((enum bench_role)role), bench_cpu_per_gb(&r->peer.cpu[role]));
    put(over, "push_to_acknowledgement", bench_latency_over_peer(r));
}

cJSON *bench_row_json(const struct bench_row *r) {
    cJSON *o = cJSON_CreateObject();
    put(o, "payload_bytes", (double)r->bytes);
    put(o, "servers", r->servers);
    put(o, "workers", r->workers);
    put(o, "threads", r->threads);
    put(o, "keys", r->keys);
    put_timed(o, "copy", &r->copy);
    put_timed(o, "copy_in_pieces", &r->pieces);
    cJSON *apply = put_timed(o, "apply", &r->apply);
    put(apply, "share_of_copy", bench_ratio(bench_timed_rate(&r->apply), bench_timed_rate(&r->copy)));
    cJSON *raw = cJSON_AddObjectToObject(o, "raw");
    put_raw(raw, "tcp", &r->raw[BENCH_TCP]);
    put_raw(raw, "shm", &r->raw[BENCH_SHM]);
    cJSON *star = cJSON_AddObjectToObject(o, "star");
    for (int m = 0; m < BENCH_MEDIA; m++)
        if (r->star[m].there) put_star(star, r, (enum bench_medium)m);
    if (r->peer.there) put_peer(o, r);
    if (r->star[BENCH_TCP].there && r->star[BENCH_SHM].there) {
        cJSON *over = cJSON_AddObjectToObject(o, "shm_over_tcp");
        put(over, "push", bench_shm_over_tcp(r, BENCH_PUSH));
        put(over, "pull", bench_shm_over_tcp(r, BENCH_PULL));
    }
    return o;
}

cJSON *bench_document(const struct bench_request *q, cJSON *rows) {
    cJSON *o = cJSON_CreateObject();
    double load[1] = {0};
    cJSON_AddStringToObject(o, "bench", "ps");
    cJSON_AddStringToObject(o, "dtype", dtype_name(q->plan.dtype));
    put(o, "rounds", q->rounds);
    put(o, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    if (getloadavg(load, 1) == 1) put(o, "load_at_the_end", load[0]);
    cJSON_AddItemToObject(o, "rows", rows);
    return o;
}
