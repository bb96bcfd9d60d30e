// Checks that the data's tokens fit the model's vocabulary. Text is bytes; a token file's sidecar names its
// tokenizer.
#ifndef STARRING_SHARED_DATA_VOCABULARY_H
#define STARRING_SHARED_DATA_VOCABULARY_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/data/data_stream.h"

// Published models round their vocabulary up to multiples of at most 1024.
#define VOCAB_PADDING_MAX 1023

struct vocabulary {
    const char *model;      // preset, config.json or directory, as given
    int32_t size;           // V of the model
    const char *tokenizer;  // data.tokenizer: "byte" accepts text for any model; NULL is "auto"
};

// Checks one opened stream. path: as the user gave it. Returns 0, or -1 after logging what does not fit and the
// command that helps:
//   text        the model's vocabulary must be bytes (tokenizer_is_bytes)
//   a sidecar   its tokenizer must not have more entries than the model. If the model's directory has a tokenizer, its
//               files must equal the sidecar's; otherwise the tokenizer may have at most 1023 entries fewer than the
//               model, the padding of published models
//   no sidecar  no check here: data_open compares every token with V
int vocabulary_check(const struct vocabulary *v, const char *path, const struct token_stream *s);

// ---- the sidecar, DATA.bin.json next to DATA.bin, has what a token file does not contain itself.
// experiments/tokenize.py and `starring data tokenize` write it; training and `starring data info` read it:
//
//   {"format": "starring tokens", "program": "starring tokenize.py 0.1",
//    "tokenizer": {"name": "gpt2", "kind": "BPE" (or Unigram, .., "byte"),
//                  "files": {"tokenizer.json": {"bytes": N, "sha256": "64 digits"}}},   none for "byte"
//    "vocab_size": V,             every token is below it
//    "tokens": N, "documents": N,
//    "document_start": {"token": "<|endoftext|>", "id": 50256},                         or null
//    "sources": [{"name": "a.txt", "bytes": N, "sha256": ".."}]}

// Writes the SHA-256 of a file in hexadecimal digits, as `sha256sum` does. Returns 0, or -1 without logging (errno is set).
#define SHA256_HEX 65  // digits and the closing zero
int sha256_file(const char *path, char hex[SHA256_HEX]);

// Returns the path of a token file's sidecar (malloc'd).
char *sidecar_path(const char *bin_path);

// The content of a sidecar. sidecar_read does not check it, and logs nothing.
struct sidecar_summary {
    int32_t vocab;           // -1: no sidecar, or it is damaged
    char *tokenizer;         // "gpt2 (BPE)"; malloc'd, or NULL
    bool bytes;              // its tokens are the bytes of a text
    int32_t document_start;  // -1: no token is known to begin a document
};
struct sidecar_summary sidecar_read(const char *bin_path);

struct byte_sidecar {
    const char *bin_path, *source;
    int64_t bytes;       // of the source; also the number of tokens
    const char *sha256;  // of the source
};
// Writes the sidecar of a token file of bytes, by way of a temporary name. Returns 0, or -1 after fail().
int sidecar_write_bytes(const struct byte_sidecar *b);

// ---- the tokenizer of a Hugging Face directory: its files, copying them, and whether its tokens are the bytes of
// a text. This program runs no other tokenizer; experiments/tokenize.py does.

// Returns the directory of the tokenizer of `model`, which is given as to model_spec_load: the model's directory, the
// base model's directory for an adapter without a tokenizer, or the directory of a file named config.json. Returns NULL
// for a preset, and for a configuration file of another name, which has no directory. The caller frees it.
char *tokenizer_folder(const char *model);

// Returns whether transformers reads a tokenizer or generation settings from a file of this name.
bool tokenizer_file_known(const char *name);

// Returns whether the folder has a file that defines how text becomes tokens. False for NULL.
bool tokenizer_present(const char *folder);

// Returns whether the token of each byte of a text is the byte's value. With tokenizer files: true for a tokenizer.json
// without merges whose entries 0..255 are the bytes in order, written in GPT-2's byte alphabet or as <0x00> to
// <0xFF> (special tokens may follow). Without files (a preset, a run on bytes): true for a vocabulary of 256 to 512
// entries, which fits the bytes and special tokens and is too small for anything else.
bool tokenizer_is_bytes(const char *folder, int32_t vocab);

// Returns the folder whose tokenizer belongs to the weights of a run of `model` (malloc'd). Returns NULL if there is
// none, or if the run had data.tokenizer "byte" (`tokenizer`) and the folder's tokenizer is not of bytes.
char *tokenizer_to_keep(const char *model, int32_t vocab, const char *tokenizer);

// Copies the known files of one directory to another, each by way of a temporary name. Returns 0, or -1 after
// logging the file and the reason; the other files are still copied.
int tokenizer_copy(const char *from, const char *to);

#endif
