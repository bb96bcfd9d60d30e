// The identity of a run: which keys are compared, by whom, and how a difference reads.
#include "tests/config/config_helper.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

#include "shared/config/config_internal.h"
#include "shared/data/data.h"
#include "shared/hf/presets.h"
#include "shared/model/layout.h"
#include "shared/state/identity.h"

#define ALL (IDENTITY_TRAJECTORY | IDENTITY_RUN | IDENTITY_BITS | IDENTITY_LOCAL)

struct made {
    struct config *config;
    struct model_spec spec;
    struct layout *layout;
    struct token_source *data;
    struct identity *identity;
};

static struct token_source *open_data(const struct config *c) {
    struct data_options d = {.path = c->data, .val_fraction = c->val_fraction, .vocab = 256};
    struct token_source *s = data_open(&d);
    assert_non_null(s);
    return s;
}

static struct made make(const char *json, bool computes) {
    struct made m = {.config = accept(json)};
    assert_int_equal(model_spec_load(m.config->model, &m.spec), 0);
    m.layout = model_layout_create(&m.spec, m.config->workers);
    if (computes) m.data = open_data(m.config);
    m.identity = identity_make(&(struct identity_source){m.config, m.layout, &m.spec, m.data});
    return m;
}

static void unmake(struct made *m) {
    identity_destroy(&m->identity);
    if (m->data) data_close(&m->data);
    layout_destroy(&m->layout);
    config_destroy(&m->config);
}

struct change {
    const char *json;  // against the standard one
    const char *key;
    unsigned uses;  // of the key
    const char *has, *had;
};

#define T IDENTITY_TRAJECTORY
#define R IDENTITY_RUN
#define B IDENTITY_BITS
#define L IDENTITY_LOCAL
#define STANDARD                                                                                                \
    "\"topology\": \"zero:3\", \"workers\": 2, \"dtype\": \"fp16\", \"device\": \"cpu\", \"data\": {\"path\": " \
    "\"demo\", \"val_fraction\": 0.05, \"seq_len\": 64}, \"train_batch_size\": 8, "                             \
    "\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.0003}}"

// Once more, by hand: a key that falls out of the table, or out of a comparison, is missed here.
static const struct {
    unsigned uses;
    const char *keys;
} agreed[] = {
    {T,
     "model.tensors model.vocab model.channels model.layers model.heads model.kv_heads "
     "model.head_size model.ffn model.tied model.norm model.norm_eps model.positions "
     "model.rope model.mlp model.biases model.adapters data.documents data.seq_len dtype seed train_batch_size gossip.graph local_steps.steps "
     "local_steps.outer.type local_steps.outer.lr local_steps.outer.momentum local_steps.outer.age_decay "
     "local_steps.outer.age_cutoff "
     "optimizer.type optimizer.params.lr optimizer.params.betas optimizer.params.eps "
     "optimizer.params.weight_decay optimizer.params.adam_w_mode optimizer.params.momentum "
     "optimizer.params.alpha optimizer.params.dampening optimizer.params.nesterov "
     "scheduler.params.cycle_min_lr scheduler.params.cycle_max_lr scheduler.params.decay_lr_rate "
     "scheduler.params.cycle_first_step_size scheduler.params.cycle_second_step_size "
     "scheduler.params.cycle_first_stair_count scheduler.params.cycle_second_stair_count "
     "scheduler.params.decay_step_size scheduler.params.cycle_momentum scheduler.params.cycle_min_mom "
     "scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate "
     "scheduler.params.lr_range_test_min_lr scheduler.params.lr_range_test_step_size "
     "scheduler.params.lr_range_test_step_rate scheduler.params.lr_range_test_staircase "
     "optimizer.params.bias_correction optimizer.params.freeze_step scheduler.type scheduler.params.warmup_min_lr "
     "scheduler.params.warmup_max_lr scheduler.params.warmup_num_steps "
     "scheduler.params.total_num_steps scheduler.params.warmup_type "
     "scheduler.params.warmup_min_ratio scheduler.params.cos_min_ratio fp16.loss_scale "
     "fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis "
     "fp16.consecutive_hysteresis fp16.min_loss_scale gradient_clipping"},
    {T | L, "data data.held_out model.frozen"},
    {R | L, "model.weights"},
    {R,
     "program model.init_std recovery.resumed topology medium steps eval_every "
     "eval_every_seconds eval_batches target_loss trouble.straggle trouble.delay "
     "lora.r lora.alpha lora.targets zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_max_live_parameters "
     "zero_optimization.zero_hpz_partition_size zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size "
     "zero_optimization.overlap_comm ring.collective ring.no_sync parameter_server.servers parameter_server.threads "
     "parameter_server.servers_on parameter_server.partition_bytes "
     "recovery.checkpoint_every recovery.checkpoint_background recovery.checkpoint_keep "
     "recovery.checkpoint_keep_every recovery.resume_weights_only recovery.restart"},
    {R | B,
     "workers memory.logits_bytes train_micro_batch_size_per_gpu "
     "gradient_accumulation_steps data_types.grad_accum_dtype reduce reduce_group recovery.elastic "
     "parameter_server.resident parameter_server.compression parameter_server.compression_share parameter_server.max_lead "
     "parameter_server.pushes_per_update parameter_server.max_staleness parameter_server.age_damping "
     "parameter_server.delay_compensation parameter_server.delay_compensation_decay parameter_server.read"},
    {R | B | L, "cuda.attention cuda.attention_slice cuda.gelu cuda.bias_grad"},
    {B, "consistency gradients.summed local.delay"},
    {B | L, "device"},
    {0,
     "zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.pin_memory "
     "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_optimizer.ratio "
     "zero_optimization.offload_param.device zero_optimization.offload_param.pin_memory "
     "zero_optimization.offload_param.nvme_path aio.block_size aio.queue_depth zero_optimization.cpu_offload "
     "zero_optimization.cpu_offload_param "
     "model.name data.path data.val_path data.tokenizer data.val_fraction launch interface threads "
     "cpu.kernel out keep_snapshots trace trouble.fault json quiet full unknown_keys memory.check memory.device_bytes "
     "optimizer.params.torch_adam communication_data_type data_types.param_dtype scheduler.params.last_batch_iteration fp16.enabled "
     "bf16.enabled steps_per_print tensorboard.enabled tensorboard.output_path tensorboard.job_name "
     "csv_monitor.enabled csv_monitor.output_path csv_monitor.job_name zero_optimization.stage parameter_server.deadline_ms "
     "parameter_server.heartbeat_ms parameter_server.grace_ms parameter_server.credit_bytes parameter_server.bind "
     "parameter_server.record_arrivals parameter_server.replay_arrivals "
     "activation_checkpointing.number_checkpoints activation_checkpointing.cpu_checkpointing "
     "activation_checkpointing.recompute "
     "parameter_server.log_updates recovery.resume security.insecure"}};

static void test_who_agrees_on_what(void **state) {
    (void)state;
    int listed = 0, rows = 0;
    for (size_t i = 0; i < COUNT(agreed); i++) {
        char list[2048], *rest = NULL;
        snprintf(list, sizeof list, "%s", agreed[i].keys);
        for (char *key = strtok_r(list, " ", &rest); key; key = strtok_r(NULL, " ", &rest), listed++) {
            struct identity_key k = identity_key(key);
            if (!k.key[0] || (k.uses & ALL) != agreed[i].uses)
                fail_msg("%s: %u, not %u", key, k.uses, agreed[i].uses);
        }
    }
    while (identity_key_at((size_t)rows).key) rows++;
    assert_int_equal(listed, rows);
}

// Each of these alone is named, with both values, where it is compared; and nowhere else.
static const struct change changes[] = {
    {"\"steps\": 7", "steps", R, "7", "100"},
    {"\"seed\": 2", "seed", T, "2", "1"},
    {"\"gradient_clipping\": 0.5", "gradient_clipping", T, "0.5", "1"},
    {"\"fp16\": {\"enabled\": true, \"hysteresis\": 3}", "fp16.hysteresis", T, "3", "2"},
    {"\"fp16\": {\"enabled\": true, \"loss_scale_window\": 9}", "fp16.loss_scale_window", T, "9", "1000"},
    {"\"fp16\": {\"enabled\": true, \"min_loss_scale\": 2}", "fp16.min_loss_scale", T, "2", "1"},
    {"\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}", "fp16.initial_scale_power", T, "8", "16"},
    {"\"eval_every\": 5", "eval_every", R, "5", "0"},
    {"\"eval_batches\": 3", "eval_batches", R, "3", "auto"},
    {"\"target_loss\": 2.5", "target_loss", R, "2.5", "0"},
    {"\"trouble\": {\"delay\": [\"1:constant:5\"]}", "trouble.delay", R, NULL, NULL},
    {"\"reduce\": \"native\"", "reduce", R | B, "native", "ordered"},
    {"\"reduce_group\": 3", "reduce_group", R | B, "3", "none"},
    {"\"zero_optimization\": {\"prefetch_bucket_size\": 1e6}",
     "zero_optimization.stage3_prefetch_bucket_size", R, "1000000", "auto"},
    {"\"zero_optimization\": {\"stage3_max_live_parameters\": 5e6}",
     "zero_optimization.stage3_max_live_parameters", R, "5000000", "auto"},
    {"\"zero_optimization\": {\"zero_hpz_partition_size\": 2}", "zero_optimization.zero_hpz_partition_size",
     R, "2", "1"},
    {"\"zero_optimization\": {\"overlap_comm\": false}", "zero_optimization.overlap_comm", R, "false",
     "true"},
    {"\"data_types\": {\"grad_accum_dtype\": \"fp16\"}", "data_types.grad_accum_dtype", R | B, "fp16",
     "fp32"},
    {"\"memory\": {\"logits_bytes\": 65536}", "memory.logits_bytes", R | B, "65536", "auto"},
};

static struct made standard(const char *more) {
    char text[2048];
    snprintf(text, sizeof text, "{%s%s%s}", STANDARD, more[0] ? ", " : "", more);
    return make(text, true);
}

static void check_difference(const struct change *x, const struct identity *now, const struct identity *was) {
    const unsigned when[] = {T, R, B};
    for (int i = 0; i < 3; i++) {
        char *text = identity_difference((struct identity_side){"it", now},
                                         (struct identity_side){"the other", was}, when[i]);
        char *back = identity_difference((struct identity_side){"the other", was},
                                         (struct identity_side){"it", now}, when[i]);
        char expected[256];
        snprintf(expected, sizeof expected, "it has %s = %s, the other has %s", x->key, x->has, x->had);
        bool concerned = x->uses & when[i];
        if (concerned != (text != NULL) || concerned != (back != NULL))
            fail_msg("%s: compared for %u: %s", x->key, when[i], text ? text : "no difference");
        if (text && x->has) assert_string_equal(text, expected);
        if (text && !strstr(text, x->key)) fail_msg("%s is not named: %s", x->key, text);
        if ((identity_hash(now, when[i] | L) != identity_hash(was, when[i] | L)) != concerned)
            fail_msg("%s: the hash for %u", x->key, when[i]);
        free(text);
        free(back);
    }
}

static void test_each_change_is_named(void **state) {
    (void)state;
    struct made was = standard("");
    for (size_t i = 0; i < COUNT(changes); i++) {
        struct made now = standard(changes[i].json);
        assert_int_equal(identity_key(changes[i].key).uses & ALL, changes[i].uses);
        check_difference(&changes[i], now.identity, was.identity);
        unmake(&now);
    }
    unmake(&was);
}

// Every compared value counts in the hash and in the difference; no other does.
static void test_every_row_counts(void **state) {
    (void)state;
    struct identity_key k;
    struct made was = standard("");
    for (size_t i = 0; (k = identity_key_at(i)).key; i++) {
        char *text = identity_text(was.identity);
        struct identity *a = identity_parse(text), *b = identity_parse(text);
        identity_put(a, k.key, "one");
        identity_put(b, k.key, "two");
        check_difference(&(struct change){.key = k.key, .uses = k.uses & ALL, .has = "one", .had = "two"}, a,
                         b);
        identity_destroy(&a);
        identity_destroy(&b);
        free(text);
    }
    unmake(&was);
}

static char *difference(const struct identity *a, const struct identity *b, unsigned uses) {
    return identity_difference((struct identity_side){"it", a}, (struct identity_side){"the other", b}, uses);
}

static void expect(char *text, const char *expected) {
    if (!expected && text) fail_msg("a difference: %s", text);
    if (expected) assert_non_null(text);
    if (expected) assert_string_equal(text, expected);
    free(text);
}

// What a manifest.json holds is what was put into it.
static void test_it_survives_a_file(void **state) {
    (void)state;
    struct made m = standard("");
    cJSON *json = identity_json(m.identity);
    char *printed = cJSON_Print(json);
    cJSON *read = cJSON_Parse(printed);
    struct identity *back = identity_from_json(read);
    assert_true(identity_hash(back, ALL) == identity_hash(m.identity, ALL));
    identity_put(back, "parameter_server.distinct_workers",
                 "false");  // of a checkpoint of an earlier version
    expect(difference(back, m.identity, ALL), NULL);
    cJSON_DeleteItemFromObject(read, "optimizer.params.lr");
    cJSON_AddStringToObject(read, "optimizer.params.lr_of_tomorrow", "2");
    struct identity *other = identity_from_json(read);
    expect(
        difference(other, back, IDENTITY_TRAJECTORY),
        "it has optimizer.params.lr_of_tomorrow = 2, the other has none; it has no optimizer.params.lr, the other "
        "has 0.0003");
    assert_null(identity_parse("{\"a\": "));
    assert_null(identity_parse("[1]"));
    assert_null(identity_parse(""));
    identity_destroy(&other);
    identity_destroy(&back);
    cJSON_Delete(read);
    cJSON_Delete(json);
    free(printed);
    unmake(&m);
}

static void write_text(const char *path, const char *text, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

static struct made on_text(const char *path, double val_fraction) {
    char text[512];
    snprintf(text, sizeof text,
             "{\"topology\": \"zero:1\", \"data\": {\"path\": \"%s\", \"val_fraction\": %g, \"seq_len\": 8}}",
             path, val_fraction);
    return make(text, true);
}

// The same text at another place, and in two files, is the same; one byte of it, or another split, is not.
static void test_data_is_its_tokens(void **state) {
    (void)state;
    char dir[] = "/tmp/starring-XXXXXX", a[64], b[64], c[64], d[64], parts[64], first[80], second[80],
         text[20000];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
    snprintf(a, sizeof a, "%s/a.txt", dir);
    snprintf(b, sizeof b, "%s/b.txt", dir);
    snprintf(c, sizeof c, "%s/c.txt", dir);
    snprintf(d, sizeof d, "%s/d.txt", dir);
    snprintf(parts, sizeof parts, "%s/parts", dir);
    snprintf(first, sizeof first, "%s/1.txt", parts);
    snprintf(second, sizeof second, "%s/2.txt", parts);
    assert_int_equal(mkdir(parts, 0700), 0);
    write_text(a, text, sizeof text);
    write_text(b, text, sizeof text);
    write_text(first, text, 7777);
    write_text(second, text + 7777, sizeof text - 7777);
    text[17] ^= 1;
    write_text(c, text, sizeof text);
    text[17] ^= 1;
    text[sizeof text - 1] ^= 1;
    write_text(d, text, sizeof text);
    struct made of_a = on_text(a, 0.1), of_b = on_text(b, 0.1), of_parts = on_text(parts, 0.1),
                of_c = on_text(c, 0.1), of_d = on_text(d, 0.1), split = on_text(a, 0.2);
    expect(difference(of_a.identity, of_b.identity, IDENTITY_TRAJECTORY), NULL);
    expect(difference(of_a.identity, of_parts.identity, IDENTITY_TRAJECTORY), NULL);
    assert_true(identity_hash(of_a.identity, ALL) == identity_hash(of_parts.identity, ALL));
    char *text_of_c = difference(of_a.identity, of_c.identity, IDENTITY_TRAJECTORY);
    assert_non_null(text_of_c);
    if (strncmp(text_of_c, "it has data = 18000 tokens, xxh64 ", 34) || strstr(text_of_c, "held_out"))
        fail_msg("%s", text_of_c);
    free(text_of_c);
    char *text_of_d = difference(of_a.identity, of_d.identity, IDENTITY_TRAJECTORY);
    assert_non_null(text_of_d);
    if (strncmp(text_of_d, "it has data.held_out = 2000 tokens, xxh64 ", 42)) fail_msg("%s", text_of_d);
    free(text_of_d);
    char *of_split = difference(of_a.identity, split.identity, IDENTITY_TRAJECTORY);
    assert_words(of_split, "data|=|18000|data.held_out|2000|16000|4000", "the split");
    free(of_split);
    struct made *all[] = {&of_a, &of_b, &of_parts, &of_c, &of_d, &split};
    for (int i = 0; i < 6; i++) unmake(all[i]);
    const char *files[] = {a, b, c, d, first, second};
    for (int i = 0; i < 6; i++) unlink(files[i]);
    rmdir(parts);
    rmdir(dir);
}

// A role that computes nothing knows no data and no device, which is no difference. Keys that both know are compared.
static void test_what_only_workers_know(void **state) {
    (void)state;
    struct made worker = standard(""), server = make("{" STANDARD "}", false);
    assert_null(identity_get(server.identity, "data"));
    assert_null(identity_get(server.identity, "device"));
    expect(difference(worker.identity, server.identity, ALL), NULL);
    expect(difference(server.identity, worker.identity, ALL), NULL);
    unsigned common = IDENTITY_TRAJECTORY | IDENTITY_RUN;
    assert_true(identity_hash(worker.identity, common) == identity_hash(server.identity, common));
    assert_true(identity_hash(worker.identity, ALL) != identity_hash(server.identity, ALL));
    unmake(&worker);
    unmake(&server);
}

// A model is its sizes and tensors, not its name; the topologies that promise the same bits are one consistency.
static void test_models_and_topologies(void **state) {
    (void)state;
    struct made demo = make("{\"topology\": \"zero:2\", \"workers\": 2}", false),
                star = make("{\"topology\": \"ps:sync\", \"workers\": 2}", false),
                bounded = make("{\"topology\": \"ps:ssp:0\", \"workers\": 2}", false),
                async = make("{\"topology\": \"ps:async\", \"workers\": 2}", false),
                late = make("{\"topology\": \"ps:ssp:3\", \"workers\": 2}", false),
                gpt2 = make("{\"topology\": \"zero:2\", \"workers\": 2, \"model\": \"gpt2-124m\"}", false),
                four = make("{\"topology\": \"zero:2\", \"workers\": 4, \"train_batch_size\": 8}", false);
    expect(difference(demo.identity, star.identity, IDENTITY_TRAJECTORY | IDENTITY_BITS), NULL);
    expect(difference(bounded.identity, star.identity, IDENTITY_TRAJECTORY | IDENTITY_BITS), NULL);
    expect(
        difference(star.identity, demo.identity, IDENTITY_RUN),
        "it has topology = ps:sync, the other has zero:2; it has no ring.collective, the other has auto; it has no ring.no_sync, "
        "the other has false");
    expect(difference(async.identity, star.identity, IDENTITY_BITS),
           "it has consistency = async, the other has sync");
    expect(difference(late.identity, star.identity, IDENTITY_BITS),
           "it has consistency = ssp:3, the other has sync");
    expect(difference(four.identity, demo.identity, IDENTITY_TRAJECTORY), NULL);
    char *bits = difference(four.identity, demo.identity, IDENTITY_BITS);
    assert_words(bits, "workers|=|4,|2;", "four workers");
    free(bits);
    char *model = difference(gpt2.identity, demo.identity, IDENTITY_TRAJECTORY);
    assert_words(model, "model.vocab|50257|256|model.channels|more|differ", "another model");
    free(model);
    struct made *all[] = {&demo, &star, &bounded, &async, &late, &gpt2, &four};
    for (int i = 0; i < 7; i++) unmake(all[i]);
}

// Stages 2 and 3 sum each micro-batch over the ranks: with one a step, or one rank, nothing differs; else the last bits do.
static void test_accumulation_and_stages(void **state) {
    (void)state;
    static const char *const names[] = {"zero:0", "zero:1", "ps:sync", "zero:2", "zero:3"};
    for (int i = 0; i < 4; i++)
        for (int a = 0; a < 5; a++)
            for (int b = 0; b < 5; b++) {
                int workers = 1 + i / 2, count = 1 + i % 2;
                char text[2][128];
                for (int k = 0; k < 2; k++)
                    snprintf(text[k], sizeof text[k],
                             "{\"topology\": \"%s\", \"workers\": %d, \"gradient_accumulation_steps\": %d}",
                             names[k ? b : a], workers, count);
                struct made x = make(text[0], false), y = make(text[1], false);
                char *bits = difference(x.identity, y.identity, IDENTITY_BITS);
                bool differ = workers > 1 && count > 1 && (a > 2) != (b > 2);
                if (differ != (bits != NULL) || (bits && !strstr(bits, "gradients.summed = each ")))
                    fail_msg("%s and %s: %s", text[0], text[1], bits ? bits : "equal");
                free(bits);
                unmake(&x);
                unmake(&y);
            }
}

// A trait that has no tensor of its own is told apart as well.
static void test_each_trait_counts(void **state) {
    (void)state;
    struct made m = standard("");
    struct model_spec other[9];
    const char *keys[9] = {"model.norm_eps", "model.rope",  "model.rope", "model.tied",     "model.heads",
                           "model.norm",     "model.vocab", "model.mlp",  "model.positions"};
    for (int i = 0; i < 9; i++) other[i] = m.spec;
    other[0].norm_eps *= 2;
    other[1].rope_theta *= 2;
    other[2].rope_scaling = ROPE_LINEAR;
    other[3].tied = !m.spec.tied;
    other[4].heads *= 2;
    other[5].traits.norm = m.spec.traits.norm == NORM_RMS ? NORM_LAYER : NORM_RMS;
    other[6].vocab++;
    other[7].traits.mlp = m.spec.traits.mlp == MLP_GELU ? MLP_SWIGLU : MLP_GELU;
    other[8].traits.positions =
        m.spec.traits.positions == POSITIONS_ROTARY ? POSITIONS_LEARNED : POSITIONS_ROTARY;
    for (int i = 0; i < 9; i++) {
        struct identity *x = identity_make(&(struct identity_source){m.config, m.layout, &other[i], m.data});
        char *text = difference(x, m.identity, IDENTITY_TRAJECTORY);
        if (!text || !strstr(text, keys[i])) fail_msg("%s: %s", keys[i], text ? text : "no difference");
        free(text);
        identity_destroy(&x);
    }
    unmake(&m);
}

// Two machines' files under one path, and one machine's under two.
static void test_weights_of_a_directory(void **state) {
    (void)state;
    static char bytes[300000];
    char dirs[2][32] = {"/tmp/starring-XXXXXX", "/tmp/starring-XXXXXX"}, files[2][128];
    struct made m = standard("");
    struct identity *of[3];
    expect(xstrdup(identity_get(m.identity, "model.weights")), "from the seed");
    for (int i = 0; i < 2; i++) {
        assert_non_null(mkdtemp(dirs[i]));
        snprintf(files[i], sizeof files[i], "%s/model.safetensors", dirs[i]);
        write_text(files[i], bytes, sizeof bytes);
    }
    for (int i = 0; i < 3; i++) {
        bytes[123456] = i == 2;
        if (i == 2) write_text(files[1], bytes, sizeof bytes);
        free(m.config->model);
        m.config->model = xstrdup(dirs[i > 0]);
        of[i] = identity_make(&(struct identity_source){m.config, m.layout, &m.spec, m.data});
    }
    expect(difference(of[0], of[1], IDENTITY_RUN), NULL);
    char *other = difference(of[2], of[0], IDENTITY_RUN), *none = difference(m.identity, of[0], IDENTITY_RUN);
    assert_words(other, "it|has|model.weights|1|file,|300000|bytes,", "another file");
    assert_words(none, "model.weights|=|from|the|seed,", "a seed");
    expect(difference(of[2], of[0], IDENTITY_TRAJECTORY), NULL);
    free(other);
    free(none);
    for (int i = 0; i < 3; i++) identity_destroy(&of[i]);
    for (int i = 0; i < 2; i++) {
        unlink(files[i]);
        rmdir(dirs[i]);
    }
    unmake(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_agrees_on_what),    cmocka_unit_test(test_each_change_is_named),
        cmocka_unit_test(test_every_row_counts),      cmocka_unit_test(test_it_survives_a_file),
        cmocka_unit_test(test_data_is_its_tokens),    cmocka_unit_test(test_what_only_workers_know),
        cmocka_unit_test(test_models_and_topologies), cmocka_unit_test(test_accumulation_and_stages),
        cmocka_unit_test(test_each_trait_counts),     cmocka_unit_test(test_weights_of_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
