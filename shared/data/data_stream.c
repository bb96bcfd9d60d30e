#include "shared/data/data_stream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"
#include "shared/hf/file_kind.h"

const struct bin_format bin_formats[BIN_FORMATS] = {{20240520, 1, 2}, {20240801, 7, 4}};

const struct bin_format *bin_format_of(int32_t magic) {
    for (int i = 0; i < BIN_FORMATS; i++)
        if (bin_formats[i].magic == magic) return &bin_formats[i];
    return NULL;
}

static struct segment *add_segment(struct token_stream *s, const char *path) {
    s->segments = xrealloc(s->segments, sizeof *s->segments * (unsigned long)(s->count + 1));
    struct segment *g = &s->segments[s->count++];
    *g = (struct segment){.path = xstrdup(path), .first = s->total};
    return g;
}

#define SAMPLE 65536  // bytes of a file that are examined

// Returns whether the bytes may be tokens without a header. Few of a token's bytes are printable, in contrast to text. And
// some value is frequent, as in every language, or all values are well below the largest 16-bit number, in contrast to
// compressed data.
static bool may_be_tokens(const struct segment *g, size_t width) {
    const unsigned char *p = g->map.base;
    size_t n = (g->map.bytes < SAMPLE ? g->map.bytes : SAMPLE) / width, printed = 0, most = 0, largest = 0;
    size_t *counts = xcalloc(1 << 20, sizeof *counts);
    bool may = n && g->map.bytes % width == 0;
    for (size_t i = 0; i < n && may; i++) {
        uint32_t value = 0;
        memcpy(&value, p + i * width, width);
        for (size_t k = 0; k < width; k++) printed += p[i * width + k] >= ' ' && p[i * width + k] <= '~';
        may = value < 1 << 20;  // 1 << 20: more than any vocabulary
        if (may && ++counts[value] > most) most = counts[value];
        if (value > largest) largest = value;
    }
    free(counts);
    return may && printed * 10 < 6 * n * width &&
           (n < 512 || width == 4 || most > n / 128 || largest < 0xf000);
}

// Returns advice for bytes that no row of file_kind.c recognizes (malloc'd).
static char *unknown_bytes(const struct segment *g) {
    char program[PROGRAM_WORD], *path = shell_word(g->path);
    const char *type = may_be_tokens(g, 4) ? "uint32" : may_be_tokens(g, 2) ? "uint16" : NULL;
    char *text =
        type
            ? xasprintf(
                  "If they are bare tokens, as nanoGPT writes them, they get a header by\n"
                  "    %s data wrap --type %s %s OUT.bin\n(--type says how many bytes each has)",
                  program_word(program), type, path)
            : xstrdup(
                  "Its values are not those of tokens: what is compressed or packed has to be unpacked first");
    free(path);
    return text;
}

// Reads the width and finds the tokens after the header of a mapped llm.c file.
static int read_bin_header(struct segment *g, int *width) {
    int32_t head[3] = {0};
    if (g->map.bytes >= sizeof head) memcpy(head, g->map.base, sizeof head);
    const struct bin_format *f = bin_format_of(head[0]);
    if (!f) {
        char *todo = unknown_bytes(g);
        fail(
            "data %s: magic %d is none of llm.c's (20240520: uint16 tokens, 20240801: uint32). %s; --tokenizer byte reads the "
            "file as text",
            g->path, head[0], todo);
        free(todo);
        return -1;
    }
    if (head[1] != f->version)
        return fail(
            "data %s: version %d, but magic %d has version %d; write the file again with a current llm.c",
            g->path, head[1], head[0], f->version);
    *width = f->width;
    if (!head[2]) return fail("data %s: it has a header and no tokens; write it again", g->path);
    int64_t have = (int64_t)g->map.bytes - BIN_HEADER_BYTES, need = (int64_t)head[2] * *width;
    if (head[2] < 0 || have != need)
        return fail(
            "data %s: its header announces %d tokens (%lld bytes), but %lld "
            "bytes follow it; the file is %s, copy or write it again",
            g->path, head[2], (long long)need, (long long)(have > 0 ? have : 0),
            have < need ? "truncated" : "damaged");
    g->tokens = (const char *)g->map.base + BIN_HEADER_BYTES;
    g->count = head[2];
    return 0;
}

// Megatron-LM, megatron/core/datasets/indexed_dataset.py: X.bin has only tokens; X.idx next to it has their type, and
// the length of each sequence:
//     | "MMIDIDX\0\0" | u64 version 1 | u8 type | u64 sequences | u64 documents |
//     | int32 length of each sequence | int64 its byte offset | int64 first sequence of each document, and the end | ..
#define MEGATRON_HEADER 34
static const struct {
    const char *name;
    int width;  // 0: not supported
} megatron_types[] = {{"?", 0},     {"uint8", 0},   {"int8", 0},    {"int16", 0}, {"int32", 4},
                      {"int64", 0}, {"float64", 0}, {"float32", 0}, {"uint16", 2}};

static int read_index(struct segment *g, const char *path, const struct mapped_file *index, int *width) {
    const unsigned char *p = index->base;
    uint64_t version = 0, sequences = 0, documents = 0;
    if (index->bytes < MEGATRON_HEADER || memcmp(p, "MMIDIDX\0", 9) != 0)
        return fail(
            "data %s: lies next to %s, but is not an index of Megatron's: remove it, or make both again",
            path, g->path);
    memcpy(&version, p + 9, sizeof version);
    memcpy(&sequences, p + 18, sizeof sequences);
    size_t type = p[17];
    if (version != 1)
        return fail("data %s: version %llu of Megatron's index is not known here, 1 is", path,
                    (unsigned long long)version);
    if (type >= sizeof megatron_types / sizeof *megatron_types || !megatron_types[type].width)
        return fail(
            "data %s: its tokens are %s (type %zu of Megatron's index); uint16 and int32 are read: make the tokens again with one of them",
            g->path, megatron_types[type < sizeof megatron_types / sizeof *megatron_types ? type : 0].name,
            type);
    memcpy(&documents, p + 26, sizeof documents);
    uint64_t room = index->bytes - MEGATRON_HEADER;
    if (sequences > room / 12 || documents > (room - 12 * sequences) / sizeof(int64_t))
        return fail(
            "data %s: announces %llu sequences and %llu documents, and is too short for them: it is truncated, copy it again",
            path, (unsigned long long)sequences, (unsigned long long)documents);
    const unsigned char *first_of = p + MEGATRON_HEADER + 12 * sequences;
    g->documents = xcalloc(documents + 1, sizeof *g->documents);
    int64_t tokens = 0;
    for (uint64_t i = 0, at = 0; i < sequences; i++) {
        int32_t length;
        int64_t first;
        for (; at < documents &&
               (memcpy(&first, first_of + at * sizeof first, sizeof first), first == (int64_t)i);
             at++)
            if (!g->document_count || g->documents[g->document_count - 1] < tokens)
                g->documents[g->document_count++] = tokens;
        memcpy(&length, p + MEGATRON_HEADER + i * sizeof length, sizeof length);
        if (length < 0)
            return fail("data %s: sequence %llu has %d tokens: the file is damaged", path,
                        (unsigned long long)i, length);
        tokens += length;
    }
    *width = megatron_types[type].width;
    if (tokens < 1 || tokens != (int64_t)(g->map.bytes / (size_t)*width) || g->map.bytes % (size_t)*width)
        return fail(
            "data %s: has %zu bytes, but its index %s announces %lld tokens of %d: they do not belong together, or the file is truncated",
            g->path, g->map.bytes, path, (long long)tokens, *width);
    g->tokens = g->map.base;
    g->count = tokens;
    return 0;
}

// Returns 0, or 1 if there is no index, or -1 after logging.
static int read_megatron(struct segment *g, int *width) {
    char why[FILE_WHY_MAX], *path = xasprintf("%.*s.idx", (int)(strlen(g->path) - strlen(".bin")), g->path);
    struct mapped_file index;
    int rc = 1;
    if (!access(path, F_OK)) {
        rc = mapped_file_open(&index, "data ", path, why) ? fail("data %s: %s", path, why)
                                                          : read_index(g, path, &index, width);
        mapped_file_close(&index);
    }
    free(path);
    return rc;
}

// ---------------------------------------------------------------- text
#define MOST_BAD 30  // percent of bytes that are no UTF-8, in a sample that still counts as text

// Counts the bytes of a sample that are in no UTF-8 character. The last character may continue after the sample.
static size_t bad_bytes(const unsigned char *p, size_t n) {
    size_t bad = 0;
    for (size_t i = 0, length; i + 3 < n; i += length ? length : 1)
        bad += !(length = (size_t)text_utf8_length(p + i, (int64_t)(n - i)));
    return bad;
}

// Checks that the bytes are text, unless the user chose the tokenizer "byte". known: the file's kind by its name, or NULL.
static int check_text(const struct segment *g, const char *known) {
    const unsigned char *p = g->map.base;
    size_t n = g->map.bytes < SAMPLE ? g->map.bytes : SAMPLE, zeros[2] = {0}, bad = bad_bytes(p, n);
    for (size_t i = 0; i < n; i++) zeros[i & 1] += !p[i];
    char *word = shell_word(g->path), program[PROGRAM_WORD], *todo = unknown_bytes(g);
    bool wide = n >= 16 && (zeros[0] > n / 5) != (zeros[1] > n / 5);
    int rc = 0;
    if (known && (zeros[0] + zeros[1] || bad * 100 > n * MOST_BAD))
        rc = fail("data %s", known);
    else if (wide)
        rc = fail(
            "data %s: every second byte of many is zero: this is text in UTF-16, or tokens of 16 bits. Convert the one by\n"
            "    iconv -f UTF-16%s -t UTF-8 %s > TEXT.txt\nor give the other a header by\n    %s data wrap --type uint16 %s OUT.bin\n"
            "--tokenizer byte takes the bytes as they are",
            g->path, zeros[1] > zeros[0] ? "LE" : "BE", word, program_word(program), word);
    else if (zeros[0] + zeros[1])
        rc = fail(
            "data %s: %zu of its first %zu bytes are zero: this is no text. %s\n--tokenizer byte takes the bytes as they are",
            g->path, zeros[0] + zeros[1], n, todo);
    else if (bad * 100 > n * MOST_BAD)
        rc = fail(
            "data %s: %zu%% of its first %zu bytes are no UTF-8: this is no text, or one in another encoding. Convert it by\n"
            "    iconv -f ENCODING -t UTF-8 %s > TEXT.txt\n%s\n--tokenizer byte takes the bytes as they are",
            g->path, bad * 100 / n, n, word, todo);
    free(word);
    free(todo);
    return rc;
}

// Refuses a file of a known kind that is no text, and warns about text with markup or fields.
static int check_kind(const struct token_stream *s, const struct segment *g, const char *tokenizer) {
    const struct file_kind *k = file_kind_of_bytes(FILE_AS_DATA, g->map.base, g->map.bytes);
    bool by_bytes = k;
    if (!k) k = file_kind_of(FILE_AS_DATA, g->path, g->map.base, g->map.bytes);
    char *text = file_kind_text(FILE_AS_DATA, k, g->path);
    int rc = 0;
    bool is_text = file_kind_is_text(k);
    if (text && by_bytes && !is_text)
        rc = fail("data %s", text);
    else if (!tokenizer && check_text(g, is_text ? NULL : text))
        rc = -1;
    else if (text && is_text && s->count == 1)
        warn("data %s\nAll of it is read as it stands, with its keys and marks", text);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- files
static int add_file(struct token_stream *s, const char *path, const char *tokenizer) {
    struct segment *g = add_segment(s, path);
    char why[FILE_WHY_MAX];
    if (mapped_file_open(&g->map, "data ", g->path, why)) return fail("data %s: %s", g->path, why);
    if (!g->map.base)
        return fail("data %s: the file is empty; put text or tokens into it, or name another", g->path);
    // Decide what the file is: llm.c's tokens if it begins with their magic number, which no text has; otherwise what
    // `tokenizer` says; otherwise tokens if its name ends with .bin.
    int32_t magic = 0;
    if (g->map.bytes >= sizeof magic) memcpy(&magic, g->map.base, sizeof magic);
    bool known = bin_format_of(magic), named = ends_like(g->path, ".bin"),
         byte = tokenizer && !strcmp(tokenizer, "byte");
    bool bin = known || (tokenizer ? !byte : named);
    int width = 1, rc = bin && !known && named ? read_megatron(g, &width) : 1;
    if (rc == 1 && !known) rc = check_kind(s, g, bin ? "bin" : tokenizer) ? -1 : 1;
    if (rc == 1 && bin) rc = read_bin_header(g, &width);
    if (rc < 0) return rc;
    if (!bin) {
        g->tokens = g->map.base;
        g->count = (int64_t)g->map.bytes;
    }
    if (s->width && s->width != width)
        return fail("data %s: tokens of %d bytes, but those of %s have %d; one stream has one tokenizer",
                    path, width, s->segments[0].path, s->width);
    s->width = width;
    s->total += g->count;
    return 0;
}

static int add_demo(struct token_stream *s, const char *tokenizer) {
    if (tokenizer && strcmp(tokenizer, "byte"))
        return fail("data demo: is text; leave out --tokenizer %s", tokenizer);
    struct segment *g = add_segment(s, "demo");
    size_t bytes = 0;
    g->heap = demo_text(DEMO_TEXT_PATH, &bytes, &s->name);
    if (!g->heap) return -1;
    g->tokens = g->heap;
    g->count = (int64_t)bytes;
    s->width = 1;
    s->total = g->count;
    return 0;
}

int stream_open(struct token_stream *s, const char *path, const char *tokenizer, enum data_part part) {
    *s = (struct token_stream){0};
    if (tokenizer && strcmp(tokenizer, "auto") == 0) tokenizer = NULL;
    if (tokenizer && strcmp(tokenizer, "byte") && strcmp(tokenizer, "bin"))
        return fail("data %s: unknown tokenizer \"%s\"; known are \"auto\", \"byte\" and \"bin\"", path,
                    tokenizer);
    if (strcmp(path, "demo") == 0) return add_demo(s, tokenizer);
    struct data_files *f = &s->from;
    if (data_files_find(f, path, tokenizer, part)) return -1;
    for (int i = 0; i < f->count; i++)
        if (add_file(s, f->paths[i], tokenizer)) return -1;
    const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : path;
    const char *first = strrchr(f->paths[0], '/'), *last = strrchr(f->paths[f->count - 1], '/');
    first = first ? first + 1 : f->paths[0];
    last = last ? last + 1 : f->paths[f->count - 1];
    s->name =
        f->several ? xasprintf("%s (%d file%s)", base, f->count, f->count == 1 ? "" : "s") : xstrdup(base);
    s->files = f->count == 1 ? xstrdup(first) : xasprintf("%d files (%s to %s)", f->count, first, last);
    return 0;
}

void stream_close(struct token_stream *s) {
    for (int i = 0; i < s->count; i++) {
        mapped_file_close(&s->segments[i].map);
        free(s->segments[i].heap);
        free(s->segments[i].documents);
        free(s->segments[i].path);
    }
    free(s->segments);
    free(s->name);
    free(s->files);
    data_files_free(&s->from);
    *s = (struct token_stream){0};
}

const struct segment *stream_segment(const struct token_stream *s, int64_t token) {
    int low = 0, high = s->count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (s->segments[mid].first <= token)
            low = mid;
        else
            high = mid - 1;
    }
    return &s->segments[low];
}

void stream_fetch(const struct token_stream *s, int64_t first, int64_t count, int32_t *out) {
    while (count > 0) {
        const struct segment *g = stream_segment(s, first);
        int64_t at = first - g->first, n = g->count - at < count ? g->count - at : count;
        if (s->width == 1)
            for (int64_t i = 0; i < n; i++) out[i] = ((const uint8_t *)g->tokens)[at + i];
        else if (s->width == 2)
            for (int64_t i = 0; i < n; i++) out[i] = ((const uint16_t *)g->tokens)[at + i];
        else
            memcpy(out, (const int32_t *)g->tokens + at, (size_t)n * sizeof *out);
        first += n;
        count -= n;
        out += n;
    }
}
