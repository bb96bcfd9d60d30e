// `starring bench offload`: its document with and without fio, its refusals, and that nothing is left behind. No speed is
// looked at; a fio of our own says how fast it was.
#include <setjmp.h>
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

#include "shared/core/error.h"
#include "tests/job/job.h"

#define SMALL "bench offload --size 2M --unit 500K --rounds 2 --threads 1 --dir disk "

// 44 blocks of 1024 parameters are the smallest unit of 500 KiB or more; five of them are the least of 2 MiB.
#define PARAMETERS 43008
#define UNITS      5
#define BYTES      (12.0 * PARAMETERS * UNITS)

static const char *const rows[] = {"write", "read", "pipeline"};

static void prepare(const struct job_place *p) {
    char *dir = xasprintf("%s/disk", p->dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    free(dir);
}

static void assert_nothing_left(const struct job_place *p) {
    char *dir = xasprintf("%s/disk", p->dir);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

static void the_document(void **state) {
    static const char *const engines[] = {"io_uring", "threads"};
    prepare(*state);
    for (int i = 0; i < 2; i++) {
        cJSON *j = job_json(*state, SMALL "--fio none --engine %s --block 64K --depth 4 --buffers 2 --json",
                            engines[i]);
        assert_string_equal(job_text(j, "bench"), "offload");
        assert_string_equal(job_text(j, "engine"), engines[i]);
        assert_true(job_number(j, "unit_parameters") == PARAMETERS && job_number(j, "units") == UNITS);
        assert_true(job_number(j, "block_bytes") == 65536 && job_number(j, "depth") == 4);
        assert_true(job_number(j, "buffers") == 2 && job_number(j, "rounds") == 2);
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(j, "fio")));
        for (int row = 0; row < 3; row++) {
            const cJSON *o = job_item(j, rows[row]);
            assert_true(job_number(o, "bytes") == (row == 2 ? 2 : 1) * BYTES);
            assert_true(job_number(o, "bytes_per_second") > 0);
            assert_true(cJSON_IsNull(job_item(o, "share_of_fio")));
        }
        cJSON_Delete(j);
    }
    struct job_output o = job_run(*state, SMALL "--fio /nothing/fio");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "fio not measured: it is not installed (apt-get install fio)"));
    for (int row = 0; row < 3; row++)
        if (!strstr(o.out, rows[row])) fail_msg("no row %s in\n%s", rows[row], o.out);
    job_output_free(&o);
    assert_nothing_left(*state);
}

// A program that is asked as fio is: it writes what it was told into a file, and says that every job took 100 ms.
static char *made_up_fio(const struct job_place *p, const char *does) {
    char *path = xasprintf("%s/my fio", p->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "#!/bin/sh\n"
            "[ \"$1\" = --version ] && echo fio-9.9 && exit 0\n"
            "echo \"$@\" >> '%s/asked'\n"
            "%s\n"
            "echo 'fio: a remark'\n"
            "echo '{\"jobs\": [{\"read\": {\"runtime\": 100}, \"write\": {\"runtime\": 0}}, "
            "{\"read\": {\"runtime\": 0}, \"write\": {\"runtime\": 50}}]}'\n",
            p->dir, does);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static void beside_fio(void **state) {
    const struct job_place *p = *state;
    prepare(p);
    free(made_up_fio(p, ":"));
    char *link = xasprintf("%s/fio", p->dir), *asked = xasprintf("%s/asked", p->dir);
    char *to = xasprintf("%s/my fio", p->dir);
    assert_int_equal(symlink(to, link), 0);
    cJSON *j = job_json(p, SMALL "--fio ./fio --json --block 64K --depth 7");
    assert_string_equal(job_text(j, "fio"), "fio-9.9");
    for (int row = 0; row < 3; row++) {
        const cJSON *o = job_item(j, rows[row]);
        assert_true(job_number(o, "fio_bytes_per_second") == (row == 2 ? 2 : 1) * BYTES / 0.1);
        assert_true(job_number(o, "share_of_fio") > 0);
    }
    bool direct = cJSON_IsTrue(job_item(j, "direct"));
    cJSON_Delete(j);
    // The same file, pieces, depth and flags; three questions in each of three rounds.
    FILE *f = fopen(asked, "r");
    char line[1024], pid[32];
    int lines = 0;
    while (fgets(line, sizeof line, f)) {
        lines++;
        assert_int_equal(sscanf(strstr(line, "--filename="), "--filename=/proc/%31[0-9]/fd/", pid), 1);
        if (!strstr(line, "--bs=65536 --iodepth=7") || !strstr(line, "--size=2580480 ") ||
            !strstr(line, direct ? "--direct=1" : "--direct=0"))
            fail_msg("%s", line);
    }
    fclose(f);
    assert_int_equal(lines, 9);
    assert_nothing_left(p);
    unlink(link);
    unlink(to);
    unlink(asked);
    free(link);
    free(asked);
    free(to);
}

// A change that others make to the file between two checks is detected.
static void damage_is_seen(void **state) {
    const struct job_place *p = *state;
    prepare(p);
    char *path = made_up_fio(p,
                             "case \"$*\" in *--rw=write*) ;; *) file=${3#--filename=}; "
                             "printf x | dd of=\"$file\" bs=1 seek=77 conv=notrunc 2>/dev/null;; esac");
    char *link = xasprintf("%s/fio", p->dir), *asked = xasprintf("%s/asked", p->dir);
    assert_int_equal(symlink(path, link), 0);
    struct job_output o = job_run(p, SMALL "--fio ./fio");
    if (o.status != 1 || !strstr(o.err, "unit 0 has wrong bytes after writing"))
        fail_msg("%d %s", o.status, o.err);
    job_output_free(&o);
    assert_nothing_left(p);
    unlink(link);
    unlink(path);
    unlink(asked);
    free(link);
    free(path);
    free(asked);
}

static void what_is_refused(void **state) {
    static const struct {
        const char *options, *words;
        int status;
    } cases[] = {{"--block 1000", "--block 1000: expected a multiple of 4096", 2},
                 {"--depth 0", "--depth", 2},
                 {"--buffers 1", "--buffers", 2},
                 {"--engine aio", "--engine aio: expected one of auto, io_uring, threads", 2},
                 {"--dtype int8", "--dtype int8", 2},
                 {"--dir none/at/all", "none/at/all is not there", 1},
                 {"--size 1024G --unit 1G --fio none",
                  "are free there: make room or name another directory with --dir", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_output o = job_run(*state, "bench offload %s", cases[i].options);
        if (o.status != cases[i].status || !strstr(o.err, cases[i].words))
            fail_msg("%s: status %d, %s", cases[i].options, o.status, o.err);
        job_output_free(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_document, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(beside_fio, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(damage_is_seen, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(what_is_refused, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("bench offload", tests, NULL, NULL);
}
