// A torn, cut, changed or foreign file, or one of another model, is refused, with the file and the reason, before a
// value of it is used.
#include "shared/hf/safetensors.h"
#include "shared/state/manifest.h"
#include "tests/state/state_helper.h"

static const char *const files[] = {"manifest.json", "worker-0.safetensors", "worker-1.safetensors"};

struct scene {
    char *run, *dir, *path[3], *text[3];  // as they were written
    size_t bytes[3];
};

static int make_scene(void **state) {
    struct scene *s = xcalloc(1, sizeof *s);
    s->run = make_dir();
    must_checkpoint(s->run, 2, 3);
    s->dir = step_path(s->run, 3);
    for (int i = 0; i < 3; i++) {
        s->path[i] = xasprintf("%s/%s", s->dir, files[i]);
        s->text[i] = read_whole(s->path[i], &s->bytes[i]);
    }
    error_quiet(1);
    *state = s;
    return 0;
}

static int end_scene(void **state) {
    struct scene *s = *state;
    error_quiet(0);
    for (int i = 0; i < 3; i++) {
        free(s->path[i]);
        free(s->text[i]);
    }
    remove_dir(s->run);
    free(s->dir);
    free(s);
    return 0;
}

static void restore(const struct scene *s, int i) { write_whole(s->path[i], s->text[i], s->bytes[i]); }

// The checkpoint is refused, and the message has these in it.
static void refused(const struct scene *s, const char *file, const char *why) {
    error_clear();
    if (toy_read(s->dir, 1, 3) == 0) fail_msg("%s: taken (%s)", file, why);
    if (!strstr(error_last(), file) || !strstr(error_last(), why))
        fail_msg("%s, \"%s\" expected: %s", file, why, error_last());
}

static void test_every_flipped_byte(void **state) {
    struct scene *s = *state;
    assert_int_equal(toy_read(s->dir, 1, 3), 0);
    for (int i = 0; i < 3; i++) {
        uint64_t header = 0;  // every byte of what is no value, some of those that are
        if (i) memcpy(&header, s->text[i], 8);
        for (size_t at = 0; at < s->bytes[i]; at += i && at > header + 8 ? 397 : 1) {
            s->text[i][at] = (char)(s->text[i][at] ^ (1 << at % 8));
            restore(s, i);
            refused(s, s->dir, "");
            s->text[i][at] = (char)(s->text[i][at] ^ (1 << at % 8));
        }
        restore(s, i);
    }
    assert_int_equal(toy_read(s->dir, 1, 3), 0);
}

static void test_cut_and_missing(void **state) {
    struct scene *s = *state;
    for (int i = 0; i < 3; i++) {
        for (size_t n = 0; n < s->bytes[i]; n += i ? 997 : 7) {
            write_whole(s->path[i], s->text[i], n);
            refused(s, files[i], "");
        }
        char *longer = xcalloc(s->bytes[i] + 1, 1);
        memcpy(longer, s->text[i], s->bytes[i]);
        write_whole(s->path[i], longer, s->bytes[i] + 1);
        refused(s, files[i], i ? "it is cut short or another file" : "");
        free(longer);
        unlink(s->path[i]);
        refused(s, files[i], "No such file");
        assert_int_equal(mkdir(s->path[i], 0777), 0);
        refused(s, files[i], "");
        rmdir(s->path[i]);
        restore(s, i);
    }
    // Another's file in its place.
    write_whole(s->path[1], s->text[2], s->bytes[2]);
    refused(s, files[1], "");
    restore(s, 1);
    refused(&(struct scene){.dir = s->run}, "manifest.json", "no complete checkpoint");
    assert_int_equal(toy_read(s->dir, 1, 3), 0);
}

// A value is never handed out before the hash of its file has been compared, whichever is read first.
static void test_first_value(void **state) {
    struct scene *s = *state;
    s->text[2][s->bytes[2] - 1] ^= 1;  // of an extra, far from what is read
    restore(s, 2);
    struct checkpoint *c = checkpoint_open(s->dir);
    assert_non_null(c);
    struct layout *l = toy_layout(2);
    float out[1] = {77};
    int64_t v[3] = {0};
    assert_int_equal(checkpoint_read(c, l, 0, 0, 0, 1, out), 0);  // worker-0's
    int64_t last = l->units[1].tensors[2].offset + 80;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(checkpoint_read(c, l, 1, 0, last, last + 1, out), -1);
        assert_non_null(strstr(error_last(), "worker-1.safetensors: is damaged"));
    }
    assert_int_equal(checkpoint_extra(c, "worker-1", "version/keys", v, 3), -1);
    assert_int_equal(checkpoint_extra(c, "worker-1", "version/none", v, 3), -1);  // it could be its name
    assert_int_equal(checkpoint_extra(c, "worker-0", "version/keys", v, 3), 0);
    layout_destroy(&l);
    checkpoint_close(&c);
}

// ---------------------------------------------------------------- a manifest that lies, with a seal that is right
static void lie(const struct scene *s, const char *from, const char *to, const char *why) {
    char *at = strstr(s->text[0], from);
    if (!at) fail_msg("no %s in the manifest", from);
    char *text = xasprintf("%.*s%s%s", (int)(at - s->text[0]), s->text[0], to, at + strlen(from));
    size_t n = strlen(text), tail = strlen("0000000000000000\"\n}\n");
    char seal[17];
    memcpy(text + n - tail, "0000000000000000", 16);
    hex64(seal, XXH64(text, n, 0));
    memcpy(text + n - tail, seal, 16);
    write_whole(s->path[0], text, n);
    refused(s, s->dir, why);
    free(text);
    restore(s, 0);
}

static void test_lying_manifest(void **state) {
    struct scene *s = *state;
    lie(s, "\"format\":\t1", "\"format\":\t2", "has format 2, this program reads 1: take a newer starring");
    lie(s, "\"format\":\t1", "\"format\":\t0", "is no manifest of a checkpoint");
    lie(s, "\"format\":\t1", "\"format\":\t\"1\"", "is no manifest of a checkpoint");
    const char *const names[] = {
        "../worker-0.safetensors", "a/b.safetensors", "/etc/passwd", "..", "", ".safetensors", "worker-0",
        "worker 0.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *to = xasprintf("\"%s\"", names[i]);
        lie(s, "\"worker-0.safetensors\"", to, "is not a valid name of a checkpoint's file");
        free(to);
    }
    lie(s, "\"worker-0.safetensors\"", "\"worker-1.safetensors\"", "worker-1.safetensors is listed twice");
    lie(s, "\"worker-0.safetensors\"", "\"worker-7.safetensors\"", "worker-7.safetensors: No such file");
    lie(s, "\"worker-0.safetensors\"", "\"worker-7.safetensors\",\"host\":\t\"h2\"",
        "worker-7.safetensors: is not here: an earlier version left it on h2");
    lie(s, "\"bytes\":\t", "\"bytes\":\t-", "\"bytes\" is no whole number");
    lie(s, "\"bytes\":\t", "\"bytes\":\t1e300,\"x\":\t", "\"bytes\" is no whole number");
    lie(s, "\"bytes\":\t", "\"bytes\":\t1", "cut short or another file");
    lie(s, "\"xxh64\":\t\"", "\"xxh64\":\t\"0", "\"xxh64\" is not 16 hexadecimal digits");
    lie(s, "\"xxh64\"", "\"xxh32\"", "\"xxh64\" is not 16 hexadecimal digits");
    lie(s, "\"participants\":\t2", "\"participants\":\t3", "does not list 3 files");
    lie(s, "\"states\":\t2", "\"states\":\t1", "the manifest lists 1 optimizer states");
    lie(s, "\"states\":\t2", "\"states\":\t3", "no file holds state2/embedding.wte");
    lie(s, "\"states\":\t2", "\"states\":\t-2", "\"states\" is no number");
    lie(s, "\"step\":\t3", "\"step\":\t4", "\"step\" is not that of \"train\"");
    lie(s, "\"samples\":\t24", "\"samples\":\t-24", "\"samples\" is missing or no whole number");
    lie(s, "\"samples\":\t24", "\"samples\":\t2.5", "\"samples\" is missing or no whole number");
    lie(s, "\"dealt\"", "\"dealer\"", "\"dealt\" is missing");
    lie(s, "\"iter\"", "\"item\"", "\"iter\" is missing");
    lie(s, "\"scale\":\t", "\"scale\":\t-", "\"scale\" is missing or no number >= 0");
    lie(s, "\"seed\":\t\"42\"", "\"seed\":\t42", "\"identity\": seed is no text");
    lie(s, "\"identity\"", "\"identities\"", "\"identity\" is no object");
    // And without a new seal: edited by hand.
    char *at = strstr(s->text[0], "\"42\"");
    at[1] = '3';
    restore(s, 0);
    refused(s, files[0], "is not what was written");
}

// ---------------------------------------------------------------- files that lie, with a hash that is right
struct entry {
    const char *name;
    int64_t n;
    enum dtype dtype;
};

// A checkpoint of one file with these tensors, read by a model of one tensor "t" of 10 elements, without optimizer.
static void made_of(const struct scene *s, const struct entry *e, int count, const char *why) {
    char *dir = checkpoint_partial(s->run, CHECKPOINT_ALL, 5, LIFE), *error = NULL;
    struct layout *l = toy_layout(1);
    const struct part_options o = {.dir = dir, .participant = "worker-0", .layout = l};
    struct part_file *f = part_file_create(&o, &error);  // for the directory
    part_file_discard(&f, "made by hand");
    char *path = xasprintf("%s/worker-0.safetensors", dir), *side = xasprintf("%s/worker-0.json", dir);
    char *failed = xasprintf("%s/worker-0.failed", dir);
    unlink(failed);
    struct st_entry entries[4] = {0};
    const double zeros[32] = {0};
    for (int i = 0; i < count; i++)
        entries[i] = (struct st_entry){.name = e[i].name, .dtype = e[i].dtype, .dims = 1, .shape = {e[i].n}};
    struct st_writer *w = st_writer_begin(path, entries, count, NEW_FILE_ON_DISK, &error);
    for (int i = 0; i < count; i++) st_writer_append(w, zeros, (size_t)e[i].n * dtype_size(e[i].dtype));
    struct st_written written;
    assert_int_equal(st_writer_end(&w, &written, &error), 0);
    char *text = xasprintf("{\"file\":\"worker-0.safetensors\",\"bytes\":%lld,\"xxh64\":\"%016llx\"}",
                           (long long)written.bytes, (unsigned long long)written.xxh64);
    write_whole(side, text, strlen(text));
    struct train_state train = toy_train(5);
    struct checkpoint_commit c = toy_commit(s->run, 1, &train);
    c.states = 0;
    assert_int_equal(checkpoint_complete(&c, NULL, &error), 0);
    char *final = step_path(s->run, 5);
    struct checkpoint *read = checkpoint_open(final);
    l->count = 1;
    l->units[0].count = 1;
    l->units[0].tensors[0] = (struct tensor){.name = "t", .shape = {10}, .dims = 1};
    layout_finish(l, 1);
    float out[10];
    int rc = read ? checkpoint_read(read, l, 0, STATE_MASTER, 0, 10, out) : -1;
    checkpoint_close(&read);
    if (rc == 0 && why) fail_msg("taken: %s", why);
    if (rc != 0 && (!why || !strstr(error_last(), why) || !strstr(error_last(), final)))
        fail_msg("\"%s\" expected: %s", why ? why : "nothing", error_last());
    free(final);
    free(text);
    free(failed);
    free(side);
    free(path);
    free(dir);
    layout_destroy(&l);
}

static void test_lying_files(void **state) {
    struct scene *s = *state;
    static const struct {
        struct entry e[3];
        const char *why;
    } cases[] = {
        {{{"master/t@0", 10, DT_F32}, {"x", 2, DT_I64}}, NULL},
        {{{"master/t@4", 6, DT_F32}, {"master/t@0", 4, DT_F32}}, NULL},
        {{{"master/t@0", 4, DT_F32}, {"master/t@5", 5, DT_F32}}, "elements 4 to 5 before it are in no file"},
        {{{"master/t@1", 9, DT_F32}}, "elements 0 to 1 before it are in no file"},
        {{{"master/t@0", 5, DT_F32}, {"master/t@4", 6, DT_F32}}, "master/t@4: overlaps master/t@0"},
        {{{"master/t@0", 9, DT_F32}}, "ends at element 9, the model's t has 10"},
        {{{"master/t@0", 11, DT_F32}}, "ends at element 11, the model's t has 10"},
        {{{"master/t@0", 10, DT_BF16}}, "is no piece of F32 elements but BF16"},
        {{{"master/t@0", 10, DT_F64}}, "is no piece of F32 elements but F64"},
        {{{"master/t@0", 10, DT_F32}, {"master/t@10", 0, DT_F32}}, "is no piece of F32 elements"},
        {{{"master/t@0", 10, DT_F32}, {"master/u@0", 3, DT_F32}}, "this model has no u"},
        {{{"master/u@0", 10, DT_F32}}, "no file holds master/t"},
        {{{"x", 2, DT_I64}}, "no file holds master/t"},
        {{{"master/t@0", 10, DT_F32}, {"state0/t@0", 10, DT_F32}}, "the manifest lists 0 optimizer states"},
        {{{"master/t@0", 10, DT_F32}, {"x", 2, DT_F32}}, "neither a piece of the state nor an array of I64"},
        {{{"master/t@-1", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
        {{{"master/t@00", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
        {{{"master/t@99999999999999999999", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
        {{{"master/t@0x", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
        {{{"master/@0", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
        {{{"master/t", 10, DT_F32}}, "its name is not KIND/TENSOR@ELEMENT"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = 0;
        while (n < 3 && cases[i].e[n].name) n++;
        made_of(s, cases[i].e, n, cases[i].why);
    }
}

// A sidecar that does not belong to its file: nothing is committed.
static void test_lying_sidecar(void **state) {
    struct scene *s = *state;
    static const char *const sidecars[] = {
        "", "{}", "{\"file\":\"worker-1.safetensors\",\"bytes\":1,\"xxh64\":\"0\"}",
        "{\"file\":\"worker-0.safetensors\",\"bytes\":8,\"xxh64\":\"0123456789abcdef\"}"};
    for (int i = 0; i < 4; i++) {
        char *error = NULL, *dir = checkpoint_partial(s->run, CHECKPOINT_ALL, 5, LIFE),
             *side = xasprintf("%s/worker-0.json", dir);
        assert_int_equal(toy_write_part(s->run, 0, 1, 5, &error), 0);
        write_whole(side, sidecars[i], strlen(sidecars[i]));
        assert_int_equal(toy_complete(s->run, 1, 5, &error), -1);
        assert_non_null(strstr(error, i < 3 ? "worker-0.json: is not a valid sidecar"
                                            : " bytes, but its sidecar says that 8 were written"));
        assert_non_null(strstr(error, "step-3 is kept"));
        assert_int_equal(names_in(s->run), 1);
        free(side);
        free(dir);
        free(error);
    }
}

int main(void) {
#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, make_scene, end_scene)
    const struct CMUnitTest tests[] = {
        IN_SCENE(test_every_flipped_byte), IN_SCENE(test_cut_and_missing), IN_SCENE(test_first_value),
        IN_SCENE(test_lying_manifest),     IN_SCENE(test_lying_files),     IN_SCENE(test_lying_sidecar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
