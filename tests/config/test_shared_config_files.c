// DeepSpeed's own files give the expected values; what is written reads back equal and in silence.
#include <cjson/cJSON.h>

#include "shared/core/numbers.h"
#include "tests/config/config_helper.h"

// 07's nvme_path is a placeholder.
static struct config *ds(const char *name) {
    static const struct config_override nvme[] = {
        {"zero_optimization.offload_optimizer.nvme_path", "/tmp", NULL},
        {"zero_optimization.offload_param.nvme_path", "/tmp", NULL}};
    char path[128];
    snprintf(path, sizeof path, DS "%s", name);
    struct config *c = load_path(path, nvme, strncmp(name, "07", 2) ? 0 : COUNT(nvme));
    if (!c) fail_msg("%s", said);
    return c;
}

static void test_ds_01_and_02(void **state) {
    (void)state;
    struct config *c = ds("01-zero1-adam-warmup.json");
    assert_string_equal(c->topology, "zero:1");
    assert_int_equal(c->variant, 1);
    assert_int_equal(c->dtype, DT_F32);
    check_batch(c, 8, 4, 1, 2);
    assert_string_equal(c->optimizer_type, "Adam");
    assert_false(c->optimizer.l2_mode);
    assert_true(c->optimizer.lr == 1e-5f && c->optimizer.weight_decay == 0);
    assert_int_equal(c->schedule.type, SCHEDULE_WARMUP);
    assert_true(c->schedule.max_lr == 1e-5 && c->schedule.warmup_steps == 100);
    assert_int_equal(c->schedule.warmup, WARMUP_LOG);
    assert_true(c->reduce_elements == 500000000 && c->gather_elements == 500000000);
    assert_null(strstr(said, "keys that tune"));
    assert_null(strstr(said, "warning"));
    config_destroy(&c);
    assert_null(c);

    c = ds("02-zero2-fp16-auto-offload.json");
    assert_int_equal(c->variant, 2);
    assert_int_equal(c->dtype, DT_F32);
    assert_false(c->scaler.enabled);
    assert_true(c->optimizer.lr == 5e-5f && c->optimizer.beta1 == 0.9f && c->optimizer.beta2 == 0.999f);
    assert_true(c->optimizer.eps == 1e-8f && c->clip == 1);
    assert_int_equal(c->schedule.type, SCHEDULE_WARMUP_DECAY);
    assert_true(c->schedule.max_lr == 5e-5 && c->schedule.min_lr == 0 && c->schedule.total_steps == c->steps);
    assert_int_equal(c->steps_per_print, 2000);
    check_batch(c, 8, 4, 1, 2);
    assert_int_equal(c->offload_optimizer.device, OFFLOAD_CPU);
    assert_true(c->offload_optimizer.pin_memory);
    assert_int_equal(c->offload_param.device, OFFLOAD_NONE);
    assert_words(
        said,
        "without effect below stage 3|zero_optimization.offload_param (device)\n|"
        "done here whatever the key says|: activation_checkpointing (contiguous_memory_optimization), |"
        "nothing to act on here|: activation_checkpointing (partition_activations, "
        "synchronize_checkpoint_boundary)\n|"
        "off, so nothing is lost|: activation_checkpointing (profile)\n|"
        "unknown key min_lr|nearest known name is scheduler.params.warmup_min_lr\n|"
        "Hugging Face's defaults: optimizer.params (lr 5e-05, betas [0.9,0.999], eps 1e-08, weight_decay 0), "
        "scheduler.params (warmup_min_lr 0), gradient_clipping 1\n|"
        "fp16 (enabled false|train_batch_size 8|warmup_num_steps 2|warmup_max_lr 5e-05 = lr|"
        "total_num_steps 100 = steps",
        "02");
    config_destroy(&c);
}

static void test_ds_03_to_07(void **state) {
    (void)state;
    struct config *c = ds("03-onebit-adam-nccl.json");
    assert_true(c->optimizer.row->onebit && c->optimizer.freeze_step == 400);
    assert_true(c->optimizer.lr == 0.001f && c->optimizer.beta1 == 0.8f &&
                c->optimizer.weight_decay == 3e-7f);
    assert_words(said, "not used here|comm_backend_name|cuda_aware", "03");
    config_destroy(&c);

    c = ds("04-zero3-fp16-adamw.json");
    assert_string_equal(c->topology, "zero:3");
    assert_int_equal(c->dtype, DT_F16);
    assert_true(c->scaler.enabled && c->scaler.initial_power == 16 && c->scaler.window == 1000);
    assert_true(c->scaler.hysteresis == 2 && c->scaler.min_scale == 1 && !c->scaler.consecutive_hysteresis);
    assert_true(c->optimizer.beta1 == 0.8f && c->optimizer.weight_decay == 3e-7f);
    assert_string_equal(said, "");
    config_destroy(&c);
    static const char *const offload[] = {"05-zero3-offload-optimizer-cpu.json",
                                          "06-zero3-offload-param-cpu-missing-comma.json",
                                          "07-zero3-offload-nvme.json"};
    for (int i = 0; i < 3; i++) {
        c = ds(offload[i]);
        assert_string_equal(c->topology, "zero:3");
        assert_int_equal(c->offload_optimizer.device, i < 2 ? OFFLOAD_CPU : OFFLOAD_NVME);
        static const enum offload_device params[] = {OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME};
        assert_int_equal(c->offload_param.device, params[i]);
        assert_null(strstr(said, "offload_param"));
        config_destroy(&c);
    }
}

static void test_ds_08_and_09(void **state) {
    (void)state;
    struct config *c = ds("08-llama-practice.json");
    check_batch(c, 32, 4, 4, 2);
    assert_int_equal(c->variant, 2);
    assert_int_equal(c->scaler.window, 100);
    assert_true(c->scaler.enabled && c->clip == 1);
    assert_int_equal(c->steps_per_print, 10);
    assert_false(c->tensorboard.enabled);
    assert_string_equal(c->tensorboard.job_name, "step1_model_tensorboard");
    assert_null(c->tensorboard.output_path);  // ""
    assert_words(said,
                 "off, so nothing is lost|: prescale_gradients, hybrid_engine\n|"
                 "done here whatever the key says: wall_clock_breakdown\n|stage3_max_live_parameters",
                 "08");
    assert_null(strstr(said, "warning"));
    config_destroy(&c);

    const struct config_override local[] = {{"topology", "local", "--topology"}};
    c = load_path(DS "08-llama-practice.json", local, 1);
    check_batch(c, 32, 4, 8, 1);
    assert_words(said, "--topology: topology local does not use the section zero_optimization", "08 local");
    config_destroy(&c);

    c = ds("09-zero3-bf16-auto.json");
    assert_int_equal(c->variant, 3);
    assert_int_equal(c->dtype, DT_BF16);
    assert_false(c->scaler.enabled);
    check_batch(c, 8, 4, 1, 2);
    assert_int_equal(c->steps_per_print, 100);
    assert_null(strstr(said, "warning"));
    config_destroy(&c);
}

// ---------------------------------------------------------------- round trip
static void same_text(const char *a, const char *b) {
    assert_true((a == NULL) == (b == NULL));
    if (a) assert_string_equal(a, b);
}

#define SAME(field) assert_true(a->field == b->field)
static void assert_same(const struct config *a, const struct config *b) {
    same_text(a->topology, b->topology), same_text(a->model, b->model), same_text(a->data, b->data);
    same_text(a->val_data, b->val_data), same_text(a->tokenizer, b->tokenizer), same_text(a->out, b->out);
    same_text(a->optimizer_type, b->optimizer_type), same_text(a->ps.bind, b->ps.bind);
    SAME(row), SAME(variant), SAME(bound), SAME(workers), SAME(launch), SAME(device);
    SAME(collective);
    SAME(threads), SAME(val_fraction), SAME(seq), SAME(steps), SAME(seed), SAME(dtype), SAME(eval_every);
    SAME(eval_batches), SAME(eval_every_seconds), SAME(target_loss), SAME(keep_snapshots), SAME(trace),
        SAME(json), SAME(quiet), SAME(train_batch), SAME(micro_batch);
    SAME(accumulation), SAME(optimizer.lr), SAME(optimizer.beta1), SAME(optimizer.beta2), SAME(optimizer.eps);
    SAME(optimizer.weight_decay), SAME(optimizer.l2_mode), SAME(optimizer.no_bias_correction);
    SAME(schedule.type), SAME(schedule.min_lr), SAME(schedule.max_lr), SAME(schedule.warmup_steps);
    SAME(schedule.total_steps), SAME(schedule.warmup), SAME(schedule.warmup_min_ratio);
    assert_memory_equal(&a->schedule, &b->schedule, sizeof a->schedule);
    SAME(schedule.cos_min_ratio), SAME(scaler.enabled), SAME(scaler.static_scale), SAME(scaler.initial_power);
    SAME(scaler.window), SAME(scaler.hysteresis), SAME(scaler.consecutive_hysteresis), SAME(scaler.min_scale);
    SAME(clip), SAME(steps_per_print), SAME(reduce_native), SAME(deadline_ms), SAME(ps.servers),
        SAME(ps.threads);
    SAME(ps.partition_bytes), SAME(ps.deadline_ms), SAME(ps.heartbeat_ms), SAME(ps.credit_bytes);
}

static void check_round_trip(const struct config *a) {
    char *text = config_to_json(a);
    cJSON *strict = cJSON_Parse(text);  // it is JSON for everybody
    assert_non_null(strict);
    cJSON_Delete(strict);
    struct config *b = accept(text);
    if (said[0]) fail_msg("said: %s about\n%s", said, text);
    assert_same(a, b);
    char *again = config_to_json(b);
    assert_string_equal(text, again);
    free(text);
    free(again);
    config_destroy(&b);
}

static void test_round_trip_files(void **state) {
    (void)state;
    static const char *const names[] = {"01-zero1-adam-warmup",
                                        "02-zero2-fp16-auto-offload",
                                        "04-zero3-fp16-adamw",
                                        "05-zero3-offload-optimizer-cpu",
                                        "06-zero3-offload-param-cpu-missing-comma",
                                        "07-zero3-offload-nvme",
                                        "08-llama-practice",
                                        "09-zero3-bf16-auto"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char name[96];
        snprintf(name, sizeof name, "%s.json", names[i]);
        struct config *c = ds(name);
        check_round_trip(c);
        config_destroy(&c);
    }
}

// A random value for each key that has one range; the text is JSON.
static void random_value(char *out, const char *kind, uint64_t key, uint64_t i) {
    uint64_t bits = rng_below(key, i, 0, 1u << 30);
    double unit = (double)bits / (double)(1u << 30);
    if (!strcmp(kind, "bool"))
        strcpy(out, bits & 1 ? "true" : "false");
    else if (!strcmp(kind, "int"))
        sprintf(out, "%llu", (unsigned long long)(1 + bits % 97));
    else if (!strcmp(kind, "power"))
        sprintf(out, "%.17g", unit * 1e-3 + 1e-9);
    else if (!strcmp(kind, "pair"))
        sprintf(out, "[%.17g, %.9g]", unit * 0.999, unit);
    else
        sprintf(out, "%.17g", unit * 0.9);
    if (!strcmp(kind, "big")) sprintf(out, "%llu", (unsigned long long)(bits * 8388593 + 1));
}

static void test_round_trip_random(void **state) {
    (void)state;
    static const char *const keys[][2] = {
        {"seed", "big"},
        {"steps", "int"},
        {"data.seq_len", "int"},
        {"data.val_fraction", "unit"},
        {"eval_every", "int"},
        {"eval_batches", "int"},
        {"target_loss", "unit"},
        {"keep_snapshots", "bool"},
        {"trace", "bool"},
        {"json", "bool"},
        {"quiet", "bool"},
        {"full", "bool"},
        {"threads", "int"},
        {"workers", "int"},
        {"train_micro_batch_size_per_gpu", "int"},
        {"gradient_accumulation_steps", "int"},
        {"optimizer.params.lr", "power"},
        {"optimizer.params.eps", "power"},
        {"optimizer.params.betas", "pair"},
        {"optimizer.params.weight_decay", "power"},
        {"optimizer.params.bias_correction", "bool"},
        {"scheduler.params.warmup_num_steps", "int"},
        {"fp16.loss_scale", "unit"},
        {"fp16.initial_scale_power", "int"},
        {"fp16.loss_scale_window", "int"},
        {"fp16.hysteresis", "int"},
        {"fp16.consecutive_hysteresis", "bool"},
        {"fp16.min_loss_scale", "power"},
        {"gradient_clipping", "unit"},
        {"steps_per_print", "int"},
        {"parameter_server.servers", "int"},
        {"parameter_server.threads", "int"},
    };
    static const char *const names[] = {"local",  "ps:sync", "ps:async", "ps:ssp:4",
                                        "zero:0", "zero:2",  "zero:3"};
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const char *const schedules[] = {
        "{}", "{\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.1}}",
        "{\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 1000,"
        "\"warmup_min_lr\": 1e-7}}",
        "{\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 1e6,"
        "\"cos_min_ratio\": 0.3, \"warmup_type\": \"linear\"}}"};
    for (uint64_t round = 0; round < 60; round++) {
        char values[COUNT(keys)][64];
        struct config_override o[COUNT(keys) + 5];
        size_t n = 0;
        uint64_t s = round % COUNT(schedules);
        o[n++] = (struct config_override){"scheduler", schedules[s], NULL};
        o[n++] = (struct config_override){"topology", names[round % COUNT(names)], NULL};
        o[n++] = (struct config_override){"dtype", dtypes[round % COUNT(dtypes)], NULL};
        o[n++] = (struct config_override){"optimizer.type", round & 1 ? "Adam" : "AdamW", NULL};
        if (round & 1) o[n++] = (struct config_override){"optimizer.params.adam_w_mode", "false", NULL};
        for (size_t i = 0; i < COUNT(keys); i++) {
            if (rng_below(round, i, 1, 2) || (s == 0 && strstr(keys[i][0], "scheduler"))) continue;
            random_value(values[i], keys[i][1], round, i);
            o[n++] = (struct config_override){keys[i][0], values[i], NULL};
        }
        struct config *c = load_path(NULL, o, n);
        if (!c) fail_msg("%s", said);
        check_round_trip(c);
        config_destroy(&c);
    }
}

// MIN:MAX is a star's, and MAX its workers: given, or taken from it.
static void test_elastic(void **state) {
    (void)state;
    struct config *c = accept("{\"topology\": \"ps:sync\", \"recovery\": {\"elastic\": \"2:5\"}}");
    assert_true(c->workers == 5 && c->recovery.elastic_min == 2 && c->recovery.elastic_max == 5);
    config_destroy(&c);
    refuse("{\"topology\": \"ps:sync\", \"workers\": 3, \"recovery\": {\"elastic\": \"2:5\"}}",
           "recovery.elastic 2:5|workers 5");
    refuse("{\"topology\": \"ps:sync\", \"recovery\": {\"elastic\": \"5:2\"}}",
           "recovery.elastic|MIN:MAX|5:2");
    refuse("{\"topology\": \"ps:sync\", \"recovery\": {\"elastic\": \"2:5x\"}}", "recovery.elastic|MIN:MAX");
    refuse("{\"topology\": \"ps:sync\", \"recovery\": {\"elastic\": \"2:65\"}}",
           "recovery.elastic|at most 64");
    refuse("{\"topology\": \"zero:1\", \"workers\": 2, \"recovery\": {\"elastic\": \"1:2\"}}",
           "recovery.elastic|zero:1|ps:sync");
}

// The star decides who may join.
static void test_security(void **state) {
    (void)state;
    struct config *c = accept("{\"topology\": \"ps:sync\", \"security\": {\"insecure\": true}}");
    assert_true(c->security.insecure);
    config_destroy(&c);
    refuse("{\"topology\": \"local\", \"security\": {\"insecure\": true}}",
           "security.insecure|local|ps:sync");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elastic),          cmocka_unit_test(test_ds_01_and_02),
        cmocka_unit_test(test_ds_03_to_07),      cmocka_unit_test(test_ds_08_and_09),
        cmocka_unit_test(test_round_trip_files), cmocka_unit_test(test_round_trip_random),
        cmocka_unit_test(test_security),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
