// The program's data commands, and training on text and tokens that do or do not go with the model.
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

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "tests/job/job.h"

#define QUICK "--steps 1 --seq 16 --batch 1 --threads 1 --quiet"

static void expect(const struct job_place *p, int status, const char *says, const char *line) {
    struct job_output o = job_run(p, "%s", line);
    if (o.status != status || !strstr(status ? o.err : o.out, says))
        fail_msg("starring %s: status %d, says\n%s%s", line, o.status, o.out, o.err);
    job_output_free(&o);
}

static bool there(const struct job_place *p, const char *name) {
    char *path = xasprintf("%s/%s", p->dir, name);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

// A Hugging Face directory of the vocabulary size, small enough to train at once.
static void put_model(const struct job_place *p, const char *name, int vocab) {
    char *folder = xasprintf("%s/%s", p->dir, name);
    assert_int_equal(mkdir(folder, 0777), 0);
    char *config = xasprintf(
        "{\"model_type\":\"gpt2\",\"vocab_size\":%d,\"n_embd\":20,\"n_layer\":1,\"n_head\":5,\"n_positions\":"
        "33}",
        vocab);
    assert_int_equal(run_file_write(folder, "config.json", config), 0);
    free(config);
    free(folder);
}

// A text for a vocabulary that is not bytes: the command that helps, status 2, nothing made.
static void text_is_refused_and_forced(void **state) {
    const struct job_place *p = *state;
    put_model(p, "m", 1000);
    char *folder = xasprintf("%s/m", p->dir);
    assert_int_equal(run_file_write(folder, "tokenizer.json", "{\"model\": {\"vocab\": {}}}"), 0);
    free(folder);
    expect(p, 2, "experiments/tokenize.py --tokenizer m data.txt --out data.bin\n",
           "train --model m/config.json --data data.txt --out x " QUICK);
    expect(p, 2, "experiments/tokenize.py --tokenizer m data.txt --out data.bin\n",
           "train --model m/config.json --data data.txt --topology ps:sync --workers 1 --out x " QUICK);
    expect(p, 2, "hf download openai-community/gpt2 ",
           "train --model gpt2-124m --data data.txt --out x " QUICK);
    expect(p, 2, "\"words\"", "train --model m/config.json --data data.txt --tokenizer words --out x " QUICK);
    assert_false(there(p, "x"));
    expect(p, 0, "", "train --model m/config.json --data data.txt --tokenizer byte --out forced " QUICK);
    char *config = run_file_read(p->dir, "forced/config.json", false);
    assert_non_null(strstr(config, "\"tokenizer\":\t\"byte\""));
    free(config);
    // The weights speak bytes now: m's tokenizer would misread them.
    assert_true(there(p, "forced/weights/config.json"));
    assert_false(there(p, "forced/weights/tokenizer.json"));
    expect(p, 0, "", "train --model llama.json --data data.txt --out bytes " QUICK);  // 259 entries
}

static void tokens_of_bytes_know_what_they_are(void **state) {
    const struct job_place *p = *state;
    put_model(p, "big", 2000);
    expect(p, 0, "", "data tokenize data.txt data.bin");
    expect(p, 0, "byte, 256 entries", "data info data.bin");
    expect(p, 2, "its tokens are bytes", "train --model big/config.json --data data.bin --out x " QUICK);
    expect(p, 0, "", "train --model gpt2.json --data data.bin --out a " QUICK);
    expect(p, 2, "experiments/tokenize.py", "data tokenize --tokenizer big data.txt other.bin");
}

// The tokens' own model: its tokenizer goes with the weights, another's tokenizer is refused.
static void a_tokenizer_goes_with_the_weights(void **state) {
    const struct job_place *p = *state;
    put_model(p, "own", 300);
    char *own = xasprintf("%s/own", p->dir);
    assert_int_equal(run_file_write(own, "tokenizer.json", "abc"), 0);
    assert_int_equal(run_file_write(own, "generation_config.json", "{}"), 0);
    assert_int_equal(run_file_write(own, "README.md", "no"), 0);
    char raw[400];
    for (int i = 0; i < 400; i++) raw[i] = i % 2 ? 1 : (char)(i % 40);  // little-endian 256 to 294
    char *path = xasprintf("%s/raw", p->dir);
    FILE *f = fopen(path, "wb");
    fwrite(raw, 1, sizeof raw, f);
    fclose(f);
    free(path);
    expect(p, 2, "nanoGPT", "train --model own/config.json --data raw --tokenizer bin --out x " QUICK);
    expect(p, 0, "200 tokens of 16 bits", "data wrap --type uint16 raw own.bin");
    expect(p, 0, "", "train --model own/config.json --data own.bin --out a " QUICK);
    assert_true(there(p, "a/weights/tokenizer.json") && there(p, "a/weights/generation_config.json"));
    assert_false(there(p, "a/weights/README.md"));
    // SHA-256 of "abc", FIPS 180-4.
    static const char side[] =
        "{\"vocab_size\": %d, \"tokens\": 200, \"tokenizer\": {\"name\": \"theirs\", \"kind\": \"BPE\", "
        "\"files\": "
        "{\"tokenizer.json\": {\"sha256\": "
        "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f200%s\"}}}}";
    char *text = xasprintf(side, 300, "15ad");
    assert_int_equal(run_file_write(p->dir, "own.bin.json", text), 0);
    free(text);
    expect(p, 0, "theirs (BPE), 300 entries", "data info own.bin");
    expect(p, 0, "", "train --model a/weights --data own.bin --out b " QUICK);
    text = xasprintf(side, 300, "15ae");
    assert_int_equal(run_file_write(p->dir, "own.bin.json", text), 0);
    free(text);
    expect(p, 2, "own.bin.json", "train --model own/config.json --data own.bin --out x " QUICK);
    expect(p, 2, "theirs", "train --model tiny --data own.bin --out x " QUICK);
    // A run that replaces this one without a tokenizer leaves none behind.
    expect(p, 0, "", "train --model gpt2.json --data data.txt --out a --force " QUICK);
    assert_false(there(p, "a/weights/tokenizer.json"));
    free(own);
}

static void bare_tokens_get_a_header(void **state) {
    const struct job_place *p = *state;
    assert_int_equal(run_file_write(p->dir, "odd", "1234567"), 0);
    assert_int_equal(run_file_write(p->dir, "even", "12345678"), 0);
    static const struct {
        const char *line;
        int status;
        const char *says;
    } cases[] = {{"data wrap even o.bin", 2, "--type uint16|uint32"},
                 {"data wrap --type int64 even o.bin", 2, "--type int64"},
                 {"data wrap --type uint16 odd o.bin", 2, "7 bytes"},
                 {"data wrap --type uint16 nothing o.bin", 1, "nothing"},
                 {"data wrap --type uint32 even o.bin", 0, "2 tokens of 32 bits"},
                 {"data wrap --type uint16 even o.bin", 2, "--force"},
                 {"data wrap --type uint16 o.bin o2.bin", 1, "token file of llm.c already"},
                 {"data wrap --type uint16 --force even even", 2, "input itself"},
                 {"data wrap --type uint16 --force even o.bin", 0, "4 tokens of 16 bits"},
                 {"data info o.bin", 0, "4 tokens of 16 bits"},
                 {"data info o.bin --vocab 12849", 1, "token 12849 at position 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(p, cases[i].status, cases[i].says, cases[i].line);
    assert_false(there(p, "o2.bin") || there(p, "o2.bin.part") || there(p, "o.bin.part"));
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, job_setup, job_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_PLACE(text_is_refused_and_forced),
        IN_PLACE(tokens_of_bytes_know_what_they_are),
        IN_PLACE(a_tokenizer_goes_with_the_weights),
        IN_PLACE(bare_tokens_get_a_header),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
