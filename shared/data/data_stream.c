#include "shared/data/data_stream.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/core/text.h"
#include "shared/data/data_demo.h"

#define EVAL_MAGIC 20240522  // llm.c, dev/data/data_common.py: write_evalfile

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

// Finds width and tokens behind the header of a mapped llm.c file.
static int read_bin_header(struct segment *g, int *width) {
    int32_t head[3] = {0};
    if (g->map.bytes >= sizeof head) memcpy(head, g->map.base, sizeof head);
    const struct bin_format *f = bin_format_of(head[0]);
    if (head[0] == EVAL_MAGIC)
        return fail(
            "data %s: magic %d is llm.c's file of multiple-choice questions, which are no text to train on",
            g->path, head[0]);
    if (!f) {
        char program[PROGRAM_WORD], *path = shell_word(g->path);
        fail(
            "data %s: magic %d is none of llm.c's (20240520: uint16 tokens, 20240801: "
            "uint32). Bare tokens, as nanoGPT writes them, get a header by\n"
            "    %s data wrap --type uint16 %s OUT.bin\n"
            "(uint32 for tokens of 4 bytes); --tokenizer byte reads the file as text",
            g->path, head[0], program_word(program), path);
        free(path);
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

static int add_file(struct token_stream *s, const char *path, const char *tokenizer) {
    struct segment *g = add_segment(s, path);
    char why[FILE_WHY_MAX];
    if (mapped_file_open(&g->map, "data ", g->path, why)) return fail("data %s: %s", g->path, why);
    if (!g->map.base)
        return fail("data %s: the file is empty; put text or tokens into it, or name another", g->path);
    // An llm.c file is one by its first bytes, which no text has, else by `tokenizer`, else by its name.
    int32_t magic = 0;
    if (g->map.bytes >= sizeof magic) memcpy(&magic, g->map.base, sizeof magic);
    bool bin = bin_format_of(magic) || (tokenizer ? !strcmp(tokenizer, "bin") : ends_with(g->path, ".bin"));
    int width = 1;
    if (bin) {
        if (read_bin_header(g, &width)) return -1;
    } else {
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

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

// The ending of the directory's files that are read, ".txt" or ".bin"; NULL after fail().
static const char *choose_kind(const char *path, struct dirent **names, int n, const char *tokenizer) {
    int txt = 0, bin = 0;
    for (int i = 0; i < n; i++) {
        txt += ends_with(names[i]->d_name, ".txt");
        bin += ends_with(names[i]->d_name, ".bin");
    }
    if (tokenizer && strcmp(tokenizer, "bin") == 0) txt = 0;
    if (tokenizer && strcmp(tokenizer, "byte") == 0 && txt) bin = 0;
    if (txt && bin)
        fail("data %s: has .txt and .bin files; choose with --tokenizer byte or --tokenizer bin", path);
    else if (!txt && !bin)
        fail("data %s: the directory has no %s file", path,
             tokenizer && strcmp(tokenizer, "bin") == 0 ? ".bin" : ".txt or .bin");
    else
        return txt ? ".txt" : ".bin";
    return NULL;
}

static int add_directory(struct token_stream *s, const char *path, const char *tokenizer) {
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, by_name);
    if (n < 0) return fail("data %s: %s", path, strerror(errno));
    const char *kind = choose_kind(path, names, n, tokenizer);
    int rc = kind ? 0 : -1;
    for (int i = 0; i < n; i++) {
        if (rc == 0 && ends_with(names[i]->d_name, kind)) {
            char *file = xasprintf("%s/%s", path, names[i]->d_name);
            rc = add_file(s, file, tokenizer);
            free(file);
        }
        free(names[i]);
    }
    free(names);
    return rc;
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

int stream_open(struct token_stream *s, const char *path, const char *tokenizer) {
    *s = (struct token_stream){0};
    if (tokenizer && strcmp(tokenizer, "auto") == 0) tokenizer = NULL;
    if (tokenizer && strcmp(tokenizer, "byte") && strcmp(tokenizer, "bin"))
        return fail("data %s: unknown tokenizer \"%s\"; known are \"auto\", \"byte\" and \"bin\"", path,
                    tokenizer);
    if (strcmp(path, "demo") == 0) return add_demo(s, tokenizer);
    struct stat st;
    if (stat(path, &st) != 0)
        return fail("data %s: %s; name a text file, a .bin of llm.c, a directory, or demo", path,
                    strerror(errno));
    const char *base = strrchr(path, '/');
    base = base && base[1] ? base + 1 : path;
    if (!S_ISDIR(st.st_mode)) {
        s->name = xstrdup(base);
        return add_file(s, path, tokenizer);
    }
    if (add_directory(s, path, tokenizer)) return -1;
    s->name = xasprintf("%s (%d file%s)", base, s->count, s->count == 1 ? "" : "s");
    return 0;
}

void stream_close(struct token_stream *s) {
    for (int i = 0; i < s->count; i++) {
        mapped_file_close(&s->segments[i].map);
        free(s->segments[i].heap);
        free(s->segments[i].path);
    }
    free(s->segments);
    free(s->name);
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
