// Hugging Face directories: round trips to the last bit, names, shards, mismatches, damage.
#include "tests/files/st_helper.h"

#include "shared/core/numbers.h"
#include "shared/hf/families.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/hf/safetensors.h"
#include "shared/model/layout.h"
#include "shared/state/weights_hash.h"

static struct model_spec small_llama(bool bias, bool tied) {
    return (struct model_spec){.name = "small",
                               .hf_type = "llama",
                               .traits = hf_family_named(bias ? "qwen2" : "llama", NULL)->traits,
                               .vocab = 37,
                               .channels = 24,
                               .layers = 2,
                               .heads = 3,
                               .kv_heads = 1,
                               .head_size = 8,
                               .ffn = 40,
                               .max_positions = 64,
                               .tied = tied,
                               .norm_eps = 1e-5f,
                               .rope_theta = 1e4f,
                               .init_std = 0.02f,
                               .bos_token = -1,
                               .eos_token = -1};
}

static struct model_spec small_gpt2(bool tied) {
    return (struct model_spec){.name = "small",
                               .hf_type = "gpt2",
                               .traits = hf_family_named("gpt2", NULL)->traits,
                               .vocab = 37,
                               .channels = 24,
                               .layers = 2,
                               .heads = 3,
                               .kv_heads = 3,
                               .head_size = 8,
                               .ffn = 96,
                               .max_positions = 33,
                               .tied = tied,
                               .norm_eps = 1e-5f,
                               .init_std = 0.02f,
                               .bos_token = -1,
                               .eos_token = -1};
}

// Unit u filled with values that differ everywhere and are exact in dt; (n_pad) of dt. Bytes that belong to no
// tensor - gaps, padding and the rows reserved after the head's tensor - are `nothing`.
static void *fill_unit(const struct layout *l, int u, enum dtype dt, int nothing) {
    const struct unit *unit = &l->units[u];
    void *out = malloc((size_t)unit->n_pad * dtype_size(dt));
    memset(out, nothing, (size_t)unit->n_pad * dtype_size(dt));
    for (int i = 0; i < unit->count; i++)
        for (int64_t k = 0; k < unit->tensors[i].numel; k++)
            dtype_store(dt, out, (size_t)(unit->tensors[i].offset + k),
                        rng_normal(99, (uint64_t)(unit->tensors[i].logical_start + k)));
    return out;
}

static void write_model(const char *dir, const struct model_spec *s, const struct layout *l, enum dtype dt) {
    struct hf_writer *w = hf_writer_create(dir, s, l, dt);
    assert_non_null(w);
    for (int u = 0; u < l->count; u++) {
        void *values = fill_unit(l, u, dt, 0x5a);
        assert_int_equal(hf_write_unit(w, u, values), 0);
        free(values);
    }
    assert_int_equal(hf_writer_finish(&w), 0);
    assert_null(w);
}

static void compare_model(struct hf_reader *r, const struct layout *l, enum dtype dt) {
    for (int u = 0; u < l->count; u++) {
        int64_t n = l->units[u].n_pad;
        void *want = fill_unit(l, u, dt, 0);
        float *got = malloc((size_t)n * sizeof *got);
        memset(got, 0xff, (size_t)n * sizeof *got);
        assert_int_equal(hf_read_unit(r, u, got), 0);
        for (int64_t i = 0; i < n; i++)
            assert_true(f32_to_bits(got[i]) == f32_to_bits(dtype_load(dt, want, (size_t)i)));
        free(got);
        free(want);
    }
}

// Written, read back under another world size: the same bits, and zeros where nothing was written from.
static void round_trip(struct dir *d, struct model_spec s, enum dtype dt) {
    struct layout *l = model_layout_create(&s, 1), *l3 = model_layout_create(&s, 3);
    write_model(d->path, &s, l, dt);
    assert_true(hf_has_weights(d->path));
    struct model_spec back;
    assert_int_equal(model_spec_load(d->path, &back), 0);
    assert_true(back.sliding_window == s.sliding_window && back.head_size == s.head_size);
    assert_true(back.tied == s.tied && back.norm_eps == s.norm_eps && back.rope_theta == s.rope_theta);
    assert_true(back.channels == s.channels && back.kv_heads == s.kv_heads && back.ffn == s.ffn);
    assert_memory_equal(&back.traits, &s.traits, sizeof s.traits);
    struct hf_reader *r = hf_open(d->path, &back, l3);
    assert_non_null(r);
    compare_model(r, l3, dt);
    hf_close(&r);
    struct st_file *f = st_open(d->file);
    assert_true((st_find(f, "lm_head.weight") == NULL) == s.tied);
    st_close(&f);
    layout_destroy(&l);
    layout_destroy(&l3);
}

// Every row of families.c: its keys and its tensors, with sizes that every row's config.json can say.
static void test_every_family(void **state) {
    for (int i = 0; hf_family_at(i); i++)
        for (int tied = 0; tied < 2; tied++) {
            struct model_spec s = small_gpt2(tied);
            s.traits = hf_family_at(i)->traits;
            s.rope_theta = s.traits.positions == POSITIONS_ROTARY ? 1e4f : 0.0f;
            snprintf(s.hf_type, sizeof s.hf_type, "%s", hf_family_at(i)->type);
            round_trip(*state, s, DT_BF16);
        }
}

static void test_round_trips(void **state) {
    for (enum dtype dt = DT_F32; dt <= DT_F16; dt++)
        for (int tied = 0; tied < 2; tied++) {
            round_trip(*state, small_llama(false, tied), dt);
            round_trip(*state, small_llama(true, tied), dt);
            round_trip(*state, small_gpt2(tied), dt);
            struct model_spec mistral = small_llama(false, tied);
            snprintf(mistral.hf_type, sizeof mistral.hf_type, "mistral");
            mistral.head_size = 10;
            mistral.sliding_window = tied ? 0 : 40;
            round_trip(*state, mistral, dt);
        }
}

// Names, shapes and transposes are Hugging Face's.
static void test_names_and_transposes(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_gpt2(true);
    struct layout *l = model_layout_create(&s, 1);
    write_model(d->path, &s, l, DT_F32);
    struct st_file *f = st_open(d->file);
    const struct st_tensor *t = st_find(f, "transformer.h.1.attn.c_attn.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 24);
    assert_int_equal(t->shape[1], 72);
    const struct tensor *ours = &l->units[2].tensors[2];
    assert_string_equal(ours->name, "block.1.wqkv");
    float *unit = fill_unit(l, 2, DT_F32, 0), theirs[24 * 72];
    st_to_f32(t, 0, 24 * 72, theirs);
    for (int r = 0; r < 72; r++)
        for (int c = 0; c < 24; c++) assert_true(unit[ours->offset + r * 24 + c] == theirs[c * 72 + r]);
    free(unit);
    st_close(&f);
    layout_destroy(&l);
    s = small_llama(true, false);
    l = model_layout_create(&s, 1);
    write_model(d->path, &s, l, DT_F32);
    f = st_open(d->file);
    ours = &l->units[1].tensors[1];
    assert_string_equal(ours->name, "block.0.wqkv");
    t = st_find(f, "model.layers.0.self_attn.v_proj.weight");
    assert_int_equal(t->shape[0], 8);
    unit = fill_unit(l, 1, DT_F32, 0);
    assert_memory_equal(t->data, unit + ours->offset + (24 + 8) * 24, 8 * 24 * sizeof(float));
    free(unit);
    assert_int_equal(st_find(f, "model.layers.1.self_attn.k_proj.bias")->shape[0], 8);
    assert_int_equal(st_find(f, "model.layers.1.mlp.up_proj.weight")->shape[0], 40);
    assert_non_null(st_find(f, "lm_head.weight"));
    st_close(&f);
    layout_destroy(&l);
}

// The tensors of a file, some left out, renamed or cut, into another.
struct edit {
    const char *skip;       // a tensor left out
    const char *only;       // names must (not) contain this ...
    bool without;           // ... not
    const char *prefix;     // left out in front of every name that has it
    const char *before;     // put in front of every name
    const char *from, *to;  // a name that changes
};

static void copy_edited(const char *from, const char *to, const struct edit *e) {
    struct st_file *f = st_open(from);
    assert_non_null(f);
    struct st_entry entries[64];
    const struct st_tensor *kept[64];
    char *names[64];
    int n = 0;
    for (int i = 0; i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i);
        if (e->skip && strcmp(t->name, e->skip) == 0) continue;
        if (e->only && (strstr(t->name, e->only) != NULL) == e->without) continue;
        const char *name = t->name;
        if (e->prefix && strncmp(name, e->prefix, strlen(e->prefix)) == 0) name += strlen(e->prefix);
        if (e->from && !strcmp(name, e->from)) name = e->to;
        names[n] = xasprintf("%s%s", e->before ? e->before : "", name);
        entries[n] = (struct st_entry){.name = names[n], .dtype = (enum dtype)t->dtype, .dims = t->dims};
        memcpy(entries[n].shape, t->shape, sizeof t->shape);
        kept[n++] = t;
    }
    char *error = NULL;
    struct st_writer *w = st_writer_begin(to, entries, n, NEW_FILE_ON_DISK, &error);
    for (int i = 0; i < n; i++) assert_int_equal(st_writer_append(w, kept[i]->data, kept[i]->bytes), 0);
    assert_int_equal(st_writer_end(&w, NULL, &error), 0);
    for (int i = 0; i < n; i++) free(names[i]);
    st_close(&f);
}

static void edit_file(struct dir *d, const struct edit *e) {
    copy_edited(d->file, d->shard[0], e);
    assert_int_equal(rename(d->shard[0], d->file), 0);
}

static void expect_unreadable(struct dir *d, const struct model_spec *s, const struct layout *l,
                              const char *a, const char *b) {
    error_clear();
    error_quiet(1);
    assert_null(hf_open(d->path, s, l));
    error_quiet(0);
    if (!strstr(error_last(), a) || !strstr(error_last(), b))
        fail_msg("\"%s\" should say \"%s\" and \"%s\"", error_last(), a, b);
}

static void test_shards(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_llama(false, false);
    struct layout *l = model_layout_create(&s, 2);
    write_model(d->path, &s, l, DT_BF16);
    copy_edited(d->file, d->shard[0], &(struct edit){.only = "layers.1."});
    copy_edited(d->file, d->shard[1], &(struct edit){.only = "layers.1.", .without = true});
    unlink(d->file);
    // Without an index all files of the directory are taken together.
    struct hf_reader *r = hf_open(d->path, &s, l);
    assert_non_null(r);
    compare_model(r, l, DT_BF16);
    hf_close(&r);
    const char *good =
        "{\"metadata\":{},\"weight_map\":{\"model.norm.weight\":\"b.safetensors\","
        "\"model.layers.1.mlp.up_proj.weight\":\"a.safetensors\"}}";
    put_file(d->index, good, strlen(good));
    r = hf_open(d->path, &s, l);
    assert_non_null(r);
    compare_model(r, l, DT_BF16);
    hf_close(&r);
    const char *wrong = "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\",\"x\":\"b.safetensors\"}}";
    put_file(d->index, wrong, strlen(wrong));
    expect_unreadable(d, &s, l, "model.norm.weight", "a.safetensors");
    const char *gone = "{\"weight_map\":{\"model.norm.weight\":\"c.safetensors\"}}";
    put_file(d->index, gone, strlen(gone));
    expect_unreadable(d, &s, l, "the shard c.safetensors, which is not there", "different builds");
    static const char *const outside[] = {
        "../c.safetensors", "/c.safetensors", "w/../../c.safetensors", "..", "", "w/"};
    for (int i = 0; i < 6; i++) {
        char *names = xasprintf("{\"weight_map\":{\"model.norm.weight\":\"%s\"}}", outside[i]);
        put_file(d->index, names, strlen(names));
        expect_unreadable(d, &s, l, "model.norm.weight", "in this directory");
        free(names);
    }
    // An adapter's tensors beside the model's are not left out; Mistral's own file is, which lies beside them on the hub.
    unlink(d->index);
    char *more = xasprintf("%s/c.safetensors", d->path),
         *own = xasprintf("%s/consolidated.safetensors", d->path);
    copy_edited(d->shard[0], more,
                &(struct edit){.only = "layers.1.mlp.up_proj.weight",
                               .from = "model.layers.1.mlp.up_proj.weight",
                               .to = "model.layers.1.mlp.up_proj.lora_A.default.weight"});
    expect_unreadable(d, &s, l, "up_proj.lora_A.default.weight", "merge_and_unload");
    assert_int_equal(rename(more, own), 0);
    r = hf_open(d->path, &s, l);
    assert_non_null(r);
    hf_close(&r);
    unlink(own);
    free(more);
    free(own);
    // A shard may lie in a folder; what tells two machines apart reads it too.
    char *folder = xasprintf("%s/w", d->path), *inside = xasprintf("%s/w/a.safetensors", d->path);
    static const char below[] =
        "{\"weight_map\":{\"model.norm.weight\":\"b.safetensors\",\"model.layers.1.mlp.up_proj.weight\":\"w/a.safetensors\"}}";
    assert_int_equal(mkdir(folder, 0777) | rename(d->shard[0], inside), 0);
    put_file(d->index, below, sizeof below - 1);
    r = hf_open(d->path, &s, l);
    assert_non_null(r);
    compare_model(r, l, DT_BF16);
    hf_close(&r);
    char *both = hf_files_identity(d->path);
    assert_non_null(strstr(both, "2 files, "));
    free(both);
    assert_int_equal(rename(inside, d->shard[0]) | rmdir(folder), 0);
    free(folder);
    free(inside);
    const char *half =
        "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\",\"y\":\"b.safetensors\",\"x\":\"c.safetensors\"}}";
    put_file(d->index, half, strlen(half));
    expect_unreadable(d, &s, l, "the shard c.safetensors is missing (of the 3", "2 are here");
    put_file(d->index, "{}", 2);
    expect_unreadable(d, &s, l, "weight_map", d->index);
    unlink(d->index);
    // Names that say how many there are.
    char *first = xasprintf("%s/model-00001-of-00003.safetensors", d->path),
         *third = xasprintf("%s/model-00003-of-00003.safetensors", d->path);
    assert_int_equal(rename(d->shard[0], first) | rename(d->shard[1], third), 0);
    expect_unreadable(d, &s, l, "the names say 3 shards", "number 2 is missing");
    assert_int_equal(rename(first, d->shard[0]) | rename(third, d->shard[1]), 0);
    free(first);
    free(third);
    copy_edited(d->shard[0], d->shard[1], &(struct edit){0});
    expect_unreadable(d, &s, l, "also in", "layers.1.");
    unlink(d->shard[0]);
    expect_unreadable(d, &s, l, "model.embed_tokens.weight", "missing");
    unlink(d->shard[1]);
    assert_false(hf_has_weights(d->path));
    expect_unreadable(d, &s, l, "has no weights", d->path);
    layout_destroy(&l);
}

static void test_mismatches(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_gpt2(true), wide = s;
    struct layout *l = model_layout_create(&s, 1);
    write_model(d->path, &s, l, DT_F32);
    copy_edited(d->file, d->shard[0], &(struct edit){.skip = "transformer.h.1.ln_2.bias"});
    assert_int_equal(rename(d->shard[0], d->file), 0);
    expect_unreadable(d, &s, l, "transformer.h.1.ln_2.bias", "missing");
    wide.ffn = 95;
    struct layout *lw = model_layout_create(&wide, 1);
    expect_unreadable(d, &wide, lw, "h.0.mlp.c_fc.weight", "(24,96), but config.json makes it (24,95)");
    layout_destroy(&lw);
    // Files of the bare model have no prefix.
    write_model(d->path, &s, l, DT_F32);
    copy_edited(d->file, d->shard[0], &(struct edit){.prefix = "transformer."});
    assert_int_equal(rename(d->shard[0], d->file), 0);
    struct hf_reader *r = hf_open(d->path, &s, l);
    assert_non_null(r);
    compare_model(r, l, DT_F32);
    hf_close(&r);
    layout_destroy(&l);
    // A type that cannot be weights.
    s = small_llama(false, true);
    l = model_layout_create(&s, 1);
    put_header(
        d->file,
        "{\"model.embed_tokens.weight\":{\"dtype\":\"I8\",\"shape\":[37,24],\"data_offsets\":[0,888]}}", 888);
    expect_unreadable(d, &s, l, "model.embed_tokens.weight", "I8");
    // Untied models need their head.
    write_model(d->path, &s, l, DT_F32);
    struct model_spec untied = small_llama(false, false);
    struct layout *lu = model_layout_create(&untied, 1);
    expect_unreadable(d, &untied, lu, "lm_head.weight", "missing");
    layout_destroy(&lu);
    layout_destroy(&l);
}

// Words of wrappers before the names of tensors, alone and one in another.
static void test_wrappers(void **state) {
    struct dir *d = *state;
    static const char *const before[] = {"module.",
                                         "_orig_mod.",
                                         "module._orig_mod.",
                                         "_orig_mod.module.",
                                         "base_model.model.",
                                         "_fsdp_wrapped_module.",
                                         "model."};
    for (int gpt2 = 0; gpt2 < 2; gpt2++) {
        struct model_spec s = gpt2 ? small_gpt2(true) : small_llama(false, false);
        struct layout *l = model_layout_create(&s, 1);
        for (size_t i = 0; i < sizeof before / sizeof *before; i++)
            for (int bare = 0; bare < 2; bare++) {
                write_model(d->path, &s, l, DT_F32);
                edit_file(d, &(struct edit){.prefix = bare ? gpt2 ? "transformer." : "model." : NULL,
                                            .before = before[i]});
                struct hf_reader *r = hf_open(d->path, &s, l);
                if (!r) fail_msg("%s: %s", before[i], error_last());
                compare_model(r, l, DT_F32);
                hf_close(&r);
            }
        write_model(d->path, &s, l, DT_F32);
        edit_file(d, &(struct edit){.before = "encoder."});
        expect_unreadable(d, &s, l, "missing", "encoder.");
        layout_destroy(&l);
    }
}

// A tied and an untied model, with each head that their files may hold.
static void test_heads(void **state) {
    struct dir *d = *state;
    struct model_spec tied = small_llama(false, true), untied = small_llama(false, false), s = tied;
    struct layout *lt = model_layout_create(&tied, 1), *lu = model_layout_create(&untied, 1);
    // Two different matrices: apart, with a warning.
    write_model(d->path, &untied, lu, DT_F32);
    error_quiet(QUIET_ALL);
    assert_int_equal(hf_settle(d->path, &s), 0);
    error_quiet(QUIET_NOT);
    assert_false(s.tied);
    // The one matrix under the head's name.
    write_model(d->path, &tied, lt, DT_F32);
    edit_file(d, &(struct edit){.from = "model.embed_tokens.weight", .to = "lm_head.weight"});
    s = tied;
    assert_int_equal(hf_settle(d->path, &s), 0);
    assert_true(s.tied);
    struct hf_reader *r = hf_open(d->path, &s, lt);
    assert_non_null(r);
    compare_model(r, lt, DT_F32);
    assert_int_equal(hf_dtype(r), DT_F32);
    hf_close(&r);
    expect_unreadable(d, &untied, lu, "model.embed_tokens.weight: missing, but lm_head.weight is there",
                      "\"tie_word_embeddings\": true");
    // Without a head.
    write_model(d->path, &tied, lt, DT_F32);
    expect_unreadable(d, &untied, lu, "lm_head.weight: missing", "\"tie_word_embeddings\": true");
    // Fewer blocks than config.json says; then another model's names, unmerged adapters, quantized weights.
    write_model(d->path, &untied, lu, DT_F32);
    edit_file(d, &(struct edit){.only = "layers.1.", .without = true});
    expect_unreadable(d, &untied, lu, "the files have 1 blocks, and config.json says 2", "layers.1.");
    struct model_spec gpt2 = small_gpt2(true);
    struct layout *lg = model_layout_create(&gpt2, 1);
    expect_unreadable(d, &gpt2, lg, "nothing is called like a tensor of a gpt2 model", "embed_tokens");
    layout_destroy(&lg);
    static const char *const renamed[][2] = {
        {"model.layers.0.self_attn.q_proj.base_layer.weight", "merge_and_unload"},
        {"model.layers.0.self_attn.q_proj.qweight", "from before quantization"}};
    for (int i = 0; i < 2; i++) {
        write_model(d->path, &untied, lu, DT_F32);
        edit_file(d, &(struct edit){.from = "model.layers.0.self_attn.q_proj.weight", .to = renamed[i][0]});
        expect_unreadable(d, &untied, lu, renamed[i][0], renamed[i][1]);
    }
    layout_destroy(&lt);
    layout_destroy(&lu);
}

// A directory whose weights are in a form that is not read is refused, with or without config.json; and files that are no model.
static void test_look(void **state) {
    struct dir *d = *state;
    static const struct {
        const char *name, bytes[64], *says;
        enum { DIR_OF_IT, FILE_ITSELF, DIR_WITH_CONFIG } given;
    } cases[] = {
        {"pytorch_model.bin", "PK\3\4", "save_pretrained", DIR_OF_IT},
        {"pytorch_model.bin.index.json", "{}", "save_pretrained", DIR_OF_IT},
        {"pytorch_model-00001-of-00002.bin", "PK\3\4", "save_pretrained", DIR_OF_IT},
        {"pytorch_model.bin", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull", DIR_OF_IT},
        {"consolidated.00.pth", "", "Meta's", DIR_OF_IT},
        {"tf_model.h5", "", "from_tf", DIR_OF_IT},
        {"flax_model.msgpack", "", "from_flax", DIR_OF_IT},
        {"last.ckpt", "", "torch.save", DIR_OF_IT},
        {"m.gguf", "GGUF", "llama.cpp", DIR_OF_IT},
        {"adapter_model.safetensors", "", "adapter's directory", DIR_OF_IT},
        {"adapter_config.json", "{}", "adapter's directory", DIR_OF_IT},
        {"adapter_config.json", "{}", "adapter's directory", FILE_ITSELF},
        {"adapter_model.bin", "PK\3\4", "as a pickle", DIR_OF_IT},
        {"zero_to_fp32.py", "", "zero_to_fp32.py . OUT", DIR_OF_IT},
        {"__0_0.distcp", "", "dcp_to_torch", DIR_OF_IT},
        {"model_index.json", "{}", "diffusers", DIR_OF_IT},
        {"model.safetensors.incomplete", "", "download did not end", DIR_OF_IT},
        {"model-00001-of-00002.safetensors.part", "", "download did not end", DIR_OF_IT},
        {"model.safetensors.crdownload", "", "download did not end", DIR_OF_IT},
        {".cache/huggingface/download/abc.incomplete", "", "download did not end", DIR_OF_IT},
        {"pytorch_model_fsdp_0/__0_0.distcp", "", "dcp_to_torch", DIR_WITH_CONFIG},
        {"original/model.safetensors", "", "/original", DIR_OF_IT},
        {"checkpoint-500/model.safetensors.index.json", "{}", "/checkpoint-500", DIR_OF_IT},
        {"original/consolidated.00.pth", "", "Meta's", DIR_WITH_CONFIG},
        {"consolidated.safetensors", "", "Mistral's", DIR_OF_IT},
        {"openvino_model.bin", "", "OpenVINO", DIR_OF_IT},
        {"model.bin", "", "CTranslate2", DIR_OF_IT},
        {"ggml-model-q4_0.bin", "", "GGML", DIR_OF_IT},
        {"model.pdparams", "", "PaddlePaddle", DIR_OF_IT},
        {"Model.GGUF", "", "llama.cpp", DIR_OF_IT},
        {"tokenizer.json", "{}", "no weights", DIR_OF_IT},
        {"m.gguf", "GGUF", "llama.cpp", FILE_ITSELF},
        {"gpt2_124M.bin", "\xc6\xd7\x34\x01", "llm.c", FILE_ITSELF},
        {"llama3.1_8B.bin", "\xa3\xd9\x34\x01", "llm.c", FILE_ITSELF},
        {"model.safetensors", "\x10\0\0\0\0\0\0\0{\"", "the directory that has both", FILE_ITSELF},
        {"x.pt", "PK\3\4 x/data.pkl", "torch.save", FILE_ITSELF},
        {"x.bin", "\x80\x02}q", "pickle", FILE_ITSELF},
        {"x.tar", "", "tar -xf", FILE_ITSELF},
        {"config.json", "<!DOCTYPE html><html>", "a web server", FILE_ITSELF},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int config = cases[i].given == DIR_WITH_CONFIG; config < 2 - (cases[i].given == FILE_ITSELF);
             config++) {
            char *path = xasprintf("%s/%s", d->path, cases[i].name), *end;
            for (char *at = path + strlen(d->path) + 1; (end = strchr(at, '/')); at = end + 1) {
                *end = 0;
                mkdir(path, 0777);
                *end = '/';
            }
            put_file(path, cases[i].bytes, *cases[i].bytes ? sizeof cases[i].bytes : 0);
            if (config) put_file(d->config, "{}", 2);
            error_clear();
            error_quiet(QUIET_ALL);
            int rc = hf_look(cases[i].given == FILE_ITSELF ? path : d->path);
            error_quiet(QUIET_NOT);
            bool on_purpose = strstr(error_last(), "random weights on purpose");
            if (rc != -1 || !strstr(error_last(), cases[i].says) || on_purpose != config)
                fail_msg("%s: \"%s\" should say \"%s\"", cases[i].name, error_last(), cases[i].says);
            unlink(path);
            unlink(d->config);
            while ((end = strrchr(path, '/')) > path + strlen(d->path)) {
                *end = 0;
                rmdir(path);
            }
            free(path);
        }
    // The sizes alone are a model of random weights, where they are named.
    put_file(d->config, "{}", 2);
    assert_int_equal(hf_look(d->config), 0);
    char *slashes = xasprintf("%s//", d->path);
    error_quiet(QUIET_ALL);
    assert_int_equal(hf_look(slashes), -1);
    error_quiet(QUIET_NOT);
    assert_null(strstr(error_last(), "//"));
    free(slashes);
    // A file that aria2 has not filled has its size already.
    char *control = xasprintf("%s.aria2", d->file);
    put_file(d->file, "", 0);
    assert_int_equal(hf_look(d->path), 0);
    put_file(control, "", 0);
    error_quiet(QUIET_ALL);
    assert_int_equal(hf_look(d->path), -1);
    error_quiet(QUIET_NOT);
    unlink(control);
    free(control);
}

// A value that is no number is named by its place in the file, also where that is a matrix stored the other way round.
static void test_values(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_gpt2(true);
    struct layout *l = model_layout_create(&s, 1);
    float *out = malloc((size_t)l->padded * sizeof *out);
    static const char *const names[] = {"transformer.wte.weight", "transformer.h.1.mlp.c_fc.weight",
                                        "transformer.ln_f.bias"};
    static const uint32_t bits[] = {0x7fc00000, 0x7f800000, 0xff800000};
    for (int i = 0; i < 3; i++) {
        write_model(d->path, &s, l, DT_F32);
        struct st_file *f = st_open(d->file);
        const struct st_tensor *t = st_find(f, names[i]);
        assert_non_null(t);
        size_t n;
        char *bytes = get_file(d->file, &n);
        const char *end = NULL;  // of the file
        for (int k = 0; k < st_count(f); k++) {
            const char *behind = (const char *)st_at(f, k)->data + st_at(f, k)->bytes;
            if (behind > end) end = behind;
        }
        memcpy(bytes + n - (end - (const char *)t->data) + 5 * sizeof *bits, &bits[i], sizeof *bits);
        put_file(d->file, bytes, n);
        free(bytes);
        st_close(&f);
        struct hf_reader *r = hf_open(d->path, &s, l);
        int rc = 0;
        error_quiet(QUIET_ALL);
        for (int u = 0; u < l->count; u++) rc |= hf_read_unit(r, u, out);
        error_quiet(QUIET_NOT);
        if (!rc || !strstr(error_last(), names[i]) || !strstr(error_last(), "value 5 of"))
            fail_msg("%s: \"%s\"", names[i], error_last());
        hf_close(&r);
    }
    free(out);
    layout_destroy(&l);
}

static void test_discarded_writer(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_llama(false, true);
    struct layout *l = model_layout_create(&s, 1);
    struct hf_writer *w = hf_writer_create(d->path, &s, l, DT_F32);
    void *values = fill_unit(l, 0, DT_F32, 0);
    assert_int_equal(hf_write_unit(w, 0, values), 0);
    hf_writer_discard(&w);
    assert_null(w);
    assert_false(hf_has_weights(d->path));
    // Finished too early: nothing appears, and an error is returned.
    w = hf_writer_create(d->path, &s, l, DT_F32);
    assert_int_equal(hf_write_unit(w, 0, values), 0);
    error_quiet(1);
    assert_int_equal(hf_writer_finish(&w), -1);
    error_quiet(0);
    assert_false(hf_has_weights(d->path));
    assert_int_not_equal(access(d->config, F_OK), 0);
    free(values);
    layout_destroy(&l);
}

static uint64_t hash_filled(const struct layout *l, enum dtype dt, int64_t flip, int nothing) {
    struct weights_hash *h = weights_hash_create();
    for (int u = 0; u < l->count; u++) {
        unsigned char *values = fill_unit(l, u, dt, nothing);
        if (flip >= 0 && u == 1) values[flip] ^= 1;
        weights_hash_unit(h, l, u, values, dt);
        free(values);
    }
    return weights_hash_finish(&h);
}

static uint64_t hash_model(const struct layout *l, enum dtype dt, int64_t flip) {
    return hash_filled(l, dt, flip, 0);
}

// Gaps, padding and reserved rows do not count; every weight does.
static void test_weights_hash(void **state) {
    (void)state;
    struct model_spec s = small_llama(true, false);
    struct layout *a = model_layout_create(&s, 1), *b = model_layout_create(&s, 4);
    uint64_t h = hash_model(a, DT_BF16, -1);
    assert_true(hash_model(b, DT_BF16, -1) == h);
    assert_true(hash_model(a, DT_F16, -1) != h);
    assert_true(hash_model(a, DT_BF16, 0) != h);
    const struct tensor *last = &a->units[1].tensors[a->units[1].count - 1];
    assert_true(hash_model(a, DT_BF16, 2 * (last->offset + last->numel) - 1) != h);
    assert_true(hash_model(a, DT_BF16, 2 * a->units[1].tensors[0].numel) == h);  // behind norm1: a gap
    const struct unit *head = &a->units[a->count - 1];
    assert_true(head->tensors[head->count - 1].reserved > 0);
    assert_true(hash_filled(a, DT_BF16, -1, 0x5a) == h);
    layout_destroy(&a);
    layout_destroy(&b);
}

// A file damaged at random is refused or read; the program never crashes.
static void test_random_damage(void **state) {
    struct dir *d = *state;
    struct model_spec s = small_llama(true, false);
    struct layout *l = model_layout_create(&s, 1);
    write_model(d->path, &s, l, DT_BF16);
    size_t n, header = 8;
    char *good = get_file(d->file, &n), *bad = malloc(n);
    for (int i = 0; i < 4; i++) header += (size_t)(unsigned char)good[i] << 8 * i;
    float *values = malloc((size_t)l->units[1].n_pad * sizeof *values);
    int refused = 0, rounds = 4000;
    error_quiet(1);
    for (int round = 0; round < rounds; round++) {
        memcpy(bad, good, n);
        size_t size = n;
        struct philox_out r = philox(1234, (uint64_t)round, 0);
        for (uint32_t k = 0; k <= r.v[0] % 3; k++) {
            struct philox_out where = philox(1234, (uint64_t)round, 1 + k);
            // Digits stay digits half of the time, so that the JSON stays valid and only its numbers lie.
            size_t at = where.v[0] % header;
            bool digit = bad[at] >= '0' && bad[at] <= '9' && where.v[2] % 4;
            bad[at] = digit ? (char)('0' + where.v[1] % 10) : (char)where.v[1];
        }
        if (r.v[1] % 4 == 0) size = r.v[2] % n;
        put_file(d->file, bad, size);
        struct hf_reader *reader = hf_open(d->path, &s, l);
        if (reader) assert_int_equal(hf_read_unit(reader, 1, values), 0);
        refused += !reader;
        hf_close(&reader);
    }
    error_quiet(0);
    assert_true(refused > rounds / 2);
    free(values);
    free(bad);
    free(good);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DIR(test_every_family),
        IN_DIR(test_round_trips),
        IN_DIR(test_shards),
        IN_DIR(test_names_and_transposes),
        IN_DIR(test_mismatches),
        IN_DIR(test_wrappers),
        IN_DIR(test_heads),
        IN_DIR(test_look),
        IN_DIR(test_values),
        IN_DIR(test_discarded_writer),
        cmocka_unit_test(test_weights_hash),
        IN_DIR(test_random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
