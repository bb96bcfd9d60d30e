// A safetensors file: every byte behind the header of one that opens is one tensor's, every tensor has as many elements as
// its shape says, and can be read from end to end.
#include "shared/hf/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

static uint64_t touch(const struct st_tensor *t) {
    uint64_t sum = 0;
    for (size_t i = 0; i < t->bytes; i++) sum += ((const uint8_t *)t->data)[i];
    return sum;
}

static void check_shape(const struct st_tensor *t) {
    unsigned __int128 numel = 1;
    for (int i = 0; i < t->dims; i++) {
        FUZZ_CHECK(t->shape[i] >= 0 && numel < (unsigned __int128)1 << 63, "%s: its shape has no size",
                   t->name);
        numel *= (uint64_t)t->shape[i];
    }
    FUZZ_CHECK(numel == (unsigned __int128)t->numel, "%s: its shape has not %lld elements", t->name,
               (long long)t->numel);
}

FUZZ_TARGET(safetensors) {
    static uint64_t sink;
    char *path = fuzz_path("model.safetensors");
    fuzz_put("model.safetensors", data, size);
    error_clear();
    struct st_file *f = st_open(path);
    FUZZ_CHECK(f || error_last()[0], "refused in silence");
    size_t bytes = 0;
    for (int i = 0; f && i < st_count(f); i++) {
        const struct st_tensor *t = st_at(f, i);
        float value[16];
        check_shape(t);
        sink += touch(t);
        bytes += t->bytes;
        FUZZ_CHECK(st_find(f, t->name) == t, "%s: not found", t->name);
        FUZZ_CHECK(i == 0 || strcmp(st_at(f, i - 1)->name, t->name) < 0, "%s: out of order", t->name);
        for (int64_t at = 0; at < t->numel; at += 16)
            if (st_to_f32(t, at, t->numel - at < 16 ? t->numel - at : 16, value)) break;
    }
    uint64_t header = 0;
    if (f) memcpy(&header, data, sizeof header);
    FUZZ_CHECK(!f || bytes == size - 8 - header, "%zu bytes of tensors in a file of %zu", bytes, size);
    if (f) sink += st_hash(f);
    st_close(&f);
    free(path);
}
