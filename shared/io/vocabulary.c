#include "shared/io/vocabulary.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/core/error.h"

const char *vocabulary_tokenizer(const char *dir) {
    // transformers' fast tokenizers, SentencePiece's, GPT-2's first form.
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    for (size_t i = 0; dir && i < sizeof names / sizeof *names; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]);
        bool there = access(path, F_OK) == 0;
        free(path);
        if (there) return names[i];
    }
    return NULL;
}

bool vocabulary_is_bytes(int32_t vocab, const char *dir) {
    return vocab == 256 && !vocabulary_tokenizer(dir);
}
