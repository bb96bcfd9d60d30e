// Token streams and batches. The batch of step t is a function of (seed, t); worker w takes slice w.
#ifndef STARRING_SHARED_DATA_DATA_H
#define STARRING_SHARED_DATA_DATA_H

#include <stdbool.h>
#include <stdint.h>

struct token_source;  // read-only memory maps; threads may share it once it is open

struct data_options {
    // A text file, a token file (data_stream.h), a directory or a pattern of either, or "demo". If the names mark some
    // files for training and others as held out, only those for training are read.
    const char *path;
    // The same for held-out data. NULL: the held-out files of path, or the last val_fraction of the tokens.
    const char *val_path;
    // "byte" (text for any model), "bin" (tokens), or NULL or "auto" (the files decide).
    const char *tokenizer;
    // As the user gave it. Text and sidecars must fit its vocabulary (vocabulary.h). NULL: not checked.
    const char *model;
    double val_fraction;  // in [0, 1)
    // V: every token must be below it, which data_open checks. 0: no model is known, so no token is checked.
    int32_t vocab;
    int64_t seq;  // T: training data and val_path must have at least T+1 tokens; 0: not checked
    bool whole;   // train on whole documents of at most T tokens (shared/data/data_stream.h)
};

// Returns NULL after logging the file and what is wrong (missing, empty, truncated, wrong magic or version, token
// out of range, too short, without documents). Files of a directory are concatenated in the order of their names.
// "demo" is the text of Debian's package jargon-text, or a generated text if the package is not installed (the
// description says which).
struct token_source *data_open(const struct data_options *o);
void data_close(struct token_source **s);
int64_t data_train_tokens(const struct token_source *s);
int64_t data_val_tokens(const struct token_source *s);
// Returns a text to print: "jargon-text 4.4.7: 1.59 MiB, byte tokens".
const char *data_description(const struct token_source *s);
// Identifies the content of the data, not its path: "1584833 tokens, xxh64 0123456789abcdef" for the training tokens, and
// the same for the held-out ones. Tokens are hashed as numbers, so the hash does not depend on how they are
// split into files, or on their width in bytes. With whole documents, their positions are hashed, too. data_open hashes
// in the pass in which it compares all tokens with the vocabulary.
struct data_identity {
    char train[64], held_out[64];
};
const struct data_identity *data_identity(const struct token_source *s);
int64_t data_documents(const struct token_source *s);  // whole documents in the training data; otherwise 0
int64_t data_document_tokens(const struct token_source *s, int64_t index);  // without padding
double data_unigram_entropy(const struct token_source *s);  // nats per token of the training data

// Sequences [first, first + count) of a step's global batch, of seq tokens each, with padding.
struct data_slice {
    uint64_t seed;
    int64_t step;
    int64_t first, count;
    int64_t seq;
};
// Fills tokens and targets (count,T); target = next token. The position, or document, of each sequence is a
// random number of the key (seed, step, index), so the batch does not depend on how workers slice it. The
// training data must have at least seq + 1 tokens. Whole documents: seq is at least the longest of the slice's; after a
// document's end tokens are 0 and targets -1.
void data_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens, int32_t *targets);
// Returns how many tokens sequence `first` has without padding: seq, or those of its document.
int64_t data_length(const struct token_source *s, const struct data_slice *of);
// Returns T of a micro-batch whose longest document has `tokens`: the next multiple of a sixteenth of seq (rounded
// up to a multiple of 8), at most seq. So there are at most 16 shapes, which a GPU's libraries plan before the
// first step. The padding after the longest document is less than a sixteenth of seq, and a multiple of 8 rows suits a
// GPU's 16-bit matrix units.
int64_t data_bucket(int64_t tokens, int64_t seq);
// Returns the next smaller bucket, or 0 if `bucket` is the smallest.
static inline int64_t data_shorter(int64_t bucket, int64_t seq) {
    int64_t each = data_bucket(1, seq);
    return (bucket - 1) / each * each;
}
// Fills held-out windows [first, first + count), in order and wrapping around: the same for every topology, seed
// and step. Window w has tokens [w*seq, (w+1)*seq] of the held-out data, which must have at least seq + 1 tokens.
void data_val_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens,
                    int32_t *targets);

#endif
