#include "shared/infer/generate_input.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/data/vocabulary.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"

// ---------------------------------------------------------------- the weights
static int no_weights(const char *given) {
    if (access(given, X_OK)) return fail("--model %s: %s", given, strerror(errno));
    if (has_file(given, "metrics.jsonl") || has_file(given, "summary.json") || has_file(given, "ranks"))
        return fail(
            "--model %s: this run has no weights/: it was trained with --no-weights, or did not come to "
            "its end; train it again, without that flag",
            given);
    return hf_look(given);
}

// Reads the run's sequence length and tokenizer. It is no error if the run directory has no config.json: the weights may
// have been copied from another directory.
static int read_run(struct generate_source *s, const char *run) {
    if (!has_file(run, "config.json")) return 0;
    char *path = xasprintf("%s/config.json", run);
    cJSON *root = relaxed_json_load(path);
    free(path);
    if (!root) return -1;
    const cJSON *data = cJSON_GetObjectItem(root, "data"), *seq = cJSON_GetObjectItem(data, "seq_len");
    const char *tokenizer = cJSON_GetStringValue(cJSON_GetObjectItem(data, "tokenizer"));
    if (cJSON_IsNumber(seq) && seq->valuedouble > 0) s->train_seq = (int64_t)seq->valuedouble;
    s->trained_on_bytes = tokenizer && !strcmp(tokenizer, "byte");
    cJSON_Delete(root);
    return 0;
}

static int find_weights(struct generate_source *s, const char *given) {
    struct stat st;
    if (stat(given, &st)) {
        struct model_spec spec;
        if (model_spec_load(given, &spec)) return -1;
        return fail("--model %s: a preset has no weights: train it first, and name the run's directory",
                    given);
    }
    if (!S_ISDIR(st.st_mode))
        return hf_look(given) ? -1 : fail("--model %s: a file; expected the directory it is in", given);
    if (hf_has_weights(given)) {
        s->dir = xstrdup(given);
        return 0;
    }
    char *weights = xasprintf("%s/weights", given);
    if (!stat(weights, &st) && S_ISDIR(st.st_mode)) {
        s->dir = weights;
        return read_run(s, given);
    }
    free(weights);
    return no_weights(given);
}

static int take_end(struct generate_source *s, const char *path, const cJSON *id) {
    if (!cJSON_IsNumber(id) || id->valuedouble != id->valueint)
        return fail("%s: eos_token_id: expected a token id, or a list of them", path);
    s->end = xrealloc(s->end, (unsigned long)(s->end_count + 1) * sizeof *s->end);
    s->end[s->end_count++] = id->valueint;
    return 0;
}

static int read_end(struct generate_source *s, const char *name) {
    if (!has_file(s->base, name)) return 0;
    char *path = xasprintf("%s/%s", s->base, name);
    cJSON *root = relaxed_json_load(path);
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id"), *id;
    int rc = root ? 0 : -1;
    if (cJSON_IsArray(ids)) {
        cJSON_ArrayForEach(id, ids) if (!rc) rc = take_end(s, path, id);
    } else if (ids && !cJSON_IsNull(ids)) {
        rc = take_end(s, path, ids);
    }
    cJSON_Delete(root);
    free(path);
    return rc;
}

int source_open(struct generate_source *s, const char *given) {
    *s = (struct generate_source){0};
    if (find_weights(s, given)) return -1;
    s->base = hf_is_adapter(s->dir) ? hf_adapter_base(s->dir) : xstrdup(s->dir);
    if (!s->base || !(s->tokenizer = tokenizer_folder(s->dir)) || read_end(s, "generation_config.json"))
        return -1;
    return s->end_count ? 0 : read_end(s, "config.json");
}

void source_end_by(struct generate_source *s, int32_t token) {
    if (s->end_count || token < 0) return;
    s->end = xrealloc(s->end, sizeof *s->end);
    s->end[s->end_count++] = token;
}

void source_close(struct generate_source *s) {
    free(s->dir);
    free(s->base);
    free(s->tokenizer);
    free(s->end);
    *s = (struct generate_source){0};
}

// ---------------------------------------------------------------- the prompt
#define SEPARATORS ", \t\r\n"
#define BYTES_MAX  ((size_t)16 << 20)  // more than any model can use at once

// Returns a flag's value, or all of standard input, NUL-terminated. *bytes receives the length without that NUL.
static char *value_of(const char *flag, const char *value, size_t *bytes) {
    if (strcmp(value, "-") != 0) {
        *bytes = strlen(value);
        return xstrdup(value);
    }
    size_t room = 4096, got;
    char *text = xcalloc(room + 1, 1);
    *bytes = 0;
    while (*bytes <= BYTES_MAX && (got = fread(text + *bytes, 1, room - *bytes, stdin)) > 0) {
        *bytes += got;
        if (*bytes == room) text = xrealloc(text, (room *= 2) + 1);
    }
    text[*bytes] = 0;
    if (!ferror(stdin) && *bytes <= BYTES_MAX) return text;
    if (ferror(stdin))
        fail("%s -: standard input could not be read: %s", flag, strerror(errno));
    else
        fail("%s -: standard input has more than %zu bytes: give only its end, for example with tail -c 4096", flag,
             BYTES_MAX);
    free(text);
    return NULL;
}

static int take_ids(struct prompt *p, const char *text, size_t bytes, int32_t vocab) {
    const char *end = text + bytes;
    for (const char *at = text; (at += strspn(at, SEPARATORS)) < end;) {
        char *after;
        errno = 0;
        long id = strtol(at, &after, 10);
        size_t word = strcspn(at, SEPARATORS);
        if (errno || after == at || after != at + word)
            return fail("--prompt-ids: \"%.*s\" is not a token id; expected whole numbers, as in 15496,11",
                        word < 32 ? (int)word : 32, at);
        if (id < 0 || id >= vocab)
            return fail("--prompt-ids: %ld: the model's tokens are 0 to %d", id, vocab - 1);
        p->ids[p->count++] = (int32_t)id;
        at = after;
    }
    return 0;
}

int prompt_read(struct prompt *p, const char *text, const char *ids, int32_t vocab) {
    const char *flag = text ? "--prompt" : "--prompt-ids";
    size_t bytes;
    int rc = 0;
    *p = (struct prompt){.bytes = text != NULL};
    char *value = value_of(flag, text ? text : ids, &bytes);
    if (!value) return -1;
    p->ids = xcalloc(bytes + 1, sizeof *p->ids);  // no more ids than characters
    for (size_t i = 0; text && i < bytes; i++) p->ids[p->count++] = (unsigned char)value[i];
    if (!text) rc = take_ids(p, value, bytes, vocab);
    free(value);
    if (!rc && p->count == 0) rc = fail("%s: is empty; a prompt needs at least one token", flag);
    return rc;
}

void prompt_free(struct prompt *p) {
    free(p->ids);
    *p = (struct prompt){0};
}
