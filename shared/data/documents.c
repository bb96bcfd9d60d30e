// The documents of a token stream, for batches of whole documents: where each begins, how long it is.
#include "shared/data/data_stream.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/data/vocabulary.h"

#define SCAN_TOKENS 65536
// Instead of the token that begins a document: it begins after a blank line; at an offset in the index; unknown.
#define BYTES   (-1)
#define INDEXED (-2)
#define UNKNOWN (-3)

// Documents of llm.c's files, by the width of a token: dev/data/data_common.py and its callers for gpt-2 and
// llama-3.
static const struct { int32_t width, start, vocab; } known[] = {{2, 50256, 50257}, {4, 128000, 128256}};

static const char *const text_help = "put one behind each document",
                         *const tokens_help =
                             "experiments/tokenize.py makes tokens whose sidecar names the token "
                             "before each document";

static int none(const struct documents_options *o, const char *why, const char *help) {
    return fail(
        "data %s: data.documents is whole, and %s: %s; --documents packed takes sequences from anywhere",
        o->path, why, help);
}

// Returns the token that begins a document of one file, or one of the constants above.
static int32_t start_of(const struct token_stream *s, const struct segment *g, int32_t vocab) {
    if (s->width == 1) return BYTES;
    if (g->document_count) return INDEXED;
    struct sidecar_summary side = sidecar_read(g->path);
    free(side.tokenizer);
    if (side.bytes) return BYTES;
    if (side.vocab > 0) return side.document_start >= 0 ? side.document_start : UNKNOWN;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (s->width == known[i].width && vocab >= known[i].vocab &&
            vocab <= known[i].vocab + VOCAB_PADDING_MAX)
            return known[i].start;
    return UNKNOWN;
}

// ---------------------------------------------------------------- one pass
struct search {
    struct documents *d;
    const struct documents_options *o;
    int64_t room;
    int64_t first;  // of the current document
    int64_t parts;  // how many boundaries between documents, or start tokens, were found so far
    // Only for bytes:
    bool any;       // the current document has more than white space
    int64_t lines;  // newlines after the last byte that is no white space
    int64_t line;   // where the current line begins
};

// Inputs are [first, end - 1), targets [first + 1, end). For tokens, the token that begins the next document is the
// last target.
static void add(struct search *x, int64_t end) {
    struct documents *d = x->d;
    int64_t count = end - 1 - x->first, most = x->o->seq ? x->o->seq : INT64_MAX;
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < most ? count - at : most;
        if (d->count == x->room)
            d->all = xrealloc(d->all, (unsigned long)(x->room = 2 * x->room + 64) * sizeof *d->all);
        d->all[d->count++] = (struct document){x->first + at, n};
    }
}

static void look_at_token(struct search *x, int64_t at, bool starts) {
    if (!starts) return;
    x->parts++;
    add(x, at + 1);
    x->first = at;
}

static void end_text(struct search *x, int64_t at) {
    x->parts++;
    add(x, at);
    x->first = at;
    x->any = false;
}

static void look_at_byte(struct search *x, int64_t at, int32_t byte, bool file_begins) {
    if (file_begins) {
        if (x->any) end_text(x, at);
        x->lines = 0;
        x->line = at;
    }
    bool white = byte == ' ' || (byte >= '\t' && byte <= '\r');
    if (byte == '\n') {
        x->lines++;
        x->line = at + 1;
    } else if (!white) {
        if (x->any && x->lines >= 2) end_text(x, x->line);
        x->any = true;
        x->lines = 0;
    }
}

int documents_find(struct documents *d, const struct token_stream *s, const struct documents_options *o) {
    struct search x = {.d = d, .o = o};
    *d = (struct documents){0};
    int32_t start = start_of(s, &s->segments[0], o->vocab);
    for (int i = 1; i < s->count; i++)
        if (start_of(s, &s->segments[i], o->vocab) != start)
            return none(o, "its files begin documents with different tokens", tokens_help);
    if (start == UNKNOWN) return none(o, "nothing says which token begins a document", tokens_help);
    int32_t *buf = xcalloc(SCAN_TOKENS, sizeof *buf);
    int segment = 0;
    int64_t next = 0;  // the next document in the segment's index
    for (int64_t at = 0; at < o->tokens; at += SCAN_TOKENS) {
        int64_t n = o->tokens - at < SCAN_TOKENS ? o->tokens - at : SCAN_TOKENS;
        stream_fetch(s, at, n, buf);
        for (int64_t i = 0; i < n; i++) {
            bool file_begins = segment < s->count && s->segments[segment].first == at + i;
            segment += file_begins;
            const struct segment *g = &s->segments[segment - 1];
            if (file_begins) next = 0;
            bool document_begins = next < g->document_count && g->documents[next] == at + i - g->first;
            next += document_begins;
            if (start == BYTES)
                look_at_byte(&x, at + i, buf[i], file_begins);
            else if (start == INDEXED && document_begins && at + i > 0)
                end_text(&x, at + i);
            else if (start >= 0)
                look_at_token(&x, at + i, buf[i] == start);
        }
    }
    free(buf);
    add(&x, o->tokens);
    if (x.parts && d->count) return 0;
    if (x.parts) return none(o, "no document in it has two tokens", "give it longer ones");
    if (start == BYTES) return none(o, "no blank line ends a document in it", text_help);
    if (start == INDEXED) return none(o, "its index has one document alone", text_help);
    char missing[80];
    snprintf(missing, sizeof missing, "the token that begins one, %d, is not in it", start);
    return none(o, missing, tokens_help);
}

void documents_free(struct documents *d) {
    free(d->all);
    *d = (struct documents){0};
}
