// The sections "optimizer" and "scheduler": defaults, "auto", what goes with what.
#include "tests/config/config_helper.h"

static void test_optimizer_section(void **state) {
    (void)state;
    struct config *c = accept(
        "{\"optimizer\": {\"type\": \"adam\", \"params\": {\"adam_w_mode\": false,"
        "\"bias_correction\": false, \"torch_adam\": true, \"lr\": 1}}}");
    assert_string_equal(c->optimizer_type, "Adam");
    assert_true(c->optimizer.l2_mode && c->optimizer.no_bias_correction && c->optimizer.lr == 1);
    assert_string_equal(said, "");
    assert_true(c->optimizer.weight_decay == 0);
    config_destroy(&c);
    // torch.optim.AdamW decays by 0.01 unless told; FusedAdam and torch.optim.Adam by 0.
    c = accept("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"torch_adam\": true}}}");
    assert_true(c->optimizer.weight_decay == 0.01f);
    assert_words(said, "warning|weight_decay is absent: 0.01|torch.optim.AdamW", "torch_adam");
    config_destroy(&c);
    c = accept("{\"optimizer\": {\"params\": {\"torch_adam\": true, \"weight_decay\": 0.1}}}");
    assert_true(c->optimizer.weight_decay == 0.1f);
    assert_string_equal(said, "");
    config_destroy(&c);
    c = accept("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}");
    assert_false(c->optimizer.l2_mode);
    assert_words(said, "warning|adam_w_mode|AdamW|\"Adam\"", "adam_w_mode");
    config_destroy(&c);
    refuse("{\"optimizer\": {\"type\": \"Lamb\"}}", "optimizer.type|Lamb|not supported yet|Adam, AdamW");
    refuse("{\"optimizer\": {\"type\": \"Adamm\"}}", "unknown optimizer|Adamm|AdamW");
    refuse("{\"optimizer\": {\"params\": {\"amsgrad\": true}}}",
           "optimizer.params.amsgrad|not supported yet");
    refuse("{\"optimizer\": {\"params\": {\"max_grad_norm\": 1.0}}}", "max_grad_norm|gradient_clipping");
}

static bool same_optimizer(const struct config *a, const struct config *b) {
    bool same = a->optimizer.row == b->optimizer.row;
    for (size_t i = 0; i < config_key_count(); i++) {
        if (strncmp(config_key_at(i)->path, "optimizer.", 10) != 0) continue;
        char *x = config_value(a, config_key_at(i)), *y = config_value(b, config_key_at(i));
        same &= !x == !y && (!x || !strcmp(x, y));
        free(x);
        free(y);
    }
    return same;
}

// DeepSpeed's OnebitAdam takes bias_correction and corrects nothing: a file that has it runs, and to the same bits.
static void test_onebit_takes_bias_correction(void **state) {
    (void)state;
    struct config *bare = accept("{\"optimizer\": {\"type\": \"OneBitAdam\"}}");
    for (int yes = 0; yes < 2; yes++) {
        struct config *c = accept(
            yes ? "{\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"bias_correction\": true}}}"
                : "{\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"bias_correction\": false}}}");
        assert_true(same_optimizer(c, bare));
        config_destroy(&c);
    }
    config_destroy(&bare);
}

static void test_reduce_group_is_a_number_of_workers(void **state) {
    (void)state;
    refuse("{\"reduce_group\": \"x\"}", "reduce_group|a number of workers, or one of \"none\", \"host\"");
}

// Every optimizer takes its own keys, with the defaults that its row says, and no others'.
static void test_every_optimizer(void **state) {
    (void)state;
    for (const struct optimizer *o = optimizers; o->name; o++) {
        char text[256];
        snprintf(text, sizeof text, "{\"optimizer\": {\"type\": \"%s\"}}", o->name);
        struct config *c = accept(text), *given;
        assert_ptr_equal(c->optimizer.row, o);
        for (const struct optimizer *of = optimizers; of->name; of++)
            for (int i = 0; i < OPTIMIZER_PARAMS_MAX && of->params[i].key; i++) {
                snprintf(text, sizeof text, "{\"optimizer\": {\"type\": \"%s\", \"params\": {\"%s\": %s}}}",
                         o->name, of->params[i].key, of->params[i].value);
                if (o->onebit && !strcmp(of->params[i].key, "bias_correction")) continue;  // below
                if (!optimizer_default(o, of->params[i].key)) {
                    refuse(text, "is no parameter of|remove it");
                    continue;
                }
                given = accept(text);
                assert_true(of != o || same_optimizer(given, c));
                config_destroy(&given);
            }
        config_destroy(&c);
    }
}

// SGD has a state only where it has momentum; torch's rule for Nesterov's.
static void test_sgd(void **state) {
    (void)state;
    struct config *c = accept("{\"optimizer\": {\"type\": \"sgd\"}}");
    assert_string_equal(c->optimizer_type, "SGD");
    assert_true(c->optimizer.row->states == 0 && c->optimizer.momentum == 0 && c->optimizer.lr == 1e-3f);
    config_destroy(&c);
    c = accept(
        "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true,"
        "\"weight_decay\": 0.1}}}");
    assert_true(c->optimizer.row->states == 1 && c->optimizer.nesterov && c->optimizer.momentum == 0.9f);
    config_destroy(&c);
    refuse("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}}",
           "optimizer.params.nesterov|momentum above 0");
    refuse(
        "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true, \"momentum\": 0.9,"
        "\"dampening\": 0.1}}}",
        "optimizer.params.nesterov|dampening of 0");
    refuse("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99]}}}",
           "optimizer.params.betas is no parameter of SGD");
}

#define CYCLE \
    "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-2"

// Values are test_shared_deepspeed.c's; here what is missing, what cannot be and who has no betas.
static void test_one_cycle(void **state) {
    (void)state;
    struct config *c = accept("{" CYCLE ", \"cycle_first_step_size\": 7, \"cycle_first_stair_count\": 3}}}");
    assert_true(c->schedule.cycle_second == 7 && c->schedule.second_stairs == 3 &&
                c->schedule.cycle_momentum);
    assert_int_equal(c->optimizer.cycle.type, SCHEDULE_ONE_CYCLE);
    config_destroy(&c);
    c = accept("{" CYCLE ", \"cycle_momentum\": false}}}");
    assert_int_equal(c->optimizer.cycle.type, SCHEDULE_NONE);
    assert_string_equal(said, "");
    config_destroy(&c);
    c = accept("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9}}, " CYCLE "}}}");
    assert_int_equal(c->optimizer.cycle.type, SCHEDULE_NONE);
    assert_words(said, "warning|cycle_momentum is off: SGD has no betas", "SGD");
    config_destroy(&c);
    refuse("{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4}}}",
           "scheduler.params.cycle_max_lr is missing");
    refuse("{" CYCLE ", \"cycle_first_step_size\": 0}}}", "cycle_first_step_size|at least 1");
    refuse("{\"steps\": 90, " CYCLE
           ", \"cycle_first_step_size\": 7, \"decay_step_size\": 1, \"decay_mom_rate\": 0.01}}}",
           "decay_mom_rate 0.01|beta1 grow|by step 90|cycle_momentum to false");
    c = accept("{\"topology\": \"ps:async\", " CYCLE "}}}");
    error_quiet(1);
    assert_int_equal(c->row->check(c), -1);
    error_quiet(0);
    assert_words(error_last(), "cycle_momentum|ps:async|each push|set it to false", "async");
    config_destroy(&c);
}

static void test_scheduler_section(void **state) {
    (void)state;
    struct config *c =
        accept("{\"scheduler\": {\"type\": \"WarmupLR\"}, \"optimizer\": {\"params\": {\"lr\": 0.25}}}");
    assert_true(c->schedule.max_lr == 0.25 && c->schedule.min_lr == 0 && c->schedule.warmup_steps == 1000);
    config_destroy(&c);
    c = accept(
        "{\"steps\": 70, \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": "
        "\"auto\","
        "\"warmup_min_ratio\": 0.1, \"cos_min_ratio\": 0.01, \"warmup_type\": \"linear\","
        "\"warmup_num_steps\": 7, \"last_batch_iteration\": -1}}}");
    assert_int_equal(c->schedule.type, SCHEDULE_WARMUP_COSINE);
    assert_int_equal(c->schedule.warmup, WARMUP_LINEAR);
    assert_true(c->schedule.total_steps == 70 && c->schedule.warmup_min_ratio == 0.1);
    assert_true(c->schedule.cos_min_ratio == 0.01 && c->schedule.warmup_steps == 7);
    config_destroy(&c);
    c = accept("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10}}}");
    assert_words(said, "warning|total_num_steps 10|warmup_num_steps 1000|within the warm-up", "short decay");
    config_destroy(&c);
    // DeepSpeed's WarmupDecayLR has a default of its own where WarmupLR takes the optimizer's lr.
    static const char decay[] =
        "{\"optimizer\": {\"params\": {\"lr\": 0.25}}, \"scheduler\": {\"type\": \"WarmupDecayLR\", "
        "\"params\": "
        "{\"total_num_steps\": 2000%s}}}";
    char text[256];
    snprintf(text, sizeof text, decay, "");
    c = accept(text);
    assert_true(c->schedule.max_lr == 0.001);
    assert_words(said, "warning|warmup_max_lr is absent: 0.001|WarmupDecayLR|lr 0.25 is not used", "decay");
    config_destroy(&c);
    snprintf(text, sizeof text, decay, ", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"");
    c = accept(text);
    assert_true(c->schedule.max_lr == 0.25 && c->schedule.warmup_steps == 2);
    assert_words(said, "warmup_max_lr 0.25 = lr|warmup_num_steps 2 = DeepSpeed's least", "decay");
    config_destroy(&c);
    c = accept("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 0}}}");
    assert_int_equal(c->schedule.warmup_steps, 2);
    assert_words(said, "warning|warmup_num_steps 0 is 2|0.19.6 refuses 0", "no warm-up");
    config_destroy(&c);
    refuse("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": -1}}}",
           "warmup_num_steps|at least 0|number -1");
    refuse("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", "total_num_steps is missing|auto");
    refuse("{\"scheduler\": {\"type\": \"Warmup\"}}", "scheduler.type|one of|WarmupDecayLR|Warmup");
    refuse("{\"scheduler\": {\"params\": {\"warmup_num_steps\": 3}}}", "scheduler.type is missing");
    refuse("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0.1}}}",
           "cos_min_ratio|no parameter");
    refuse("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"last_batch_iteration\": 4}}}",
           "last_batch_iteration|-1|number 4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_section),
        cmocka_unit_test(test_every_optimizer),
        cmocka_unit_test(test_onebit_takes_bias_correction),
        cmocka_unit_test(test_reduce_group_is_a_number_of_workers),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_one_cycle),
        cmocka_unit_test(test_scheduler_section),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
