// Checks a path that is given as a model, and describes what it is instead.

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/hf/file_kind.h"
#include "shared/hf/hf_dir.h"

// more: text after the row's advice.
static int say_kind(const struct file_kind *k, const char *path, const char *more) {
    char *text = file_kind_text(FILE_AS_MODEL, k, path);
    if (text) fail("--model %s%s", text, more);
    free(text);
    return text ? -1 : 0;
}

// How many levels of directories are searched: 5, because `hf download` keeps incomplete files in
// .cache/huggingface/download/.
#define LEVELS       5
#define MOST_ENTRIES 4096

struct entries {
    char **paths;
    int count;
};

static void add_entries(struct entries *e, const char *dir) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, "..") && e->count < MOST_ENTRIES) {
            e->paths = xrealloc(e->paths, sizeof *e->paths * (unsigned long)(e->count + 1));
            e->paths[e->count++] = xasprintf("%s/%s", dir, names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
}

static void free_entries(struct entries *e) {
    for (int i = 0; i < e->count; i++) free(e->paths[i]);
    free(e->paths);
}

// Searches the directory, level by level, for an entry that shows where a model's weights are. Returns its path, or NULL.
// It is a file of a known kind (*kind), or a folder with weights (*kind NULL). Below the first level files count only with
// a_model: the user means this directory as a model.
static const char *find_trace(struct entries *e, const char *dir, bool a_model,
                              const struct file_kind **kind) {
    int which;
    for (int level = 0, from = 0; level < LEVELS; level++) {
        int above = e->count;
        if (!level) add_entries(e, dir);
        for (int i = level ? from : above; i < above; i++) add_entries(e, e->paths[i]);
        from = above;
        if (!level || a_model)
            *kind = file_kind_of_model_files((const char *const *)e->paths + from, e->count - from, &which);
        if (*kind) return e->paths[from + which];
        for (int i = from; i < e->count; i++)
            if (hf_has_weights(e->paths[i])) return e->paths[i];
    }
    return NULL;
}

// Refuses a directory without readable weights: random weights are given only for a config.json itself.
static int refuse_dir(const char *dir, bool config) {
    struct entries e = {0};
    const struct file_kind *kind = NULL;
    const char *trace = find_trace(&e, dir, config || has_file(dir, ".cache/huggingface"), &kind);
    char *more =
        config ? xasprintf("\nTo train from random weights on purpose, give --model %s/config.json", dir)
               : xstrdup("");
    // Read the file's first bytes, because it may be only a pointer of Git LFS to the file of that name.
    if (trace && kind)
        say_kind(file_kind_at(FILE_AS_MODEL, trace), trace, more);
    else if (trace)
        fail("--model %s: no weights here, but in a folder of it: give --model %s%s", dir, trace, more);
    else if (config)
        fail("--model %s: has config.json, and no weights (model.safetensors, or shards of it)%s", dir, more);
    else
        fail(
            "--model %s: no weights here, and no config.json; expected the directory of a Hugging Face model, with both "
            "(config.json, model.safetensors), or a run's weights/",
            dir);
    free_entries(&e);
    free(more);
    return -1;
}

static int look_at_dir(const char *dir) {
    char *run = xasprintf("%s/weights/config.json", dir);
    bool is_run = !access(run, F_OK), config = has_file(dir, "config.json");
    free(run);
    if (hf_is_adapter(dir) && hf_has_weights(dir)) return 0;
    if (hf_has_weights(dir)) {
        // aria2 gives a file its full size at the beginning of a download, and keeps a second file until it is complete.
        struct entries e = {0};
        int rc = 0;
        add_entries(&e, dir);
        for (int i = 0; i < e.count; i++)
            if (ends_with(e.paths[i], ".safetensors.aria2") && !rc)
                rc = say_kind(file_kind_at(FILE_AS_MODEL, e.paths[i]), e.paths[i], "");
        free_entries(&e);
        if (rc || config) return rc;
        return fail("--model %s: has weights, and no config.json, which says what they are: copy it there",
                    dir);
    }
    if (is_run)
        return fail("--model %s is the directory of a run of this program: its model is %s/weights", dir,
                    dir);
    return access(dir, R_OK) ? fail("--model %s: %s", dir, strerror(errno)) : refuse_dir(dir, config);
}

int hf_look(const char *path) {
    struct stat st;
    if (stat(path, &st)) return fail("--model %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        char *dir = without_slashes(path);
        int rc = look_at_dir(dir);
        free(dir);
        return rc;
    }
    return say_kind(file_kind_at(FILE_AS_MODEL, path), path, "");
}
