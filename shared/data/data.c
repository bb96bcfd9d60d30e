#include "shared/data/data.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"
#include "shared/data/data_stream.h"
#include "shared/data/vocabulary.h"

// Parts of the keys of random numbers, so that other uses of the same seed get other numbers.
#define BATCH_KEY    UINT64_C(0x62617463685f3031)
#define DOCUMENT_KEY UINT64_C(0x646f63756d5f3031)
#define SCAN_TOKENS  65536
#define FEW_BYTES    10000  // a shorter text is described in bytes: it would be 0.00 MiB

struct token_source {
    struct token_stream stream, val_stream;  // val_stream is empty if the end of `stream` is held out
    int64_t train_tokens, val_tokens;
    int64_t val_first;  // offset of the first held-out token in its stream
    char *description;
    double entropy;
    struct data_identity identity;
    struct documents documents;  // only for whole documents
};

// One pass over a stream: its tokens [0, counted) are for training, the others are held out.
struct scan {
    int32_t vocab;
    int64_t counted;
    // (room) how often each token occurs in the training data. It grows with the largest token, not with the vocabulary.
    int64_t *counts;
    int64_t room;
    XXH64_state_t *train, *held_out;
};

static void count_token(struct scan *x, int32_t token) {
    if (token >= x->room) {
        int64_t more = token < 2 * x->room ? 2 * x->room : token + 1;
        x->counts = xrealloc(x->counts, (unsigned long)more * sizeof *x->counts);
        memset(x->counts + x->room, 0, (size_t)(more - x->room) * sizeof *x->counts);
        x->room = more;
    }
    x->counts[token]++;
}

// Checks, counts and hashes all tokens.
static int scan(const struct token_stream *s, struct scan *x) {
    int32_t *buf = xcalloc(SCAN_TOKENS, sizeof *buf);
    int rc = 0;
    for (int64_t at = 0; at < s->total && rc == 0; at += SCAN_TOKENS) {
        int64_t n = s->total - at < SCAN_TOKENS ? s->total - at : SCAN_TOKENS;
        int64_t train = x->counted - at < 0 ? 0 : x->counted - at < n ? x->counted - at : n;
        stream_fetch(s, at, n, buf);
        XXH64_update(x->train, buf, (size_t)train * sizeof *buf);
        XXH64_update(x->held_out, buf + train, (size_t)(n - train) * sizeof *buf);
        for (int64_t i = 0; i < n; i++) {
            if ((uint32_t)buf[i] >= (uint32_t)x->vocab) {
                const struct segment *g = stream_segment(s, at + i);
                rc = fail(
                    "data %s: token %d at position %lld is outside the model's vocabulary of %d; use tokens "
                    "made for this model, or a model with more",
                    g->path, buf[i], (long long)(at + i - g->first), x->vocab);
                break;
            }
            if (i < train) count_token(x, buf[i]);
        }
    }
    free(buf);
    return rc;
}

// d: documents whose positions are hashed, too; NULL: none.
static void identify(char text[64], int64_t tokens, const struct documents *d, XXH64_state_t *hash) {
    if (d && d->count) XXH64_update(hash, d->all, (size_t)d->count * sizeof *d->all);
    snprintf(text, 64, "%lld tokens, xxh64 %016llx", (long long)tokens,
             (unsigned long long)XXH64_digest(hash));
}

static int check_length(const char *path, int64_t tokens, const char *kind, int64_t seq, const char *more) {
    if (seq <= 0 || tokens > seq) return 0;
    return fail(
        "data %s: %lld %s tokens are fewer than --seq %lld + 1: give a longer text or a smaller --seq%s",
        path, (long long)tokens, kind, (long long)seq, more);
}

static int read_all(struct token_source *s, const struct data_options *o) {
    struct scan x = {.vocab = o->vocab,
                     .counted = s->train_tokens,
                     .train = XXH64_createState(),
                     .held_out = XXH64_createState()};
    XXH64_reset(x.train, 0);
    XXH64_reset(x.held_out, 0);
    int rc = scan(&s->stream, &x);
    x.counted = 0;
    if (rc == 0 && s->val_stream.count) rc = scan(&s->val_stream, &x);
    if (rc == 0) {
        // Shannon 1948, section 6, with natural logarithms.
        for (int64_t v = 0; v < x.room; v++) {
            double p = (double)x.counts[v] / (double)s->train_tokens;
            if (x.counts[v]) s->entropy -= p * exact_log(p);
        }
        identify(s->identity.train, s->train_tokens, &s->documents, x.train);
        identify(s->identity.held_out, s->val_tokens, NULL, x.held_out);
    }
    XXH64_freeState(x.train);
    XXH64_freeState(x.held_out);
    free(x.counts);
    return rc;
}

// Checks that both streams have tokens of one kind: otherwise the held-out loss says nothing about the training.
static int check_same_tokens(const struct token_stream *train, const struct token_stream *held) {
    const struct token_stream *both[] = {train, held};
    struct sidecar_summary side[2];
    bool bytes[2];
    char *is[2];
    for (int i = 0; i < 2; i++) {
        side[i] = sidecar_read(both[i]->segments[0].path);
        bytes[i] = both[i]->width == 1 || side[i].bytes;
        const char *of = side[i].tokenizer;
        is[i] = bytes[i]
                    ? xstrdup("bytes")
                    : xasprintf("tokens of %d bits%s%s", 8 * both[i]->width, of ? " of " : "", of ? of : "");
    }
    bool alike = train->width == held->width &&
                 (!side[0].tokenizer || !side[1].tokenizer || !strcmp(side[0].tokenizer, side[1].tokenizer));
    bool same = (bytes[0] && bytes[1]) || (bytes[0] == bytes[1] && alike);
    if (!same)
        fail("data %s: %s, but the held-out %s: %s; both parts have to be made by the tokenizer of the model",
             train->segments[0].path, is[0], held->segments[0].path, is[1]);
    for (int i = 0; i < 2; i++) {
        free(side[i].tokenizer);
        free(is[i]);
    }
    return same ? 0 : -1;
}

// Returns the first file that is in both streams, or NULL.
static const char *in_both(const struct token_stream *train, const struct token_stream *held) {
    for (int i = 0; i < held->count; i++)
        for (int k = 0; k < train->count; k++)
            if (held->segments[i].count == train->segments[k].count &&
                (same_file(held->segments[i].path, train->segments[k].path) ||
                 !strcmp(held->segments[i].path, train->segments[k].path)))
                return held->segments[i].path;
    return NULL;
}

static int open_all(struct token_source *s, const struct data_options *o) {
    if (o->vocab < 0) return fail("data %s: a vocabulary of %d tokens is impossible", o->path, o->vocab);
    if (!(o->val_fraction >= 0.0 && o->val_fraction < 1.0))
        return fail("data %s: val_fraction %g must be at least 0 and below 1", o->path, o->val_fraction);
    int opened = stream_open(&s->stream, o->path, o->tokenizer, PART_TRAIN);
    const char *val = o->val_path ? o->val_path : s->stream.from.held_out ? o->path : NULL;
    if (val && stream_open(&s->val_stream, val, o->tokenizer, PART_HELD_OUT)) opened = -1;
    if (opened) return -1;
    s->train_tokens = s->stream.total;
    if (val) {
        s->val_tokens = s->val_stream.total;
    } else {
        s->val_tokens = (int64_t)(o->val_fraction * (double)s->stream.total);
        s->train_tokens -= s->val_tokens;
        s->val_first = s->train_tokens;
    }
    if (!o->vocab) return 0;
    const struct vocabulary v = {.model = o->model, .size = o->vocab, .tokenizer = o->tokenizer};
    if (o->model && vocabulary_check(&v, o->path, &s->stream)) return -1;
    if (o->model && val && vocabulary_check(&v, val, &s->val_stream)) return -1;
    if (val && check_same_tokens(&s->stream, &s->val_stream)) return -1;
    const struct documents_options d = {o->path, o->vocab, s->train_tokens, o->seq};
    if (o->whole ? documents_find(&s->documents, &s->stream, &d)
                 : check_length(o->path, s->train_tokens, "training", o->seq,
                                val ? "" : ", or hold out less with data.val_fraction"))
        return -1;
    if (val && check_length(val, s->val_tokens, "held-out", o->seq, "")) return -1;
    if (read_all(s, o)) return -1;
    const char *both = val ? in_both(&s->stream, &s->val_stream) : NULL;
    if (both)
        warn(
            "data %s: is both trained on and held out: the held-out loss is measured on text that was trained on",
            both);
    if (s->stream.from.only_held)
        warn("data %s: trains on %s, but the name of every file says that it is held out", o->path,
             s->stream.files);
    const struct token_stream *t = &s->stream;
    if (val && !o->val_path)
        info("data %s: trains on %s, and evaluates on %s, as the names say%s%s", o->path, t->files,
             s->val_stream.files, t->from.left_out ? "; not used: " : "",
             t->from.left_out ? t->from.left_out : "");
    s->description = t->width > 1
                         ? xasprintf("%s: %lld tokens of %d bits", t->name, (long long)t->total, 8 * t->width)
                     : t->total < FEW_BYTES
                         ? xasprintf("%s: %lld bytes, byte tokens", t->name, (long long)t->total)
                         : xasprintf("%s: %.2f MiB, byte tokens", t->name, (double)t->total / (1 << 20));
    if (o->whole)
        text_add(&s->description, ", %lld documents of up to %lld tokens", (long long)s->documents.count,
                 (long long)o->seq);
    return 0;
}

struct token_source *data_open(const struct data_options *o) {
    struct token_source *s = xcalloc(1, sizeof *s);
    if (open_all(s, o)) data_close(&s);
    return s;
}

void data_close(struct token_source **s) {
    if (!*s) return;
    stream_close(&(*s)->stream);
    stream_close(&(*s)->val_stream);
    documents_free(&(*s)->documents);
    free((*s)->description);
    free(*s);
    *s = NULL;
}

int64_t data_train_tokens(const struct token_source *s) { return s->train_tokens; }
int64_t data_val_tokens(const struct token_source *s) { return s->val_tokens; }
const char *data_description(const struct token_source *s) { return s->description; }
const struct data_identity *data_identity(const struct token_source *s) { return &s->identity; }
int64_t data_documents(const struct token_source *s) { return s->documents.count; }
int64_t data_document_tokens(const struct token_source *s, int64_t index) {
    return s->documents.all[index].count;
}
double data_unigram_entropy(const struct token_source *s) { return s->entropy; }

static void fetch(const struct token_stream *s, int64_t at, int64_t seq, int32_t *tokens, int32_t *targets) {
    stream_fetch(s, at, seq, tokens);
    stream_fetch(s, at + 1, seq, targets);
}

static const struct document *document_of(const struct token_source *s, const struct data_slice *of,
                                          int64_t index) {
    return &s->documents.all[rng_below(of->seed ^ DOCUMENT_KEY, (uint64_t)of->step, (uint64_t)index,
                                       (uint64_t)s->documents.count)];
}

int64_t data_length(const struct token_source *s, const struct data_slice *of) {
    return s->documents.count ? document_of(s, of, of->first)->count : of->seq;
}

int64_t data_bucket(int64_t tokens, int64_t seq) {
    int64_t each = ((seq + 15) / 16 + 7) / 8 * 8, bucket = (tokens + each - 1) / each * each;
    return bucket < seq ? bucket : seq;
}

// Writes a document's tokens and targets, and padding after them.
static void fetch_document(const struct token_source *s, const struct document *d, int64_t seq,
                           int32_t *tokens, int32_t *targets) {
    assert(d->count <= seq);
    fetch(&s->stream, d->first, d->count, tokens, targets);
    for (int64_t t = d->count; t < seq; t++) {
        tokens[t] = 0;
        targets[t] = -1;
    }
}

void data_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens,
                int32_t *targets) {
    assert(s->documents.count || s->train_tokens > of->seq);
    uint64_t starts = (uint64_t)(s->train_tokens - of->seq), key = of->seed ^ BATCH_KEY;
    for (int64_t i = 0; i < of->count; i++, tokens += of->seq, targets += of->seq) {
        if (s->documents.count) {
            fetch_document(s, document_of(s, of, of->first + i), of->seq, tokens, targets);
            continue;
        }
        uint64_t at = rng_below(key, (uint64_t)of->step, (uint64_t)(of->first + i), starts);
        fetch(&s->stream, (int64_t)at, of->seq, tokens, targets);
    }
}

void data_val_batch(const struct token_source *s, const struct data_slice *of, int32_t *tokens,
                    int32_t *targets) {
    assert(s->val_tokens > of->seq);
    const struct token_stream *from = s->val_stream.count ? &s->val_stream : &s->stream;
    int64_t windows = (s->val_tokens - 1) / of->seq;
    for (int64_t i = 0; i < of->count; i++) {
        int64_t at = s->val_first + (of->first + i) % windows * of->seq;
        fetch(from, at, of->seq, tokens + i * of->seq, targets + i * of->seq);
    }
}
