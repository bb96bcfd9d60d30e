// The tokenizer of a Hugging Face directory: which files it consists of, copying them, and whether its
// tokens are the bytes of a text. This program reads no other tokenizer: experiments/tokenize.py does.
#ifndef STARRING_SHARED_DATA_TOKENIZER_FILES_H
#define STARRING_SHARED_DATA_TOKENIZER_FILES_H

#include <stdbool.h>
#include <stdint.h>

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
