// The rendezvous' cost for rank 0 as a job grows: its registry with 8 to 1,000 simulated ranks, eight to a machine, over a network that
// loses nothing. Bytes are exact and asserted; CPU seconds are printed. With sizes as arguments it prints their rows:
// build/tests/test_shared_book_sizes 4096
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/fabric/client.h"
#include "shared/fabric/registry.h"

#define IDENTITY "{\"steps\":\"10\",\"seed\":\"1\"}"
#define SECONDS  10    // of heartbeats
#define PUT      1000  // bytes that everybody gets
#define PART     8     // bytes that everybody hands to everybody

struct job_size {
    int size, cast;  // clients: of ranks, and of as many workers behind them
    int news;
    struct client *clients;
    struct registry *registry;
    struct said {
        struct meet_message m;
        void *data;
    } * up;  // on the way to the registry
    int ups, room;
    int deaf;  // a rank that hears nothing; -1: none
    double now_s, cpu_s, since_s, bytes, messages, tables, table_bytes;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void to_book(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    struct job_size *j = ctx;
    (void)rank;
    (void)life;
    if (j->ups == j->room) {
        j->room = j->room ? 2 * j->room : 64;
        j->up = xrealloc(j->up, (size_t)j->room * sizeof *j->up);
    }
    struct said *s = &j->up[j->ups++];
    *s = (struct said){*m, xcalloc(1, m->bytes + 1)};
    if (m->bytes) memcpy(s->data, data, m->bytes);
}

static void to_seat(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    struct job_size *j = ctx;
    (void)life;
    j->cpu_s += cpu_seconds() - j->since_s;
    j->bytes += (double)(sizeof *m + m->bytes);
    bool table = m->kind == MEET_GOT && !strcmp(m->name, MEET_TABLE);
    j->tables += table;
    if (table) j->table_bytes += (double)m->bytes;
    j->messages++;
    if (rank != j->deaf) client_receive(&j->clients[rank], m, data, j->now_s);
    j->since_s = cpu_seconds();
}

// A second: everybody says what is due, and the registry answers.
static void second(struct job_size *j) {
    for (int i = 0; i < j->size + j->cast; i++) client_tick(&j->clients[i], j->now_s);
    j->since_s = cpu_seconds();
    for (int i = 0; i < j->ups; i++) {
        struct said up = j->up[i];  // clients answer at once: there are more
        j->bytes += (double)(sizeof up.m + up.m.bytes);
        j->messages++;
        registry_receive(j->registry, &up.m, up.data, j->now_s);
    }
    registry_tick(j->registry, j->now_s);
    j->cpu_s += cpu_seconds() - j->since_s;
    while (j->ups) free(j->up[--j->ups].data);
    j->now_s += 1;
}

static void hear_news(void *ctx, const struct member_news *n) {
    ((struct job_size *)ctx)->news++;
    free(n->data);
}

static struct job_size *cast_create(int size, int cast) {
    struct job_size *j = xcalloc(1, sizeof *j);
    *j = (struct job_size){.size = size,
                           .cast = cast,
                           .now_s = 10,
                           .deaf = -1,
                           .clients = xcalloc((size_t)(size + cast), sizeof *j->clients)};
    for (int i = 0; i < size + cast; i++) {
        struct meet_join c = {.member.pid = 100 + i, .machine = (uint64_t)(1 + i / 8), .counts = {cast}};
        snprintf(c.member.host, sizeof c.member.host, "h%d", i / 8);
        snprintf(c.member.address, sizeof c.member.address, "10.0.%d.%d", i / 2048, i / 8 % 256);
        j->clients[i] = (struct client){.rank = i,
                                        .size = size,
                                        .incarnation = (uint64_t)i + 1,
                                        .where = "h0:29500",
                                        .silent_s = 30,
                                        .send = to_book,
                                        .ctx = j};
        client_open(&j->clients[i], &c, IDENTITY);
    }
    j->registry = registry_create(
        &(struct rendezvous_options){
            .size = size, .roles = {{"worker", cast}}, .identity = IDENTITY, .silent_s = 30},
        "h0:29500", to_seat, cast ? hear_news : NULL, j);
    return j;
}

static struct job_size *size_create(int size) { return cast_create(size, 0); }

static void size_destroy(struct job_size *j) {
    for (int i = 0; i < j->size + j->cast; i++) client_close(&j->clients[i]);
    registry_destroy(&j->registry);
    free(j->clients);
    free(j->up);
    free(j);
}

static struct client_want *want_all(struct job_size *j, const char *name) {
    struct client_want *w = xcalloc((size_t)j->size, sizeof *w);
    for (int i = 0; i < j->size; i++) {
        snprintf(w[i].name, sizeof w[i].name, "%s", name);
        client_want(&j->clients[i], &w[i]);
    }
    return w;
}

static void check_all(struct job_size *j, struct client_want *w, size_t bytes) {
    for (int i = 0; i < j->size; i++) {
        assert_non_null(w[i].data);
        assert_int_equal(w[i].bytes, bytes);
        client_unwant(&w[i]);
        free(w[i].data);
    }
    free(w);
}

struct row {
    double tables, table_bytes, messages;  // of the meeting
    double beat_bytes;                     // of a member and a second
};

static bool all_here(const struct job_size *j) {
    for (int i = 0; i < j->size; i++)
        if (!j->clients[i].members) return false;
    return true;
}

static struct row run(int size) {
    struct job_size *j = size_create(size);
    double n = size, cpu[4];
    for (int i = 0; i < 30 && !all_here(j); i++) second(j);
    for (int i = 0; i < size; i++) assert_int_equal(j->clients[i].members[size - 1].machine, (size - 1) / 8);
    struct row r = {.tables = j->tables, .table_bytes = j->table_bytes, .messages = j->messages};
    double meeting = j->bytes;
    cpu[0] = j->cpu_s;
    // 1. Everybody is there, and says so.
    j->bytes = 0;
    second(j);
    cpu[1] = j->cpu_s;
    j->bytes = 0;
    for (int i = 0; i < SECONDS; i++) second(j);
    r.beat_bytes = j->bytes / (n * SECONDS);
    cpu[1] = (j->cpu_s - cpu[1]) / SECONDS;
    // 2. One hands a text to all.
    char text[PUT] = "";
    cpu[2] = j->cpu_s;
    client_put(&j->clients[0], MEET_PUT, "text", text, sizeof text);
    struct client_want *w = want_all(j, "text");
    second(j);
    second(j);
    check_all(j, w, PUT);
    cpu[2] = j->cpu_s - cpu[2];
    // 3. All hand a word to all.
    cpu[3] = j->cpu_s;
    for (int i = 0; i < size; i++) client_put(&j->clients[i], MEET_PART, "#1", text, PART);
    w = want_all(j, "#1");
    second(j);
    second(j);
    check_all(j, w, (size_t)size * PART);
    cpu[3] = j->cpu_s - cpu[3];
    printf(
        "%5d ranks: meeting %9.2f MB (tables %9.2f MB) %7.3f s; a second %7.1f KB, %7.3f ms; a text to all %7.3f ms; a word "
        "of each to all %8.3f ms\n",
        size, 1e-6 * meeting, 1e-6 * r.table_bytes, cpu[0], 1e-3 * r.beat_bytes * n, 1e3 * cpu[1],
        1e3 * cpu[2], 1e3 * cpu[3]);
    size_destroy(j);
    return r;
}

static void test_growth(void **state) {
    (void)state;
    static const int sizes[] = {8, 64, 1000};
    double beat = 0;
    for (int i = 0; i < 3; i++) {
        struct row r = run(sizes[i]);
        double n = sizes[i], machines = (n + 7) / 8, table = 4 + 128 * floor(machines) + 16 * n,
               pieces = ceil(table / (double)MEET_CHUNK);
        // The table, once to each, in pieces; a few messages of each rank; and as much in a second, however many there are.
        assert_true(r.table_bytes == n * table);
        assert_true(r.tables == n * pieces);
        assert_true(r.messages <= n * (12 + 4 * pieces));
        if (i) assert_true(r.beat_bytes == beat);
        beat = r.beat_bytes;
    }
}

// A star: they come, each says a word, one text is for all, they are there, and they leave. Each costs what it costs alone.
static void run_cast(int cast, double each[4]) {
    struct job_size *j = cast_create(1, cast);
    char text[PUT] = "", word[PART] = "";
    double n = cast, messages, cpu_s;
    second(j);
    second(j);
    for (int i = 1; i <= cast; i++) assert_true(client_has_joined(&j->clients[i]));
    each[0] = j->messages / (n + 1);
    messages = j->messages;
    for (int i = 1; i <= cast; i++) client_put(&j->clients[i], MEET_SEND, "word", word, sizeof word);
    second(j);
    second(j);
    each[1] = (double)j->news / (n + 1);
    struct client_want *w = xcalloc((size_t)cast + 1, sizeof *w);
    for (int i = 1; i <= cast; i++) {
        w[i] = (struct client_want){.name = "text"};
        client_want(&j->clients[i], &w[i]);
    }
    second(j);
    client_put(&j->clients[0], MEET_PUT, "text", text, sizeof text);
    second(j);
    second(j);
    for (int i = 1; i <= cast; i++) {
        assert_int_equal(w[i].bytes, PUT);
        free(w[i].data);
        client_unwant(&w[i]);
    }
    free(w);
    j->bytes = 0;
    cpu_s = j->cpu_s;
    for (int i = 0; i < SECONDS; i++) second(j);
    each[2] = j->bytes / ((n + 1) * SECONDS);
    double beat_ms = 1e3 * (j->cpu_s - cpu_s) / SECONDS;
    for (int i = 1; i <= cast; i++) client_put(&j->clients[i], MEET_BYE, "", NULL, 0);
    second(j);
    second(j);
    assert_int_equal(registry_roles_here(j->registry), 0);
    assert_int_equal(j->news, 1 + 3 * cast);
    each[3] = (j->messages - messages) / (n + 1);
    printf("%5d workers: %.3f s in all; a second %7.1f KB, %7.3f ms\n", cast, j->cpu_s,
           1e-3 * each[2] * (n + 1), beat_ms);
    size_destroy(j);
}

static void test_growth_of_a_cast(void **state) {
    (void)state;
    double few[4], many[4];
    run_cast(15, few);
    run_cast(4095, many);
    for (int i = 0; i < 4; i++)
        if (many[i] > 1.1 * few[i] || few[i] > 1.1 * many[i])
            fail_msg("row %d: of each of few %g, of many %g", i, few[i], many[i]);
}

// A table may be on its way for long: it is asked about, and not said again while nothing says that it is lost.
static void test_tables_are_not_said_at_every_question(void **state) {
    (void)state;
    struct job_size *j = size_create(8);
    j->deaf = 7;
    for (int i = 0; i < 4; i++) second(j);
    assert_true(!j->clients[7].members);
    double tables = j->tables;
    for (int i = 0; i < 20; i++) second(j);
    assert_true(j->tables == tables);
    j->deaf = -1;
    for (int i = 0; i < 10; i++) second(j);
    assert_non_null(j->clients[7].members);
    assert_true(j->tables == tables + 1);
    size_destroy(j);
}

// Names that are read and dropped, and gathers that are over, leave nothing behind.
static void test_what_is_over_is_not_kept(void **state) {
    (void)state;
    struct job_size *j = size_create(8);
    char name[32], text[PART] = "";
    for (int i = 0; i < 4; i++) second(j);
    size_t names = registry_name_count(j->registry);
    for (int k = 1; k <= 2000; k++) {
        snprintf(name, sizeof name, "#%d", k);
        for (int i = 0; i < 8; i++) client_put(&j->clients[i], MEET_PART, name, text, PART);
        struct client_want *w = want_all(j, name);
        second(j);
        second(j);
        check_all(j, w, (size_t)8 * PART);
        snprintf(name, sizeof name, "line %d", k);
        client_put(&j->clients[1], MEET_PUT, name, text, PART);
        client_put(&j->clients[1], MEET_DROP, name, NULL, 0);
    }
    second(j);
    assert_int_equal(registry_name_count(j->registry), names + 1);  // the last gather
    size_destroy(j);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth), cmocka_unit_test(test_growth_of_a_cast),
                                       cmocka_unit_test(test_tables_are_not_said_at_every_question),
                                       cmocka_unit_test(test_what_is_over_is_not_kept)};
    for (int i = 1; i < argc; i++) run(atoi(argv[i]));
    return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
