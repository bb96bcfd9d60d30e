#include "shared/generate/source.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/hf_look.h"
#include "shared/hf/presets.h"

static int no_weights(const char *given) {
    if (access(given, X_OK)) return fail("--model %s: %s", given, strerror(errno));
    if (has_file(given, "metrics.jsonl") || has_file(given, "summary.json") || has_file(given, "ranks"))
        return fail(
            "--model %s: this run has no weights/: it was trained with --no-weights, or did not come to "
            "its end; train it again, without that flag",
            given);
    return hf_look(given);
}

// Reads the run's sequence length and tokenizer. A run directory without a config.json is no error: its weights were
// copied.
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
    if (!has_file(s->dir, name)) return 0;
    char *path = xasprintf("%s/%s", s->dir, name);
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
    if (find_weights(s, given) || read_end(s, "generation_config.json")) return -1;
    return s->end_count ? 0 : read_end(s, "config.json");
}

void source_end_by(struct generate_source *s, int32_t token) {
    if (s->end_count || token < 0) return;
    s->end = xrealloc(s->end, sizeof *s->end);
    s->end[s->end_count++] = token;
}

void source_close(struct generate_source *s) {
    free(s->dir);
    free(s->end);
    *s = (struct generate_source){0};
}
