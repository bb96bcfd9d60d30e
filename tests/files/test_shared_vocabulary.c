// Text and token files against the model's vocabulary: what is a byte vocabulary, what is refused with
// which command, what a sidecar must agree with, tokenizer files that travel, SHA-256.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/data/data.h"
#include "shared/data/vocabulary.h"
#include "tests/fixture.h"

// A directory of the test's own, and what it asks of the data.
struct place {
    char path[64];
    char *text, *bin, *model;  // a text, a token file of 100 tokens below 60, a directory for a model
};

static char *put_in(const char *folder, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", folder, name);
    assert_int_equal(fixture_put(path, text, strlen(text)), 0);
    return path;
}

static void write_in(const char *folder, const char *name, const char *text) {
    assert_int_equal(fixture_write(folder, name, text), 0);
}

static void put_bin(const char *path, int magic, int version, int width) {
    char bytes[1024 + 400] = {0};
    memcpy(bytes, (int32_t[]){magic, version, 100}, 12);
    for (int i = 0; i < 100; i++) bytes[1024 + i * width] = (char)(i % 60);
    assert_int_equal(fixture_put(path, bytes, 1024 + 100 * (size_t)width), 0);
}

static int setup(void **state) {
    struct place *p = calloc(1, sizeof *p);
    assert_int_equal(fixture_folder(p->path, "vocabulary"), 0);
    p->text =
        put_in(p->path, "a text.txt", "It is a truth universally acknowledged, that a text is not tokens.");
    p->bin = xasprintf("%s/tokens.bin", p->path);
    put_bin(p->bin, 20240520, 1, 2);
    p->model = xasprintf("%s/model", p->path);
    assert_int_equal(mkdir(p->model, 0777), 0);
    *state = p;
    return 0;
}

static int teardown(void **state) {
    struct place *p = *state;
    int rc = fixture_remove(p->path);
    free(p->text);
    free(p->bin);
    free(p->model);
    free(p);
    return rc;
}

static struct data_options ask(const char *data, const char *model, int32_t vocab) {
    return (struct data_options){.path = data, .model = model, .vocab = vocab, .seq = 4};
}

static void expect_taken(struct data_options o) {
    struct token_source *s = data_open(&o);
    if (!s) fail_msg("%s with the model %s: refused", o.path, o.model);
    data_close(&s);
}

// Refused with a message that holds every part of the '|'-separated list.
static void expect_refused(struct data_options o, const char *parts) {
    char list[512];
    snprintf(list, sizeof list, "%s", parts);
    error_clear();
    error_quiet(1);
    struct token_source *s = data_open(&o);
    error_quiet(0);
    if (s) fail_msg("%s with the model %s: taken", o.path, o.model);
    for (char *part = strtok(list, "|"); part; part = strtok(NULL, "|"))
        if (!strstr(error_last(), part)) fail_msg("\"%s\" is missing in: %s", part, error_last());
}

// ---------------------------------------------------------------- SHA-256
// FIPS 180-4's examples (csrc.nist.gov), and a million times "a", which takes several reads.
static void sha256_of_known_texts(void **state) {
    const struct place *p = *state;
    char *as = xcalloc(1000001, 1), hex[SHA256_HEX];
    memset(as, 'a', 1000000);
    const char *const cases[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {as, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *file = put_in(p->model, "known.txt", cases[i][0]);
        assert_int_equal(sha256_file(file, hex), 0);
        free(file);
        assert_string_equal(hex, cases[i][1]);
    }
    free(as);
    assert_int_equal(sha256_file("/nonexistent/file", hex), -1);
}

static void words_of_a_shell(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a/b-1.txt", "a/b-1.txt"}, {"a b", "'a b'"}, {"", "''"}, {"it's", "'it'\\''s'"}, {"$x", "'$x'"}};
    for (int i = 0; i < 5; i++) {
        char *word = shell_word(cases[i][0]);
        assert_string_equal(word, cases[i][1]);
        free(word);
    }
}

// ---------------------------------------------------------------- which vocabulary is bytes
// A tokenizer.json of single bytes; style 0: GPT-2's alphabet, 1: <0x00>; `swap` exchanges two ids.
static void put_byte_tokenizer(const char *folder, int style, bool swap, const char *merges) {
    char *text = calloc(16384, 1), *p = text;
    p += sprintf(p, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int byte = 0, shifted = 256; byte < 256; byte++) {
        int id = swap && (byte == 65 || byte == 66) ? 131 - byte : byte;
        bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        int c = prints ? byte : shifted++;
        if (style)
            p += sprintf(p, "\"<0x%02X>\": %d, ", byte, id);
        else if (c == '"' || c == '\\')
            p += sprintf(p, "\"\\%c\": %d, ", c, id);
        else if (c < 128)
            p += sprintf(p, "\"%c\": %d, ", c, id);
        else
            p += sprintf(p, "\"%c%c\": %d, ", 0xc0 | c >> 6, 0x80 | (c & 63), id);
    }
    sprintf(p, "\"<s>\": 256}, \"merges\": [%s]}}", merges);
    write_in(folder, "tokenizer.json", text);
    free(text);
}

static void byte_vocabularies(void **state) {
    const struct place *p = *state;
    static const struct {
        int vocab;
        bool bytes;
    } sizes[] = {{255, false}, {256, true}, {259, true}, {512, true}, {513, false}, {50257, false}};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(tokenizer_is_bytes(NULL, sizes[i].vocab), sizes[i].bytes);
        assert_int_equal(tokenizer_is_bytes(p->model, sizes[i].vocab), sizes[i].bytes);
    }
    // With a tokenizer its entries count, not the size.
    for (int style = 0; style < 2; style++) {
        put_byte_tokenizer(p->model, style, false, "");
        assert_true(tokenizer_is_bytes(p->model, 257));
        assert_true(tokenizer_is_bytes(p->model, 4096));
        put_byte_tokenizer(p->model, style, true, "");
        assert_false(tokenizer_is_bytes(p->model, 257));
        put_byte_tokenizer(p->model, style, false, "\"a b\"");
        assert_false(tokenizer_is_bytes(p->model, 257));
    }
    write_in(p->model, "tokenizer.json", "{\"model\": {\"vocab\": {\"a\": 0}}}");
    assert_false(tokenizer_is_bytes(p->model, 256));
    write_in(p->model, "tokenizer.json", "not json");
    assert_false(tokenizer_is_bytes(p->model, 256));
}

static void folders_of_models(void **state) {
    const struct place *p = *state;
    char *config = put_in(p->model, "config.json", "{}"), *other = put_in(p->model, "mine.json", "{}");
    const char *cases[][2] = {{p->model, p->model}, {config, p->model}, {other, NULL}, {"gpt2-124m", NULL}};
    for (int i = 0; i < 4; i++) {
        char *folder = tokenizer_folder(cases[i][0]);
        if (cases[i][1])
            assert_string_equal(folder, cases[i][1]);
        else
            assert_null(folder);
        free(folder);
    }
    free(config);
    free(other);
}

// ---------------------------------------------------------------- text
static void text_needs_bytes(void **state) {
    const struct place *p = *state;
    expect_taken(ask(p->text, "tiny", 256));
    expect_refused(
        ask(p->text, "gpt2-124m", 50257),
        "a text.txt|gpt2-124m (50257|hf download openai-community/gpt2 |/a text.bin'|--tokenizer byte");
    expect_refused(ask("demo", "gpt2-124m", 50257), "data demo|TEXT.txt --out TEXT.bin");
    struct data_options o = ask(p->text, "gpt2-124m", 50257);
    o.tokenizer = "auto";
    expect_refused(o, "a text.txt");
    o.tokenizer = "byte";
    expect_taken(o);
    o = ask(p->bin, "gpt2-124m", 50257);
    o.val_path = p->text;
    expect_refused(o, "a text.txt");
    o.model = NULL;  // bench, data info
    expect_refused(o, "both parts");
    o.val_path = NULL;
    expect_taken(o);
    // A directory with a tokenizer: the very command; without one: what to look for.
    expect_refused(ask(p->text, p->model, 1000), "--tokenizer DIR|tokenizer.json");
    write_in(p->model, "merges.txt", "#version: 0.2\n");
    char *command =
        xasprintf("experiments/tokenize.py --tokenizer %s '%s' --out '%s/a text.bin'\n|with --data '%s",
                  p->model, p->text, p->path, p->path);
    expect_refused(ask(p->text, p->model, 300), command);
    free(command);
    put_byte_tokenizer(p->model, 0, false, "");
    expect_taken(ask(p->text, p->model, 1000));
    // A directory of texts becomes one file beside it.
    char *texts = xasprintf("%s/texts", p->path), *slash = xasprintf("%s/", texts);
    mkdir(texts, 0777);
    write_in(texts, "a.txt", "more than a few words");
    char *out = xasprintf("%s/ --out %s.bin\n", texts, texts);
    expect_refused(ask(slash, "qwen2.5-0.5b", 151936), out);
    free(out);
    free(slash);
    free(texts);
}

// ---------------------------------------------------------------- sidecars
static void put_sidecar(const struct place *p, const char *tokenizer, int vocab, int tokens) {
    char *text =
        xasprintf("{\"tokenizer\": %s, \"vocab_size\": %d, \"tokens\": %d}", tokenizer, vocab, tokens);
    write_in(p->path, "tokens.bin.json", text);
    free(text);
}

static void sidecar_and_model(void **state) {
    const struct place *p = *state;
    static const char bpe[] = "{\"name\": \"mine\", \"kind\": \"BPE\", \"files\": {}}";
    expect_taken(ask(p->bin, "gpt2-124m", 50257));  // none: as its tokens are
    put_sidecar(p, bpe, 50257, 100);
    expect_taken(ask(p->bin, "gpt2-124m", 50257));
    expect_taken(ask(p->bin, "gpt2-124m", 50257 + 1023));  // padded
    expect_refused(ask(p->bin, "gpt2-124m", 50257 + 1024), "tokens.bin.json|mine|50257|gpt2-124m has 51281");
    expect_refused(ask(p->bin, "demo", 256), "mine|50257|demo has 256");
    struct data_options o = ask(p->bin, "gpt2-124m", 50257);
    o.tokenizer = "byte";
    expect_refused(o, "mine|leave out --tokenizer byte");
    put_sidecar(p, bpe, 50257, 99);
    expect_refused(ask(p->bin, "gpt2-124m", 50257), "99 tokens|tokens.bin has 100|delete");
    static const char bytes[] = "{\"name\": \"byte\", \"kind\": \"byte\"}";
    put_sidecar(p, bytes, 256, 100);
    expect_taken(ask(p->bin, "demo", 256));
    expect_refused(ask(p->bin, "gpt2-124m", 50257), "tokens are bytes|TEXT.txt");
    o.tokenizer = "byte";
    expect_taken(o);
    static const char *const damaged[][2] = {
        {"{}", "vocab_size"},
        {"{\"vocab_size\": 2.5}", "vocab_size"},
        {"{\"vocab_size\": 5}", "\"tokens\""},
        {"{\"vocab_size\": 5, \"tokens\": 100}", "tokenizer.name"},
        {"{\"vocab_size\": 5, \"tokens\": 100, \"tokenizer\": {\"name\": \"x\"}}", "tokenizer.kind"},
        {"{\"vocab_size\": 5, \"tokens\": 100, \"tokenizer\": {\"name\": \"x\", \"kind\": \"BPE\"}}",
         "tokenizer.files"},
        {"{\"vocab_size\": 5, \"tokens\": 100, \"tokenizer\": {\"name\": \"x\", \"kind\": \"BPE\", "
         "\"files\": []}}",
         "tokenizer.files"},
        {"{\"vocab_size\": 5, \"tokens\": 100, \"tokenizer\": {\"name\": \"x\", \"kind\": \"BPE\", "
         "\"files\": {\"tokenizer.json\": 7}}}",
         "tokenizer.files"},
        {"{\"vocab_size\": 5, \"tokens\": 100, \"tokenizer\": {\"name\": \"x\", \"kind\": \"BPE\", "
         "\"files\": {\"tokenizer.json\": {\"sha256\": \"short\"}}}}",
         "tokenizer.files"},
        {"{\"vocab_size\"", "tokens.bin.json"}};
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        write_in(p->path, "tokens.bin.json", damaged[i][0]);
        expect_refused(ask(p->bin, "gpt2-124m", 50257), damaged[i][1]);
    }
}

// The fingerprint decides where the model has the file; then any number of entries may be left over.
static void sidecar_and_tokenizer_files(void **state) {
    const struct place *p = *state;
    char hex[65], *file = put_in(p->model, "tokenizer.json", "{\"the\": \"tokenizer\"}");
    assert_int_equal(sha256_file(file, hex), 0);
    char *right = xasprintf(
        "{\"name\": \"mine\", \"kind\": \"BPE\", \"files\": {\"tokenizer.json\": {\"bytes\": 20, \"sha256\": "
        "\"%s\"}, \"../x\": {\"sha256\": \"0\"}}}",
        hex);
    put_sidecar(p, right, 300, 100);
    expect_taken(ask(p->bin, p->model, 9999));
    expect_refused(ask(p->bin, p->model, 299), "mine|300|has 299");
    write_in(p->model, "tokenizer.json", "{\"the\": \"tokenizer\" }");
    expect_refused(ask(p->bin, p->model, 300), "mine|tokenizer.json|delete the sidecar");
    assert_non_null(strstr(error_last(), p->model));
    unlink(file);
    expect_taken(ask(p->bin, p->model, 300));
    expect_refused(ask(p->bin, p->model, 9999), "has 9999");
    free(right);
    free(file);
}

static void a_text_file_that_is_tokens(void **state) {
    const struct place *p = *state;
    put_bin(p->bin, 20240520, 1, 2);
    struct data_options o = ask(p->bin, "tiny", 256);
    o.tokenizer = "byte";  // its first bytes say what it is
    struct token_source *s = data_open(&o);
    assert_int_equal(data_train_tokens(s), 100);
    data_close(&s);
    put_bin(p->bin, 20240522, 1, 2);
    o.tokenizer = NULL;
    expect_refused(o, "multiple-choice");
    put_bin(p->bin, 5, 1, 2);
    expect_refused(o, "nanoGPT| data wrap --type uint16 |tokens.bin OUT.bin|--tokenizer byte");
}

static void sidecar_of_bytes(void **state) {
    const struct place *p = *state;
    const struct byte_sidecar b = {.bin_path = p->bin, .source = p->text, .bytes = 100, .sha256 = "00ff"};
    assert_int_equal(sidecar_write_bytes(&b), 0);
    struct sidecar_summary s = sidecar_read(p->bin);
    assert_int_equal(s.vocab, 256);
    assert_string_equal(s.tokenizer, "byte");
    free(s.tokenizer);
    struct data_options o = ask(p->bin, "tiny", 256);
    o.val_path = p->text;
    expect_taken(o);
    s = sidecar_read(p->text);
    assert_int_equal(s.vocab, -1);
    assert_null(s.tokenizer);
    const struct byte_sidecar bad = {.bin_path = "/dev/null/x.bin", .source = "x", .sha256 = ""};
    error_quiet(1);
    assert_int_equal(sidecar_write_bytes(&bad), -1);
    error_quiet(0);
    assert_non_null(strstr(error_last(), "/dev/null/x.bin.json"));
}

// ---------------------------------------------------------------- files that travel
static void tokenizer_travels(void **state) {
    const struct place *p = *state;
    char *to = xasprintf("%s/weights", p->path);
    mkdir(to, 0777);
    write_in(p->model, "tokenizer.json", "1");
    write_in(p->model, "special_tokens_map.json", "{\"eos_token\": \"x\"}");
    write_in(p->model, "notes.md", "mine");
    assert_int_equal(tokenizer_copy(p->model, to), 0);
    assert_int_equal(tokenizer_copy(to, to), 0);  // onto itself: stays
    static const struct {
        const char *name;
        int bytes;  // -1: not there
    } files[] = {
        {"tokenizer.json", 1}, {"special_tokens_map.json", 18}, {"notes.md", -1}, {"vocab.json", -1}};
    for (int i = 0; i < 4; i++) {
        char *path = xasprintf("%s/%s", to, files[i].name);
        struct stat st;
        int bytes = stat(path, &st) ? -1 : (int)st.st_size;
        assert_int_equal(bytes, files[i].bytes);
        free(path);
    }
    // A directory in a file's place cannot be read; the others still travel.
    char *folder = xasprintf("%s/merges.txt", p->model);
    mkdir(folder, 0777);
    write_in(p->model, "chat_template.jinja", "{{x}}");
    error_quiet(1);
    assert_int_equal(tokenizer_copy(p->model, to), -1);
    error_quiet(0);
    assert_non_null(strstr(error_last(), "merges.txt"));
    char *late = xasprintf("%s/chat_template.jinja", to);
    assert_int_equal(access(late, F_OK), 0);
    free(late);
    free(folder);
    free(to);
    // Bytes that were forced upon another vocabulary leave its tokenizer behind.
    char *kept = tokenizer_to_keep(p->model, 300, "auto");
    assert_string_equal(kept, p->model);
    free(kept);
    assert_null(tokenizer_to_keep(p->model, 300, "byte"));
    assert_null(tokenizer_to_keep("tiny", 256, "auto"));
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_PLACE(sha256_of_known_texts),
        cmocka_unit_test(words_of_a_shell),
        IN_PLACE(byte_vocabularies),
        IN_PLACE(folders_of_models),
        IN_PLACE(text_needs_bytes),
        IN_PLACE(sidecar_and_model),
        IN_PLACE(sidecar_and_tokenizer_files),
        IN_PLACE(a_text_file_that_is_tokens),
        IN_PLACE(sidecar_of_bytes),
        IN_PLACE(tokenizer_travels),
    };
    return cmocka_run_group_tests_name("vocabulary", tests, NULL, NULL);
}
