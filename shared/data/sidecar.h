// What a token file does not contain itself: DATA.bin.json beside DATA.bin, written by
// experiments/tokenize.py and `starring data tokenize`, read before training (data_vocabulary.h) and by
// `starring data info`:
//
//   {"format": "starring tokens", "program": "starring tokenize.py 0.1",
//    "tokenizer": {"name": "gpt2", "kind": "BPE" (or Unigram, .., "byte"),
//                  "files": {"tokenizer.json": {"bytes": N, "sha256": "64 digits"}}},   none for "byte"
//    "vocab_size": V,             every token is below it
//    "tokens": N, "documents": N,
//    "document_start": {"token": "<|endoftext|>", "id": 50256},                         or null
//    "sources": [{"name": "a.txt", "bytes": N, "sha256": ".."}]}
#ifndef STARRING_SHARED_DATA_SIDECAR_H
#define STARRING_SHARED_DATA_SIDECAR_H

#include <cjson/cJSON.h>
#include <stdint.h>

// The path of a token file's sidecar (malloc'd).
char *sidecar_path(const char *bin_path);

// A whole number from `low` to 2^53, or -1: missing, or something else.
int64_t sidecar_count(const cJSON *object, const char *key, int64_t low);

// What a sidecar says, without checking it against anything and without messages.
struct sidecar_summary {
    int32_t vocab;    // -1: no sidecar, or it is damaged
    char *tokenizer;  // "gpt2 (BPE)"; malloc'd, or NULL
};
struct sidecar_summary sidecar_read(const char *bin_path);

struct byte_sidecar {
    const char *bin_path, *source;
    int64_t bytes;       // of the source, and so tokens
    const char *sha256;  // of the source
};
// Writes the sidecar of a token file of bytes, through a temporary name. 0, or -1 after fail().
int sidecar_write_bytes(const struct byte_sidecar *b);

#endif
