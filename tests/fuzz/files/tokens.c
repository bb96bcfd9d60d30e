// Token files and texts. The first byte chooses name and tokenizer. From what opens, batches are drawn: every token is in
// the vocabulary. The same of whole documents, which lie side by side in the training part.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/data/data.h"
#include "tests/fuzz/fuzz.h"

#define VOCAB 300
#define SEQ   4
#define COUNT 3

static void draw(const struct token_source *s) {
    int32_t tokens[2][COUNT * SEQ], targets[COUNT * SEQ];
    const struct data_slice of = {.seed = 7, .step = 1, .count = COUNT, .seq = SEQ};
    memset(tokens, 0, sizeof tokens);
    data_batch(s, &of, tokens[0], targets);
    if (data_val_tokens(s) > SEQ) data_val_batch(s, &of, tokens[1], targets);
    for (int i = 0; i < COUNT * SEQ; i++)
        FUZZ_CHECK(tokens[0][i] >= 0 && tokens[0][i] < VOCAB && tokens[1][i] >= 0 && tokens[1][i] < VOCAB &&
                       targets[i] >= 0 && targets[i] < VOCAB,
                   "a token beyond the vocabulary");
}

static void draw_whole(const struct token_source *s) {
    int32_t tokens[COUNT * SEQ], targets[COUNT * SEQ];
    int64_t sum = 0;
    const struct data_slice of = {.seed = 7, .step = 1, .count = COUNT, .seq = SEQ};
    for (int64_t i = 0; i < data_documents(s); i++) sum += data_document_tokens(s, i);
    FUZZ_CHECK(data_documents(s) > 0 && sum < data_train_tokens(s), "%lld targets", (long long)sum);
    data_batch(s, &of, tokens, targets);
    for (int i = 0; i < COUNT * SEQ; i++)
        FUZZ_CHECK(tokens[i] >= 0 && tokens[i] < VOCAB && targets[i] >= -1 && targets[i] < VOCAB,
                   "a token beyond the vocabulary");
}

FUZZ_TARGET(tokens) {
    static const char *const names[] = {"data.bin", "data.txt"}, *const tokenizers[] = {"auto", "bin", "byte",
                                                                                        NULL};
    struct fuzz_bytes in = {data, size};
    const char *name = names[fuzz_below(&in, 2)], *tokenizer = tokenizers[fuzz_below(&in, 4)];
    // llm.c's header is 1 KiB of which three words matter.
    uint32_t head[256] = {0};
    char *path = fuzz_path(name);
    if (fuzz_below(&in, 2)) {
        for (int i = 0; i < 3; i++) head[i] = (uint32_t)fuzz_word(&in, 4);
        char *both = xcalloc(sizeof head + in.left, 1);
        memcpy(both, head, sizeof head);
        memcpy(both + sizeof head, in.p, in.left);
        fuzz_put(name, both, sizeof head + in.left);
        free(both);
    } else {
        fuzz_put(name, in.p, in.left);
    }
    error_clear();
    struct data_options o = {
        .path = path, .tokenizer = tokenizer, .val_fraction = 0.3, .vocab = VOCAB, .seq = SEQ};
    struct token_source *s = data_open(&o);
    FUZZ_CHECK(s || error_last()[0], "refused in silence");
    if (s) draw(s);
    data_close(&s);
    error_clear();
    o.whole = true;
    s = data_open(&o);
    FUZZ_CHECK(s || error_last()[0], "refused in silence");
    if (s) draw_whole(s);
    data_close(&s);
    free(path);
}
