// `starring bench checkpoint`: its document, its refusals, that it writes what a run writes, sees what reads back wrong, and
// leaves nothing behind. No speed is looked at.
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/bench/bench_checkpoint.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/hf/presets.h"
#include "shared/model/model.h"
#include "tests/job/job.h"

#define TINY_PARAMS 125248  // of the preset

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static void expect_rate(const cJSON *document, const char *key, double bytes) {
    const cJSON *o = job_item(document, key);
    double seconds = job_number(o, "seconds");
    if (seconds <= 0 || !close_to(job_number(o, "bytes_per_second") * seconds, bytes))
        fail_msg("%s: %g s", key, seconds);
}

static void expect_empty(const char *dir) {
    // rmdir refuses a directory that holds anything.
    if (rmdir(dir)) fail_msg("something is left in %s", dir);
    assert_int_equal(mkdir(dir, 0777), 0);
}

static void a_document(void **state) {
    const struct job_place *p = *state;
    char *dir = xasprintf("%s/disk", p->dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    cJSON *j = job_json(p, "bench checkpoint --model tiny --dir disk --files 3 --rounds 1 --json");
    double bytes = job_number(j, "bytes"), data = 3.0 * 4 * TINY_PARAMS;
    assert_true(job_number(j, "params") == TINY_PARAMS && job_number(j, "numbers_per_parameter") == 3);
    // Three headers, of about a hundred bytes a piece.
    assert_true(bytes > data && bytes < data + 3 * 3 * 30 * 150);
    assert_true(job_number(j, "files") == 3 && job_number(j, "rounds") == 1);
    static const char *const rows[] = {"write", "read"};
    for (int i = 0; i < 2; i++) {
        const cJSON *row = job_item(j, rows[i]);
        expect_rate(row, "checkpoint", bytes);
        expect_rate(row, "plain", bytes);
        assert_true(close_to(job_number(row, "share_of_plain"),
                             job_number(job_item(row, "plain"), "seconds") /
                                 job_number(job_item(row, "checkpoint"), "seconds")));
    }
    assert_true(job_number(j, "target_share_of_plain_write") == 0.8);
    job_text(j, "file_system");
    expect_empty(dir);
    cJSON_Delete(j);
    free(dir);
}

static void a_table(void **state) {
    struct job_output o = job_run(*state, "bench checkpoint --model tiny --rounds 2");
    assert_int_equal(o.status, 0);
    static const char *const lines[] = {
        "# bench checkpoint: tiny, AdamW: 125248 parameters of 3 numbers of 4 bytes; ", "medians of 2 rounds",
        "\n  write ", " 0.80\n  read "};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(o.out, lines[i])) fail_msg("no \"%s\" in\n%s", lines[i], o.out);
    job_output_free(&o);
}

static void refusals(void **state) {
    const struct job_place *p = *state;
    static const struct {
        const char *words, *says;
        int status;
    } cases[] = {{"--model nothing", "nothing", 2},
                 {"--model tiny --files 0", "--files", 2},
                 {"--model tiny --files 65", "--files", 2},
                 {"--model tiny --rounds 100", "--rounds", 2},
                 {"--model tiny --set topology=zero:1", "topology=zero:1", 2},
                 {"--model tiny --dir nowhere", "--dir nowhere", 1},
                 {"--model big.json", " of memory, ", 1}};
    // Terabytes.
    assert_int_equal(
        run_file_write(p->dir, "big.json",
                       "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":16384,"
                       "\"num_hidden_layers\":60,\"num_attention_heads\":128,\"intermediate_size\":53248}"),
        0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_output o = job_run(p, "bench checkpoint %s", cases[i].words);
        if (o.status != cases[i].status || !strstr(o.err, cases[i].says))
            fail_msg("%s: status %d, says\n%s", cases[i].words, o.status, o.err);
        job_output_free(&o);
    }
}

// A signal ends it behind the measurement in hand.
static void a_signal_leaves_nothing(void **state) {
    const struct job_place *p = *state;
    char *dir = xasprintf("%s/disk", p->dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    pid_t pid = job_start(p, "bench checkpoint --model tiny --dir disk --rounds 99");
    struct stat s = {0};
    // Two links of its own, and one for each directory in it: it has begun.
    for (double until = now_seconds() + 30; s.st_nlink < 3 && now_seconds() < until; usleep(1000))
        assert_int_equal(stat(dir, &s), 0);
    kill(pid, SIGINT);
    struct job_output o = job_wait(p, pid, 60);
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "stopped by a signal"));
    expect_empty(dir);
    job_output_free(&o);
    free(dir);
}

// ---------------------------------------------------------------- the pieces, in this process
static struct model_spec spec;

static void open_tiny(struct checkpoint_bench *b, const struct job_place *p, int files) {
    assert_int_equal(model_spec_load("tiny", &spec), 0);
    *b = (struct checkpoint_bench){.where = p->dir,
                                   .layout = model_layout_create(&spec, 1),
                                   .optimizer = "AdamW",
                                   .dtype = "bf16",
                                   .states = 2,
                                   .files = files};
    assert_int_equal(checkpoint_bench_open(b), 0);
}

static void close_tiny(struct checkpoint_bench *b) {
    char *dir = xstrdup(b->dir);
    struct layout *l = (struct layout *)b->layout;
    checkpoint_bench_close(b);
    assert_int_equal(access(dir, F_OK), -1);
    layout_destroy(&l);
    free(dir);
}

static char *first_file(const struct checkpoint_bench *b) {
    return xasprintf("%s/checkpoints/step-%lld/worker-0.safetensors", b->dir, (long long)b->step);
}

// The written files are a checkpoint with all files and values; a changed byte of it is detected.
static void reads_what_it_wrote(void **state) {
    struct checkpoint_bench b;
    open_tiny(&b, *state, 2);
    assert_int_equal(checkpoint_bench_write(&b), 0);
    char *path = first_file(&b);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_true(s.st_size == b.file_bytes[0]);
    assert_int_equal(checkpoint_bench_read_plain(&b), 0);
    assert_int_equal(checkpoint_bench_read(&b), 0);
    // Other values in memory than in the file.
    float kept = b.state[7];
    b.state[7] = kept == 1 ? 2 : 1;
    error_quiet(1);
    assert_int_equal(checkpoint_bench_read(&b), -1);
    assert_non_null(strstr(error_last(), "reads back as other values"));
    b.state[7] = kept;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(checkpoint_bench_read(&b), -1);
    error_quiet(0);
    assert_non_null(strstr(error_last(), "is damaged"));
    // The next one is whole again, and the only one.
    free(path);
    assert_int_equal(checkpoint_bench_write(&b), 0);
    assert_int_equal(checkpoint_bench_read(&b), 0);
    close_tiny(&b);
}

static int no_room(int fd, off_t bytes) {
    (void)fd, (void)bytes;
    errno = ENOSPC;
    return -1;
}

// A full disk ends it with the reason.
static void a_full_disk(void **state) {
    struct checkpoint_bench b;
    struct disk_ops full = disk_system;
    full.reserve = no_room;
    open_tiny(&b, *state, 2);
    error_quiet(1);
    disk_replace(&full);
    assert_int_equal(checkpoint_bench_write(&b), -1);
    disk_replace(&disk_system);
    error_quiet(0);
    if (!strstr(error_last(), "no room for its")) fail_msg("it says: %s", error_last());
    close_tiny(&b);
}

// The plain files hold as many bytes as the checkpoint's.
static void plain_files_are_as_large(void **state) {
    struct checkpoint_bench b;
    open_tiny(&b, *state, 3);
    assert_int_equal(checkpoint_bench_write(&b), 0);
    assert_int_equal(checkpoint_bench_plain(&b), 0);
    for (int i = 0; i < 3; i++) {
        struct stat s;
        char *path = xasprintf("%s/plain-%d", b.dir, i);
        assert_int_equal(stat(path, &s), 0);
        assert_true(s.st_size == b.file_bytes[i]);
        free(path);
    }
    close_tiny(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_document, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_table, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(refusals, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_signal_leaves_nothing, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(reads_what_it_wrote, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_full_disk, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(plain_files_are_as_large, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("bench checkpoint", tests, NULL, NULL);
}
