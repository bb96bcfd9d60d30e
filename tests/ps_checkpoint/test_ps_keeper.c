// A server's files of checkpoints: written by its keeper while threads hand it keys in any order, read by servers of
// another number; what becomes of a checkpoint that comes too early, too late, or finds the disk full.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <cjson/cJSON.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "ps/server/keeper.h"
#include "ps/server/server_threads.h"
#include "shared/core/disk.h"
#include "shared/core/file.h"
#include "tests/ps_checkpoint/keeper_job.h"

static struct keeper *open_keeper(struct job *j, int server) {
    struct keeper_options o = {
        .file =
            {.config = &j->c, .layout = j->l, .map = j->map, .rank = server, .run_dir = j->dir, .job = LIFE},
        .copies = j->copies};
    struct keeper *k = keeper_create(&o);
    assert_non_null(k);
    return k;
}

static void hand_over(struct job *j, struct keeper *k, int key, int64_t step) {
    keeper_keep(k, &(struct kept_key){.counts = {.key = key,
                                                 .version = 10 * step + key,
                                                 .updates = 10 * step + key + 5,
                                                 .pushed = j->pushed[key],
                                                 .batches = j->batches[key]},
                                      .step = step,
                                      .buf = &j->buf[key]});
}

// A shard hands over its keys in some order. The memory where a key was has other contents then.
struct hands {
    struct job *j;
    struct keeper *k;
    int shard;
    int64_t step;
    pthread_t thread;
};

static void *hands_main(void *arg) {
    struct hands *h = arg;
    struct job *j = h->j;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < j->map->count; i++) {
            int key = (int)((i * 7 + h->shard * 3 + h->step) % j->map->count);
            if (j->map->parts[key].shard != h->shard) continue;
            if (round == 0) {
                fill(j, key, h->step);
                hand_over(j, h->k, key, h->step);
            } else {
                fill(j, key, 99);
            }
        }
    return NULL;
}

static char *file_of(const struct job *j, int64_t step, int server, const char *ending) {
    char *dir = checkpoint_partial(j->dir, CHECKPOINT_ALL, step, LIFE),
         *path = xasprintf("%s/server-%d%s", dir, server, ending);
    free(dir);
    return path;
}

static bool there(const struct job *j, int64_t step, int server, const char *ending) {
    char *path = file_of(j, step, server, ending);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

// A checkpoint of all servers, on disk when it returns.
static void keep_all(struct job *j, struct keeper **k, int64_t step) {
    struct hands hands[16];
    assert_int_not_equal(j->map->count % 7, 0);
    for (int g = 0; g < j->map->shards; g++) {
        hands[g] = (struct hands){.j = j, .k = k[g / j->map->threads], .shard = g, .step = step};
        assert_int_equal(pthread_create(&hands[g].thread, NULL, hands_main, &hands[g]), 0);
    }
    for (int g = 0; g < j->map->shards; g++) pthread_join(hands[g].thread, NULL);
    for (int s = 0; s < j->map->servers; s++)
        while (!there(j, step, s, ".json") || !keeper_idle(k[s])) usleep(100);
}

static struct checkpoint *complete(const struct job *j, int64_t step) {
    static const char *const names[] = {"server-0", "server-1", "server-2"};
    const struct train_state train = {
        .step = step, .updates = step - 1, .samples = 12 * (step - 1), .handed_out = 12 * step};
    struct checkpoint_commit c = {.run_dir = j->dir,
                                  .start_number = LIFE,
                                  .participants = names,
                                  .count = j->map->servers,
                                  .train = &train,
                                  .dtype = "bf16",
                                  .optimizer = "AdamW",
                                  .states = 2};
    char *why = NULL, *path = xasprintf("%s/checkpoints/step-%d", j->dir, (int)step);
    if (checkpoint_complete(&c, NULL, &why)) fail_msg("%s", why);
    struct checkpoint *out = checkpoint_open(path);
    assert_non_null(out);
    free(path);
    return out;
}

// As a scheduler finds it.
static struct start_point found(const struct checkpoint *c) {
    struct start_point p = {.step = 0};
    snprintf(p.checkpoint, sizeof p.checkpoint, "%s", checkpoint_path(c));
    snprintf(p.seal, sizeof p.seal, "%s", checkpoint_seal(c));
    return p;
}

// Servers of this job read what those of another one wrote.
static void read_back(struct job *j, struct checkpoint *c, int64_t step) {
    for (int s = 0; s < j->map->servers; s++) {
        const struct state_read r = {&j->c, j->l, j->map, s, j->buf};
        const struct start_point from = found(c);
        struct key_rows rows = {0};
        assert_int_equal(server_read_checkpoint(&r, &from, &rows, NULL), 0);
        key_rows_free(&rows);
    }
    for (int key = 0; key < j->map->count; key++) {
        size_t bytes = (size_t)(j->map->parts[key].end - j->map->parts[key].begin) * sizeof(float);
        struct server_buffers got = j->buf[key];
        j->buf[key] = j->copies[key];
        fill(j, key, step);
        assert_memory_equal(got.master, j->buf[key].master, bytes);
        for (int i = 0; i < 2; i++) assert_memory_equal(got.state[i], j->buf[key].state[i], bytes);
        j->buf[key] = got;
    }
}

static void open_keepers(struct job *j, struct keeper **k) {
    for (int s = 0; s < j->map->servers; s++) k[s] = open_keeper(j, s);
}

static void close_keepers(struct job *j, struct keeper **k, int files) {
    for (int s = 0; s < j->map->servers; s++) {
        keeper_end(k[s], true);
        assert_int_equal(keeper_figures(k[s]).complete, files);
        assert_int_equal(keeper_figures(k[s]).failed, 0);
        keeper_destroy(&k[s]);
    }
}

static void test_written_and_read(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct job j, other;
        struct keeper *k[3];
        job_init(&j, "sync", 3, 1 + i % 3, 1 + i % 2);
        job_init(&other, "sync", 2, 1 + (i + 1) % 3, 2);
        open_keepers(&j, k);
        for (int64_t step = 4; step <= 8; step += 4) {
            keep_all(&j, k, step);
            struct checkpoint *c = complete(&j, step);
            struct key_rows rows;
            read_back(&other, c, step);
            // All keys are equally far, as the steps say: this is no asynchronous star.
            assert_int_equal(key_rows_read(&rows, c, &other.c, other.map), 0);
            assert_int_equal(key_rows_step(&rows, 1), step);
            assert_int_equal(rows.keys[0].version, step - 1);
            assert_int_equal(rows.keys[0].clock, step);
            key_rows_free(&rows);
            checkpoint_close(&c);
        }
        close_keepers(&j, k, 2);
        job_free(&j);
        job_free(&other);
    }
}

// The last key of a job that shares elements with another job's.
static int last_of(const struct shard_map *m, const struct partition *p) {
    int last = m->first[p->unit];
    while (last + 1 < m->first[p->unit + 1] && m->parts[last + 1].begin < p->end) last++;
    return last;
}

// The history of each key goes with it: to the same keys, to keys cut differently, to another number of workers, and
// into an asynchronous star from anything else.
static void test_rows(void **state) {
    (void)state;
    struct job j, same, cut, more, sync;
    struct keeper *k[2];
    struct key_rows rows;
    job_init(&j, "async", 3, 2, 1);
    job_init(&same, "async", 3, 2, 1);
    job_init(&cut, "async", 3, 3, 2);
    job_init(&more, "async", 4, 2, 1);
    job_init(&sync, "sync", 3, 2, 1);
    for (int key = 0; key < j.map->count; key++) {
        for (int w = 0; w < 3; w++) j.pushed[key][w] = 4 + (key + w) % 3;
        j.batches[key][0] = 14 + key % 3;
        batches_clear(j.batches[key], (int)WORDS(3));
        j.batches[key][1] = 7;  // no key has it
    }
    open_keepers(&j, k);
    keep_all(&j, k, 4);
    struct checkpoint *c = complete(&j, 4);
    read_back(&cut, c, 4);
    assert_int_equal(key_rows_read(&rows, c, &same.c, same.map), 0);
    for (int key = 0; key < j.map->count; key++) {
        assert_int_equal(rows.keys[key].version, 40 + key);
        assert_int_equal(rows.keys[key].updates, 45 + key);
        assert_int_equal(rows.keys[key].clock, 0);
        // Where some key lacks a push all go on, and know what they have by the batch.
        for (int w = 0; w < 3; w++) assert_int_equal(rows.keys[key].pushed[w], 4);
        assert_memory_equal(rows.keys[key].batches, j.batches[key], sizeof j.batches[key][0] * WORDS(3));
    }
    assert_int_equal(key_rows_low(&rows), 7);
    assert_int_equal(key_rows_next(&rows), 16);
    for (int64_t batch = 0; batch < 20; batch++)
        assert_true(key_rows_has(&rows, batch) == (batch != 7 && batch < 14));
    key_rows_free(&rows);
    // The piece of a key with the most updates counts.
    assert_int_equal(key_rows_read(&rows, c, &cut.c, cut.map), 0);
    for (int key = 0; key < cut.map->count; key++) {
        int last = last_of(j.map, &cut.map->parts[key]);
        assert_int_equal(rows.keys[key].version, 40 + last);
        assert_memory_equal(rows.keys[key].batches, j.batches[last], sizeof j.batches[last][0] * WORDS(3));
    }
    key_rows_free(&rows);
    assert_int_equal(key_rows_read(&rows, c, &more.c, more.map), 0);
    for (int w = 0; w < 4; w++) assert_int_equal(rows.keys[0].pushed[w], 4);  // worker 0's
    // Batches of three samples instead of four: as many samples are used.
    assert_int_equal(rows.keys[0].batches[0], (j.batches[last_of(j.map, more.map->parts)][0] - 1) * 4 / 3);
    assert_int_equal(batches_holes(rows.keys[0].batches, (int)WORDS(4)), 0);
    assert_int_equal(rows.keys[0].version, (40 + last_of(j.map, &more.map->parts[0])) * 4 / 3);
    key_rows_free(&rows);
    assert_int_equal(key_rows_read(&rows, c, &sync.c, sync.map), 0);
    assert_int_equal(rows.keys[1].version, 3);
    assert_int_equal(rows.keys[1].clock, 4);
    key_rows_free(&rows);
    checkpoint_close(&c);
    close_keepers(&j, k, 1);
    // A checkpoint of another topology: versions count this star's own batches, moments their updates.
    open_keepers(&sync, k);
    keep_all(&sync, k, 4);
    c = complete(&sync, 4);
    assert_int_equal(key_rows_read(&rows, c, &same.c, same.map), 0);
    assert_int_equal(rows.keys[0].version, 9);  // 36 samples, 4 to a worker's batch
    assert_int_equal(rows.keys[0].updates, 3);
    assert_int_equal(rows.keys[0].clock, 0);
    assert_int_equal(rows.keys[0].batches[0], 12);  // 48 samples were handed out
    assert_int_equal(key_rows_step(&rows, 2), 4);
    key_rows_free(&rows);
    checkpoint_close(&c);
    close_keepers(&sync, k, 1);
    job_free(&j), job_free(&same), job_free(&cut), job_free(&more), job_free(&sync);
}

// Another byte in server 0's file: so far behind its header's beginning, or, below 0, before its end.
static void damage(const struct job *j, long at) {
    char *path = xasprintf("%s/checkpoints/step-4/server-0.safetensors", j->dir);
    FILE *f = fopen(path, "r+");
    assert_true(f && !fseek(f, at, at < 0 ? SEEK_END : SEEK_SET));
    int c = fgetc(f);
    assert_true(!fseek(f, -1, SEEK_CUR) && fputc(c + 1, f) != EOF && !fclose(f));
    free(path);
}

// Every role reads how far all keys are. The bytes of the state are hashed by those that take it.
static void test_rows_alone(void **state) {
    (void)state;
    struct job j;
    struct keeper *k[2];
    struct key_rows rows;
    job_init(&j, "async", 3, 2, 1);
    open_keepers(&j, k);
    keep_all(&j, k, 4);
    struct checkpoint *c = complete(&j, 4);
    checkpoint_close(&c);
    char *path = xasprintf("%s/checkpoints/step-4", j.dir);
    error_quiet(1);
    for (int i = 0; i < 2; i++) {
        damage(&j, i ? -24 : 4096);  // a row; a master
        assert_non_null(c = checkpoint_open(path));
        assert_int_equal(key_rows_read(&rows, c, &j.c, j.map), i ? -1 : 0);
        if (!i) assert_int_equal(rows.keys[1].version, 41);
        key_rows_free(&rows);
        assert_int_equal(checkpoint_verify(c), -1);
        assert_non_null(strstr(error_last(), "server-0.safetensors: is damaged"));
        checkpoint_close(&c);
    }
    error_quiet(0);
    close_keepers(&j, k, 1);
    free(path);
    job_free(&j);
}

static char *text_of(const struct job *j, int64_t step, const char *ending) {
    char *path = file_of(j, step, 0, ending), *text = xcalloc(1, 512);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is not there", path);
    assert_true(fread(text, 1, 511, f) > 0);
    fclose(f);
    free(path);
    return text;
}

// One that begins while the last one lacks a key is left out, whenever its keys come; the last one is completed.
static void test_one_at_a_time(void **state) {
    (void)state;
    struct job j;
    job_init(&j, "async", 2, 1, 1);
    struct keeper *k = open_keeper(&j, 0);
    int last = j.map->count - 1;
    for (int key = 0; key < last; key++) fill(&j, key, 4), hand_over(&j, k, key, 4);
    hand_over(&j, k, 0, 8);
    hand_over(&j, k, 1, 8);
    while (!there(&j, 8, 0, ".failed")) usleep(100);
    char *why = text_of(&j, 8, ".failed");
    assert_non_null(strstr(why, "still writing the previous checkpoint"));
    free(why);
    assert_false(there(&j, 4, 0, ".json"));
    fill(&j, last, 4);
    hand_over(&j, k, last, 4);
    while (!there(&j, 4, 0, ".json") || !keeper_idle(k)) usleep(100);
    struct checkpoint *c = complete(&j, 4);
    read_back(&j, c, 4);
    checkpoint_close(&c);
    hand_over(&j, k, last, 8);  // late: it begins nothing
    for (int key = 0; key <= last; key++) fill(&j, key, 12), hand_over(&j, k, key, 12);
    keeper_end(k, true);
    assert_true(there(&j, 12, 0, ".json"));
    assert_false(there(&j, 8, 0, ".json"));
    assert_int_equal(keeper_figures(k).complete, 2);
    assert_int_equal(keeper_figures(k).failed, 1);
    keeper_destroy(&k);
    job_free(&j);
}

static _Atomic int disk_stands, opens;
static pthread_t shard;

static void stand(void) {
    atomic_fetch_add(&opens, 1);
    assert_true(!pthread_equal(pthread_self(), shard));
    while (atomic_load(&disk_stands)) usleep(100);
}

static int open_stands(const char *path, int flags, mode_t mode) {
    stand();
    return disk_system.open(path, flags, mode);
}

static int mkdir_stands(const char *path, mode_t mode) {
    stand();
    return disk_system.mkdir(path, mode);
}

// A disk that stands still holds no shard up: not the one whose key begins a checkpoint that is left out, either.
static void test_standing_disk(void **state) {
    (void)state;
    struct job j;
    struct disk_ops stands = disk_system;
    job_init(&j, "async", 2, 1, 1);
    struct keeper *k = open_keeper(&j, 0);
    stands.open = open_stands;
    stands.mkdir = mkdir_stands;
    atomic_store(&disk_stands, 1);
    shard = pthread_self();
    disk_replace(&stands);
    fill(&j, 0, 4), hand_over(&j, k, 0, 4);
    while (!atomic_load(&opens)) usleep(100);
    for (int64_t step = 8; step <= 16; step += 4) hand_over(&j, k, 0, step);
    for (int key = 1; key < j.map->count; key++) fill(&j, key, 4), hand_over(&j, k, key, 4);
    atomic_store(&disk_stands, 0);
    while (!there(&j, 4, 0, ".json") || !keeper_idle(k)) usleep(100);
    keeper_end(k, true);
    disk_replace(&disk_system);
    for (int64_t step = 8; step <= 16; step += 4) assert_true(there(&j, step, 0, ".failed"));
    assert_int_equal(keeper_figures(k).complete, 1);
    assert_int_equal(keeper_figures(k).failed, 3);
    keeper_destroy(&k);
    job_free(&j);
}

// The job ends: what has all its keys is completed, what lacks one leaves no file, nor what nobody waits for.
static void test_end(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        bool lacks = i == 1, orderly = i < 2;
        struct job j;
        job_init(&j, "sync", 2, 1, 1);
        struct keeper *k = open_keeper(&j, 0);
        for (int key = lacks ? 1 : 0; key < j.map->count; key++) fill(&j, key, 4), hand_over(&j, k, key, 4);
        keeper_end(k, orderly);
        assert_true(i == 2 || there(&j, 4, 0, ".json") == !lacks);
        assert_true(!lacks || !there(&j, 4, 0, ".safetensors"));
        keeper_destroy(&k);
        job_free(&j);
    }
}

// ---------------------------------------------------------------- a full disk
static _Atomic int64_t room;

static ssize_t write_until_full(int fd, const void *data, size_t bytes) {
    if (atomic_fetch_sub(&room, (int64_t)bytes) < (int64_t)bytes) {
        errno = ENOSPC;
        return -1;
    }
    return disk_system.write(fd, data, bytes);
}

static void test_full_disk(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job j;
        struct disk_ops full = disk_system;
        job_init(&j, "sync", 2, 1, 2);
        struct keeper *k = open_keeper(&j, 0);
        full.write = write_until_full;
        atomic_store(&room, i ? 20000 : 0);
        disk_replace(&full);
        for (int key = 0; key < j.map->count; key++) fill(&j, key, 4), hand_over(&j, k, key, 4);
        while (!keeper_idle(k)) usleep(100);
        disk_replace(&disk_system);
        assert_false(there(&j, 4, 0, ".json"));
        assert_false(there(&j, 4, 0, ".safetensors"));
        keep_all(&j, &k, 8);
        struct checkpoint *c = complete(&j, 8);
        read_back(&j, c, 8);
        checkpoint_close(&c);
        keeper_end(k, true);
        assert_int_equal(keeper_figures(k).complete, 1);
        assert_int_equal(keeper_figures(k).failed, 1);
        keeper_destroy(&k);
        job_free(&j);
    }
}

// ---------------------------------------------------------------- reading
static void test_reading(void **state) {
    (void)state;
    struct job j;
    job_init(&j, "sync", 2, 2, 1);
    struct keeper *k[2];
    open_keepers(&j, k);
    keep_all(&j, k, 4);
    struct checkpoint *c = complete(&j, 4);
    struct start_point p = found(c);
    checkpoint_close(&c);
    close_keepers(&j, k, 1);
    char *file = xasprintf("%s/server-1.safetensors", p.checkpoint);
    const struct state_read r = {&j.c, j.l, j.map, 1, j.buf};
    // It is read; the scheduler has found another one of that name; a bit has flipped.
    for (int i = 0; i < 3; i++) {
        struct key_rows rows = {0};
        p.seal[0] ^= i == 1;
        assert_int_equal(server_read_checkpoint(&r, &p, &rows, NULL), i ? -1 : 0);
        p.seal[0] ^= i == 1;
        if (i == 1) assert_non_null(strstr(error_last(), "another checkpoint here"));
        if (i == 2) assert_non_null(strstr(error_last(), "server-1.safetensors"));
        if (i > 0) assert_non_null(strstr(error_last(), "on many machines one that they share"));
        key_rows_free(&rows);
        if (i == 0) continue;
        FILE *f = fopen(file, "r+");
        assert_non_null(f);
        fseek(f, -100, SEEK_END);
        int was = fgetc(f);
        fseek(f, -100, SEEK_END);
        fputc(was ^ 4, f);
        fclose(f);
    }
    free(file);
    job_free(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_and_read), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_alone),       cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_standing_disk),    cmocka_unit_test(test_end),
        cmocka_unit_test(test_full_disk),        cmocka_unit_test(test_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
