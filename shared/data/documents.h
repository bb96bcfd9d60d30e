// The documents of a token stream, for batches of whole ones (data.documents): where each begins, how long it is.
//
//     tokens   a document begins with the token that its tokenizer puts before each, which the sidecar names (vocabulary.h);
//              in llm.c's files, which have none, <|endoftext|> of GPT-2 or <|begin_of_text|> of Llama 3. It ends before the
//              next such token, and its last target is that token. Files of a directory follow one another.
//     indexed  a document of Megatron's files ends where its index says. Nothing of the next document is a target
//     bytes    a document ends with a blank line, one of nothing but white space, or with its file. Blank lines belong
//              to the document before them. Nothing of the next document is a target.
//
// What is longer than `seq` is cut there, and each part counts as a document of its own: every token of the text is a target at
// most once. A document without a target, one token alone, is none.
//
// A document takes 16 bytes of host memory in each process, in no ledger. Private to shared/data. Read-only once found: any
// thread.
#ifndef STARRING_SHARED_DATA_DOCUMENTS_H
#define STARRING_SHARED_DATA_DOCUMENTS_H

#include "shared/data/data_stream.h"

struct document {
    int64_t first;  // token of the stream
    int64_t count;  // of its inputs: targets are [first + 1, first + 1 + count)
};

struct documents {
    struct document *all;
    int64_t count;
};

struct documents_options {
    const char *path;  // as the user gave it, for messages
    int32_t vocab;
    int64_t tokens;  // of the stream, from its beginning, that are looked at
    int64_t seq;     // the longest document; 0: any length
};

// Finds the documents of a stream. 0, or -1 after saying why there are none and what helps. documents_free in both cases.
int documents_find(struct documents *d, const struct token_stream *s, const struct documents_options *o);
void documents_free(struct documents *d);

#endif
