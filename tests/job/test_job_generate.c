// starring generate, the program: star and ring write the same sentence, the CPU and the emulated GPU the
// same ids, text is bytes in and bytes out, and whatever is wrong is named.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define WEIGHTS "ring/weights/model.safetensors"

static const struct job_place *place(void **state) { return *state; }

static void train(const struct job_place *p, const char *topology, const char *out, const char *more) {
    struct job_output o = job_run(
        p,
        "train --model tiny --data data.txt --topology %s --workers 2 --dtype bf16 --steps 12 --seq 32 "
        "--batch 2 --lr 0.01 --threads 1 --quiet --set eval_batches=0 --out %s %s",
        topology, out, more);
    if (o.status) fail_msg("%s: status %d\n%s", topology, o.status, o.err);
    job_output_free(&o);
}

static int open_trained(void **state) {
    int rc = job_setup(state);
    if (rc) return rc;
    train(*state, "ps:sync", "star", "");
    train(*state, "zero:2", "ring", "");
    return 0;
}

// Returns the output of `starring generate --threads 1 ..`; the caller frees it.
static char *text_of(const struct job_place *p, const char *words) {
    struct job_output o = job_run(p, "generate --threads 1 %s", words);
    if (o.status) fail_msg("generate %s: status %d\n%s", words, o.status, o.err);
    char *text = o.out;
    o.out = NULL;
    job_output_free(&o);
    return text;
}

static cJSON *json_of(const struct job_place *p, const char *words) {
    return job_json(p, "generate --threads 1 %s --json", words);
}

static void assert_ids_equal(const cJSON *a, const cJSON *b) {
    const cJSON *x = cJSON_GetObjectItem(a, "ids"), *y = cJSON_GetObjectItem(b, "ids");
    assert_true(cJSON_GetArraySize(x) > 0 && cJSON_Compare(x, y, 1));
}

static void star_and_ring_write_the_same_sentence(void **state) {
    const struct job_place *p = place(state);
    char *star = text_of(p, "--model star --prompt star --tokens 60");
    char *ring = text_of(p, "--model ring --prompt star --tokens 60");
    assert_string_equal(star, ring);
    assert_true(strlen(star) == strlen("star") + 60 + 1 && !strncmp(star, "star", 4));
    // It learned: after "star" the words' letters, not any byte.
    for (const char *c = star; *c; c++)
        assert_true((*c >= 'a' && *c <= 'z') || *c == ' ' || *c == '.' || *c == '\n');
    char *again = text_of(p, "--model ring --prompt star --tokens 60 --seed 1");
    char *other = text_of(p, "--model ring --prompt star --tokens 60 --seed 2");
    assert_string_equal(ring, again);
    assert_string_not_equal(ring, other);
    // The run's weights, and the same as a Hugging Face directory.
    char *directory = text_of(p, "--model ring/weights --prompt star --tokens 60 --window 32");
    assert_string_equal(ring, directory);
    free(star);
    free(ring);
    free(again);
    free(other);
    free(directory);
}

static void json_says_what_was_done(void **state) {
    const struct job_place *p = place(state);
    cJSON *j = json_of(p, "--model star --prompt the --tokens 40 --temperature 0");
    char *text = text_of(p, "--model star --prompt the --tokens 40 --temperature 0 --seed 9");
    assert_string_equal(cJSON_GetObjectItem(j, "prompt")->valuestring, "the");
    assert_int_equal(strncmp(text, "the", 3), 0);
    text[strlen(text) - 1] = 0;
    assert_string_equal(cJSON_GetObjectItem(j, "text")->valuestring, text + 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(j, "prompt_ids")), 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(j, "ids")), 40);
    assert_int_equal(cJSON_GetObjectItem(j, "window")->valueint, 32);  // the run's --seq
    assert_int_equal(cJSON_GetObjectItem(j, "seed")->valueint, 1);
    assert_string_equal(cJSON_GetObjectItem(j, "dtype")->valuestring, "bf16");
    assert_string_equal(cJSON_GetObjectItem(j, "ended_by")->valuestring, "count");
    assert_true(cJSON_GetObjectItem(j, "tokens_per_second")->valuedouble > 0);
    cJSON *ids = json_of(p, "--model star --prompt-ids 116,104,101 --tokens 40 --temperature 0");
    assert_ids_equal(j, ids);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(ids, "text")));
    cJSON_Delete(ids);
    cJSON_Delete(j);
    free(text);
}

// Standard output of a shell's line in the scratch directory; %s is the program.
static size_t shell(const struct job_place *p, const char *line, unsigned char *out, size_t room) {
    char *quoted = xasprintf("'%s'", p->program), *words = xasprintf(line, quoted);
    char *command = xasprintf("cd '%s' && %s", p->dir, words);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, room, f);
    assert_int_equal(pclose(f), 0);
    free(command);
    free(words);
    free(quoted);
    return n;
}

// At this temperature any byte comes, NUL and halves of characters among them: all leave as they are, and in
// JSON as U+FFFD.
static void bytes_pass_as_they_are(void **state) {
    const struct job_place *p = place(state);
    unsigned char got[512], text[2048];
    const char *words = "--model ring --prompt x --tokens 200 --temperature 1000 --top-k 0";
    size_t n = shell(p, "%s generate --model ring --prompt x --tokens 200 --temperature 1000 --top-k 0 2>log",
                     got, sizeof got);
    cJSON *j = json_of(p, words);
    const cJSON *ids = cJSON_GetObjectItem(j, "ids");
    assert_int_equal(n, 202);
    int high = 0;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(cJSON_GetArrayItem(ids, i)->valueint, got[1 + i]);
        high += got[1 + i] >= 0xf5;  // in no UTF-8
    }
    assert_true(high > 0);
    assert_non_null(strstr(cJSON_GetObjectItem(j, "text")->valuestring, "\xef\xbf\xbd"));
    cJSON_Delete(j);
    // The document is UTF-8 by someone else's judgement, and a prompt comes from standard input.
    n = shell(
        p,
        "printf 'st\\344r' | %s generate --model ring --prompt - --tokens 200 --temperature 1000 --json "
        "2>log | iconv -f UTF-8 -t UTF-8",
        text, sizeof text - 1);
    text[n] = 0;
    assert_non_null(strstr((char *)text, "\"prompt\":\t\"st\xef\xbf\xbdr\""));
}

// Ids beyond the bytes are special tokens: in "ids", not in the text.
static void special_tokens_are_no_text(void **state) {
    const struct job_place *p = place(state);
    unsigned char got[512];
    train(p, "local", "odd", "--set workers=1 --model llama.json");
    cJSON *j = json_of(p, "--model odd --prompt x --tokens 300 --temperature 1000 --top-k 0"), *id;
    int bytes = 0;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(j, "ids")) bytes += id->valueint < 256;
    assert_true(bytes > 250 && bytes < 300);
    size_t n = shell(p, "%s generate --model odd --prompt x --tokens 300 --temperature 1000 --top-k 0 2>log",
                     got, sizeof got);
    assert_int_equal(n, 1 + bytes + 1);
    cJSON_Delete(j);
}

static void end_of_text_ends(void **state) {
    const struct job_place *p = place(state);
    cJSON *whole = json_of(p, "--model ring --prompt st --tokens 20 --temperature 0");
    int end = cJSON_GetArrayItem(cJSON_GetObjectItem(whole, "ids"), 5)->valueint, first = 0;
    while (cJSON_GetArrayItem(cJSON_GetObjectItem(whole, "ids"), first)->valueint != end) first++;
    char *path = xasprintf("%s/ring/weights/generation_config.json", p->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"eos_token_id\": [255, %d]}", end);
    fclose(f);
    cJSON *ended = json_of(p, "--model ring --prompt st --tokens 20 --temperature 0");
    cJSON *on = json_of(p, "--model ring --prompt st --tokens 20 --temperature 0 --ignore-eos");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(ended, "ids")), first + 1);
    assert_string_equal(cJSON_GetObjectItem(ended, "ended_by")->valuestring, "end of text");
    assert_ids_equal(on, whole);
    unlink(path);
    free(path);
    cJSON_Delete(whole);
    cJSON_Delete(ended);
    cJSON_Delete(on);
}

static void wrong(const struct job_place *p, int status, const char *says, const char *words) {
    struct job_output o = job_run(p, "generate %s", words);
    if (o.status != status || !strstr(o.err, says) || *o.out)
        fail_msg("generate %s: status %d instead of %d, or not \"%s\":\n%s%s", words, o.status, status, says,
                 o.err, o.out);
    job_output_free(&o);
}

static void what_is_wrong_is_named(void **state) {
    const struct job_place *p = place(state);
    wrong(p, 2, "--model RUN|DIR is missing", "--prompt x");
    wrong(p, 2, "--prompt TEXT or --prompt-ids", "--model ring");
    wrong(p, 2, "one of the two", "--model ring --prompt x --prompt-ids 1");
    wrong(p, 2, "--tokens 0: expected a whole number", "--model ring --prompt x --tokens 0");
    wrong(p, 2, "--temperature -1: expected a number", "--model ring --prompt x --temperature -1");
    wrong(p, 2, "--temperature nan: expected a number", "--model ring --prompt x --temperature nan");
    wrong(p, 2, "--top-k many: expected", "--model ring --prompt x --top-k many");
    wrong(p, 2, "--seed", "--model ring --prompt x --seed -3");
    wrong(p, 2, "--window 99999999: expected", "--model ring --prompt x --window 99999999");
    wrong(p, 2, "--dtype", "--model ring --prompt x --dtype int4");
    wrong(p, 2, "--set workers: is not used", "--model ring --prompt x --set workers=2");
    wrong(p, 2, "0 to 255", "--model ring --prompt-ids 1,256");
    wrong(p, 2, "did you mean --temperature?", "--model ring --prompt x --temperatur 1");
    wrong(p, 2, "model \"nowhere\" is neither a preset", "--model nowhere --prompt x");
    wrong(p, 2, "--model data.txt: a file", "--model data.txt --prompt x");
    wrong(p, 2, "no weights here", "--model . --prompt x");
}

static void a_run_without_weights_says_so(void **state) {
    const struct job_place *p = place(state);
    train(p, "local", "bare", "--no-weights --set workers=1");
    wrong(p, 2, "--model bare: this run has no weights/", "--model bare --prompt x");
}

static void byte_text_needs_a_byte_vocabulary(void **state) {
    const struct job_place *p = place(state);
    unsigned char out[64];
    shell(p, "rm -rf bpe && cp -r ring/weights bpe && : > bpe/tokenizer.json # %s", out, sizeof out);
    wrong(p, 2, "experiments/generate.py --model bpe --prompt 'it'\\''s'", "--model bpe --prompt it's");
    char *ids = text_of(p, "--model bpe --prompt-ids 115,116 --tokens 3");
    assert_int_equal(strncmp(ids, "115 116 ", 8), 0);
    free(ids);
}

static void a_truncated_file_is_an_error(void **state) {
    const struct job_place *p = place(state);
    unsigned char out[64];
    shell(p, "rm -rf cut && cp -r ring cut && truncate -s -100 cut/weights/model.safetensors # %s", out,
          sizeof out);
    wrong(p, 2, "cut/weights/model.safetensors", "--model cut --prompt x");
}

// Weights that a run spoiled: the logits are not numbers.
static void damaged_weights_are_an_error(void **state) {
    const struct job_place *p = place(state);
    unsigned char out[64];
    shell(p,
          "rm -rf nan && cp -r ring nan && f=nan/weights/model.safetensors && "
          "head -c 4000 /dev/zero | tr '\\0' '\\377' | dd of=$f bs=1 seek=$(($(stat -c %%s $f) - 4000)) "
          "count=4000 "
          "conv=notrunc 2>dd.log # %s",
          out, sizeof out);
    struct job_output o = job_run(p, "generate --model nan --prompt x");
    if (o.status != 1 || !strstr(o.err, "is NaN in fp32, and 2000 "))
        fail_msg("status %d:\n%s", o.status, o.err);
    job_output_free(&o);
}

// A reader that leaves is no error, and ends the work.
static void a_reader_may_leave(void **state) {
    const struct job_place *p = place(state);
    unsigned char out[64];
    size_t n =
        shell(p,
              "(%s generate --threads 1 --model ring --prompt star --tokens 1000000; echo $? >left) 2>log | "
              "head -c 30; test $(cat left) = 0",
              out, sizeof out);
    assert_int_equal(n, 30);
}

static void the_emulated_gpu_writes_the_same(void **state) {
    const struct job_place *p = place(state);
    static const char words[] =
        "--model ring --prompt star --tokens 24 --temperature 0 --dtype fp32 --device";
    char *line = xasprintf("%s cpu", words);
    cJSON *cpu = json_of(p, line);
    free(line);
    if (!job_emulate(p, 1)) {
        cJSON_Delete(cpu);
        skip();
    }
    line = xasprintf("%s cuda", words);
    cJSON *cuda = json_of(p, line);
    assert_string_equal(cJSON_GetObjectItem(cuda, "device")->valuestring, "cuda");
    assert_ids_equal(cpu, cuda);
    setenv("EMULATED_CUDA_DELAY_US", "300", 1);  // streams out of step
    cJSON *delayed = json_of(p, line);
    assert_ids_equal(cuda, delayed);
    unsetenv("EMULATED_CUDA_DELAY_US");
    free(line);
    cJSON_Delete(cpu);
    cJSON_Delete(cuda);
    cJSON_Delete(delayed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(star_and_ring_write_the_same_sentence),
        cmocka_unit_test(json_says_what_was_done),
        cmocka_unit_test(bytes_pass_as_they_are),
        cmocka_unit_test(special_tokens_are_no_text),
        cmocka_unit_test(end_of_text_ends),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_run_without_weights_says_so),
        cmocka_unit_test(byte_text_needs_a_byte_vocabulary),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(damaged_weights_are_an_error),
        cmocka_unit_test(a_reader_may_leave),
        cmocka_unit_test(the_emulated_gpu_writes_the_same),
    };
    return cmocka_run_group_tests_name("generate, the program", tests, open_trained, job_teardown);
}
