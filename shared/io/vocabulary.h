// What a model's token ids stand for.
#ifndef STARRING_SHARED_IO_VOCABULARY_H
#define STARRING_SHARED_IO_VOCABULARY_H

#include <stdbool.h>
#include <stdint.h>

// A token is a byte of text: 256 of them, and no tokenizer lies in the model's directory to say otherwise.
// dir: a Hugging Face directory, or NULL (a preset). Reads names, opens nothing.
bool vocabulary_is_bytes(int32_t vocab, const char *dir);

// Name of the tokenizer file in dir ("tokenizer.json", ..), NULL when there is none. A constant.
const char *vocabulary_tokenizer(const char *dir);

#endif
