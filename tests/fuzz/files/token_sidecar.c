// Files next to a token file, and the tokenizer of a model's directory. The first byte says which of the two the rest
// is; the other is a good one.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/data/data.h"
#include "shared/data/vocabulary.h"
#include "tests/fuzz/fuzz.h"

#define TOKENS 16
#define VOCAB  300

static const char good_sidecar[] =
    "{\"tokenizer\": {\"name\": \"t\", \"kind\": \"BPE\", \"files\": {}}, \"vocab_size\": 290, \"tokens\": 16}";
static const char good_tokenizer[] = "{\"model\": {\"vocab\": {\"a\": 97}, \"merges\": []}}";

static void put_tokens(void) {
    int32_t file[256 + TOKENS / 2] = {20240520, 1, TOKENS};
    fuzz_put("data.bin", file, 1024 + TOKENS * 2);
}

FUZZ_TARGET(token_sidecar) {
    struct fuzz_bytes in = {data, size};
    bool sidecar = fuzz_below(&in, 2);
    char *path = fuzz_path("data.bin");
    put_tokens();
    fuzz_put("data.bin.json", sidecar ? in.p : (const uint8_t *)good_sidecar,
             sidecar ? in.left : strlen(good_sidecar));
    fuzz_put("tokenizer.json", sidecar ? (const uint8_t *)good_tokenizer : in.p,
             sidecar ? strlen(good_tokenizer) : in.left);
    struct sidecar_summary s = sidecar_read(path);
    FUZZ_CHECK(s.vocab == -1 || s.vocab >= 1, "a vocabulary of %d", s.vocab);
    free(s.tokenizer);
    tokenizer_is_bytes(fuzz_dir(), VOCAB);
    error_clear();
    struct data_options o = {.path = path, .model = fuzz_dir(), .vocab = VOCAB, .seq = 4};
    struct token_source *source = data_open(&o);
    FUZZ_CHECK(source || error_last()[0], "refused in silence");
    data_close(&source);
    error_clear();
    o.whole = true;
    source = data_open(&o);
    FUZZ_CHECK(source || error_last()[0], "refused in silence");
    data_close(&source);
    free(path);
}
