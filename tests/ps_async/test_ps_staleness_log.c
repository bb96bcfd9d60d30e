// Known staleness gives exactly these tables: by unit, over time, and a line for each push.
#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "ps/record/staleness_log.h"
#include "shared/state/staleness.h"
#include "tests/ps/test_ps_sim.h"

#define SHARDS 2
#define PUSHES 1000

// Push number i of a key, from 0, is this old.
static uint64_t tau_of(int key, int i) { return (uint64_t)(key + i / 500); }

// The logs of all shards in one, by time.
static void check_log(const char *dir, const struct shard_map *map) {
    char line[512];
    assert_int_equal(staleness_merge_logs(dir, SHARDS), 0);
    snprintf(line, sizeof line, "%s/updates.jsonl", dir);
    FILE *f = fopen(line, "r");
    assert_non_null(f);
    for (int i = 0; i < PUSHES * map->count; i++) {
        int key = i % map->count;
        double n = (double)(map->parts[key].end - map->parts[key].begin);
        assert_non_null(fgets(line, sizeof line, f));
        cJSON *o = cJSON_Parse(line);
        assert_true(cJSON_GetObjectItem(o, "key")->valuedouble == key);
        assert_true(cJSON_GetObjectItem(o, "version")->valuedouble == i / map->count);
        assert_true(cJSON_GetObjectItem(o, "step")->valuedouble == i / map->count / 2 + 1);
        assert_true(cJSON_GetObjectItem(o, "tau")->valuedouble == (double)tau_of(key, i / map->count));
        assert_true(fabs(cJSON_GetObjectItem(o, "norm")->valuedouble - 0.5 * sqrt(n)) < 1e-6);
        cJSON_Delete(o);
    }
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
}

static void tables_are_exact(void **state) {
    struct toy_case t = {.dtype = DT_BF16, .consistency = "async", .workers = 2, .servers = 2, .threads = 1};
    struct config c = toy_config(&t);
    struct layout *l = toy_layout(2, 80);
    struct shard_map *map = shard_map_of(&c, l);
    char dir[64] = "/tmp/study-XXXXXX", path[128];
    uint16_t *grad = xcalloc(1 << 16, sizeof *grad);
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/ranks", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    for (int i = 0; i < 1 << 16; i++) grad[i] = 0x3f80;  // 1
    struct staleness_log *s[SHARDS];
    for (int g = 0; g < SHARDS; g++) {
        struct staleness_log_options o = {l, map, DT_BF16, {0}, g, PUSHES, 1, dir};
        assert_non_null(s[g] = staleness_log_create(&o));
    }
    for (int i = 0; i < PUSHES; i++)
        for (int key = 0; key < map->count; key++) {
            struct wire_header h = {
                .rank = i % 2, .key = key, .step = i / 2, .version = i, .grad_scale = 0.5f};
            staleness_log_push(s[map->parts[key].shard], &h, grad, tau_of(key, i));
        }
    for (int g = 0; g < SHARDS; g++) {
        assert_int_equal(staleness_log_write(&s[g], 1, dir, g), 0);
        staleness_log_destroy(&s[g]);
    }
    cJSON *out = cJSON_CreateObject();
    staleness_merge_studies(out, dir, SHARDS);
    const cJSON *units = cJSON_GetObjectItem(out, "units"), *series = cJSON_GetObjectItem(out, "series");
    assert_int_equal(cJSON_GetArraySize(units), l->count);
    double keys = 0;
    for (int key = 0; key < map->count; key++) keys += key;
    for (int u = 0; u < l->count; u++) {
        double sum = 0;
        int first = map->first[u], end = map->first[u + 1];
        for (int key = first; key < end; key++) sum += key + 0.5;
        const cJSON *unit = cJSON_GetArrayItem(units, u);
        assert_string_equal(cJSON_GetObjectItem(unit, "unit")->valuestring, l->units[u].name);
        assert_true(fabs(cJSON_GetObjectItem(unit, "mean")->valuedouble - sum / (end - first)) < 1e-9);
        assert_true(cJSON_GetObjectItem(unit, "max")->valuedouble == end);  // end - 1, and one more later
    }
    // 200 points of 5 pushes of each key: the first is of updates 1 to 5.
    assert_int_equal(cJSON_GetArraySize(series), 200);
    for (int p = 0; p < 200; p++) {
        const cJSON *point = cJSON_GetArrayItem(series, p);
        double mean = keys / map->count + (p >= 100);
        assert_true(fabs(cJSON_GetArrayItem(point, 0)->valuedouble - (5 * p + 3)) < 1e-9);
        assert_true(fabs(cJSON_GetArrayItem(point, 1)->valuedouble - mean) < 1e-9);
    }
    cJSON_Delete(out);
    check_log(dir, map);
    snprintf(path, sizeof path, "rm -r %s", dir);
    assert_int_equal(system(path), 0);
    free(grad);
    shard_map_destroy(&map);
    layout_destroy(&l);
}

static _Atomic int stands, writes;

// Whoever writes to a file that stands still waits here.
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    atomic_fetch_add(&writes, 1);
    while (atomic_load(&stands)) usleep(100);
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

// A disk that stands still holds up nobody who adds lines, which are all there in the end, in their order; what it refuses is
// told with the step that it began with, and nothing is written behind it.
static void a_disk_that_stands_still(void **state) {
    char path[] = "/tmp/study-log-XXXXXX", line[64];
    int64_t step = 0;
    (void)state;
    close(mkstemp(path));
    struct updates_file *l = updates_file_open(path);
    assert_non_null(l);
    atomic_store(&stands, 1);
    for (int i = 0; i < 10000; i++) {
        snprintf(line, sizeof line, "line %d\n", i);
        updates_file_add(l, line, i + 1);
        while (i == 0 && !atomic_load(&writes)) usleep(100);
    }
    assert_int_equal(updates_file_lost(l, &step), 0);
    atomic_store(&stands, 0);
    assert_int_equal(updates_file_close(&l, &step), 0);
    FILE *f = fopen(path, "r");
    for (int i = 0; i < 10000; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        assert_int_equal(atoi(line + 5), i);
    }
    fclose(f);
    assert_int_equal(unlink(path), 0);
    assert_null(updates_file_open("/tmp/nowhere/log"));
    assert_int_equal(errno, ENOENT);
    // More than is kept for a disk.
    assert_non_null(l = updates_file_open(path));
    char *much = xcalloc(1, ((size_t)5 << 20) + 1);
    memset(much, 'x', (size_t)5 << 20);
    atomic_store(&stands, 1);
    atomic_store(&writes, 0);
    for (int i = 0; i < 6; i++) {
        updates_file_add(l, much, 11 + i);
        while (i == 0 && !atomic_load(&writes)) usleep(100);
    }
    assert_int_equal(updates_file_lost(l, &step), ENOBUFS);
    assert_int_equal(step, 15);  // one is being written, three wait
    atomic_store(&stands, 0);
    assert_int_equal(updates_file_close(&l, &step), ENOBUFS);
    assert_int_equal(step, 15);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_size, (off_t)20 << 20);
    free(much);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_are_exact),
                                       cmocka_unit_test(a_disk_that_stands_still)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
