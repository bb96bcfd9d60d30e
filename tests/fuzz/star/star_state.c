// What a checkpoint says of a star's keys beside their tensors (ps/agree/key_rows.h): arrays of any numbers, of any
// length, in the files of one or two servers, for a job cut in another way. Sizes and hashes agree, as they do for whoever
// writes such a file. Accepted values are counts; a refused value is refused before memory is taken for it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "ps/agree/key_rows.h"
#include "ps/job/shard_map.h"
#include "shared/core/error.h"
#include "shared/state/manifest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/ps/test_ps_toy.h"

#define NUMBERS_MAX 512  // of one array

struct text {
    char head[1024], data[5 * NUMBERS_MAX * 8];
    size_t at, bytes;
};

// An array of `count` numbers; those behind the input's end are zeros.
static void put_array(struct text *t, const char *name, int64_t count, struct fuzz_bytes *in) {
    size_t begin = t->bytes;
    for (int64_t i = 0; i < count; i++, t->bytes += 8) {
        int64_t x = fuzz_number(in);
        memcpy(t->data + t->bytes, &x, 8);
    }
    t->at += (size_t)snprintf(t->head + t->at, sizeof t->head - t->at,
                              "%s\"%s\":{\"dtype\":\"I64\",\"shape\":[%lld],\"data_offsets\":[%zu,%zu]}",
                              t->at > 1 ? "," : "", name, (long long)count, begin, t->bytes);
}

static int64_t bounded(int64_t n) { return n < 0 || n > NUMBERS_MAX ? 1 : n; }

// One server's file, its arrays as long as the shape says or, where `flags` wants it, another length.
static void put_part(struct manifest_file *f, int server, struct fuzz_bytes *in) {
    static struct text t;
    uint8_t flags = fuzz_u8(in);
    int64_t keys = flags & 1 ? fuzz_number(in) : (int64_t)fuzz_below(in, 24);
    int64_t workers = flags & 2 ? fuzz_number(in) : 1 + (int64_t)fuzz_below(in, 4);
    struct fuzz_bytes shape = {(uint8_t[20]){0}, 20};
    uint8_t *at = (uint8_t *)shape.p;
    at[0] = at[9] = 255;  // fuzz_number: 8 bytes follow
    memcpy(at + 1, &keys, 8);
    memcpy(at + 10, &workers, 8);
    t.at = t.bytes = 0;
    t.head[t.at++] = '{';
    put_array(&t, "star/shape", 2, &shape);
    int64_t n = bounded(keys),
            all = keys >= 0 && keys <= NUMBERS_MAX && workers >= 0 && workers <= NUMBERS_MAX
                      ? bounded(keys * workers)
                      : 1;
    if (!(flags & 4)) put_array(&t, "star/keys", bounded(3 * n) + (flags >> 7), in);
    put_array(&t, "star/version", n, in);
    put_array(&t, "star/updates", n + (flags >> 6 & 1), in);
    if (!(flags & 8)) put_array(&t, "star/pushed", all, in);
    t.head[t.at++] = '}';
    char *file = xcalloc(8 + t.at + t.bytes, 1);
    uint64_t header = t.at;
    memcpy(file, &header, 8);
    memcpy(file + 8, t.head, t.at);
    memcpy(file + 8 + t.at, t.data, t.bytes);
    snprintf(f->name, sizeof f->name, "server-%d" PART_ENDING, server);
    f->bytes = (int64_t)(8 + t.at + t.bytes);
    f->xxh64 = XXH64(file, 8 + t.at + t.bytes, 0);
    fuzz_put(f->name, file, 8 + t.at + t.bytes);
    free(file);
}

static void put_checkpoint(struct fuzz_bytes *in, int servers) {
    struct manifest_file files[2];
    struct manifest m = {
        .dtype = "fp32", .optimizer = "AdamW", .states = 2, .files = files, .count = servers};
    m.train.step = 3 + (int64_t)fuzz_below(in, 3);
    m.train.updates = m.train.step - (int64_t)fuzz_below(in, 2);
    m.train.samples = m.train.handed_out = 2 * m.train.updates;
    m.train.scaler.scale = 1;
    for (int s = 0; s < servers; s++) put_part(&files[s], s, in);
    char *text = manifest_text(&m);
    fuzz_put(MANIFEST_NAME, text, strlen(text));
    free(text);
}

static void check_rows(const struct key_rows *r, const struct shard_map *map) {
    FUZZ_CHECK(r->count == map->count, "rows of %d keys, of %d", r->count, map->count);
    for (int k = 0; k < r->count; k++) {
        const struct key_counts *x = &r->keys[k];
        FUZZ_CHECK(x->key == k && x->version >= 0 && x->updates >= 0 && x->clock >= 0,
                   "key %d is at version %lld, update %lld, step %lld", x->key, (long long)x->version,
                   (long long)x->updates, (long long)x->clock);
        for (int w = 0; w < r->workers; w++)
            FUZZ_CHECK(x->pushed[w] >= 0, "worker %d has pushed %lld times", w, (long long)x->pushed[w]);
    }
    for (int w = 0; w < r->workers; w++)
        FUZZ_CHECK(key_rows_step(r, w) >= 0, "worker %d goes on at a negative step", w);
}

FUZZ_TARGET(star_state) {
    struct fuzz_bytes in = {data, size};
    uint8_t what = fuzz_u8(&in);
    const struct toy_case t = {.dtype = DT_F32,
                               .consistency = what & 1 ? "sync" : "async",
                               .workers = 1 + (what >> 1 & 3),
                               .servers = 1 + (what >> 3 & 1),
                               .threads = 1,
                               .steps = 8,
                               .rows = 4};
    const struct config c = toy_config(&t);
    struct layout *l = toy_layout(t.workers, t.rows);
    struct shard_map *map = shard_map_of(&c, l);
    put_checkpoint(&in, 1 + (what >> 4 & 1));
    error_clear();
    struct checkpoint *ck = checkpoint_open(fuzz_dir());
    FUZZ_CHECK(ck, "what is whole does not open: %s", error_last());
    struct key_rows rows;
    if (key_rows_read(&rows, ck, &c, map) == 0)
        check_rows(&rows, map);
    else
        FUZZ_CHECK(error_last()[0], "refused in silence");
    key_rows_free(&rows);
    checkpoint_close(&ck);
    shard_map_destroy(&map);
    layout_destroy(&l);
}
