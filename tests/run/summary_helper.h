// A run's directory as its ranks and worker 0 leave it, written by hand.
#ifndef STARRING_TESTS_RUN_SUMMARY_HELPER_H
#define STARRING_TESTS_RUN_SUMMARY_HELPER_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/report/metrics.h"
#include "shared/report/run_dir.h"
#include "shared/report/summary.h"
#include "tests/topologies.h"

static inline int make_dir(void **state) {
    char *dir = xstrdup("/tmp/starring-summary-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    *state = dir;
    return run_dir_prepare(dir, false);
}

static inline int remove_dir(void **state) {
    char *command = xasprintf("rm -r %s", (char *)*state);
    int rc = system(command);
    free(command);
    free(*state);
    return rc;
}

static inline struct step_record record(int64_t step, double loss, double seconds) {
    return (struct step_record){.step = step,
                                .loss = loss,
                                .grad_norm = NAN,
                                .lr = 1e-3,
                                .loss_scale = 1,
                                .tokens = 128,
                                .samples = 4 * step,
                                .seconds = seconds,
                                .elapsed = 10 * seconds};
}

static inline void write_config(const char *dir, const char *topology, const char *dtype) {
    const struct config_override o[] = {
        {"model.name", "tiny", "--model"}, {"topology", topology, "--topology"},
        {"workers", "2", "--workers"},     {"parameter_server.servers", "2", NULL},
        {"dtype", dtype, "--dtype"},       {"data.seq_len", "32", "--seq"}};
    struct config *c = config_load(&topologies, NULL, o, sizeof o / sizeof o[0]);
    assert_non_null(c);
    char *text = config_to_json(c);
    assert_int_equal(run_file_write(dir, "config.json", text), 0);
    free(text);
    config_destroy(&c);
}

static inline struct rank_report report(const char *role, int rank) {
    struct rank_report r = {
        .rank = rank, .memory.formula_bytes = 4000, .rss_bytes = 12345, .wire.sent_per_step = 1000};
    snprintf(r.role, sizeof r.role, "%s", role);
    r.memory.predicted_bytes[MEM_PARAMETER] = r.peak_bytes[MEM_PARAMETER] = 2048;
    r.sent_per_step = 1000;
    r.steps = 5;
    r.time.forward = 1 + rank;
    r.time.host = 0.5;
    r.time.total = 1.5 + rank;
    r.staleness.count[0] = 6;
    r.staleness.count[2] = 2;
    r.staleness.max = 2;
    r.staleness.mean = 0.5;
    r.transport_peak_bytes = 100;
    r.updates = 40;
    r.samples_per_update = 8;
    // Rank 1 begins and ends a second later than rank 0; both stand aside for half a second.
    int64_t late_ns = rank * 1000000000LL;
    r.span =
        (struct rank_span){1000000000LL + late_ns, 5000000000LL + late_ns, 100000000LL, 300000000LL, 0.5};
    return r;
}

static inline void write_run(const char *dir, const char *topology) {
    struct run_facts facts = {
        .params = 1000,
        .flops = {.model = {.full = 6000, .causal = 5000}, .again = {.full = 1500, .causal = 1000}},
        .wall_seconds = 3,
        .data = "a text",
        .weights_hash = 0x0123456789abcdefULL,
        .has_hash = true,
    };
    write_config(dir, topology, "bf16");
    for (int r = 0; r < 2; r++) {
        struct rank_report w = report("worker", r), s = report("server", r);
        assert_int_equal(summary_write_rank(dir, &w, r == 0 ? &facts : NULL), 0);
        assert_int_equal(summary_write_rank(dir, &s, NULL), 0);
    }
    struct metrics *m = metrics_create(dir, 0, &(double){0});
    for (int i = 0; i < 5; i++) {
        struct step_record r = record(i + 1, 5 - i, i == 0 ? 9 : 0.25 * i);
        r.skipped = i == 1;
        metrics_step(m, &r);
    }
    assert_int_equal(metrics_destroy(&m), 0);
}

static inline double number(const cJSON *o, const char *a, const char *b) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, a);
    if (b) v = cJSON_GetObjectItemCaseSensitive(v, b);
    assert_true(cJSON_IsNumber(v));
    return v->valuedouble;
}

#define ON_DISK(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

#endif
