// Token streams and batches. The batch of step t is a function of (seed, t); worker w takes slice w.
#ifndef STARRING_SHARED_DATA_DATA_H
#define STARRING_SHARED_DATA_DATA_H

#include <stdbool.h>
#include <stdint.h>

struct token_source;  // read-only memory maps; shareable between threads once open

struct data_options {
    // A text file, a token file (data_stream.h), a directory or a pattern of either, or "demo". Where names say of some files
    // that they are to be trained on, and of others that they are held out, the former alone are.
    const char *path;
    const char
        *val_path;  // likewise; NULL: the held-out files of path, or the last val_fraction of the tokens
    // "byte" (text, whatever the model), "bin", or NULL and "auto": by what the files are.
    const char *tokenizer;
    // As given: text and sidecars must go with its vocabulary (vocabulary.h); NULL: not checked.
    const char *model;
    double val_fraction;  // in [0, 1)
    int32_t
        vocab;  // tokens must be below it; checked once over the whole stream. 0: of no known model: no token is read
    int64_t seq;  // T: the training part (and val_path) must hold T+1 tokens; 0: not checked
    bool whole;   // the training part is of documents of at most T tokens (shared/data/documents.h)
};

// NULL after naming file and what is wrong (missing, empty, truncated, wrong magic or version, token out
// of range, too short, without documents). Files of a directory follow one another in the order of their names. "demo" is the
// text of Debian's package jargon-text; without the package, a generated one (the description says which).
struct token_source *data_open(const struct data_options *o);
void data_close(struct token_source **s);
int64_t data_train_tokens(const struct token_source *s);
int64_t data_val_tokens(const struct token_source *s);
// For people: "jargon-text 4.4.7: 1.59 MiB, byte tokens".
const char *data_description(const struct token_source *s);
// The content that was read, not its place: "1584833 tokens, xxh64 0123456789abcdef" of the tokens that are trained on and
// of those that are held out. Tokens count as numbers, so the same ones agree however they are cut into files and however wide they are
// stored. The hash is of all of them, made in the pass that data_open compares them with the vocabulary in.
struct data_identity {
    char train[64], held_out[64];
};
const struct data_identity *data_identity(const struct token_source *s);
int64_t data_documents(const struct token_source *s);  // whole: of the training part; else 0
int64_t data_document_tokens(const struct token_source *s, int64_t index);  // without padding
double data_unigram_entropy(const struct token_source *s);  // nats per token of the training part

// Sequences [first, first + count) of a step's global batch, each of seq tokens, padding included.
struct data_slice {
    uint64_t seed;
    int64_t step;
    int64_t first, count;
    int64_t seq;
};
// tokens and targets (count,T), target = next token. Each sequence's position, or document, is a counter-based draw
// keyed by (seed, step, index), so the batch does not depend on how workers slice it. The training part must hold
// seq + 1 tokens. Whole: seq is at least the longest of these documents; behind the end of one stand tokens 0 with targets -1.
void data_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens, int32_t *targets);
// Tokens of sequence `first` without padding: seq, or its document's.
int64_t data_length(const struct token_source *s, const struct data_slice *of);
// T of a micro-batch whose longest document has `tokens`: the next multiple of a sixteenth of seq, rounded up to a multiple of 8,
// and at most seq. So there are at most 16 shapes, which a GPU's libraries plan before the first step, less than a
// sixteenth of seq of padding behind the longest document, and rows that 16-bit matrix units take whole.
int64_t data_bucket(int64_t tokens, int64_t seq);
// The next smaller T than the bucket `bucket`; 0: it is the smallest.
static inline int64_t data_shorter(int64_t bucket, int64_t seq) {
    int64_t each = data_bucket(1, seq);
    return (bucket - 1) / each * each;
}
// Held-out windows [first, first + count), in order, wrapping: the same for every topology, seed and step.
// Window w holds tokens [w*seq, (w+1)*seq] of the held-out part, which must hold seq + 1 tokens.
void data_val_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens,
                    int32_t *targets);

#endif
