// Whether the data's tokens are of the model's vocabulary: text is bytes; a token file's tokenizer is what
// its sidecar says.
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
    const char *tokenizer;  // data.tokenizer: "byte" takes text for any model; NULL as "auto"
};

// Checks one opened stream; path: as the user gave it. 0, or -1 after saying what does not go together and
// the command that helps:
//   text        the model's vocabulary must be bytes (tokenizer_is_bytes)
//   a sidecar   its tokenizer must have no more entries than the model; its files must be those of the
//               model's directory where that has them; else it may have at most 1023 entries less, the
//               padding of published models
//   no sidecar  nothing here: data_open compares every token with V
int vocabulary_check(const struct vocabulary *v, const char *path, const struct token_stream *s);

// ---- the sidecar: what a token file does not contain itself, DATA.bin.json beside DATA.bin, written by
// experiments/tokenize.py and `starring data tokenize`, read before training and by
// `starring data info`:
//
//   {"format": "starring tokens", "program": "starring tokenize.py 0.1",
//    "tokenizer": {"name": "gpt2", "kind": "BPE" (or Unigram, .., "byte"),
//                  "files": {"tokenizer.json": {"bytes": N, "sha256": "64 digits"}}},   none for "byte"
//    "vocab_size": V,             every token is below it
//    "tokens": N, "documents": N,
//    "document_start": {"token": "<|endoftext|>", "id": 50256},                         or null
//    "sources": [{"name": "a.txt", "bytes": N, "sha256": ".."}]}

// The path of a token file's sidecar (malloc'd).
char *sidecar_path(const char *bin_path);

// The content of a sidecar, without checking it against anything and without messages.
struct sidecar_summary {
    int32_t vocab;           // -1: no sidecar, or it is damaged
    char *tokenizer;         // "gpt2 (BPE)"; malloc'd, or NULL
    bool bytes;              // its tokens are those of a text's bytes
    int32_t document_start;  // -1: no token is said to begin a document
};
struct sidecar_summary sidecar_read(const char *bin_path);

struct byte_sidecar {
    const char *bin_path, *source;
    int64_t bytes;       // of the source, and so tokens
    const char *sha256;  // of the source
};
// Writes the sidecar of a token file of bytes, through a temporary name. 0, or -1 after fail().
int sidecar_write_bytes(const struct byte_sidecar *b);

// ---- the tokenizer of a Hugging Face directory: which files it consists of, copying them, and whether its
// tokens are the bytes of a text. This program reads no other tokenizer: experiments/tokenize.py does.

// The directory whose tokenizer belongs to `model`, as given to model_spec_load: the directory itself, or
// that of a file named config.json. NULL: a preset, or a configuration under another name, which stands
// alone. The caller frees it.
char *tokenizer_folder(const char *model);

// Whether transformers reads a tokenizer or generation settings from a file of this name.
bool tokenizer_file_known(const char *name);

// Whether the folder has a file that says how text becomes tokens; NULL: no.
bool tokenizer_present(const char *folder);

// Whether the token of each byte of a text is the byte's value. With tokenizer files: yes for a
// tokenizer.json without merges whose entries 0..255 are the bytes in order, as GPT-2's byte alphabet or
// <0x00> to <0xFF> write them (special tokens may follow). Without any (a preset, a run on bytes): yes for a
// vocabulary of 256 to 512 entries, which has room for the bytes and special tokens and is too small for
// anything else.
bool tokenizer_is_bytes(const char *folder, int32_t vocab);

// The folder whose tokenizer goes with weights trained from `model` (malloc'd), or NULL: there is none, or
// `tokenizer` (data.tokenizer) "byte" trained a model on bytes whose tokenizer has other tokens.
char *tokenizer_to_keep(const char *model, int32_t vocab, const char *tokenizer);

// Copies the known files of one directory into another, each through a temporary name. 0, or -1 after
// naming the file and the reason; the other files are copied all the same.
int tokenizer_copy(const char *from, const char *to);

#endif
