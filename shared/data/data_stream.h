// A stream of tokens over one file, several, or a text in memory.
// Private to shared/data/data*.c and their tests. Read-only once open: any thread.
#ifndef STARRING_SHARED_DATA_DATA_STREAM_H
#define STARRING_SHARED_DATA_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/core/mapped_file.h"
#include "shared/data/data_files.h"

// These kinds are read; first bytes, the file beside it, or its name tell which one a file is:
//     text         bytes as they are. A text that is none (NUL bytes, or few that are UTF-8) is read as "byte" alone
//     llm.c        tokens of 2 or 4 bytes behind a header
//     Megatron-LM  X.bin with X.idx, which says their type, uint16 or int32, and where documents begin
// All else that is known is refused by its name (shared/core/file_kind.h).
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
const struct bin_format *bin_format_of(int32_t magic);  // NULL: none has it

struct segment {
    char *path;          // for messages
    const void *tokens;  // little-endian, `width` bytes each
    int64_t first;       // of the stream
    int64_t count;
    struct mapped_file map;
    char *heap;  // or NULL
    // Where documents begin, in its tokens, ascending, the first at 0, as Megatron's index says; NULL: nothing does.
    int64_t *documents;
    int64_t document_count;
};

struct token_stream {
    struct segment *segments;  // in order, without gaps
    int count;
    int width;      // bytes per token in all segments: 1 text, 2 or 4 tokens
    int64_t total;  // tokens
    char *name;     // for people: "corpus.txt", "shards/ (12 files)"
    char *files;    // likewise: "a.bin", "2 files (a.bin to b.bin)"
    struct data_files from;
};

// path: as data_files.h has it, or "demo"; tokenizer: "byte", "bin", or "auto" and NULL. 0, or -1 after naming the file; stream_close frees what is there in both cases.
int stream_open(struct token_stream *s, const char *path, const char *tokenizer, enum data_part part);
void stream_close(struct token_stream *s);
// Tokens [first, first + count), which must lie in the stream.
void stream_fetch(const struct token_stream *s, int64_t first, int64_t count, int32_t *out);
const struct segment *stream_segment(const struct token_stream *s, int64_t token);

#endif
