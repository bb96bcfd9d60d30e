// A stream of tokens over one file, several, or a text in memory.
// Private to shared/data/data*.c and their tests. Read-only once open: any thread.
#ifndef STARRING_SHARED_DATA_DATA_STREAM_H
#define STARRING_SHARED_DATA_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/core/file.h"
#include "shared/data/data_files.h"

// These kinds are read. A file's first bytes, the index next to it, or its name decide its kind:
//     text         bytes as they are. Bytes that are no text (NUL bytes, or too few in UTF-8) need "byte"
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

// path: as in data_files.h, or "demo". tokenizer: "byte", "bin", or "auto" and NULL. Returns 0, or -1 after logging
// the file. The caller calls stream_close in both cases.
int stream_open(struct token_stream *s, const char *path, const char *tokenizer, enum data_part part);
void stream_close(struct token_stream *s);
// Copies tokens [first, first + count), which must be in the stream.
void stream_fetch(const struct token_stream *s, int64_t first, int64_t count, int32_t *out);
const struct segment *stream_segment(const struct token_stream *s, int64_t token);

#endif
