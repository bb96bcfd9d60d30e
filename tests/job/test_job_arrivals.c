// An asynchronous run recorded under trouble, and replayed without it and under other trouble: the same weights, the
// same losses, the same recording.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define RUN                                                                                                   \
    "train --model llama.json --data data.txt --dtype bf16 --steps 8 --seq 32 --batch 2 --threads 1"          \
    " --quiet --set eval_batches=1 --set eval_every=3 --set parameter_server.partition_bytes=4096 --topology" \
    " ps:async --workers 3 --set parameter_server.servers=2 --force "

static char *text_of(const struct job_place *p, const char *run, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", p->dir, run, name);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is not there", path);
    char *text = xcalloc(1 << 20, 1);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    assert_true(n > 0);
    return text;
}

static char *recording(const struct job_place *p, const char *run, int shard) {
    char name[32];
    snprintf(name, sizeof name, "arrivals.%d", shard);
    return text_of(p, run, name);
}

static cJSON *run(const struct job_place *p, const char *name, const char *more) {
    struct job_output out = job_run(p, RUN "--out %s %s", name, more);
    if (out.status) fail_msg("%s: %s", more, out.err);
    job_output_free(&out);
    return job_summary(p, name);
}

static void replays_are_equal(void **state) {
    const struct job_place *p = *state;
    cJSON *first = run(p, "first", "--record-arrivals --straggle 1:3:0.5 --delay 2:exponential:5");
    char *curve = job_curve(p, "first");
    const char *const more[] = {
        "--replay-arrivals first --record-arrivals",
        "--replay-arrivals first --record-arrivals --straggle 0:4 --delay 1:pareto:10"};
    for (int i = 0; i < 2; i++) {
        cJSON *again = run(p, "again", more[i]);
        char *same = job_curve(p, "again");
        assert_string_equal(job_text(again, "weights_hash"), job_text(first, "weights_hash"));
        assert_string_equal(same, curve);
        assert_true(job_number(again, "val_loss") == job_number(first, "val_loss"));
        assert_true(cJSON_Compare(job_item(job_item(again, "staleness"), "histogram"),
                                  job_item(job_item(first, "staleness"), "histogram"), 1));
        for (int g = 0; g < 2; g++) {
            char *a = recording(p, "first", g), *b = recording(p, "again", g);
            assert_string_equal(a, b);
            free(a);
            free(b);
        }
        free(same);
        cJSON_Delete(again);
    }
    free(curve);
    cJSON_Delete(first);
}

#define SET "--set parameter_server."

// The same with every way of making updates of pushes.
static void options_replay(void **state) {
    const struct job_place *p = *state;
    static const char *const options[] = {SET "max_lead=1",
                                          SET "pushes_per_update=3",
                                          SET "age_damping=true " SET "pushes_per_update=2",
                                          SET "delay_compensation=0.5 " SET "max_lead=2",
                                          SET "max_staleness=0 " SET "pushes_per_update=2",
                                          SET "delay_compensation=0.5 " SET "delay_compensation_decay=0.95"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char more[256];
        snprintf(more, sizeof more, "--record-arrivals --straggle 1:3 %s", options[i]);
        cJSON *first = run(p, "option", more);
        snprintf(more, sizeof more, "--replay-arrivals option %s", options[i]);
        cJSON *again = run(p, "again", more);
        assert_string_equal(job_text(again, "weights_hash"), job_text(first, "weights_hash"));
        assert_true(job_number(first, "tokens_applied") == job_number(again, "tokens_applied"));
        // A mean of several pushes is one update, and of all samples that these are made of.
        const char *several = strstr(options[i], "pushes_per_update=");
        int per_update = several ? atoi(several + strlen("pushes_per_update=")) : 1;
        double updates = job_number(first, "updates_applied"), whole = (3 * 8 + per_update - 1) / per_update;
        bool drops = strstr(options[i], "max_staleness") != NULL;
        assert_true(drops ? updates <= whole : updates == whole);
        assert_true(drops || job_number(first, "samples_applied") == 3 * 8 * 2);
        snprintf(more, sizeof more, "\"step\":8,\"samples\":48,\"updates\":%.0f,", updates);
        char *evals = text_of(p, "option", "evals.jsonl");
        if (!drops && !strstr(evals, more)) fail_msg("%s is not in %s", more, evals);
        free(evals);
        cJSON_Delete(again);
        cJSON_Delete(first);
    }
}

// One worker's gradients are never old, and it leads nobody: local's bits.
static void alone_as_local(void **state) {
    const struct job_place *p = *state;
    cJSON *local = run(p, "one", "--topology local --workers 1");
    cJSON *star = run(p, "other",
                      "--workers 1 " SET "max_lead=1 " SET "age_damping=true " SET "delay_compensation=2 " SET
                      "max_staleness=0");
    assert_string_equal(job_text(local, "weights_hash"), job_text(star, "weights_hash"));
    cJSON_Delete(local);
    cJSON_Delete(star);
}

static double number_in(const cJSON *list, int i, const char *key) {
    return job_number(cJSON_GetArrayItem(list, i), key);
}

// The log of single updates adds up to the summary: histogram, workers, units, versions, time in order.
static void check_log(const struct job_place *p, const char *topology, bool stale) {
    enum { WORKERS = 3, STEPS = 8 };
    char path[256], line[512], more[96];
    double histogram[64] = {0}, of_worker[WORKERS] = {0}, count[WORKERS] = {0}, of_unit[4] = {0},
           most[4] = {0}, last_ns = 0;
    int units[4] = {0}, lines = 0;
    snprintf(more, sizeof more, "--log-updates --straggle 1:3 --topology %s", topology);
    cJSON *s = run(p, "again", more);
    const cJSON *staleness = job_item(s, "staleness"), *list = job_item(staleness, "units");
    assert_int_equal(cJSON_GetArraySize(list), 4);
    snprintf(path, sizeof path, "%s/again/updates.jsonl", p->dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        cJSON *o = cJSON_Parse(line);
        assert_non_null(o);
        double tau = job_number(o, "tau"), ns = job_number(o, "time_ns"), norm = job_number(o, "norm");
        int u = 0;
        while (strcmp(job_text(cJSON_GetArrayItem(list, u), "unit"), job_text(o, "unit")) != 0) u++;
        histogram[(int)tau]++;
        of_worker[(int)job_number(o, "worker")] += tau;
        count[(int)job_number(o, "worker")]++;
        of_unit[u] += tau;
        units[u]++;
        if (tau > most[u]) most[u] = tau;
        assert_true(ns >= last_ns && norm >= 0 && job_number(o, "step") >= 1 &&
                    job_number(o, "version") >= 0);
        last_ns = ns;
        lines++;
        cJSON_Delete(o);
    }
    fclose(f);
    const cJSON *bins = job_item(staleness, "histogram"), *bin;
    int tau = 0;
    cJSON_ArrayForEach(bin, bins) assert_true(bin->valuedouble == histogram[tau++]);
    for (; tau < 64; tau++) assert_true(histogram[tau] == 0);
    for (int u = 0; u < 4; u++) {
        double mean = number_in(list, u, "mean") * units[u];
        assert_true(mean > of_unit[u] - 1e-6 && mean < of_unit[u] + 1e-6);
        assert_true(number_in(list, u, "max") == most[u]);
    }
    for (int w = 0; w < WORKERS; w++) {
        double mean = number_in(job_item(staleness, "workers"), w, "mean") * count[w];
        assert_true(mean > of_worker[w] - 1e-6 && mean < of_worker[w] + 1e-6);
    }
    // A point of the series for each push of a key, whose mean is the run's.
    const cJSON *series = job_item(staleness, "series");
    double sum = 0, total = job_number(staleness, "mean");
    int points = WORKERS * STEPS;
    assert_int_equal(cJSON_GetArraySize(series), points);
    cJSON_ArrayForEach(bin, series) sum += cJSON_GetArrayItem(bin, 1)->valuedouble;
    assert_true(sum / points > total - 1e-6 && sum / points < total + 1e-6);
    assert_true(cJSON_GetArrayItem(cJSON_GetArrayItem(series, points - 1), 0)->valuedouble == points);
    double spread = job_number(job_item(staleness, "spread"), "max");
    assert_true(stale ? total > 0 && spread >= 0 : total == 0 && spread == 0);
    cJSON_Delete(s);
}

static void the_log_adds_up(void **state) {
    check_log(*state, "ps:async", true);
    check_log(*state, "ps:sync", false);
}

static void refused(const struct job_place *p, int status, const char *words, const char *text) {
    struct job_output out = job_run(p, RUN "--out again %s", words);
    assert_int_equal(out.status, status);
    if (!strstr(out.err, text)) fail_msg("%s: \"%s\" is not in:\n%s", words, text, out.err);
    // A worker or a server prints nothing about a job that its scheduler has ended.
    if (strstr(out.err, "[worker") || strstr(out.err, "[server")) fail_msg("%s:\n%s", words, out.err);
    job_output_free(&out);
}

static void what_does_not_fit_is_refused(void **state) {
    const struct job_place *p = *state;
    refused(p, EXIT_RUN_FAILED, "--replay-arrivals first --steps 9",
            ", line 1: is of another run: it has \"shard ");
    refused(p, EXIT_RUN_FAILED, "--replay-arrivals first --workers 2", "line 1: is of another run");
    refused(p, EXIT_RUN_FAILED, "--replay-arrivals first --model gpt2.json", "line 1: is of another run");
    refused(p, EXIT_RUN_FAILED, "--replay-arrivals nowhere", ": nowhere/arrivals.");
    refused(p, EXIT_USAGE, "--replay-arrivals again", "--out is the same directory");
    refused(p, EXIT_USAGE, "--record-arrivals --topology zero:1", "is a key of a star's servers");
    refused(p, EXIT_RUN_FAILED, "--replay-arrivals first " SET "pushes_per_update=2",
            "line 1: is of another run");
    refused(p, EXIT_USAGE, SET "age_damping=true --topology zero:1", "use ps:async");
    refused(p, EXIT_USAGE, SET "max_lead=0", "max_lead: expected an integer of at least 1");
    refused(p, EXIT_USAGE, SET "max_staleness=0 --topology zero:1", "use ps:async");
    refused(p, EXIT_USAGE, SET "distinct_workers=true " SET "pushes_per_update=2", "use ps:backup:B");
    refused(p, EXIT_USAGE, SET "max_staleness=-2", "max_staleness: expected an integer of at least -1");
    refused(p, EXIT_USAGE, "--log-updates --topology local --workers 1", "is a key of a star's servers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_are_equal), cmocka_unit_test(options_replay),
        cmocka_unit_test(alone_as_local),    cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(the_log_adds_up),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
