#include "shared/data/vocabulary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"

#define FILES_MAX      4  // of one tokenizer
#define WITHOUT_CHECKS "or delete this file to train without its checks"

// ---------------------------------------------------------------- the sidecar
#define READ_MAX ((size_t)1 << 24)

char *sidecar_path(const char *bin_path) { return xasprintf("%s.json", bin_path); }

// Returns a whole number from `low` to 2^53, or -1 if it is missing or something else.
static int64_t sidecar_count(const cJSON *object, const char *key, int64_t low) {
    double x = json_number(object, key);
    bool whole = x >= (double)low && x <= 9007199254740992.0 && x == (double)(int64_t)x;
    return whole ? (int64_t)x : -1;
}

struct sidecar_summary sidecar_read(const char *bin_path) {
    char *path = sidecar_path(bin_path);
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, READ_MAX, &n, why);
    cJSON *root = text && n ? json_parse(text, n) : NULL;
    const cJSON *t = json_item(root, "tokenizer");
    const char *name = json_text(t, "name", NULL), *kind = json_text(t, "kind", NULL);
    int64_t vocab = sidecar_count(root, "vocab_size", 1);
    int64_t start = sidecar_count(json_item(root, "document_start"), "id", 0);
    struct sidecar_summary s = {.vocab = vocab <= INT32_MAX ? (int32_t)vocab : -1,
                                .bytes = kind && !strcmp(kind, "byte"),
                                .document_start = start <= INT32_MAX ? (int32_t)start : -1};
    if (name && kind) s.tokenizer = strcmp(name, kind) ? xasprintf("%s (%s)", name, kind) : xstrdup(name);
    cJSON_Delete(root);
    free(text);
    free(path);
    return s;
}

int sidecar_write_bytes(const struct byte_sidecar *b) {
    const char *slash = strrchr(b->source, '/');
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "format", "starring tokens");
    cJSON_AddStringToObject(root, "program", "starring data tokenize " STARRING_VERSION);
    cJSON *tokenizer = cJSON_AddObjectToObject(root, "tokenizer");
    cJSON_AddStringToObject(tokenizer, "name", "byte");
    cJSON_AddStringToObject(tokenizer, "kind", "byte");
    cJSON_AddObjectToObject(tokenizer, "files");
    cJSON_AddNumberToObject(root, "vocab_size", 256);
    cJSON_AddNumberToObject(root, "tokens", (double)b->bytes);
    cJSON_AddNumberToObject(root, "documents", 1);
    cJSON_AddNullToObject(root, "document_start");
    cJSON *source = cJSON_CreateObject();
    cJSON_AddStringToObject(source, "name", slash ? slash + 1 : b->source);
    cJSON_AddNumberToObject(source, "bytes", (double)b->bytes);
    cJSON_AddStringToObject(source, "sha256", b->sha256);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(root, "sources"), source);
    char *path = sidecar_path(b->bin_path);
    int rc = json_file_write(path, root);
    free(path);
    cJSON_Delete(root);
    return rc;
}

// ---------------------------------------------------------------- the tokenizer's files
// The first TEXT_TO_TOKENS define how text becomes tokens; the others are about special tokens and usage.
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

// The file of a byte vocabulary has a few kB; a larger file is not read.
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
    bool of_base = S_ISDIR(st.st_mode) && hf_is_adapter(model) && !tokenizer_present(model);
    if (S_ISDIR(st.st_mode)) return of_base ? hf_adapter_base(model) : xstrdup(model);
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
// GPT-2's alphabet (encoder.py, bytes_to_unicode): printable bytes represent themselves, the others are U+0100 and
// up, in order.
static bool prints(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// Returns the byte that an entry of the vocabulary represents, or -1.
static int byte_of(const char *entry) {
    unsigned value;
    if (strlen(entry) == 6 && sscanf(entry, "<0x%2X>", &value) == 1 && entry[5] == '>') return (int)value;
    int length, c = (int)text_utf8_code(entry, &length);
    if (!c || entry[length]) return -1;  // no single character
    if (c < 256 && prints(c)) return c;
    for (int byte = 0, shifted = 256; byte < 256; byte++)
        if (!prints(byte) && c == shifted++) return byte;
    return -1;
}

// Returns whether the entries below 256 of {"model": {"vocab": {"!": 33, ..}, "merges": []}} are the bytes in order.
static bool entries_are_bytes(const cJSON *root) {
    const cJSON *model = json_item(root, "model"), *entry;
    const cJSON *vocab = json_item(model, "vocab");
    if (cJSON_GetArraySize(json_item(model, "merges")) > 0) return false;
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

bool tokenizer_is_bytes(const char *folder, int32_t vocab) {
    if (vocab < 256) return false;
    if (!tokenizer_present(folder)) return vocab <= BYTES_VOCAB_MAX;
    char why[FILE_WHY_MAX], *path = xasprintf("%s/tokenizer.json", folder);
    size_t n = 0;
    char *text = file_read_whole(path, BYTES_FILE_MAX, &n, why);
    cJSON *root = text ? json_parse(text, n) : NULL;
    bool yes = root && entries_are_bytes(root);
    cJSON_Delete(root);
    free(text);
    free(path);
    return yes;
}

// ---------------------------------------------------------------- copying
char *tokenizer_to_keep(const char *model, int32_t vocab, const char *tokenizer) {
    char *folder = tokenizer_folder(model);
    bool forced = tokenizer && !strcmp(tokenizer, "byte");
    if (!folder || !forced || tokenizer_is_bytes(folder, vocab)) return folder;
    free(folder);
    return NULL;
}

static int copy_file(const char *from, const char *to) {
    char refused[FILE_WHY_MAX], piece[1 << 15];
    struct new_file out;
    FILE *in = file_open_stream(from, refused);
    if (!in) return fail("%s: the tokenizer's file could not be copied to %s: %s", from, to, refused);
    bool copied = new_file_begin(&out, to, false);
    for (size_t n; copied && (n = fread(piece, 1, sizeof piece, in)) > 0;)
        copied = fwrite(piece, 1, n, out.file) == n;
    int rc = new_file_end(&out, copied && !ferror(in)), why = errno;
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

// ---------------------------------------------------------------- checking a stream
// One check of a stream, with what is computed once for all of its files.
struct checking {
    const struct vocabulary *v;
    char *folder;  // of the model's tokenizer, or NULL
    bool bytes;    // the model's vocabulary is the bytes
    bool forced;   // data.tokenizer: "byte"
    struct {
        char name[32], sha256[SHA256_HEX];
    } known[FILES_MAX];  // files of the folder
    int known_count;
};

// ---------------------------------------------------------------- what to do instead
// Returns the name of a text's token file: "texts/a.txt" -> "texts/a.bin", "texts/" -> "texts.bin".
static char *token_path(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *base = memrchr(path, '/', n), *dot = memrchr(path, '.', n);
    base = base ? base + 1 : path;
    if (dot > base && path[n] == 0) n = (size_t)(dot - path);
    return xasprintf("%.*s.bin", (int)n, path);
}

// Returns the commands that make the model's tokens from the text at `path` (NULL: TEXT.txt stands for it), and the
// command to train with them.
static char *advice(const struct checking *k, const char *path) {
    const char *repository = model_preset_repository(k->v->model), *from = path ? path : "TEXT.txt";
    const char *folder = repository ? strchr(repository, '/') + 1 : k->folder;
    bool named = repository || tokenizer_present(folder);
    char *to = token_path(from),
         *words[] = {shell_word(named ? folder : "DIR"), shell_word(from), shell_word(to)};
    char *fetch = repository
                      ? xasprintf("    hf download %s tokenizer.json tokenizer_config.json --local-dir %s\n",
                                  repository, folder)
                      : xstrdup("");
    char *text = xasprintf(
        "make tokens of %s%s:\n%s    experiments/tokenize.py --tokenizer %s %s --out %s\n"
        "and train with --data %s; --tokenizer byte trains on the bytes all the same",
        path ? "it" : "a text", named ? "" : ", DIR being a directory with this model's tokenizer.json",
        fetch, words[0], words[1], words[2], words[2]);
    for (int i = 0; i < 3; i++) free(words[i]);
    free(fetch);
    free(to);
    return text;
}

static int refuse_bytes(const struct checking *k, const char *data, const char *what, const char *text) {
    char *help = advice(k, text);
    fail("data %s: %s, but the vocabulary of the model %s (%d entries) is not bytes: %s", data, what,
         k->v->model, k->v->size, help);
    free(help);
    return -1;
}

// ---------------------------------------------------------------- sidecars
int sha256_file(const char *path, char hex[SHA256_HEX]) {
    char why[FILE_WHY_MAX], piece[1 << 15];
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state s;
    FILE *f = file_open_stream(path, why);
    if (!f) return -1;
    crypto_hash_sha256_init(&s);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        crypto_hash_sha256_update(&s, (const unsigned char *)piece, n);
    int rc = ferror(f) ? -1 : 0;
    fclose(f);
    crypto_hash_sha256_final(&s, digest);
    sodium_bin2hex(hex, SHA256_HEX, digest, sizeof digest);
    return rc;
}

// Returns the SHA-256 of the folder's file, computed once. Returns NULL if there is none; *rc is -1 after fail().
static const char *known_sha256(struct checking *k, const char *name, int *rc) {
    for (int i = 0; i < k->known_count; i++)
        if (!strcmp(k->known[i].name, name)) return k->known[i].sha256;
    char *path = k->folder && k->known_count < FILES_MAX ? xasprintf("%s/%s", k->folder, name) : NULL;
    const char *found = NULL;
    if (path && !access(path, F_OK)) {
        int i = k->known_count++;
        snprintf(k->known[i].name, sizeof k->known[i].name, "%s", name);
        found = k->known[i].sha256;
        if (sha256_file(path, k->known[i].sha256)) *rc = fail("%s: %s", path, strerror(errno));
    }
    free(path);
    return found;
}

// Compares the files that the sidecar names with those of the model's directory. Returns 1 if they are equal, 0 if
// the directory has none of them, -1 after fail() if they differ.
static int compare_files(struct checking *k, const char *side, const cJSON *tokenizer) {
    const cJSON *file;
    int same = 0, rc = 0;
    cJSON_ArrayForEach(file, json_item(tokenizer, "files")) {
        const char *theirs = json_text(file, "sha256", NULL);
        // Only names of tokenizer files count: a path could lead out of the directory.
        if (!theirs || !tokenizer_file_known(file->string)) continue;
        const char *ours = known_sha256(k, file->string, &rc);
        if (rc) return -1;
        if (!ours) continue;
        if (strcmp(ours, theirs) != 0)
            return fail(
                "%s: these tokens are of the tokenizer %s, whose %s has SHA-256 %.16s.., but that of the "
                "model's directory %s has %.16s..: make tokens with --tokenizer %s; if you know that "
                "both give the same tokens, delete the sidecar to train without this check",
                side, json_text(tokenizer, "name", NULL), file->string, theirs, k->folder, ours, k->folder);
        same = 1;
    }
    return same;
}

// Returns whether it is an object with the SHA-256 of each tokenizer file that it names. It may name none.
static bool files_are_valid(const cJSON *files) {
    const cJSON *file;
    if (!cJSON_IsObject(files)) return false;
    cJSON_ArrayForEach(file, files) {
        const char *sha256 = cJSON_IsObject(file) ? json_text(file, "sha256", NULL) : NULL;
        if (tokenizer_file_known(file->string) && (!sha256 || strlen(sha256) != 64)) return false;
    }
    return true;
}

static int check_sidecar(struct checking *k, const struct segment *g, const char *side, const cJSON *root) {
    const struct vocabulary *v = k->v;
    const cJSON *tokenizer = json_item(root, "tokenizer");
    int64_t size = sidecar_count(root, "vocab_size", 1), tokens = sidecar_count(root, "tokens", 1);
    const char *name = json_text(tokenizer, "name", NULL), *kind = json_text(tokenizer, "kind", NULL);
    const char *missing = size < 0     ? "vocab_size"
                          : tokens < 0 ? "tokens"
                          : !name      ? "tokenizer.name"
                          : !kind      ? "tokenizer.kind"
                          : strcmp(kind, "byte") != 0 && !files_are_valid(json_item(tokenizer, "files"))
                              ? "tokenizer.files"
                              : NULL;
    if (missing)
        return fail(
            "%s: the token file's sidecar has no valid \"%s\": make the tokens again, " WITHOUT_CHECKS, side,
            missing);
    if (tokens != g->count)
        return fail(
            "%s: speaks of %lld tokens, but %s has %lld: it is "
            "another file's; make the tokens again, " WITHOUT_CHECKS,
            side, (long long)tokens, g->path, (long long)g->count);
    if (!strcmp(kind, "byte"))
        return k->bytes || k->forced ? 0 : refuse_bytes(k, g->path, "its tokens are bytes", NULL);
    if (k->forced)
        return fail("data %s: its tokens are of the tokenizer %s (%s), not bytes: leave out --tokenizer byte",
                    g->path, name, side);
    int same = compare_files(k, side, tokenizer);
    if (same < 0) return -1;
    if (size <= v->size && (same || v->size - size <= VOCAB_PADDING_MAX)) return 0;
    return fail(
        "%s: these tokens are of the tokenizer %s with a vocabulary of %lld entries, "
        "but the model %s has %d: make tokens with this model's tokenizer "
        "(experiments/tokenize.py), or take the model that goes with them",
        side, name, (long long)size, v->model, v->size);
}

int vocabulary_check(const struct vocabulary *v, const char *path, const struct token_stream *s) {
    struct checking k = {.v = v,
                         .folder = tokenizer_folder(v->model),
                         .forced = v->tokenizer && !strcmp(v->tokenizer, "byte")};
    bool text = s->width == 1;
    int rc = 0;
    k.bytes = !(text && k.forced) && tokenizer_is_bytes(k.folder, v->size);
    if (text && !k.bytes && !k.forced)
        rc = refuse_bytes(&k, path, "is text, which is read as bytes", strcmp(path, "demo") ? path : NULL);
    for (int i = 0; !text && i < s->count && !rc; i++) {
        char *side = sidecar_path(s->segments[i].path);
        bool there = !access(side, F_OK);
        cJSON *root = there ? relaxed_json_load(side) : NULL;
        if (there) rc = root ? check_sidecar(&k, &s->segments[i], side, root) : -1;
        cJSON_Delete(root);
        free(side);
    }
    free(k.folder);
    return rc;
}
