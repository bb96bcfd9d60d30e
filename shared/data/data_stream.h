// The inside of shared/data, which its files and their tests include: the files that a path names (text, llm.c, Megatron), the demo's text, a
// stream of tokens over all of them, and the documents in a stream. Read-only once open: any thread.
#ifndef STARRING_SHARED_DATA_DATA_STREAM_H
#define STARRING_SHARED_DATA_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/core/file.h"

// ---------------------------------------------------------------- files (data_files.c)
// The files that a data path names: a file, a directory's files, or those of a pattern, in the order of their names.
// Training files are separated from held-out ones.

// Which files of a directory or pattern to read. If their names do not distinguish the two, all files are read.
enum data_part { PART_TRAIN, PART_HELD_OUT };

struct data_files {
    char **paths;
    int count;
    bool several;  // a directory or a pattern
    // Names mark some files for training, and others as held out.
    bool held_out;
    bool only_held;  // directory or pattern: every name marks a held-out file
    char *left_out;  // with held_out: the files that are neither, to print; NULL: none
};

// path: a file; a directory, of which the files of one kind are read (texts or tokens); a pattern of glob(3), with
// braces and ~; or the common beginning of a pair of Megatron's. tokenizer: "byte", "bin" or NULL. Returns 0, or -1
// after logging the path. The caller calls data_files_free in both cases.
int data_files_find(struct data_files *f, const char *path, const char *tokenizer, enum data_part part);
void data_files_free(struct data_files *f);

// ---------------------------------------------------------------- the demo's text (data_demo.c)
// The demo's text: Debian's jargon-text (the Jargon File, public domain). Without the package or its documentation
// it is an English-like text from a small grammar.

#define DEMO_TEXT_PATH "/usr/share/doc/jargon-text/jargon.txt.gz"
// Returns the text at path (gzip), or a generated one if there is no such file. The caller frees the text and
// *name. Returns NULL after logging what is damaged.
char *demo_text(const char *path, size_t *bytes, char **name);
// Returns English-like text of exactly `bytes` bytes, the same on every machine (malloc'd).
char *generated_text(size_t bytes);

// ---------------------------------------------------------------- a stream (data_stream.c)
// Tokens of one file, several, or a text in memory. These kinds are read; a file's first bytes, the index next to it, or
// its name decide its kind:
//     text         bytes as they are. Bytes that are no text (NUL bytes, too little valid UTF-8) need tokenizer "byte"
//     llm.c        tokens of 2 or 4 bytes after a header
//     Megatron-LM  X.bin with X.idx, which has their type, uint16 or int32, and where documents begin
// All other known kinds are refused by name (shared/hf/file_kind.h).
//
// A token file of llm.c (dev/data/data_common.py, write_datafile):
//     | 256 int32: magic, version, count of tokens, 0.. | tokens, `width` bytes each |
struct bin_format {
    int32_t magic, version;
    int width;  // 2: gpt-2; 4: vocabularies over 65536
};
#define BIN_FORMATS      2
#define BIN_HEADER_WORDS 256
#define BIN_HEADER_BYTES (BIN_HEADER_WORDS * 4)
extern const struct bin_format bin_formats[BIN_FORMATS];
const struct bin_format *bin_format_of(int32_t magic);  // NULL: no format has it

struct segment {
    char *path;          // for messages
    const void *tokens;  // little-endian, `width` bytes each
    int64_t first;       // offset in the stream
    int64_t count;
    struct mapped_file map;
    char *heap;  // memory to free, or NULL
    // Token offsets at which documents begin, ascending, the first 0, from Megatron's index. NULL: no index.
    int64_t *documents;
    int64_t document_count;
};

struct token_stream {
    struct segment *segments;  // in order, without gaps
    int count;
    int width;      // bytes per token in all segments: 1 text, 2 or 4 tokens
    int64_t total;  // tokens
    char *name;     // to print: "corpus.txt", "shards/ (12 files)"
    char *files;    // to print: "a.bin", "2 files (a.bin to b.bin)"
    struct data_files from;
};

// path: as in data_files_find, or "demo". tokenizer: "byte", "bin", "auto" or NULL. Returns 0, or -1 after logging
// the file. The caller calls stream_close in both cases.
int stream_open(struct token_stream *s, const char *path, const char *tokenizer, enum data_part part);
void stream_close(struct token_stream *s);
// Copies tokens [first, first + count), which must be in the stream.
void stream_fetch(const struct token_stream *s, int64_t first, int64_t count, int32_t *out);
const struct segment *stream_segment(const struct token_stream *s, int64_t token);

// ---------------------------------------------------------------- documents (documents.c)
// Finds where each document of a token stream begins and how long it is, for batches of whole documents (data.documents).
//
//     tokens   a document begins with the tokenizer's document token, which the sidecar names (vocabulary.h); in llm.c's
//              files, which have no sidecar, with <|endoftext|> of GPT-2 or <|begin_of_text|> of Llama 3. It ends before
//              the next such token, which is its last target. Files of a directory are concatenated
//     indexed  a document of Megatron's files ends where their index ends it. No token of the next document is a target
//     bytes    a document ends with a blank line (only white space), or with its file. Blank lines belong to the
//              document before them. No byte of the next document is a target
//
// A document longer than `seq` is cut there, and the rest counts as further documents: every token of the text is a
// target at most once. A document of only one token has no target and is omitted.
//
// A document takes 16 bytes of host memory in each process, which no ledger counts.

struct document {
    int64_t first;  // offset in the stream
    int64_t count;  // of its inputs: targets are [first + 1, first + 1 + count)
};

struct documents {
    struct document *all;
    int64_t count;
};

struct documents_options {
    const char *path;  // as the user gave it, for messages
    int32_t vocab;
    int64_t tokens;  // how many tokens to search, from the start of the stream
    int64_t seq;     // length of the longest document; 0: no limit
};

// Finds the documents of a stream. Returns 0, or -1 after logging why there are none and what helps. The caller
// calls documents_free in both cases.
int documents_find(struct documents *d, const struct token_stream *s, const struct documents_options *o);
void documents_free(struct documents *d);

#endif
