#include "shared/hf/hf_look.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file_kind.h"
#include "shared/core/path.h"
#include "shared/hf/hf_dir.h"

// more: behind what the row says.
static int say_kind(const struct file_kind *k, const char *path, const char *more) {
    char *text = file_kind_text(FILE_AS_MODEL, k, path);
    if (text) fail("--model %s%s", text, more);
    free(text);
    return text ? -1 : 0;
}

// A directory's weights are judged by the names in it.
static int look_at_dir(const char *dir) {
    char *run = xasprintf("%s/weights/config.json", dir);
    bool is_run = !access(run, F_OK), config = has_file(dir, "config.json");
    free(run);
    if (hf_has_weights(dir)) {
        if (config) return 0;
        return fail("--model %s: has weights, and no config.json, which says what they are: copy it there",
                    dir);
    }
    if (is_run)
        return fail("--model %s is the directory of a run of this program: its model is %s/weights", dir,
                    dir);
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort), which, rc = 0;
    if (n < 0) return fail("--model %s: %s", dir, strerror(errno));
    const char **list = xcalloc((unsigned long)n + 1, sizeof *list);
    for (int i = 0; i < n; i++) list[i] = names[i]->d_name;
    const struct file_kind *k = file_kind_of_model_files(list, n, &which);
    char *path = k ? xasprintf("%s/%s", dir, list[which]) : NULL;
    char *more =
        config ? xasprintf("\nTo train from random weights on purpose, give --model %s/config.json", dir)
               : xstrdup("");
    // It may be a pointer to what it is called.
    if (k) rc = say_kind(file_kind_at(FILE_AS_MODEL, path), path, more);
    for (int i = 0; i < n && !k && !config && !rc; i++)
        if (!strncmp(list[i], "checkpoint-", strlen("checkpoint-")))
            rc = fail("--model %s: has no config.json, but checkpoints: give one of them, such as %s/%s", dir,
                      dir, list[i]);
    if (!k && !config && !rc)
        rc = fail(
            "--model %s: no weights here, and no config.json; expected the directory of a Hugging Face model, with both "
            "(config.json, model.safetensors), or a run's weights/",
            dir);
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
    free(list);
    free(path);
    free(more);
    return rc;
}

int hf_look(const char *path) {
    struct stat st;
    if (stat(path, &st)) return fail("--model %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return look_at_dir(path);
    return say_kind(file_kind_at(FILE_AS_MODEL, path), path, "");
}
