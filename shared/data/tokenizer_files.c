#include "shared/data/tokenizer_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/files/regular_file.h"

// The first TEXT_TO_TOKENS say how text becomes tokens; the others are about special tokens and use.
#define TEXT_TO_TOKENS 7
static const char *const names[] = {"tokenizer.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "spiece.model",
                                    "vocab.txt",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "chat_template.json",
                                    "chat_template.jinja",
                                    "generation_config.json"};
#define NAMES (sizeof names / sizeof *names)

// A byte vocabulary's file has a few kB; a larger file is none and is not read.
#define BYTES_FILE_MAX  (1 << 20)
#define BYTES_VOCAB_MAX 512

bool tokenizer_file_known(const char *name) {
    for (size_t i = 0; i < NAMES; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

char *tokenizer_folder(const char *model) {
    struct stat st;
    if (stat(model, &st) != 0) return NULL;
    if (S_ISDIR(st.st_mode)) return xstrdup(model);
    const char *slash = strrchr(model, '/');
    if (strcmp(slash ? slash + 1 : model, "config.json") != 0) return NULL;
    return slash ? xasprintf("%.*s", slash == model ? 1 : (int)(slash - model), model) : xstrdup(".");
}

bool tokenizer_present(const char *folder) {
    for (size_t i = 0; folder && i < TEXT_TO_TOKENS; i++)
        if (has_file(folder, names[i])) return true;
    return false;
}

// ---------------------------------------------------------------- byte vocabularies
// The one code point of a text of one character, below U+0800; -1: something else.
static int code_point(const char *s) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] && u[0] < 0x80 && !u[1]) return u[0];
    if ((u[0] & 0xe0) == 0xc0 && (u[1] & 0xc0) == 0x80 && !u[2]) return (u[0] & 0x1f) << 6 | (u[1] & 0x3f);
    return -1;
}

// GPT-2's alphabet (encoder.py, bytes_to_unicode): bytes that print stand for themselves, the others are
// U+0100 and up, in order.
static bool prints(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// The byte that an entry of the vocabulary stands for, or -1.
static int byte_of(const char *entry) {
    unsigned value;
    if (strlen(entry) == 6 && sscanf(entry, "<0x%2X>", &value) == 1 && entry[5] == '>') return (int)value;
    int c = code_point(entry);
    if (c >= 0 && c < 256 && prints(c)) return c;
    for (int byte = 0, shifted = 256; byte < 256; byte++)
        if (!prints(byte) && c == shifted++) return byte;
    return -1;
}

// {"model": {"vocab": {"!": 33, ..}, "merges": []}}: are its entries below 256 the bytes in order?
static bool entries_are_bytes(const cJSON *root) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model"), *entry;
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    if (cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(model, "merges")) > 0) return false;
    bool seen[256] = {false};
    int bytes = 0;
    cJSON_ArrayForEach(entry, vocab) {
        int byte = entry->string ? byte_of(entry->string) : -1;
        double id = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        if (byte < 0 && id >= 256) continue;
        if (byte < 0 || id != byte || seen[byte]) return false;
        seen[byte] = true;
        bytes++;
    }
    return bytes == 256;
}

static bool file_is_bytes(const char *path) {
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, BYTES_FILE_MAX, &n, why);
    cJSON *root = text ? json_parse(text, n) : NULL;
    bool yes = root && entries_are_bytes(root);
    cJSON_Delete(root);
    free(text);
    return yes;
}

bool tokenizer_is_bytes(const char *folder, int32_t vocab) {
    if (vocab < 256) return false;
    if (!tokenizer_present(folder)) return vocab <= BYTES_VOCAB_MAX;
    char *path = xasprintf("%s/tokenizer.json", folder);
    bool yes = file_is_bytes(path);
    free(path);
    return yes;
}

// ---------------------------------------------------------------- copying
char *tokenizer_to_keep(const char *model, int32_t vocab, const char *tokenizer) {
    char *folder = tokenizer_folder(model);
    bool forced = folder && tokenizer && !strcmp(tokenizer, "byte") && !tokenizer_is_bytes(folder, vocab);
    if (forced) {
        free(folder);
        return NULL;
    }
    return folder;
}

static int copy_stream(FILE *in, FILE *out) {
    char piece[1 << 15];
    for (size_t n; (n = fread(piece, 1, sizeof piece, in)) > 0;)
        if (fwrite(piece, 1, n, out) != n) return -1;
    return ferror(in) ? -1 : 0;
}

static int copy_file(const char *from, const char *to) {
    char refused[FILE_WHY_MAX];
    struct new_file out;
    FILE *in = file_open_stream(from, refused);
    if (!in) return fail("%s: the tokenizer's file could not be copied to %s: %s", from, to, refused);
    bool copied = new_file_begin(&out, to, false) && !copy_stream(in, out.file);
    int rc = new_file_end(&out, copied), why = errno;
    fclose(in);
    return rc ? fail("%s: the tokenizer's file could not be copied to %s: %s", from, to, strerror(why)) : 0;
}

int tokenizer_copy(const char *from, const char *to) {
    int rc = 0;
    for (size_t i = 0; i < NAMES; i++) {
        if (!has_file(from, names[i])) continue;
        char *source = xasprintf("%s/%s", from, names[i]), *target = xasprintf("%s/%s", to, names[i]);
        if (!same_file(source, target) && copy_file(source, target)) rc = -1;
        free(source);
        free(target);
    }
    return rc;
}
