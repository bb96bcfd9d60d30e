#include "shared/data/data_vocabulary.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/sha256.h"
#include "shared/core/text.h"
#include "shared/data/sidecar.h"
#include "shared/data/tokenizer_files.h"
#include "shared/hf/presets.h"

#define FILES_MAX      4     // of one tokenizer
#define PADDING_MAX    1023  // published models round their vocabulary up to multiples of at most 1024
#define WITHOUT_CHECKS "or delete this file to train without its checks"

// One check of a stream, with what is found out once for all of its files.
struct checking {
    const struct vocabulary *v;
    char *folder;  // of the model's tokenizer, or NULL
    bool bytes;    // the model's vocabulary is the bytes
    struct {
        char name[32], sha256[65];
    } known[FILES_MAX];  // files of the folder
    int known_count;
};

// ---------------------------------------------------------------- what to do instead
// "texts/a.txt" -> "texts/a.bin", "texts/" -> "texts.bin".
static char *token_path(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *base = memrchr(path, '/', n), *dot = memrchr(path, '.', n);
    base = base ? base + 1 : path;
    if (dot > base && path[n] == 0) n = (size_t)(dot - path);
    return xasprintf("%.*s.bin", (int)n, path);
}

// The commands that make tokens of the text at `path` (NULL: of some text) for the model, and the one to
// train with.
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
// The fingerprint of the folder's file, computed once; NULL: there is none, or after fail().
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

// Whether the files that the sidecar names are those of the model's directory. 1: yes; 0: the directory has
// none of them; -1: no, after fail().
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

static int compare_sizes(struct checking *k, const char *side, const cJSON *tokenizer, int64_t size) {
    const struct vocabulary *v = k->v;
    int same = compare_files(k, side, tokenizer);
    if (same < 0) return -1;
    if (size <= v->size && (same || v->size - size <= PADDING_MAX)) return 0;
    return fail(
        "%s: these tokens are of the tokenizer %s with a vocabulary of %lld entries, "
        "but the model %s has %d: make tokens with this model's tokenizer "
        "(experiments/tokenize.py), or take the model that goes with them",
        side, json_text(tokenizer, "name", NULL), (long long)size, v->model, v->size);
}

// An object, which may be empty, with the SHA-256 of each tokenizer file that it names.
static bool files_are_valid(const cJSON *files) {
    const cJSON *file;
    if (!cJSON_IsObject(files)) return false;
    cJSON_ArrayForEach(file, files) {
        const char *sha256 = cJSON_IsObject(file) ? json_text(file, "sha256", NULL) : NULL;
        if (tokenizer_file_known(file->string) && (!sha256 || strlen(sha256) != 64)) return false;
    }
    return true;
}

static int check_fields(struct checking *k, const struct segment *g, const char *side, const cJSON *root) {
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
    bool of_bytes = !strcmp(kind, "byte"), forced = k->v->tokenizer && !strcmp(k->v->tokenizer, "byte");
    if (of_bytes) return k->bytes || forced ? 0 : refuse_bytes(k, g->path, "its tokens are bytes", NULL);
    if (forced)
        return fail("data %s: its tokens are of the tokenizer %s (%s), not bytes: leave out --tokenizer byte",
                    g->path, name, side);
    return compare_sizes(k, side, tokenizer, size);
}

static int check_sidecar(struct checking *k, const struct segment *g) {
    char *side = sidecar_path(g->path);
    int rc = 0;
    if (!access(side, F_OK)) {
        cJSON *root = relaxed_json_load(side);
        rc = root ? check_fields(k, g, side, root) : -1;
        cJSON_Delete(root);
    }
    free(side);
    return rc;
}

int vocabulary_check(const struct vocabulary *v, const char *path, const struct token_stream *s) {
    struct checking k = {.v = v, .folder = tokenizer_folder(v->model)};
    bool text = s->width == 1, forced = v->tokenizer && !strcmp(v->tokenizer, "byte");
    int rc = 0;
    k.bytes = !(text && forced) && tokenizer_is_bytes(k.folder, v->size);
    if (text && !k.bytes && !forced)
        rc = refuse_bytes(&k, path, "is text, which is read as bytes", strcmp(path, "demo") ? path : NULL);
    for (int i = 0; !text && i < s->count && !rc; i++) rc = check_sidecar(&k, &s->segments[i]);
    free(k.folder);
    return rc;
}
