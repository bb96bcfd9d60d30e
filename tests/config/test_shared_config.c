// The configuration, key by key: DeepSpeed's semantics, messages, overrides.
#include "tests/config/config_helper.h"

static void test_defaults(void **state) {
    (void)state;
    struct config *c = load_path(NULL, NULL, 0);
    assert_non_null(c);
    assert_string_equal(said, "");
    assert_string_equal(c->topology, "local");
    assert_ptr_equal(c->row, &topology_local);
    assert_string_equal(c->model, "demo");
    assert_string_equal(c->data, "demo");
    assert_null(c->out);
    assert_string_equal(c->tokenizer, "auto");
    check_batch(c, 4, 4, 1, 1);
    assert_string_equal(c->optimizer_type, "AdamW");
    assert_true(c->optimizer.lr == 1e-3f && c->clip == 1 && c->seed == 1 && c->steps == 100);
    assert_int_equal(c->deadline_ms, 30000);
    assert_int_equal(c->ps.partition_bytes, 1 << 20);
    assert_string_equal(c->ps.bind, "tcp://127.0.0.1:*");
    assert_string_equal(dtype_name(c->dtype), "fp32");
    config_destroy(&c);
}

static void test_batch_triangle(void **state) {
    (void)state;
    static const struct {
        int train, micro, steps, workers;  // 0: not given
        int want[3];
    } cases[] = {
        {0, 0, 0, 4, {16, 4, 1}},  {32, 4, 2, 4, {32, 4, 2}}, {32, 4, 0, 2, {32, 4, 4}},
        {32, 0, 2, 4, {32, 4, 2}}, {0, 3, 5, 2, {30, 3, 5}},  {12, 0, 0, 3, {12, 4, 1}},
        {0, 7, 0, 2, {14, 7, 1}},  {0, 0, 3, 2, {24, 4, 3}},  {33, 4, 0, 2, {0, 0, 0}},
        {32, 4, 3, 2, {0, 0, 0}},  {5, 0, 0, 2, {0, 0, 0}},   {1, 0, 0, 2, {0, 0, 0}},
        {32, 0, 3, 2, {0, 0, 0}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[256] = "{", *p = text + 1;
        if (cases[i].train) p += sprintf(p, "\"train_batch_size\": %d,", cases[i].train);
        if (cases[i].micro) p += sprintf(p, "\"train_micro_batch_size_per_gpu\": %d,", cases[i].micro);
        if (cases[i].steps) p += sprintf(p, "\"gradient_accumulation_steps\": %d,", cases[i].steps);
        sprintf(p, "\"topology\": \"zero:0\", \"workers\": %d}", cases[i].workers);
        if (!cases[i].want[0]) {
            refuse(text, "train_batch_size|is no|workers|change one");
            continue;
        }
        struct config *c = accept(text);
        check_batch(c, cases[i].want[0], cases[i].want[1], cases[i].want[2], cases[i].workers);
        config_destroy(&c);
    }
    refuse(
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": "
        "3,"
        "\"workers\": 2}",
        "train_batch_size 32|per_gpu 4|steps 3|workers 2 = 24|change one of them");
}

static void test_topologies(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const struct topology_row *row;
        int variant, bound;
    } good[] = {
        {"local", &topology_local, 0, 0},   {"ps:sync", &topology_star, 0, 0},
        {"ps:async", &topology_star, 1, 0}, {"ps:ssp:0", &topology_star, 3, 0},
        {"ps:ssp:3", &topology_star, 3, 3}, {"ps:backup:1", &topology_star, 4, 1},
        {"zero:0", &topology_zero, 0, 0},   {"zero:3", &topology_zero, 3, 0},
    };
    static const char *const bad[] = {
        "",        "zero",   "zero:4",    "zero:-1",   "zero:1x",           "zero:",
        "ps",      "ps:",    "ps:ssp",    "ps:ssp:",   "ps:ssp:a",          "ring",
        "PS:sync", "local ", "ps:sync:1", "ps:backup", "ps:ssp:99999999999"};
    struct config c = {.topologies = &topologies};
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(config_parse_topology(&c, good[i].text), 0);
        assert_string_equal(c.topology, good[i].text);
        assert_ptr_equal(c.row, good[i].row);
        assert_int_equal(c.variant, good[i].variant);
        assert_int_equal(c.bound, good[i].bound);
    }
    error_quiet(1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(config_parse_topology(&c, bad[i]), -1);
        assert_words(error_last(),
                     "possible are|local|ps:sync|ps:async|ps:ssp:S|ps:backup:B|ps:quorum:Q|zero:0|zero:3",
                     bad[i]);
    }
    error_quiet(0);
    free(c.topology);
    refuse("{\"topology\": \"ps:backup:2\", \"workers\": 2}", "ps:backup:2|2 workers|below 2");
}

// An error about a name that is written otherwise, or that others use, tells the nearest name; a name far from all gets none.
static void test_nearest(void **state) {
    (void)state;
    static const struct {
        const char *text, *near;
    } cases[] = {
        {"zero3", "mean zero:3?"},
        {"ZeRO-3", "mean zero:3?"},
        {"zero_stage_2", "mean zero:2?"},
        {"stage 1", "mean zero:1?"},
        {"zero:4", "mean zero:3?"},
        {"zro:0", "mean zero:0?"},
        {"PS_Sync", "mean ps:sync?"},
        {"ps:asynch", "mean ps:async?"},
        {"gosip", "mean gossip?"},
        {"lokal", "mean local?"},
        {"ps:ssp", "mean ps:ssp:S with a number for S?"},
        {"ps-ssp-4", "mean ps:ssp:4?"},
        {"ps:ssp:2:3", "mean ps:ssp:S with a number for S?"},
        {"ssp:12", "mean ps:ssp:12 ("},
        {"star", "mean ps:sync ("},
        {"Parameter Server", "mean ps:sync ("},
        {"zero", "mean zero:1 (stages"},
        {"ddp", "mean zero:0 (data parallel"},
        {"all-reduce", "mean zero:0 (data parallel"},
        {"FSDP", "mean zero:3 (weights, gradients"},
        {"SHARD_GRAD_OP", "mean zero:2 ("},
        {"D-PSGD", "mean gossip ("},
        {"megatron", NULL},
        {"tp", NULL},
        {"?", NULL},
        {"", NULL},
    };
    struct config c = {.topologies = &topologies};
    error_quiet(1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(config_parse_topology(&c, cases[i].text), -1);
        if (cases[i].near) assert_words(error_last(), cases[i].near, cases[i].text);
        if (!cases[i].near && strstr(error_last(), "did you mean")) fail_msg("%s", error_last());
    }
    error_quiet(0);
    for (int i = 0; topologies.row[i]; i++)
        for (const struct topology_alias *w = topologies.row[i]->words; w && w->word; w++) {
            char name[32];
            int bound, n = snprintf(name, sizeof name, "%s", w->name);
            if (name[n - 1] >= 'A' && name[n - 1] <= 'Z') name[n - 1] = '1';
            if (topologies.row[i]->parse(name, &bound) < 0)
                fail_msg("%s: no %s in its row", w->word, w->name);
            for (const char *at = w->word; *at; at++)
                if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789", *at)) fail_msg("%s", w->word);
        }
}

// Promises of every row, whatever its topology is.
static void test_rows(void **state) {
    (void)state;
    for (int i = 0; topologies.row[i]; i++) {
        const struct topology_row *row = topologies.row[i];
        struct config *c = accept("{}");
        struct topology_variant v;
        int variants = 0;
        for (; row->variant(variants, &v); variants++) {
            char *last = v.name + strlen(v.name) - 1;
            if (*last >= 'A' && *last <= 'Z') *last = '1';  // a letter stands for a number
            assert_int_equal(config_parse_topology(c, v.name), 0);
            assert_ptr_equal(c->row, row);
            assert_int_equal(c->variant, variants);
            for (const struct topology_role *r = row->roles; r->name; r++) {
                assert_true(config_ranks(c, r->name) > 0);
                assert_non_null(row->formula(c, r->name).memory);
                assert_non_null(row->formula(c, r->name).wire);
            }
        }
        config_destroy(&c);
        assert_true(variants > 0 && row->textbook <= variants);
        assert_string_equal(row->roles->name, "worker");
        assert_true(row->launches & 1 << LAUNCH_DEFAULT);
        assert_non_null(row->predict);
        assert_non_null(row->run);
    }
}

// Runs without a reason to differ are promised to be equal to the last bit (experiments/comparison/equality.py).
static void a_topology_says_why_its_bits_are_its_own(void **state) {
    (void)state;
    static const struct {
        const char *config, *differs, *loss_of;  // differs NULL: nothing; else a word of it
    } cases[] = {
        {"{\"topology\": \"local\"}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"local\", \"local\": {\"delay\": 1}}", "local.delay", LOSS_OF_ALL},
        {"{\"topology\": \"zero:2\"}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"zero:2\", \"reduce\": \"native\"}", "library", LOSS_OF_ALL},
        {"{\"topology\": \"zero:1\", \"local_steps\": {\"steps\": 2}, \"steps\": 4}", NULL, LOSS_OF_RANK_0},
        {"{\"topology\": \"ps:sync\"}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"ps:ssp:0\"}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"ps:backup:0\"}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"ps:quorum:2\", \"workers\": 2}", NULL, LOSS_OF_ALL},
        {"{\"topology\": \"ps:async\"}", "by itself, when it arrives", LOSS_OF_RANK_0},
        {"{\"topology\": \"ps:ssp:2\"}", "run ahead", LOSS_OF_ALL},
        {"{\"topology\": \"ps:ssp:2\", \"parameter_server\": {\"read\": \"oldest\"}}", "read oldest",
         LOSS_OF_ALL},
        {"{\"topology\": \"ps:backup:1\"}", "last workers", LOSS_OF_THE_LAST},
        {"{\"topology\": \"ps:quorum:2\", \"workers\": 3, \"train_batch_size\": 3}", "enough workers",
         LOSS_OF_THE_LAST},
        {"{\"topology\": \"ps:sync\", \"parameter_server\": {\"compression\": \"onebit\"}}", "compression",
         LOSS_OF_ALL},
        {"{\"topology\": \"gossip\"}", "neighbours", LOSS_OF_RANK_0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config *c = accept(cases[i].config);
        struct topology_texts w = {.loss_of = LOSS_OF_ALL, .waits_for_all = true};
        c->row->explain(c, &w);
        assert_non_null(w.how);
        if (!cases[i].differs) assert_null(w.differs);
        if (cases[i].differs) assert_words(w.differs, cases[i].differs, cases[i].config);
        assert_string_equal(w.loss_of, cases[i].loss_of);
        // Ranks of gossip wait only for their neighbours.
        bool may_lack =
            w.differs && strstr(cases[i].config, "ps:") && !strstr(cases[i].config, "compression");
        assert_true(w.waits_for_all == !(may_lack || (w.picture && !strcmp(w.picture, "gossip"))));
        config_destroy(&c);
    }
}

static void test_topology_and_stage(void **state) {
    (void)state;
    static const struct {
        const char *text, *topology, *words;  // words NULL: nothing is said
        int workers;
    } cases[] = {
        {"{\"zero_optimization\": {\"stage\": 2}}", "zero:2", NULL, 2},
        {"{\"zero_optimization\": {\"stage\": 0}}", "zero:0", NULL, 2},
        {"{\"workers\": 3}", "zero:0", NULL, 3},
        {"{\"workers\": 1}", "local", NULL, 1},
        {"{\"zero_optimization\": {\"stage\": 2}, \"topology\": \"zero:2\"}", "zero:2", NULL, 2},
        {"{\"zero_optimization\": {\"stage\": 2}, \"topology\": \"zero:1\"}", "zero:1",
         "warning|zero:1 wins over zero_optimization.stage 2", 2},
        {"{\"zero_optimization\": {\"stage\": 2}, \"topology\": \"ps:sync\"}", "ps:sync",
         "warning|ps:sync does not use|zero_optimization", 2},
        {"{\"topology\": \"local\", \"workers\": 4, \"train_batch_size\": 8}", "local", "workers 4 -> 1", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config *c = accept(cases[i].text);
        assert_string_equal(c->topology, cases[i].topology);
        assert_int_equal(c->workers, cases[i].workers);
        if (cases[i].words)
            assert_words(said, cases[i].words, cases[i].text);
        else
            assert_string_equal(said, "");
        config_destroy(&c);
    }
}

static void test_dtype(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum dtype dtype;
        const char *words;
    } cases[] = {
        {"{\"bf16\": {\"enabled\": true}}", DT_BF16, NULL},
        {"{\"bfloat16\": {\"enabled\": true}}", DT_BF16, NULL},
        {"{\"fp16\": {\"enabled\": true, \"auto_cast\": false}}", DT_F16,
         "nothing to act on here|fp16 (auto_cast)"},
        {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"ratio\": 0.5}}, \"aio\": {\"queue_depth\": 4}}",
         DT_F32, "nothing to act on here|aio (queue_depth)|zero_optimization.offload_optimizer (ratio)"},
        {"{\"topology\": \"ps:sync\", \"parameter_server\": {\"compression\": \"int8\", \"compression_share\": 0.5}}",
         DT_F32, "nothing to act on here|parameter_server (compression_share)"},
        {"{\"tensorboard\": {\"output_path\": \"curves\"}, \"csv_monitor\": {\"output_path\": \"curves\"}}",
         DT_F32, "nothing to act on here|tensorboard (output_path)|csv_monitor (output_path)"},
        {"{\"fp16\": {\"enabled\": false}}", DT_F32, NULL},
        {"{\"dtype\": \"fp16\"}", DT_F16, NULL},
        {"{\"dtype\": \"fp16\", \"fp16\": {\"enabled\": \"auto\"}}", DT_F16,
         "\"auto\" became|fp16 (enabled true"},
        {"{\"dtype\": \"bf16\", \"fp16\": {\"enabled\": true}}", DT_BF16,
         "dtype bf16 wins over fp16.enabled true"},
        {"{\"dtype\": \"fp32\", \"bf16\": {\"enabled\": true}}", DT_F32,
         "dtype fp32 wins over bf16.enabled true"},
        {"{\"dtype\": \"fp16\", \"fp16\": {\"enabled\": false}}", DT_F16,
         "dtype fp16 wins over fp16.enabled false"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config *c = accept(cases[i].text);
        assert_int_equal(c->dtype, cases[i].dtype);
        assert_int_equal(c->scaler.enabled, cases[i].dtype == DT_F16);
        if (cases[i].words)
            assert_words(said, cases[i].words, cases[i].text);
        else
            assert_string_equal(said, "");
        config_destroy(&c);
    }
    refuse("{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
           "bf16.enabled|fp16.enabled|both");
}

static void test_wrong_types(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"[1]", "expected an object"},
        {"{\"steps\": \"ten\"}", "steps: expected an integer|string \"ten\""},
        {"{\"steps\": 1.5}", "steps: expected an integer|number 1.5"},
        {"{\"steps\": 0}", "steps|at least 1|number 0"},
        {"{\"workers\": 70000}", "workers|from 1 to 65536|70000"},
        {"{\"seed\": -1}", "seed|at least 0"},
        {"{\"seed\": \"auto\"}", "seed|\"auto\" has no meaning"},
        {"{\"seed\": 1e300}", "seed|from 0 to 9007199254740991"},
        {"{\"optimizer\": {\"params\": {\"lr\": \"1e-3\"}}}",
         "optimizer.params.lr: expected a number|or \"auto\"|string \"1e-3\"|write the number 0.001"},
        {"{\"optimizer\": {\"params\": {\"lr\": .001\n}}}", "string \".001\"|write the number 0.001"},
        {"{\"optimizer\": {\"params\": {\"adam_w_mode\": \"false\"}}}",
         "any text for true: write false without quotes"},
        {"{\"train_batch_size\": GBS,\n}",
         "string \"GBS,\"; without quotes a text goes to the end of its line"},
        {"{\"optimizer\": {\"params\": {\"lr\": -1}}}", "optimizer.params.lr|at least 0"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}",
         "optimizer.params.betas|array of two numbers|[0.9]"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}", "optimizer.params.betas|number 1"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, true]}}}",
         "optimizer.params.betas|two numbers|true"},
        {"{\"optimizer\": {\"params\": {\"eps\": 0}}}", "optimizer.params.eps"},
        {"{\"optimizer\": {\"params\": {\"betas\": [\"auto\", \"auto\"]}}}", "got array [\"auto\",\"auto\"]"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}",
         "of at least 0 and below 1 or \"auto\", got"},
        {"{\"optimizer\": {\"params\": {\"lr\": 1e-50}}}",
         "lr: expected a number that fp32 does not round to 0"},
        {"{\"optimizer\": {\"params\": {\"lr\": 1e-400}}}", ":1:33|none so small that it is 0"},
        {"{\"optimizer\": {\"params\": {\"lr\": 1e40}}}", "lr: expected a number from 0 to 3.40282e+38 or"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 1e-50}}}",
         "warmup_max_lr: expected a number that fp32 does not round to 0"},
        {"{\"steps\": True,\n}", "string \"True,\"; without quotes a text goes to the end of its line"},
        {"{\"seed\": 9007199254740993}", "seed|from 0 to 9007199254740991"},
        {"{\"workers\": 2, \"train_batch_size\": 4, \"gradient_accumulation_steps\": 4}",
         "train_batch_size 4 is no multiple of gradient_accumulation_steps 4 * workers 2 = 8"},
        {"{\"workers\": 2, \"train_batch_size\": 9, \"train_micro_batch_size_per_gpu\": 3}",
         "train_batch_size 9 is no multiple of train_micro_batch_size_per_gpu 3 * workers 2 = 6"},
        {"{\"workers\": 2, \"train_batch_size\": 9}",
         "9 is no multiple of gradient_accumulation_steps 1 * workers 2"},
        {"{\"fp16\": {\"enabled\": True,\n}}",
         "without quotes a text goes to the end of its line: write true"},
        {"{\"optimizer\": {\"params\": {\"lr\": 0x4\n}}}", "string \"0x4\"; write the number 4"},
        {"{\"optimizer\": {\"params\": {\"lr\": NaN\n}}}",
         "write a finite number or null, for JSON has no NaN"},
        {"{\"optimizer\": {\"params\": {\"betas\": (0.9, 0.95)\n}}}",
         "write a list in brackets, [0.9, 0.95]"},
        {"{\"optimizer\": {\"params\": {\"eps\": None\n}}}", "string \"None\"; write null"},
        {"{\"zero_optimization\": [\"a long text of many words and\", \"another long text of many words, too, and some more\"]}",
         "got [\"a long text of many words and\", ..|as {\"stage\": 1}"},
        {"{\"out\": \"\"}", "out is empty: give it a value"},
        {"{\"optimizer\": {\"params\": 3}}", "optimizer.params: expected an object"},
        {"{\"optimizer\": {\"type\": 3}}", "optimizer.type: expected a text|number 3"},
        {"{\"optimizer\": []}", "optimizer: expected an object"},
        {"{\"fp16\": true}", "fp16: expected an object"},
        {"{\"fp16\": true}", "expected an object {..}, as {\"enabled\": true}, got true"},
        {"{\"zero_optimization\": 2}",
         "zero_optimization: expected an object {..}, as {\"stage\": 1}, got 2"},
        {"{\"zero_optimization\": {\"offload_param\": \"cpu\"}}",
         "expected an object {..}, as {\"device\": \"cpu\"}"},
        {"{\"fp16\": {\"enabled\": 2}}", "fp16.enabled: expected true or false|number 2"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 0}}", "fp16.hysteresis 0|a loss scale that moves"},
        {"{\"zero_optimization\": {\"stage\": 4}}", "zero_optimization.stage|from 0 to 3|4"},
        {"{\"zero_optimization\": {\"stage\": \"2.5\"}}",
         "zero_optimization.stage: expected an integer|string"},
        {"{\"dtype\": \"fp8\"}", "dtype|one of|bf16|\"fp8\""},
        {"{\"reduce\": \"tree\"}", "reduce|\"ordered\", \"native\""},
        {"{\"ring\": {\"collective\": \"gossip\"}}",
         "ring.collective|\"auto\", \"local\", \"shm\", \"mpi\", \"tcp\", \"nccl\""},
        {"{\"data\": {\"tokenizer\": \"bpe\"}}", "data.tokenizer|bpe|auto|byte|experiments/tokenize.py"},
        {"{\"model\": 7}", "model.name: expected a text|number 7"},
        {"{\"parameter_server\": {\"credit_bytes\": 2048}}", "credit_bytes 2048|partition"},
        {"{\"parameter_server\": {\"heartbeat_ms\": 60000}}", "heartbeat_ms 60000|deadline_ms 30000"},
        {"{\"steps\": 1, \"steps\": 2}", ":1:14|\"steps\" is given twice"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) refuse(cases[i][0], cases[i][1]);
}

static void test_unknown_keys(void **state) {
    (void)state;
    static const char text[] =
        "{\"gradient_cliping\": 1.0, \"optimizer\": {\"params\": {\"wieght_decay\": 1}},"
        "\"zero_optimization\": {\"stge\": 3}, \"weight_decay\": 0.1, \"qqqqqqqq\": 1}";
    const struct config_override ignored = {"unknown_keys", "ignore", NULL};
    struct config *c = load(text, &ignored, 1);
    if (!c) fail_msg("refused: %s", said);
    assert_words(
        said,
        "unknown key gradient_cliping is ignored; the nearest known name is gradient_clipping\n|"
        "unknown key optimizer.params.wieght_decay is ignored; the nearest known name is weight_decay\n|"
        "unknown key zero_optimization.stge is ignored; the nearest known name is stage\n|"
        "unknown key weight_decay is ignored; the nearest known name is optimizer.params.weight_decay\n|"
        "unknown key qqqqqqqq is ignored",
        "unknown");
    assert_true(c->clip == 1);
    config_destroy(&c);
    assert_null(load(text, NULL, 0));
    assert_words(
        said,
        "unknown key gradient_cliping: did you mean gradient_clipping?|--set unknown_keys=ignore\n|"
        "unknown key optimizer.params.wieght_decay; the nearest known name is weight_decay|unknown key zero_optimization.stge: |"
        "unknown key weight_decay is ignored|unknown key qqqqqqqq is ignored",
        "misspelt");
    refuse(
        "{\"optimizer\": {\"params\": {\"learning_rate\": 1}}}",
        "unknown key optimizer.params.learning_rate; the nearest known name is lr; DeepSpeed refuses it, too");
    // Names that share a few letters, or stand in another section, are not near.
    static const char *const far[][2] = {
        {"{\"fp16\": {\"opt_level\": 1}}", "key fp16.opt_level is ignored\n"},
        {"{\"prompt_tuning\": {\"tokens\": 8}}", "key prompt_tuning is ignored\n"},
        {"{\"training\": {\"a\": 8}}", "key training is ignored\n"},
        {"{\"optimizer\": {\"name\": 8}}", "name is type\n"},
        {"{\"fp16\": {\"type\": 8}}", "key fp16.type is ignored\n"},
        {"{\"lr\": 8}", "name is optimizer.params.lr\n"},
        {"{\"optimizer\": {\"lr\": 8}}", "name is optimizer.params.lr\n"},
        {"{\"bf16\": {\"loss_scale\": 8}}", "name is fp16.loss_scale\n"}};
    for (size_t i = 0; i < COUNT(far); i++) {
        c = accept(far[i][0]);
        assert_words(said, far[i][1], far[i][0]);
        config_destroy(&c);
    }
    // A misspelt name of an ignored key is ignored too, and the file may ask for that.
    const char *const fine[] = {"{\"wall_clock_breakdwn\": true}", "{\"flops_profilr\": {\"enabled\": true}}",
                                "{\"modelling\": 1, \"dates\": 2, \"fp8\": {\"enabled\": true}}",
                                "{\"zero_optimisation\": {\"stage\": 3}, \"unknown_keys\": \"ignore\"}"};
    for (size_t i = 0; i < COUNT(fine); i++) {
        c = accept(fine[i]);
        assert_words(said, "warning|is ignored", fine[i]);
        config_destroy(&c);
    }
    refuse("{\"zero_optimisation\": {\"stage\": 3}}", "zero_optimisation|zero_optimization");
    // Two letters that changed places, a section cut short, lengthened, or by another framework's name.
    refuse("{\"fp61\": {\"enabled\": true}}", "fp61|did you mean fp16?");
    refuse("{\"bf61\": {\"enabled\": true}}", "bf61|did you mean bf16?");
    refuse("{\"zero\": {\"stage\": 3}}", "key zero: |zero_optimization?");
    refuse("{\"zero_optimizer\": {\"stage\": 3}}", "zero_optimizer|zero_optimization?");
    refuse("{\"lr_scheduler\": {\"type\": \"WarmupLR\"}}", "lr_scheduler|did you mean scheduler?");
    c = accept("{\"nonsense\": {\"a\": 1}, \"zebra\": 1}");
    assert_words(said, "unknown key nonsense is ignored\n|unknown key zebra is ignored\n", "near to nothing");
    config_destroy(&c);
    refuse("{\"Optimizer\": {\"type\": \"Adam\"}}", "unknown key Optimizer|optimizer");
    refuse("{\"spares_gradients\": true}", "spares_gradients|sparse_gradients");
    refuse("{\"unknown_keys\": \"no\"}", "unknown_keys|one of|\"ignore\"");
    const struct config_override o[] = {{"optimizer.params.lrr", "1", NULL}};
    assert_null(load("{}", o, 1));
    assert_words(error_last(), "--set: unknown key optimizer.params.lrr|nearest known name is lr", "--set");
    const struct config_override in_no_section[] = {{"compression.codec", "onebit", NULL}};
    assert_null(load("{}", in_no_section, 1));
    assert_words(error_last(), "--set: unknown key compression|nearest known name is", "--set of a section");
}

// The engine is a ring's matter: it is written for rings, and a flag without effect is reported.
static void test_collectives(void **state) {
    (void)state;
    static const struct config_override flag = {"ring.collective", "mpi", "--collective"};
    struct config *c = accept("{\"topology\": \"zero:2\", \"ring\": {\"collective\": \"nccl\"}}");
    assert_int_equal(c->collective, RING_NCCL);
    assert_string_equal(engine_rows[c->collective].name, "nccl");
    char *text = config_to_json(c);
    assert_non_null(strstr(text, "\"nccl\""));
    free(text);
    config_destroy(&c);
    c = accept("{\"topology\": \"ps:sync\", \"ring\": {\"collective\": \"nccl\"}}");
    assert_string_equal(said, "");
    text = config_to_json(c);
    assert_null(strstr(text, "collective"));
    free(text);
    config_destroy(&c);
    // A value of this run's command line is meant for this run.
    static const struct config_override servers = {"parameter_server.servers", "2", "--servers"};
    assert_null(load("{\"topology\": \"ps:sync\"}", &flag, 1));
    assert_words(said, "--collective|ps:sync has no collectives|leave it out", "");
    assert_null(load("{\"topology\": \"zero:2\"}", &servers, 1));
    assert_words(said, "--servers|zero:2 has no servers|leave it out", "");
    c = accept("{\"topology\": \"zero:2\", \"parameter_server\": {\"servers\": 2}}");
    config_destroy(&c);
    c = accept("{\"topology\": \"zero:0\"}");
    assert_int_equal(c->collective, RING_AUTO);
    config_destroy(&c);
}

// A file is shared; what the command line says for this run, and the run has no use for, is told.
static void test_idle_flags(void **state) {
    (void)state;
    static const struct config_override o[] = {{"parameter_server.threads", "2", NULL},
                                               {"parameter_server.deadline_ms", "9000", NULL},
                                               {"fp16.loss_scale", "1024", NULL}};
    struct config *c = load("{\"topology\": \"zero:2\"}", o, COUNT(o));
    assert_words(said, "--set: nothing to act on here: fp16 (loss_scale), parameter_server (threads)\n", "");
    config_destroy(&c);
    c = load("{\"topology\": \"ps:sync\", \"dtype\": \"fp16\"}", o, COUNT(o));
    assert_string_equal(said, "");
    config_destroy(&c);
    c = accept(
        "{\"topology\": \"zero:2\", \"parameter_server\": {\"threads\": 2}, \"fp16\": {\"loss_scale\": 1024}}");
    assert_string_equal(said, "");
    config_destroy(&c);
}

static void test_overrides(void **state) {
    (void)state;
    const struct config_override o[] = {
        {"workers", "3", "--workers"},
        {"topology", "ps:ssp:2", "--topology"},
        {"model", "tiny", "--model"},
        {"data", "123", "--data"},
        {"data.seq_len", "64", NULL},
        {"optimizer.params.lr", "2e-3", NULL},
        {"optimizer.params.betas", "[0, 0.5]", NULL},
        {"out", "true", "--out"},
        {"trace", "true", "--trace"},
        {"parameter_server.servers", "2", "--servers"},
        {"optimizer.params.lr", "3e-3", NULL},
        {"gradient_clipping", "0", NULL},
        {"fp16", "{\"enabled\": true,}", NULL},
        {"launch", "processes", "--launch"},
    };
    struct config *c = load(
        "{\"data\": {\"path\": \"x\", \"val_path\": \"v\"}, \"model\": \"demo\", \"workers\": 2,"
        "\"gradient_clipping\": 1}",
        o, COUNT(o));
    if (!c) fail_msg("%s", said);
    assert_string_equal(said, "");
    assert_int_equal(c->workers, 3);
    assert_int_equal(c->bound, 2);
    assert_string_equal(c->model, "tiny");
    assert_string_equal(c->data, "123");
    assert_string_equal(c->val_data, "v");
    assert_int_equal(c->seq, 64);
    assert_true(c->optimizer.lr == 3e-3f && c->optimizer.beta1 == 0 && c->optimizer.beta2 == 0.5f);
    assert_string_equal(c->out, "true");
    assert_true(c->trace && c->clip == 0 && c->dtype == DT_F16);
    assert_int_equal(c->ps.servers, 2);
    assert_int_equal(c->launch, LAUNCH_PROCESSES);
    config_destroy(&c);

    static const struct {
        struct config_override o;
        const char *words;
    } bad[] = {
        {{"workers", "two", "--workers"}, "--workers: workers: expected an integer|\"two\""},
        {{"optimizer.params.lr", "fast", NULL}, "--set: optimizer.params.lr: expected a number"},
        {{"a..b", "1", NULL}, "--set|a..b|no path"},
        {{"", "1", NULL}, "--set|no path"},
        {{"steps.x", "1", NULL}, "--set: steps.x|not an object"},
        {{"topology", "zero:9", "--topology"}, "zero:9|possible are"},
        {{"optimizer", "3", NULL}, "--set: optimizer: expected an object"},
        {{"steps", "1_00", "--steps"}, "got string \"1_00\"; write the number 100\n"},
        {{"optimizer.params.lr", "3e-4,", "--lr"}, "got string \"3e-4,\"; write the number 0.0003\n"},
        {{"steps", "1,000", "--steps"}, "got string \"1,000\"\n"},
        {{"optimizer.params.lr", "1e-400", "--lr"}, "--lr: optimizer.params.lr: expected a number"},
        {{"data", "", "--data"}, "--data: data.path is empty"},
        {{"data.seqlen", "3", NULL}, "--set: unknown key data.seqlen|seq_len"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (load("{\"steps\": 4}", &bad[i].o, 1)) fail_msg("accepted: %s", bad[i].o.path);
        assert_words(said, bad[i].words, bad[i].o.path);
    }
    // A flag for the whole of "data" takes no blame for what the file says below it.
    const struct config_override data[] = {{"data", "y", "--data"}};
    c = load("{\"data\": {\"sequence\": 3}}", data, 1);
    assert_words(said, "warning|unknown key data.sequence is ignored", "data");
    config_destroy(&c);
}

static void test_cuda_section(void **state) {
    (void)state;
    struct config *c = accept("{}");
    assert_int_equal(c->cuda.attention, CUDA_ATTENTION_AUTO);
    assert_int_equal(c->cuda.attention_slice_bytes, CUDA_SLICE_AUTO);
    assert_int_equal(c->cuda.gelu, CUDA_GELU_AUTO);
    assert_int_equal(c->cuda.bias_grad, CUDA_BIAS_GRAD_AUTO);
    assert_null(config_reset_section(c, "cuda"));
    config_destroy(&c);

    c = accept(
        "{\"cuda\": {\"attention\": \"cudnn\", \"attention_slice\": 536870912, \"gelu\": \"apart\", "
        "\"bias_grad\": \"epilogue\"}}");
    char *text = config_to_json(c);
    struct config *again = accept(text);
    free(text);
    assert_int_equal(again->cuda.attention, CUDA_ATTENTION_CUDNN);
    assert_int_equal(again->cuda.attention_slice_bytes, 536870912);
    assert_int_equal(again->cuda.gelu, CUDA_GELU_APART);
    assert_int_equal(again->cuda.bias_grad, CUDA_BIAS_GRAD_EPILOGUE);
    config_destroy(&again);
    text = config_reset_section(c, "cuda");
    assert_string_equal(text,
                        "cuda.attention cudnn, cuda.attention_slice 536870912, cuda.gelu apart, "
                        "cuda.bias_grad epilogue");
    free(text);
    assert_int_equal(c->cuda.attention, CUDA_ATTENTION_AUTO);
    assert_int_equal(c->cuda.attention_slice_bytes, CUDA_SLICE_AUTO);
    assert_null(config_reset_section(c, "cuda"));
    config_destroy(&c);

    c = accept("{\"cuda\": {\"attention_slice\": \"whole\"}}");
    assert_int_equal(c->cuda.attention_slice_bytes, CUDA_SLICE_WHOLE);
    text = config_to_json(c);
    assert_words(text, "\"attention_slice\":\t\"whole\"", "written");
    free(text);
    config_destroy(&c);

    refuse("{\"cuda\": {\"attention\": \"flash\"}}", "cuda.attention|\"cudnn\"|\"own\"|flash");
    refuse("{\"cuda\": {\"attention_slice\": 0}}", "cuda.attention_slice|at least 1");
    refuse("{\"cuda\": {\"attention_slice\": 1e30}}",
           "cuda.attention_slice|an integer from 1 to 9007199254740991|number 1e+30");
    refuse("{\"cuda\": {\"attention_slice\": \"256 pages\"}}", "cuda.attention_slice|bytes|\"whole\"");
    refuse("{\"cuda\": {\"gelu\": true}}", "cuda.gelu|\"fused\"|\"apart\"");
    refuse("{\"cuda\": {\"bias_grad\": \"fused\"}}", "cuda.bias_grad|\"epilogue\"|\"kernel\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_batch_triangle),
        cmocka_unit_test(test_topologies),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(a_topology_says_why_its_bits_are_its_own),
        cmocka_unit_test(test_topology_and_stage),
        cmocka_unit_test(test_dtype),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_idle_flags),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_cuda_section),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
