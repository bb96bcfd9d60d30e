// The documents of a token stream, for batches of whole documents (data.documents): where each begins, how long it
// is.
//
//     tokens   a document begins with the token that its tokenizer puts in front of each, which the sidecar names
//              (vocabulary.h); in llm.c's files, which have no sidecar, with <|endoftext|> of GPT-2 or
//              <|begin_of_text|> of Llama 3. It ends in front of the next such token, which is its last target.
//              Files of a directory are concatenated
//     indexed  a document of Megatron's files ends where their index ends it. No token of the next document is a target
//     bytes    a document ends with a blank line (only white space), or with its file. Blank lines belong to the
//              document before them. No byte of the next document is a target
//
// A document longer than `seq` is cut there, and the rest counts as further documents: every token of the text is a
// target at most once. A document of only one token has no target and is omitted.
//
// A document takes 16 bytes of host memory in each process, which no ledger counts. Private to shared/data.
// Read-only once found: any thread may read them.
#ifndef STARRING_SHARED_DATA_DOCUMENTS_H
#define STARRING_SHARED_DATA_DOCUMENTS_H

#include "shared/data/data_stream.h"

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
    int64_t tokens;  // from the start of the stream, that are searched
    int64_t seq;     // length of the longest document; 0: no limit
};

// Finds the documents of a stream. Returns 0, or -1 after logging why there are none and what helps. The caller
// calls documents_free in both cases.
int documents_find(struct documents *d, const struct token_stream *s, const struct documents_options *o);
void documents_free(struct documents *d);

#endif
