// kernels/cpu/team.c: which threads take part, that they see each other's work, that they sleep without work,
// and that they end with the thread that they belong to.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/team.h"

#define MANY 7

struct seen {
    int calls[MANY], counts[MANY];
    int64_t values[1000], total;  // values: written by the caller, doubled by the team
};

static void mark(void *arg, int index, int count) {
    struct seen *s = arg;
    int64_t begin, end;
    s->calls[index]++;
    s->counts[index] = count;
    parallel_range(1000, 8, index, count, &begin, &end);
    for (int64_t i = begin; i < end; i++) s->values[i] *= 2;
}

static void everyone_takes_part_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= MANY; threads++) {
        struct seen s = {0};
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 1000; i++) s.values[i] = i + round;
            team_run(threads, mark, &s);
            for (int i = 0; i < 1000; i++) assert_int_equal(s.values[i], 2 * (i + round));
        }
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(s.calls[i], i < threads ? 40 : 0);
            assert_int_equal(s.counts[i], i < threads ? threads : 0);
        }
    }
}

static void ranges_cover_everything_once(void **state) {
    (void)state;
    for (int64_t n = 0; n < 70; n++)
        for (int count = 1; count < 9; count++) {
            int64_t at = 0;
            for (int index = 0; index < count; index++) {
                int64_t begin, end;
                parallel_range(n, 8, index, count, &begin, &end);
                assert_true(begin == at && end >= begin && (end == n || end % 8 == 0));
                at = end;
            }
            assert_int_equal(at, n);
        }
}

static void nothing(void *arg, int index, int count) { (void)arg, (void)index, (void)count; }

// Members that have nothing to do give their cores away: within 20 s, where microseconds are meant.
static void the_idle_sleep(void **state) {
    (void)state;
    assert_true(TEAM_SPIN_NS <= 200000);
    for (int round = 0; round < 3; round++) {
        uint64_t before = team_sleeps();
        team_run(3, nothing, NULL);
        for (int i = 0; i < 20000 && team_sleeps() < before + 2; i++) usleep(1000);
        assert_true(team_sleeps() >= before + 2);
    }
}

static int threads_here(void) {
    int count = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) count += e->d_name[0] != '.';
    closedir(d);
    return count;
}

struct two {
    pthread_barrier_t together;
    atomic_int sum;
    int threads;  // of the process while both have their teams
};

static void add(void *arg, int index, int count) {
    (void)count;
    atomic_fetch_add((atomic_int *)arg, index);
}

static void *has_a_team(void *arg) {
    struct two *t = arg;
    for (int i = 0; i < 100; i++) team_run(4, add, &t->sum);
    if (pthread_barrier_wait(&t->together) == PTHREAD_BARRIER_SERIAL_THREAD) t->threads = threads_here();
    pthread_barrier_wait(&t->together);
    return NULL;
}

static void a_team_ends_with_its_thread(void **state) {
    (void)state;
    struct two t = {0};
    pthread_t a, b;
    int before = threads_here();
    pthread_barrier_init(&t.together, NULL, 2);
    assert_int_equal(pthread_create(&a, NULL, has_a_team, &t), 0);
    assert_int_equal(pthread_create(&b, NULL, has_a_team, &t), 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    pthread_barrier_destroy(&t.together);
    assert_int_equal(atomic_load(&t.sum), 2 * 100 * (0 + 1 + 2 + 3));
    assert_int_equal(t.threads, before + 2 * 4);
    assert_int_equal(threads_here(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_takes_part_once),
        cmocka_unit_test(ranges_cover_everything_once),
        cmocka_unit_test(the_idle_sleep),
        cmocka_unit_test(a_team_ends_with_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
