// Keys that DeepSpeed knows and this program does not read: what is refused, and what is said of the others.
// Which topologies --help names.
#include "shared/config/cli.h"
#include "tests/config/config_helper.h"

static void test_known_keys(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"{\"prescale_gradients\": true}", "prescale_gradients|worker order"},
        {"{\"gradient_predivide_factor\": 2.0}", "gradient_predivide_factor"},
        {"{\"gradient_allreduce_op\": \"sum\"}", "gradient_allreduce_op|mean loss"},
        {"{\"amp\": {\"enabled\": true}}", "amp|use bf16 or fp16"},
        {"{\"sparse_attention\": {\"mode\": \"fixed\"}}", "sparse_attention"},
        {"{\"compression_training\": {\"weight_quantization\": {\"shared_parameters\": {\"enabled\": "
         "true}}}}",
         "compression_training"},
        {"{\"zero_optimization\": {\"zero_quantized_weights\": true}}", "zero_quantized_weights"},
        {"{\"curriculum_learning\": {\"enabled\": true}}", "curriculum_learning"},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        refuse(refused[i][0], refused[i][1]);
        assert_words(error_last(), "known to DeepSpeed|not supported yet|would change the results",
                     refused[i][0]);
    }
    struct config *c = accept(
        "{\"gradient_predivide_factor\": 1.0, \"fp32_allreduce\": false,"
        "\"amp\": {\"enabled\": false, \"opt_level\": \"O1\"}, \"prescale_gradients\": false}");
    assert_words(said,
                 "off, so nothing is lost|: gradient_predivide_factor, fp32_allreduce, amp, "
                 "prescale_gradients\n",
                 "off");
    assert_null(strstr(said, "warning"));
    config_destroy(&c);
    c = accept("{\"wandb\": {\"enabled\": true}, \"activation_checkpointing\": {\"profile\": true}}");
    assert_words(said,
                 "warning|not supported yet and ignored, the results stay the same: wandb, "
                 "activation_checkpointing (profile)\n",
                 "ignored");
    config_destroy(&c);
}

// The type on the wire is the run's dtype: naming it is allowed, and fp32, in which sums are computed; another type is
// not.
static void test_what_travels(void **state) {
    (void)state;
    struct config *c = accept("{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"bf16\"}");
    assert_string_equal(said, "");
    config_destroy(&c);
    c = accept("{\"communication_data_type\": null}");
    config_destroy(&c);
    c = accept("{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp32\"}");
    assert_words(said,
                 "gradients travel in bf16|all workers' sum is taken in fp32|: communication_data_type\n",
                 "fp32");
    assert_null(strstr(said, "warning"));
    config_destroy(&c);
    refuse("{\"communication_data_type\": \"bf16\"}",
           "communication_data_type bf16|dtype fp32|worker order|remove the key");
    refuse("{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp16\"}",
           "communication_data_type fp16|dtype bf16");
    // Where something else is rounded on the way, they would be other sums.
    static const char *const rounded[] = {
        "\"reduce\": \"native\"", "\"reduce_group\": 2",
        "\"parameter_server\": {\"compression\": \"int8\"}, \"topology\": \"ps:sync\"",
        "\"optimizer\": {\"type\": \"OneBitAdam\"}"};
    for (size_t i = 0; i < COUNT(rounded); i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp32\", \"workers\": 4, %s}",
                 rounded[i]);
        refuse(text, "communication_data_type fp32|dtype bf16");
    }
    refuse("{\"communication_data_type\": \"int8\"}", "communication_data_type|one of|\"bf16\"");
}

static int lines_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// One line at once, and one for each topic for who asks; keys stand with their section once; flags answer for themselves.
static void test_report(void **state) {
    (void)state;
    struct config *c = accept(
        "{\"zero_optimization\": {\"stage\": 2, \"overlap_comm\": false, \"reduce_scatter\": true, \"sub_group_size\": 1e9,"
        "\"offload_param\": {\"device\": \"cpu\"}}, \"wall_clock_breakdown\": false, \"memory_breakdown\": "
        "true,"
        "\"train_batch_size\": \"auto\", \"optimizer\": {\"params\": {\"lr\": \"auto\", \"eps\": \"auto\"}},"
        "\"bf16\": {\"immediate_grad_update\": true}}");
    assert_words(
        said,
        "warning|1 key requests something unsupported (zero_optimization.offload_param.device); 5 keys have no effect here; 3 "
        "keys were \"auto\" (optimizer.params.lr 5e-05, optimizer.params.eps 1e-08, train_batch_size 8): "
        "--print-config says why\n|"
        "tunes DeepSpeed's communication and memory, and is not used here: zero_optimization "
        "(reduce_scatter, sub_group_size), bf16 (immediate_grad_update)\n|"
        "without effect below stage 3, in DeepSpeed as here: zero_optimization.offload_param (device)\n|"
        "done here whatever the key says: wall_clock_breakdown, memory_breakdown\n|"
        "\"auto\" became Hugging Face's defaults: optimizer.params (lr 5e-05, eps 1e-08)\n|"
        "\"auto\" became what this run gives: train_batch_size 8\n",
        "report");
    assert_int_equal(lines_of(said), 6);
    assert_int_equal(lines_of(c->remarks), 5);
    assert_null(strstr(said, "/tmp/"));  // the file by its name, not with its folders in every line
    config_destroy(&c);
    const struct config_override o[] = {{"zero_optimization.sub_group_size", "1e9", NULL}};
    c = load("{\"zero_optimization\": {\"reduce_scatter\": true}}", o, 1);
    assert_words(said,
                 "starring: --set: 1 key has no effect here (zero_optimization.sub_group_size)|"
                 "is not used here: zero_optimization (sub_group_size)\n",
                 "--set");
    assert_int_equal(lines_of(said), 4);
    config_destroy(&c);
}

// A key has one value, whichever of its names gives it: two in a file must agree, and the command line is above the file.
static void test_two_names(void **state) {
    (void)state;
    refuse(
        "{\"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": 5, \"prefetch_bucket_size\": 7}}",
        "zero_optimization.prefetch_bucket_size is 7 and zero_optimization.stage3_prefetch_bucket_size is 5|leave one");
    refuse("{\"zero_optimization\": {\"max_live_parameters\": 7, \"stage3_max_live_parameters\": 5}}",
           "max_live_parameters is 7|stage3_max_live_parameters is 5");
    refuse("{\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": false}}",
           "bfloat16|bf16|two names of one key");
    refuse(
        "{\"zero_optimization\": {\"stage\": 1, \"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"none\"}}}",
        "cpu_offload is true|zero_optimization.offload_optimizer.device \"cpu\"|that key is \"none\"|leave one");
    refuse(
        "{\"zero_optimization\": {\"stage\": 1, \"cpu_offload\": false, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
        "cpu_offload is false|\"none\"|that key is \"cpu\"");
    refuse(
        "{\"zero_optimization\": {\"cpu_offload_param\": true, \"offload_param\": {\"device\": \"nvme\"}}}",
        "cpu_offload_param is true|that key is \"nvme\"");
    static const char both[] =
        "{\"zero_optimization\": {\"stage\": 3, \"prefetch_bucket_size\": 5e1, \"stage3_prefetch_bucket_size\": 50,"
        "\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"cpu\"}, \"max_live_parameters\": null,"
        "\"stage3_max_live_parameters\": 9}, \"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}}";
    struct config *c = accept(both);
    assert_string_equal(said, "");
    assert_int_equal(c->prefetch_elements, 50);
    assert_int_equal(c->live_elements, 9);
    assert_int_equal(c->dtype, DT_BF16);
    assert_int_equal(c->offload_optimizer.device, OFFLOAD_CPU);
    config_destroy(&c);
    static const char file[] =
        "{\"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": 5, \"offload_optimizer\": {\"device\": \"cpu\"}}}";
    static const struct config_override over[] = {{"zero_optimization.prefetch_bucket_size", "7", NULL},
                                                  {"zero_optimization.cpu_offload", "false", NULL}};
    c = load(file, over, 2);
    assert_non_null(c);
    assert_int_equal(c->prefetch_elements, 7);
    assert_int_equal(c->offload_optimizer.device, OFFLOAD_NONE);
    config_destroy(&c);
    static const struct config_override wrong[] = {{"zero_optimization.prefetch_bucket_size", "-7", NULL}};
    assert_null(load(file, wrong, 1));
    assert_words(error_last(), "--set: zero_optimization.stage3_prefetch_bucket_size", "whose word it was");
}

// A key without effect is told, with the place that asked for it.
static void test_who_asked(void **state) {
    (void)state;
    static const struct config_override o[] = {{"zero_optimization.offload_param.device", "cpu", NULL}};
    struct config *c = load("{\"zero_optimization\": {\"stage\": 2}}", o, 1);
    assert_words(
        said,
        "starring: warning: --set: 1 key requests|--set: without effect below stage 3|zero_optimization.offload_param (device)",
        "--set");
    config_destroy(&c);
}

// A folder for NVMe offload must be there; the device is one of three.
static void test_offload(void **state) {
    (void)state;
    refuse("{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
           "zero_optimization.offload_optimizer|nvme_path is missing|--set|nvme_path=DIR|device=none");
    refuse("{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": null}}}",
           "zero_optimization.offload_param|nvme_path is missing");
    refuse("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"gpu\"}}}",
           "offload_optimizer.device: expected|\"cpu\"|got string \"gpu\"");
    refuse(
        "{\"zero_optimization\": {\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
        "zero_optimization.offload_optimizer.device: in stage 0 every rank holds the whole|use stage 1, 2 or 3");
    struct config *c = accept(
        "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
        "\"/tmp\"},"
        "\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/no/such/dir\"}}}");
    assert_words(said, "warning|offload_param|fp32 weights are the masters, and lie in host memory", "nvme");
    assert_int_equal(c->offload_param.device, OFFLOAD_CPU);
    config_destroy(&c);
    c = accept(
        "{\"bf16\": {\"enabled\": true}, \"aio\": {\"block_size\": 65536, \"queue_depth\": 3, \"thread_count\": 2},"
        "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"},"
        "\"offload_optimizer\": {\"device\": \"cpu\"}}}");
    assert_words(said, "warning|ignored|aio (thread_count)", "aio");
    assert_int_equal(c->offload_param.device, OFFLOAD_NVME);
    assert_int_equal(c->aio.block_bytes, 65536);
    assert_int_equal(c->aio.depth, 3);
    config_destroy(&c);
#define DISK                                                                                              \
    "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": " \
    "\"/tmp\"}}"
    refuse("{\"aio\": {\"block_size\": 5000}, " DISK "}", "aio.block_size is 5000|multiple|as 8192");
    refuse("{\"aio\": {\"queue_depth\": 0}, " DISK "}", "aio.queue_depth is 0|1 to 1024");
    c = accept("{\"aio\": {\"block_size\": 5000, \"queue_depth\": 0}}");  // of no disk
    config_destroy(&c);
}

// --help names every topology that runs.
static void test_help(void **state) {
    (void)state;
    char *help = NULL;
    size_t size = 0;
    struct topology_variant v;
    FILE *out = open_memstream(&help, &size);
    const struct cli_command train = {
        .name = "train", .usage = "", .summary = "", .examples = "", .configured = true, .trains = true};
    cli_help(out, &train, &topologies, NULL);
    fclose(out);
    for (int i = 0; topologies.row[i]; i++)
        for (int k = 0; topologies.row[i]->variant(k, &v); k++)
            if (!strstr(help, v.name)) fail_msg("--topology: \"%s\" lacks %s", help, v.name);
    free(help);
}

#define SECTION(members) "{\"activation_checkpointing\": {" members "}}"

// A file that asks for kept inputs asks for recomputation; the resolved file says which, and means the same when it is read again.
static void test_activation_checkpointing(void **state) {
    static const struct {
        const char *text;
        struct recompute_options wants;
    } cases[] = {
        {"{}", {0}},
        {SECTION("\"number_checkpoints\": null, \"cpu_checkpointing\": false"), {0}},
        {SECTION("\"number_checkpoints\": 0, \"recompute\": \"auto\""), {0}},
        {SECTION("\"number_checkpoints\": 7"), {.kind = RECOMPUTE_BLOCK, .blocks = 7}},
        {SECTION("\"cpu_checkpointing\": true"), {.kind = RECOMPUTE_BLOCK, .inputs_on_host = true}},
        {SECTION("\"recompute\": \"block\""), {.kind = RECOMPUTE_BLOCK}},
        {SECTION("\"recompute\": \"cheap\""), {.kind = RECOMPUTE_CHEAP}},
        {SECTION("\"recompute\": \"none\""), {.kind = RECOMPUTE_NONE}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config *c = accept(cases[i].text);
        char *resolved = config_to_json(c);
        struct config *again = accept(resolved);
        for (int k = 0; k < 2; k++) {
            const struct recompute_options *o = k ? &again->recompute : &c->recompute;
            assert_int_equal(o->kind, cases[i].wants.kind);
            assert_int_equal(o->blocks, cases[i].wants.blocks);
            assert_int_equal(o->inputs_on_host, cases[i].wants.inputs_on_host);
        }
        free(resolved);
        config_destroy(&c);
        config_destroy(&again);
    }
    refuse(SECTION("\"recompute\": \"cheap\", \"number_checkpoints\": 4"),
           "activation_checkpointing.number_checkpoints|\"cheap\"|keeps more|set it to \"block\"");
    refuse(SECTION("\"recompute\": \"none\", \"cpu_checkpointing\": true"),
           "activation_checkpointing.cpu_checkpointing|\"none\"|keeps everything|leave");
    refuse("{\"dtype\": \"bf16\", \"data_types\": {\"grad_accum_dtype\": \"fp16\"}}",
           "data_types.grad_accum_dtype|is fp16|gradients are bf16|leave it out|fp32|set it to \"bf16\"");
    refuse(SECTION("\"number_checkpoints\": -1"), "number_checkpoints|at least 0");
    refuse(SECTION("\"recompute\": \"all\""), "recompute|\"cheap\"|\"block\"|all");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_keys),   cmocka_unit_test(test_report),
        cmocka_unit_test(test_two_names),    cmocka_unit_test(test_offload),
        cmocka_unit_test(test_help),         cmocka_unit_test(test_activation_checkpointing),
        cmocka_unit_test(test_what_travels), cmocka_unit_test(test_who_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
