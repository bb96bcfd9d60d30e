// Whole documents: where they begin and end in texts, token files and folders, against a plain search; what is cut and what is
// refused; batches of them, padded, whoever asks for which slice.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/data/data.h"
#include "shared/data/data_stream.h"
#include "tests/fixture.h"

struct place {
    char dir[64];
    char path[128];
};

static int make_place(void **state) {
    struct place *p = calloc(1, sizeof *p);
    *state = p;
    return fixture_folder(p->dir, "documents");
}
static int remove_place(void **state) {
    struct place *p = *state;
    int rc = fixture_remove(p->dir);
    free(p);
    return rc;
}

static const char *put(struct place *p, const char *name, const void *bytes, size_t n) {
    snprintf(p->path, sizeof p->path, "%s/%s", p->dir, name);
    assert_int_equal(fixture_put(p->path, bytes, n), 0);
    return p->path;
}

// An llm.c file of 16-bit tokens.
static const char *put_tokens(struct place *p, const char *name, const uint16_t *tokens, int count) {
    char bytes[1024 + 4096] = {0};
    assert_true(count <= 2048);
    memcpy(bytes, (int32_t[]){20240520, 1, count}, 12);
    memcpy(bytes + 1024, tokens, (size_t)count * 2);
    return put(p, name, bytes, 1024 + (size_t)count * 2);
}

static struct token_source *open_whole(const char *path, int32_t vocab, int64_t seq) {
    return data_open(&(struct data_options){.path = path, .vocab = vocab, .seq = seq, .whole = true});
}

// The lengths of all documents as "3 4 4 1", which the caller frees; "": there are none.
static char *lengths(const char *path, int32_t vocab, int64_t seq) {
    struct token_source *s = open_whole(path, vocab, seq);
    char *text = xstrdup("");
    for (int64_t i = 0; s && i < data_documents(s); i++) {
        char *longer = xasprintf("%s%s%lld", text, i ? " " : "", (long long)data_document_tokens(s, i));
        free(text);
        text = longer;
    }
    if (s) data_close(&s);
    return text;
}

static void texts_end_with_blank_lines(void **state) {
    static const struct {
        const char *text;
        int64_t seq;
        const char *lengths;
    } rows[] = {
        {"ab\n\ncd\nef\n\n\nx\n", 100, "3 7 1"},  // "x\n" has one target
        {"ab\n \t\r\n  cd", 100,
         "6 3"},  // white space alone is a blank line, and an indentation is the next one's
        {"ab\r\n\r\ncd", 100, "5 1"},
        {"\n\n\nab\n\ncd", 100, "6 1"},  // there is nothing before the first
        {"ab\n\nc", 100, "3"},           // the last has no target
        {"ab\n\ncdefghi", 3,
         "3 3 3"},  // "ab\n\n"; "cdef" and "fghi", whose f is a target of the one and an input of the other
        {"abcdefg\n\nxyz", 4, "4 4 2"},
        {"ab\n\n", 4, ""},  // nothing parts it from another
        {"abc", 4, ""},
        {"a\nb\nc\n", 4, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        error_quiet(QUIET_ALL);
        char *got = lengths(put(*state, "a.txt", rows[i].text, strlen(rows[i].text)), 256, rows[i].seq);
        error_quiet(QUIET_NOT);
        if (strcmp(got, rows[i].lengths)) fail_msg("\"%s\": %s, not %s", rows[i].text, got, rows[i].lengths);
        free(got);
    }
}

static void files_are_documents(void **state) {
    struct place *p = *state;
    put(p, "1.txt", "abc", 3);
    put(p, "2.txt", "de\n\nfgh", 7);
    put(p, "3.txt", "ij", 2);
    char *got = lengths(p->dir, 256, 100);
    assert_string_equal(got, "2 3 2 1");
    free(got);
}

static void put_side(struct place *p, const char *name, int tokens, const char *kind, const char *start) {
    char *text = xasprintf(
        "{\"vocab_size\": 300, \"tokens\": %d, \"tokenizer\": {\"name\": \"t\", \"kind\": \"%s\", "
        "\"files\": {}}, \"document_start\": %s}",
        tokens, kind, start);
    assert_int_equal(fixture_write(p->dir, name, text), 0);
    free(text);
}

#define SEVEN "{\"token\": \"<s>\", \"id\": 7}"
static void tokens_begin_with_their_token(void **state) {
    struct place *p = *state;
    static const uint16_t two[] = {7, 1, 2, 7, 3}, one[] = {7, 1, 2, 3}, cut[] = {1, 2, 7, 3, 7, 7, 4, 5};
    const struct {
        const uint16_t *tokens;
        int count;
        int64_t seq;
        const char *lengths;
    } rows[] = {
        {two, 5, 100, "3 1"},         {one, 4, 100, "3"},  // a file with one document
        {one, 4, 2, "2 1"},           {two, 4, 100, "3"},  // the last one has no target
        {cut, 8, 100, "2 2 1 2"},  // the end of a document comes first; one is empty, and its token alone is followed by another
        {cut, 8, 1, "1 1 1 1 1 1 1"}, {cut, 2, 100, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        error_quiet(QUIET_ALL);
        put_side(p, "t.bin.json", rows[i].count, "BPE", SEVEN);
        char *got = lengths(put_tokens(p, "t.bin", rows[i].tokens, rows[i].count), 300, rows[i].seq);
        error_quiet(QUIET_NOT);
        if (strcmp(got, rows[i].lengths)) fail_msg("row %zu: %s, not %s", i, got, rows[i].lengths);
        free(got);
    }
    // A document goes on in the next file of a folder.
    fixture_remove(p->dir);
    mkdir(p->dir, 0777);
    put_tokens(p, "0.bin", two, 5);
    put_tokens(p, "1.bin", one + 1, 3);
    put_side(p, "0.bin.json", 5, "BPE", SEVEN);
    put_side(p, "1.bin.json", 3, "BPE", SEVEN);
    char *got = lengths(p->dir, 300, 100);
    assert_string_equal(got, "3 4");
    free(got);
}

// A sidecar of bytes; llm.c's files have none, and GPT-2's or Llama 3's vocabulary.
static void the_rule_is_the_files(void **state) {
    struct place *p = *state;
    static const uint16_t bytes[] = {'a', 'b', '\n', '\n', 'c', 'd'}, gpt2[] = {50256, 9, 8, 50256, 1, 2, 3};
    put_side(p, "b.bin.json", 6, "byte", "null");
    char *got = lengths(put_tokens(p, "b.bin", bytes, 6), 300, 100);
    assert_string_equal(got, "3 1");
    free(got);
    got = lengths(put_tokens(p, "g.bin", gpt2, 7), 50304, 100);
    assert_string_equal(got, "3 3");
    free(got);
    char llama[1024 + 16] = {0};
    memcpy(llama, (int32_t[]){20240801, 7, 4}, 12);
    memcpy(llama + 1024, (int32_t[]){128000, 5, 6, 128000}, 16);
    got = lengths(put(p, "l.bin", llama, sizeof llama), 128256, 100);
    assert_string_equal(got, "3");
    free(got);
}

static void refused(const char *path, int32_t vocab, const char *says) {
    error_clear();
    error_quiet(QUIET_ALL);
    assert_null(open_whole(path, vocab, 8));
    error_quiet(QUIET_NOT);
    if (!strstr(error_last(), says) || !strstr(error_last(), "--documents packed"))
        fail_msg("\"%s\" does not say \"%s\"", error_last(), says);
}

static void what_has_none_is_refused(void **state) {
    struct place *p = *state;
    static const uint16_t gpt2[] = {9, 8, 1, 2, 3}, alone[] = {7};
    refused(put(p, "a.txt", "one line\nand one\n", 17), 256,
            "no blank line ends a document in it: put one behind each");
    refused(put_tokens(p, "g.bin", gpt2, 5), 50257,
            "the token that begins one, 50256, is not in it: "
            "experiments/tokenize.py");
    refused(p->path, 60000, "nothing says which token begins a document");
    put_side(p, "g.bin.json", 5, "BPE", "null");
    refused(p->path, 50257, "nothing says which token begins a document");
    put_side(p, "o.bin.json", 1, "BPE", SEVEN);
    refused(put_tokens(p, "o.bin", alone, 1), 300, "no document in it has two tokens");
    // One of two files has another token.
    fixture_remove(p->dir);
    mkdir(p->dir, 0777);
    put_tokens(p, "0.bin", gpt2, 5);
    put_tokens(p, "1.bin", gpt2, 5);
    put_side(p, "0.bin.json", 5, "BPE", SEVEN);
    put_side(p, "1.bin.json", 5, "BPE", "{\"token\": \"<e>\", \"id\": 8}");
    refused(p->dir, 300, "different tokens");
}

// A text of random paragraphs against a search that looks for "\n\n" alone, with held-out text behind it, which has no part in any.
static void random_texts(void **state) {
    enum { N = 4000, SEQ = 24 };
    char text[N + 1];
    uint64_t draws = 0;
    int at = 0;
    while (at < N) {
        int longest = rng_below(1, draws++, 0, 4) ? 20 : 120;
        for (int n = 1 + (int)rng_below(1, draws++, 0, (uint64_t)longest); n > 0 && at < N; n--)
            text[at] = at && text[at - 1] != '\n' && !rng_below(1, draws++, 0, 9) ? '\n' : 'a', at++;
        for (int i = 0; i < 2 && at < N; i++) text[at++] = '\n';
    }
    struct token_source *s = data_open(&(struct data_options){.path = put(*state, "r.txt", text, N),
                                                              .vocab = 256,
                                                              .seq = SEQ,
                                                              .whole = true,
                                                              .val_fraction = 0.25});
    assert_non_null(s);
    assert_int_equal(data_train_tokens(s), 3000);
    text[3000] = 0;
    int64_t found = 0;
    for (const char *begin = text, *end; *begin; begin = end) {
        const char *blank = strstr(begin, "\n\n");
        for (end = blank ? blank : begin + strlen(begin); *end == '\n'; end++) continue;
        for (int64_t left = end - begin - 1; left > 0; left -= SEQ, found++)
            assert_int_equal(data_document_tokens(s, found), left < SEQ ? left : SEQ);
    }
    assert_true(found > 100);
    assert_int_equal(data_documents(s), found);
    data_close(&s);
}

// Each document is as likely as another; rows are what data_length says, then padding; slices agree with the whole.
static void batches_are_padded(void **state) {
    enum { B = 6, T = 7 };
    static const char text[] = "abcdefghij\n\nkl\n\nmnopq\n\nr\n\nstuvwx\n\n.";
    struct token_source *s = open_whole(put(*state, "a.txt", text, sizeof text - 1), 256, T);
    int32_t a[B * T], at[B * T], b[T], bt[T];
    int seen[T + 1] = {0};
    for (int step = 0; step < 200; step++) {
        data_batch(s, &(struct data_slice){3, step, 0, B, T}, a, at);
        for (int i = 0; i < B; i++) {
            struct data_slice one = {3, step, i, 1, T};
            int64_t n = data_length(s, &one);
            data_batch(s, &one, b, bt);
            assert_memory_equal(b, a + i * T, sizeof b);
            assert_memory_equal(bt, at + i * T, sizeof bt);
            assert_true(n >= 1 && n <= T);
            seen[n]++;
            for (int t = 0; t < T; t++) {
                bool real = t < n;
                assert_true(real ? b[t] > 0 && bt[t] > 0 : b[t] == 0 && bt[t] == -1);
                if (t + 1 < n) assert_int_equal(b[t + 1], bt[t]);
            }
            assert_non_null(strchr(text, b[0]));
        }
    }
    // 7 + 4 of "abc..", 3, 6, 2 and 7 of "stuvwx": "." has no target.
    assert_int_equal(data_documents(s), 6);
    for (int n = 1; n <= T; n++)
        assert_true((seen[n] > 0) == (n == 2 || n == 3 || n == 4 || n == 6 || n == 7));
    assert_true(seen[7] > 300 && seen[7] < 500);
    data_close(&s);
}

static void buckets(void **state) {
    (void)state;
    for (int64_t seq = 1; seq < 3000; seq += seq < 300 ? 1 : 97) {
        int shapes = 0;
        for (int64_t t = seq; t > 0; t = data_shorter(t, seq), shapes++)
            assert_int_equal(data_bucket(t, seq), t);
        assert_true(shapes >= 1 && shapes <= 16);
        for (int64_t n = 1; n <= seq; n++) {
            int64_t t = data_bucket(n, seq), shorter = data_shorter(t, seq);
            assert_true(t >= n && t <= seq && shorter < n);
            assert_true(t == seq || t % 8 == 0);
        }
    }
    assert_int_equal(data_bucket(1, 1024), 64);
    assert_int_equal(data_bucket(65, 1024), 128);
    assert_int_equal(data_bucket(33, 35), 35);
}

// Ranks and checkpoints compare documents: the same text with other documents is another one.
static void documents_are_part_of_the_identity(void **state) {
    static const char text[] = "abc\n\ndefgh\n\nij";
    const char *path = put(*state, "a.txt", text, sizeof text - 1);
    struct token_source *a = open_whole(path, 256, 8), *b = open_whole(path, 256, 3),
                        *c = data_open(&(struct data_options){.path = path, .vocab = 256, .seq = 8});
    assert_string_not_equal(data_identity(a)->train, data_identity(b)->train);
    assert_string_not_equal(data_identity(a)->train, data_identity(c)->train);
    assert_int_equal(data_documents(c), 0);
    assert_string_equal(data_description(b), "a.txt: 14 bytes, byte tokens, 5 documents of up to 3 tokens");
    assert_string_equal(data_description(c), "a.txt: 14 bytes, byte tokens");
    data_close(&a);
    data_close(&b);
    data_close(&c);
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_PLACE(texts_end_with_blank_lines),
        IN_PLACE(files_are_documents),
        IN_PLACE(tokens_begin_with_their_token),
        IN_PLACE(the_rule_is_the_files),
        IN_PLACE(what_has_none_is_refused),
        IN_PLACE(random_texts),
        IN_PLACE(batches_are_padded),
        IN_PLACE(buckets),
        IN_PLACE(documents_are_part_of_the_identity),
    };
    return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
