#include "shared/launch/stage.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/hf/presets.h"

// A link to `from` in the links' folder `below`, and "FOLDER/below/NAME", malloc'd; NULL after logging.
static char *link_one(const struct stage *s, const char *below, const char *from) {
    char whole[PATH_MAX];
    if (!realpath(from, whole)) return fail("--stage: %s: %s", from, strerror(errno)), NULL;
    const char *name =
        strrchr(from, '/') && strrchr(from, '/')[1] ? strrchr(from, '/') + 1 : strrchr(whole, '/') + 1;
    if (!strchr(from, '/')) name = from;
    char *folder = xasprintf("%s/%s", s->links, below), *path = xasprintf("%s/%s", folder, name),
         *there = NULL;
    if (dir_make(folder) || (symlink(whole, path) && errno != EEXIST))
        fail("--stage: %s: %s", path, strerror(errno));
    else
        there = xasprintf("%s/%s/%s", s->folder, below, name);
    free(folder);
    free(path);
    return there;
}

// Where the program looks for plugins; there all lie beside it, and the first of a name counts.
static int link_program(struct stage *s, const char *program) {
    static const char *const places[] = {"", "lib/", "../lib/", "../lib/starring/"};
    int rc = (s->program = link_one(s, "bin", program)) ? 0 : -1;
    for (size_t i = 0; i < sizeof places / sizeof *places && !rc; i++) {
        glob_t found;
        char *pattern =
            xasprintf("%.*s/%slibstarring_*.so", (int)(strrchr(program, '/') - program), program, places[i]);
        if (!glob(pattern, 0, NULL, &found)) {
            for (size_t k = 0; k < found.gl_pathc && !rc; k++) {
                char *there = link_one(s, "bin", found.gl_pathv[k]);
                rc = there ? 0 : -1;
                free(there);
            }
            globfree(&found);
        }
        free(pattern);
    }
    return rc;
}

// A value of the configuration that may name a file, with the file that describes it where there is one.
static int take(struct stage *s, int number, char **value, const char *is_no_path) {
    char below[16], *beside;
    if (!*value || (is_no_path && !strcmp(*value, is_no_path))) return 0;
    snprintf(below, sizeof below, "%d", number);
    char *there = link_one(s, below, *value);
    if (!there) return -1;
    beside = xasprintf("%s.json", *value);
    if (!access(beside, F_OK)) free(link_one(s, below, beside));
    free(beside);
    free(*value);
    *value = there;
    return 0;
}

static int write_config(struct stage *s, const struct config *c) {
    char *path = xasprintf("%s/config.json", s->links), *text = config_to_json(c);
    FILE *f = fopen(path, "we");
    int rc = f && fputs(text, f) >= 0 ? 0 : -1;
    if ((f && fclose(f)) || rc) rc = fail("--stage: %s: %s", path, strerror(errno));
    free(path);
    free(text);
    return rc;
}

int stage_begin(struct stage *s, struct config *c, const char *program) {
    const char *preset = NULL, *name;
    char template[] = "/tmp/starring-stage-XXXXXX";
    *s = (struct stage){0};
    for (int i = 0; (name = model_preset_name(i)); i++)
        if (!strcmp(name, c->model)) preset = name;
    if (!mkdtemp(template)) return fail("--stage: %s: %s", template, strerror(errno));
    s->links = xstrdup(template);
    s->folder = xasprintf("%s-there", template);
    s->config = xasprintf("%s/config.json", s->folder);
    return link_program(s, program) || take(s, 0, &c->model, preset) || take(s, 1, &c->data, "demo") ||
                   take(s, 2, &c->val_data, NULL) || write_config(s, c)
               ? -1
               : 0;
}

char *stage_send(const struct stage *s) { return xasprintf("tar -C %s -chf - .", s->links); }

// Two names may be of one host: the folder that is there first stays.
char *stage_take(const struct stage *s, int host) {
    return xasprintf(
        "umask 077; mkdir %s.%d && tar -C %s.%d -xf - && { mv -T %s.%d %s 2>/dev/null || rm -r %s.%d; }",
        s->folder, host, s->folder, host, s->folder, host, s->folder, s->folder, host);
}

char *stage_remove(const struct stage *s) { return xasprintf("rm -rf %s %s.*", s->folder, s->folder); }

void stage_end(struct stage *s) {
    char *command = s->links ? xasprintf("rm -rf %s", s->links) : NULL;
    if (command && system(command)) warn("--stage: %s: cannot be removed", s->links);
    free(command);
    free(s->links);
    free(s->folder);
    free(s->program);
    free(s->config);
    *s = (struct stage){0};
}
