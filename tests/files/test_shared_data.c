// Token streams: files, directories, llm.c's formats, the demo's text, batches.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/core/error.h"
#include "shared/data/data.h"
#include "shared/data/data_stream.h"
#include "shared/hf/file_kind.h"
#include "tests/fixture.h"

// A directory with the files that a test wrote.
struct dir {
    char path[64];
    char *files[24];
    int count;
};

static int make_dir(void **state) {
    struct dir *d = calloc(1, sizeof *d);
    assert_int_equal(fixture_folder(d->path, "data"), 0);
    *state = d;
    return 0;
}

static int remove_dir(void **state) {
    struct dir *d = *state;
    int rc = fixture_remove(d->path);
    for (int i = 0; i < d->count; i++) free(d->files[i]);
    free(d);
    return rc;
}

static const char *put_file(struct dir *d, const char *name, const void *bytes, size_t n) {
    char *path = xasprintf("%s/%s", d->path, name);
    d->files[d->count++] = path;
    assert_int_equal(fixture_put(path, bytes, n), 0);
    return path;
}

// An llm.c file of `count` tokens, token i = (start + i) % modulus.
struct bin {
    int32_t magic, version, count;
    int width, start, modulus;
    int cut_bytes;  // left out at the end
};

static const char *put_bin(struct dir *d, const char *name, const struct bin *b) {
    size_t n = 1024 + (size_t)b->count * (size_t)b->width;
    unsigned char *bytes = calloc(n, 1);
    memcpy(bytes, (int32_t[]){b->magic, b->version, b->count}, 12);
    for (int i = 0; i < b->count; i++) {
        uint32_t token = (uint32_t)((b->start + i) % b->modulus);
        memcpy(bytes + 1024 + (size_t)i * (size_t)b->width, &token, (size_t)b->width);
    }
    const char *path = put_file(d, name, bytes, n - (size_t)b->cut_bytes);
    free(bytes);
    return path;
}

static struct token_source *open_path(const char *path, int32_t vocab, double val_fraction) {
    return data_open(
        &(struct data_options){.path = path, .vocab = vocab, .val_fraction = val_fraction, .seq = 4});
}

static void expect_error(const struct data_options *o, const char *part, const char *file) {
    error_clear();
    error_quiet(1);
    assert_null(data_open(o));
    error_quiet(0);
    if (!strstr(error_last(), part) || !strstr(error_last(), file))
        fail_msg("\"%s\" should name \"%s\" and say \"%s\"", error_last(), file, part);
}

static void test_text_file(void **state) {
    const char *path = put_file(*state, "a.txt", "abracadabra\xff!", 13);
    struct token_source *s = open_path(path, 256, 0.0);
    assert_non_null(s);
    assert_int_equal(data_train_tokens(s), 13);
    assert_int_equal(data_val_tokens(s), 0);
    assert_string_equal(data_description(s), "a.txt: 13 bytes, byte tokens");
    double h = 0.0;
    static const int counts[] = {5, 2, 2, 1, 1, 1, 1};  // a b r c d 0xff !
    for (int i = 0; i < 7; i++) h -= counts[i] / 13.0 * log(counts[i] / 13.0);
    assert_true(fabs(data_unigram_entropy(s) - h) < 1e-12);
    int32_t tokens[12], targets[12];
    // One position only fits a sequence of 12.
    data_batch(s, &(struct data_slice){1, 0, 0, 1, 12}, tokens, targets);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(tokens[i], (unsigned char)"abracadabra\xff!"[i]);
        assert_int_equal(targets[i], (unsigned char)"abracadabra\xff!"[i + 1]);
    }
    data_close(&s);
    assert_null(s);
}

// The batch of a step is a function of (seed, step, index): slices agree with the whole.
static void test_batches(void **state) {
    enum { B = 8, T = 16 };
    unsigned char text[4000];
    for (int i = 0; i < 4000; i++) text[i] = (unsigned char)(i * i / 7 + i / 256);
    const char *path = put_file(*state, "t.txt", text, sizeof text);
    struct token_source *s = data_open(&(struct data_options){
        .path = path, .tokenizer = "byte", .vocab = 256, .val_fraction = 0.25, .seq = 4});
    assert_int_equal(data_train_tokens(s), 3000);
    assert_int_equal(data_val_tokens(s), 1000);
    int32_t a[B * T], at[B * T], b[B * T], bt[B * T];
    int differing = 0, highest = 0;
    for (int step = 0; step < 50; step++) {
        data_batch(s, &(struct data_slice){42, step, 0, B, T}, a, at);
        for (int w = 0; w < 4; w++)
            data_batch(s, &(struct data_slice){42, step, w * B / 4, B / 4, T}, b + w * B / 4 * T,
                       bt + w * B / 4 * T);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(at, bt, sizeof at);
        for (int i = 0; i < B; i++) assert_memory_equal(a + i * T + 1, at + i * T, (T - 1) * sizeof *a);
        data_batch(s, &(struct data_slice){43, step, 0, B, T}, b, bt);
        differing += memcmp(a, b, sizeof a) != 0;
        // Where the first sequence came from: inside the training part.
        int place = -1;
        for (int p = 0; p + T < 3000 && place < 0; p++) {
            int equal = 0;
            while (equal <= T && text[p + equal] == (equal < T ? a[equal] : at[T - 1])) equal++;
            if (equal == T + 1) place = p;
        }
        assert_true(place >= 0);
        if (place > highest) highest = place;
    }
    assert_int_equal(differing, 50);
    assert_true(highest > 2000);
    // Held-out windows in order, wrapping after (1000 - 1) / 16 = 62.
    data_val_batch(s, &(struct data_slice){.first = 61, .count = 2, .seq = T}, a, at);
    for (int i = 0; i < T; i++) {
        assert_int_equal(a[i], text[3000 + 61 * T + i]);
        assert_int_equal(at[i], text[3000 + 61 * T + i + 1]);
        assert_int_equal(a[T + i], text[3000 + i]);
    }
    data_close(&s);
}

static void check_counting(struct token_source *s, int64_t total, int modulus) {
    assert_non_null(s);
    assert_int_equal(data_train_tokens(s) + data_val_tokens(s), total);
    int32_t tokens[64], targets[64];
    for (int step = 0; step < 20; step++) {
        data_batch(s, &(struct data_slice){5, step, 0, 1, 64}, tokens, targets);
        for (int i = 0; i < 64; i++) {
            assert_int_equal(targets[i], (tokens[i] + 1) % modulus);
            if (i) assert_int_equal(tokens[i], targets[i - 1]);
        }
    }
    data_close(&s);
}

static void test_bin_files(void **state) {
    const char *p = put_bin(*state, "g.bin", &(struct bin){20240520, 1, 1000, 2, 0, 50257, 0});
    check_counting(open_path(p, 50257, 0.1), 1000, 50257);
    p = put_bin(*state, "l.bin", &(struct bin){20240801, 7, 1000, 4, 100000, 128256, 0});
    check_counting(open_path(p, 128256, 0.0), 1000, 128256);
    struct token_source *s = open_path(p, 128256, 0.0);
    assert_string_equal(data_description(s), "l.bin: 1000 tokens of 32 bits");
    data_close(&s);
}

// Shards in the order of their names, read across their borders as one stream.
static void test_directories(void **state) {
    struct dir *d = *state;
    put_bin(d, "s_1.bin", &(struct bin){20240520, 1, 30, 2, 70, 1000, 0});
    put_bin(d, "s_0.bin", &(struct bin){20240520, 1, 70, 2, 0, 1000, 0});
    put_bin(d, "s_2.bin", &(struct bin){20240520, 1, 400, 2, 100, 1000, 0});
    check_counting(open_path(d->path, 1000, 0.0), 500, 1000);
    struct token_source *s = open_path(d->path, 1000, 0.0);
    assert_non_null(strstr(data_description(s), "(3 files): 500 tokens"));
    data_close(&s);
    put_file(d, "x.txt", "hello", 5);
    expect_error(&(struct data_options){.path = d->path, .vocab = 1000}, ".txt and .bin", d->path);
    s = data_open(&(struct data_options){.path = d->path, .tokenizer = "byte", .vocab = 256});
    assert_int_equal(data_train_tokens(s), 5);
    data_close(&s);
    put_bin(d, "s_3.bin", &(struct bin){20240801, 7, 10, 4, 0, 1000, 0});
    expect_error(&(struct data_options){.path = d->path, .tokenizer = "bin", .vocab = 1000}, "one tokenizer",
                 "s_3.bin");
}

// Names tell what is trained on from what is held out; what is neither is left out.
static void test_two_parts(void **state) {
    struct dir *d = *state;
    static const struct {
        const char *train, *held, *neither;
    } cases[] = {
        {"fineweb_train_000001.txt", "fineweb_val_000000.txt", "a.txt"},
        {"train.txt", "valid.txt", "test.txt"},
        {"wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"},
        {"x-training-1.txt", "x-dev-1.txt", NULL},
        {"Train.txt", "Test.txt", NULL},
        {"trainer_train.txt", "validation.txt", "train_val.txt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *names[] = {cases[i].train, cases[i].held, cases[i].neither};
        for (int k = 0; k < 3 && names[k]; k++) put_file(d, names[k], "abcdefghijklmnop", (size_t)(10 + k));
        char *pattern = xasprintf("%s/*.t*", d->path);
        for (int way = 0; way < 4; way++) {
            struct data_options o = {.path = way & 1 ? pattern : d->path, .vocab = 256, .val_fraction = 0.5};
            if (way & 2) o.val_path = o.path;
            struct token_source *s = data_open(&o);
            if (!s || data_train_tokens(s) != 10 || data_val_tokens(s) != 11)
                fail_msg("%s, way %d", names[0], way);
            data_close(&s);
        }
        free(pattern);
        while (d->count) {
            unlink(d->files[--d->count]);
            free(d->files[d->count]);
        }
    }
    // A file whose name says that it is held out is never left out in silence.
    static const struct {
        const char *train, *held, *says;
    } unseen[] = {
        {"train.txt", "val.md", "val.md is held out"},
        {"train.txt", "test.csv", "test.csv is held out"},
        {"a.txt", "validation.text", "validation.text is held out"},
        {"train.txt", "val/", "val is held out"},
        {"a.txt", "eval/", "eval is held out"},
        {"a.txt", "val.json", "val.json is held out"},
        {"a.txt", "test.md", NULL},
        {"a.txt", "eval_config.json", NULL},
        {"a.txt", "README.md", NULL},
        {"train.txt", "Val.TXT", NULL},
        {"TRAIN.TXT", "x/", NULL},
    };
    for (size_t i = 0; i < sizeof unseen / sizeof *unseen; i++) {
        struct data_options o = {.path = d->path, .vocab = 256};
        put_file(d, unseen[i].train, "abcdefghij", 10);
        char *folder = strchr(unseen[i].held, '/') ? xasprintf("%s/%s", d->path, unseen[i].held) : NULL;
        if (folder) assert_int_equal(mkdir(folder, 0777), 0);
        if (!folder) put_file(d, unseen[i].held, "abcdefghijk", 11);
        if (unseen[i].says) {
            expect_error(&o, unseen[i].says, d->path);
        } else {
            struct token_source *u = data_open(&o);
            if (!u || data_val_tokens(u) != (i == 9 ? 11 : 0)) fail_msg("%s", unseen[i].held);
            data_close(&u);
        }
        if (folder) rmdir(folder);
        free(folder);
        while (d->count) {
            unlink(d->files[--d->count]);
            free(d->files[d->count]);
        }
    }
    // One part alone is all of the data, and its end is held out.
    put_file(d, "a_train.txt", "abcdefghij", 10);
    put_file(d, "b_train.txt", "abcdefghij", 10);
    struct token_source *s = open_path(d->path, 256, 0.25);
    assert_true(data_train_tokens(s) == 15 && data_val_tokens(s) == 5);
    data_close(&s);
}

static void test_patterns(void **state) {
    struct dir *d = *state;
    put_bin(d, "s_1.bin", &(struct bin){20240520, 1, 30, 2, 70, 1000, 0});
    put_bin(d, "s_0.bin", &(struct bin){20240520, 1, 70, 2, 0, 1000, 0});
    put_bin(d, "t_2.bin", &(struct bin){20240520, 1, 400, 2, 100, 1000, 0});
    put_file(d, "s_1.bin.json", "{}", 2);
    put_file(d, "x[1].txt", "hello", 5);
    static const struct {
        const char *pattern;
        int64_t tokens;
    } cases[] = {{"*.bin", 500},
                 {"s_*", 100},
                 {"s_?.bin", 100},
                 {"s_[0]*.bin", 70},
                 {"{t_2,s_0,s_1}.bin", 500},
                 {"{t_2.bin,s_{0,1}.bin}", 500},
                 {"s_{0,1,0}.bin", 100},
                 {"{s_0}.bin", 70},
                 {"s_{0,[1]}.{bin,bi?}", 100},
                 {"x[1].txt", 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = xasprintf("%s/%s", d->path, cases[i].pattern);
        struct token_source *s = open_path(path, 1000, 0.0);
        if (!s || data_train_tokens(s) != cases[i].tokens) fail_msg("%s", path);
        if (cases[i].tokens >= 100) {
            check_counting(s, cases[i].tokens, 1000);  // in the order of their names, whatever the braces'
            s = NULL;
        }
        data_close(&s);
        free(path);
    }
    char *none = xasprintf("%s/q_*.bin", d->path);
    expect_error(&(struct data_options){.path = none, .vocab = 9}, "no file matches", "q_*.bin");
    free(none);
    static const char *const absent[] = {"{s_0,nosuch}.bin", "{s_0.bin,q*}", "s_{0,{1,9}}.bin",
                                         "{s_0,t_2}.{bin,txt}"};
    for (int i = 0; i < 4; i++) {
        char *path = xasprintf("%s/%s", d->path, absent[i]);
        expect_error(&(struct data_options){.path = path, .vocab = 9}, "leave it out of the braces", path);
        free(path);
    }
    expect_error(&(struct data_options){.path = "owner/TinyStories", .vocab = 9}, "--repo-type dataset",
                 "hf download owner/TinyStories");
    // Both parts have tokens of one kind.
    const char *text = put_file(d, "x.txt", "hello", 5),
               *wide = put_bin(d, "w.bin", &(struct bin){20240801, 7, 70, 4, 0, 1000, 0});
    const char *const pairs[][2] = {{text, d->files[0]}, {d->files[0], text}, {d->files[0], wide}};
    for (int i = 0; i < 3; i++)
        expect_error(&(struct data_options){.path = pairs[i][0], .val_path = pairs[i][1], .vocab = 1000},
                     "both parts have to be made", pairs[i][0]);
}

// Megatron's pairs: the type is the index's.
static void put_index(struct dir *d, const char *name, int type, int version, int32_t first, int32_t second) {
    unsigned char bytes[34 + 2 * 12 + 3 * 8] = "MMIDIDX";
    bytes[9] = (unsigned char)version;
    bytes[17] = (unsigned char)type;
    bytes[18] = 2;
    bytes[26] = 3;
    memcpy(bytes + 34, (int32_t[]){first, second}, 8);
    memcpy(bytes + 34 + 24, (int64_t[]){0, 1, 2}, 24);
    put_file(d, name, bytes, sizeof bytes);
}

static void test_megatron(void **state) {
    struct dir *d = *state;
    uint16_t narrow[100];
    int32_t wide[100];
    for (int i = 0; i < 100; i++) wide[i] = narrow[i] = (uint16_t)(i + 300);
    put_file(d, "n.bin", narrow, sizeof narrow);
    put_index(d, "n.idx", 8, 1, 60, 40);
    put_file(d, "w.bin", wide, sizeof wide);
    put_index(d, "w.idx", 4, 1, 1, 99);
    char *beginning = xasprintf("%s/w", d->path);
    const char *const paths[] = {d->files[0], d->files[2], beginning};
    for (int i = 0; i < 3; i++) {
        struct token_source *s = open_path(paths[i], 1000, 0.0);
        assert_non_null(s);
        assert_int_equal(data_train_tokens(s), 100);
        int32_t tokens[99], targets[99];
        data_batch(s, &(struct data_slice){1, 0, 0, 1, 99}, tokens, targets);
        for (int k = 0; k < 99; k++) assert_true(tokens[k] == 300 + k && targets[k] == 301 + k);
        data_close(&s);
    }
    free(beginning);
    struct data_options o = {.path = d->files[0], .vocab = 1000, .seq = 50, .whole = true};
    // Its documents are the index's: 59 targets of the first, in two parts, and 39 of the second.
    struct token_source *whole = data_open(&o);
    assert_non_null(whole);
    assert_int_equal(data_documents(whole), 3);
    assert_true(data_document_tokens(whole, 0) == 50 && data_document_tokens(whole, 1) == 9 &&
                data_document_tokens(whole, 2) == 39);
    data_close(&whole);
    o.whole = false;
    put_index(d, "n.idx", 5, 1, 60, 40);
    expect_error(&o, "int64", "n.bin");
    put_index(d, "n.idx", 8, 2, 60, 40);
    expect_error(&o, "version 2", "n.idx");
    put_index(d, "n.idx", 8, 1, 60, 41);
    expect_error(&o, "announces 101 tokens", "n.bin");
    put_file(d, "n.idx", "MMID", 4);
    expect_error(&o, "not an index of Megatron", "n.idx");
    o.path = d->files[3];
    expect_error(&o, "name the .bin beside it", "w.idx");
}

// A known file that is no text is refused by its first bytes, whatever its name and whatever tokenizer is asked for; an unknown one,
// where bytes are not asked for.
static void test_other_kinds(void **state) {
    struct dir *d = *state;
    static const struct {
        const char *says;
        char bytes[48];
        bool only_auto;
    } cases[] = {
        {"git lfs pull", "version https://git-lfs.github.com/spec/v1\noid", false},
        {"gunzip -k", "\x1f\x8b\b", false},
        {"zstd -d", "\x28\xb5\x2f\xfd", false},
        {"xz -dk",
         "\xfd"
         "7zXZ",
         false},
        {"bunzip2 -k", "BZh91AY&SY", false},
        {"lz4 -d", "\x04\x22\x4d\x18", false},
        {"unzip", "PK\3\4", false},
        {"numpy.load", "PK\3\4....a.npy", false},
        {"torch", "PK\3\4....a/data.pkl", false},
        {"read_parquet", "PAR1", false},
        {"read_feather", "ARROW1", false},
        {"numpy.load", "\x93NUMPY", false},
        {"pickle.load", "\x80\x04\x95", false},
        {"pickle.load", "\x80\x02]q\x01", false},
        {"torch", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", false},
        {"SQLite", "SQLite format 3", false},
        {"pdftotext", "%PDF-1.7", false},
        {"a program (ELF)",
         "\x7f"
         "ELF",
         false},
        {"a picture", "\x89PNG\r\n\x1a\n", false},
        {"a picture", "\xff\xd8\xff\xe0", false},
        {"sound or film", "RIFF", false},
        {"multiple-choice", "\x8a\xd8\x34\x01", false},
        {"weights, not data", "GGUF", false},
        {"a .bin of tokens", "\xc6\xd7\x34\x01", false},
        {"a .bin of tokens", "\xc7\xd7\x34\x01", false},
        {"lz4 -d", "\x02\x21\x4c\x18", false},
        {"zstd -d", "\x50\x2a\x4d\x18", false},
        {"zstd -d", "\x5f\x2a\x4d\x18", false},
        {"snappy", "\xff\x06\0\0sNaPpY", false},
        {"read_feather", "FEA1", false},
        {"read_orc", "ORC\x08\x01", false},
        {"HDF5", "\x89HDF\r\n\x1a\n", false},
        {"Avro", "Obj\x01", false},
        {"LMDB", "0123456789abcdef\xde\xc0\xef\xbe", false},
        {"compiled", "\xa7\r\r\n\0\0\0\0", false},
        {"pickle.load", "(lp0\nI1\naI2\na.", false},
        // A length of 5 behind which its checksum stands, and one sample whose columns are named.
        {"records of TensorFlow", "\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3e", false},
        {"MosaicML", "\x01\0\0\0\x20\0\0\0\x28\0\0\0{\"column_names\"", false},
        {"-f UTF-16 ", "\xff\xfeh\0i\0", false},
        {"-f UTF-16 ", "\xfe\xff\0h\0i", false},
        {"-f UTF-32 ", "\xff\xfe\0\0h", false},
        {"-f UTF-16LE", "h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0,\0 \0a\0n\0d\0 \0a\0g\0a\0i\0n\0", true},
        {"bytes are zero", "hello\0world", true},
        {"no UTF-8",
         "\xcf\xf0\xe8\xe2\xe5\xf2 \xec\xe8\xf0\xcf\xf0\xe8\xe2\xe5\xf2\xcf\xf0\xe8\xe2\xe5\xf2\xcf\xf0\xe8\xe2\xe5\xf2\xcf\xf0\xe8\xe2\xe5\xf2\xcf\xf0\xe8\xe2\xe5\xf2",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int byte = 0; byte < 2; byte++) {
            size_t n = sizeof cases[i].bytes;
            while (cases[i].only_auto && !cases[i].bytes[n - 1]) n--;
            struct data_options o = {.path = put_file(d, "t.txt", cases[i].bytes, n), .vocab = 256};
            if (byte) o.tokenizer = "byte";
            d->count = 0;
            if (!cases[i].only_auto || !byte) {
                expect_error(&o, cases[i].says, "t.txt");
            } else {
                struct token_source *s = data_open(&o);
                assert_non_null(s);
                data_close(&s);
            }
            free((char *)(uintptr_t)o.path);
        }
    // Texts: with a few bytes of another encoding, and of characters of every length, cut anywhere.
    static const char *const texts[] = {"caf\xe9 au lait, s'il vous pla\xeet",
                                        "\u00e4\u20ac\U0001f600\u00e4\u20ac\U0001f600"};
    for (int i = 0; i < 2; i++)
        for (size_t cut = 0; cut < 4; cut++) {
            const char *path = put_file(d, "u.txt", texts[i], strlen(texts[i]) - cut);
            struct token_source *s = open_path(path, 256, 0.0);
            assert_non_null(s);
            data_close(&s);
            d->count = 0;
            free((char *)(uintptr_t)path);
        }
}

static size_t pack_as_lzma(unsigned char *out, size_t room, const unsigned char *bytes, size_t n) {
    static const unsigned char head[13] = {0x5d, 0, 0, 0x80, 0, 255, 255, 255, 255, 255, 255, 255, 255};
    memcpy(out, head, sizeof head);  // what follows is as flat as theirs
    uLongf z = room - sizeof head;
    assert_int_equal(compress(out + sizeof head, &z, bytes, n), Z_OK);
    return sizeof head + z;
}

// Compressed bytes whose first ones are few, and bare tokens that begin alike; what tokens' values are not is not proposed as such.
static void test_unnamed(void **state) {
    struct dir *d = *state;
    enum { N = 8192 };
    unsigned char text[N], packed[2 * N];
    uint16_t tokens[N];
    for (int i = 0; i < N; i++) {
        text[i] = (unsigned char)('a' + (i * i / 7 + i % 13 * (i / 100)) % 26);
        tokens[i] = (uint16_t)(i % 3 ? 40 + i * 7919 % 45000 : 11);
    }
    uLongf z = sizeof packed;
    assert_int_equal(compress(packed, &z, text, N), Z_OK);
    struct data_options o = {.path = put_file(d, "z.txt", packed, z), .vocab = 65536, .tokenizer = "byte"};
    expect_error(&o, "zlib.decompress", "z.txt");
    o.path = put_file(d, "l.txt", packed, pack_as_lzma(packed, sizeof packed, text, N));
    expect_error(&o, "lzma", "l.txt");
    memcpy(tokens, "\x78\x9c", 2);
    o.path = put_file(d, "t.bin", tokens, sizeof tokens);
    o.tokenizer = NULL;
    expect_error(&o, "If they are bare tokens", "--type uint16");
    for (int i = 0; i < N; i++) ((uint32_t *)(void *)packed)[i / 4] = (uint32_t)(i * 37);
    o.path = put_file(d, "u.bin", packed, N);
    expect_error(&o, "If they are bare tokens", "--type uint32");
    for (int i = 0; i < N; i++) packed[i] = (unsigned char)((uint32_t)i * 2654435761u >> 13);
    o.path = put_file(d, "v.bin", packed, N);
    expect_error(&o, "has to be unpacked first", "v.bin");
    assert_null(strstr(error_last(), "data wrap"));
}

// JSON in lines is named so whatever its file is called, and read; the command that takes the texts out of it writes another file.
static void test_lines_of_json(void **state) {
    struct dir *d = *state;
    static const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    const char *path = put_file(d, "j.txt", lines, sizeof lines - 1);
    struct token_source *s = open_path(path, 256, 0.0);
    assert_non_null(s);
    data_close(&s);
    const struct file_kind *k = file_kind_of_bytes(FILE_AS_DATA, lines, sizeof lines - 1);
    char *says = file_kind_text(FILE_AS_DATA, k, "j.txt");
    assert_true(file_kind_is_text(k));
    assert_non_null(strstr(says, "> j.txt.txt"));
    free(says);
    assert_null(file_kind_of_bytes(FILE_AS_DATA, "{\"a\": 1}", 8));
    assert_null(file_kind_of_bytes(FILE_AS_DATA, "{\"a\": {\n}\n}\n", 13));
}

// A directory that holds data in two forms, of which one is not read, and one that was unpacked beside itself.
static void test_mixed_directories(void **state) {
    struct dir *d = *state;
    struct data_options o = {.path = d->path, .vocab = 256};
    put_file(d, "a.txt", "hello world", 11);
    put_file(d, "a.txt.gz", "\x1f\x8b", 2);
    struct token_source *s = data_open(&o);
    assert_non_null(s);
    assert_int_equal(data_train_tokens(s), 11);
    data_close(&s);
    put_file(d, "b.jsonl", "{}", 2);
    expect_error(&o, "a.txt, which is read, and b.jsonl, which is not", d->path);
    unlink(d->files[0]);
    unlink(d->files[1]);
    unlink(d->files[2]);
    put_file(d, "c.parquet", "PAR1", 4);
    expect_error(&o, "has no .txt or .bin file; ", "read_parquet");
}

// The table that counts tokens is as large as the tokens, not as the vocabulary; of no known vocabulary nothing is read.
static void test_vocabularies(void **state) {
    struct dir *d = *state;
    const char *p = put_bin(d, "l.bin", &(struct bin){20240801, 7, 1000, 4, 2000000, 4000000, 0});
    struct token_source *s = data_open(&(struct data_options){.path = p, .vocab = INT32_MAX});
    assert_non_null(s);
    assert_true(fabs(data_unigram_entropy(s) - log(1000)) < 1e-9);
    data_close(&s);
    s = data_open(&(struct data_options){.path = p});
    assert_non_null(s);
    assert_int_equal(data_train_tokens(s), 1000);
    data_close(&s);
    expect_error(&(struct data_options){.path = p, .vocab = 2000500}, "token 2000500 at position 500",
                 "l.bin");
}

static void test_bad_files(void **state) {
    struct dir *d = *state;
    struct data_options o = {.vocab = 50257, .seq = 8};
    expect_error(&(struct data_options){.path = "/nonexistent/x", .vocab = 9}, "No such file",
                 "/nonexistent/x");
    expect_error(&(struct data_options){.path = d->path, .vocab = 9}, "has no .txt or .bin", d->path);
    o.path = put_file(d, "empty.txt", "", 0);
    expect_error(&o, "empty", "empty.txt");
    o.path = put_file(d, "short.txt", "12345678", 8);
    expect_error(&o, "8 training tokens are fewer than --seq 8 + 1", "short.txt");
    o.path = put_file(d, "nine.txt", "123456789", 9);
    struct token_source *s = data_open(&o);
    assert_non_null(s);
    data_close(&s);
    o.val_path = d->files[1];
    expect_error(&o, "held-out", "short.txt");
    o.val_path = NULL;
    o.path = put_bin(d, "magic.bin", &(struct bin){20240521, 1, 100, 2, 0, 50257, 0});
    expect_error(&o, "magic", "magic.bin");
    o.path = put_bin(d, "version.bin", &(struct bin){20240520, 2, 100, 2, 0, 50257, 0});
    expect_error(&o, "version 2", "version.bin");
    o.path = put_bin(d, "cut.bin", &(struct bin){20240520, 1, 100, 2, 0, 50257, 1});
    expect_error(&o, "truncated", "cut.bin");
    o.path = put_bin(d, "header.bin", &(struct bin){20240520, 1, 100, 2, 0, 50257, 800});
    expect_error(&o, "truncated", "header.bin");
    o.path = put_bin(d, "none.bin", &(struct bin){20240520, 1, 0, 2, 0, 50257, 0});
    expect_error(&o, "a header and no tokens", "none.bin");
    o.path = put_bin(d, "range.bin", &(struct bin){20240520, 1, 100, 2, 50200, 60000, 0});
    expect_error(&o, "token 50257 at position 57", "range.bin");
    o.path = d->files[1];
    o.tokenizer = "bin";
    expect_error(&o, "magic", "short.txt");
    o.tokenizer = "words";
    expect_error(&o, "words", "short.txt");
    o.tokenizer = NULL;
    o.path = d->files[2];
    o.vocab = 57;  // '9' is 57
    expect_error(&o, "token 57 at position 8", "nine.txt");
    o.vocab = 256;
    o.val_fraction = 1.0;
    expect_error(&o, "val_fraction", "nine.txt");
    o.val_fraction = 0.5;
    expect_error(&o, "or hold out less", "nine.txt");
}

static void test_demo_text(void **state) {
    struct dir *d = *state;
    char plain[3000];
    memset(plain, 'x', sizeof plain);
    memcpy(plain, "The Jargon File\n\n(version 4.4.7)\n", 33);
    char *path = d->files[d->count++] = xasprintf("%s/j.gz", d->path);
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, plain, sizeof plain), sizeof plain);
    gzclose(f);
    size_t n = 0;
    char *name = NULL, *text = demo_text(path, &n, &name);
    assert_non_null(text);
    assert_int_equal(n, sizeof plain);
    assert_memory_equal(text, plain, n);
    assert_string_equal(name, "jargon-text 4.4.7");
    free(text);
    free(name);
    // A truncated copy is an error; no part of the text is returned.
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 9), 0);
    error_quiet(1);
    assert_null(demo_text(path, &n, &name));
    error_quiet(0);
    assert_non_null(strstr(error_last(), "damaged"));
}

static void test_generated_text(void **state) {
    (void)state;
    size_t n = 0;
    char *name = NULL, *text = demo_text("/nonexistent/jargon.txt.gz", &n, &name);
    assert_int_equal(n, 1000000);
    assert_non_null(strstr(name, "generated"));
    char *again = generated_text(n);
    assert_memory_equal(text, again, n);
    int64_t counts[256] = {0};
    for (size_t i = 0; i < n; i++) counts[(unsigned char)text[i]]++;
    for (int c = 0; c < 256; c++)
        if (counts[c]) assert_true(c == '\n' || (c >= ' ' && c < 127));
    assert_true(counts[' '] > 100000 && counts['e'] > 50000 && counts['.'] > 5000);
    free(again);
    free(text);
    free(name);
}

static void test_demo(void **state) {
    (void)state;
    struct token_source *s = open_path("demo", 256, 0.05);
    assert_non_null(s);
    assert_true(data_train_tokens(s) > 900000);
    assert_true(data_unigram_entropy(s) > 2.0 && data_unigram_entropy(s) < 4.0);
    bool real = access(DEMO_TEXT_PATH, R_OK) == 0;
    assert_int_equal(strncmp(data_description(s), real ? "jargon-text" : "generated", 9), 0);
    data_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_batches, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_bin_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_directories, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_two_parts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_patterns, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_megatron, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_other_kinds, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_unnamed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_lines_of_json, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_mixed_directories, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_vocabularies, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_bad_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_demo_text, make_dir, remove_dir),
        cmocka_unit_test(test_generated_text),
        cmocka_unit_test(test_demo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
