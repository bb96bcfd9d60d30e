// A safetensors file: every tensor of one that opens lies in the file, and can be read from end to end.
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
        sink += touch(t);
        bytes += t->bytes;
        FUZZ_CHECK(st_find(f, t->name) == t, "%s: not found", t->name);
        FUZZ_CHECK(i == 0 || strcmp(st_at(f, i - 1)->name, t->name) < 0, "%s: out of order", t->name);
        for (int64_t at = 0; at < t->numel; at += 16)
            if (st_to_f32(t, at, t->numel - at < 16 ? t->numel - at : 16, value)) break;
    }
    FUZZ_CHECK(bytes <= size, "%zu bytes of tensors in a file of %zu", bytes, size);
    if (f) sink += st_hash(f);
    st_close(&f);
    free(path);
}
