#include "shared/core/control_groups.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

FILE *control_groups_open(const char *root, const char *folder, const char *name) {
    char *full = xasprintf("%s%s%s%s", root, folder, name ? "/" : "", name ? name : "");
    FILE *f = fopen(full, "r");
    free(full);
    return f;
}

static bool has_word(char *list, const char *word) {
    bool found = false;
    for (char *name; (name = strsep(&list, ","));) found |= !strcmp(name, word);
    return found;
}

// The directory where one version is mounted, and the group at the root of that mount. A container sees only a
// subtree.
struct mount {
    bool second;
    char *root, *folder;
};

// A line of /proc/self/mountinfo: "ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS.. - TYPE SOURCE SUPER-OPTIONS"
static bool mount_parse(char *line, const char *controller, struct mount *m) {
    char *words[5], *rest = line;
    char *tail = strstr(line, " - ");
    if (!tail) return false;
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strsep(&rest, " ")) || !rest || rest > tail + 1) return false;
    char *type = tail + 3, *options = strrchr(type, ' ');
    if (!options) return false;
    options[strcspn(options, "\n")] = 0;
    bool second = !strncmp(type, "cgroup2 ", 8), first = !strncmp(type, "cgroup ", 7);
    if (!second && !(first && has_word(options + 1, controller))) return false;
    *m = (struct mount){second, xstrdup(strcmp(words[3], "/") ? words[3] : ""), xstrdup(words[4])};
    return true;
}

// Returns the process's group in one hierarchy, a malloc'd path without a trailing slash. Returns NULL if it has
// none.
// Lines of /proc/self/cgroup: "0::/path" for version 2, "4:memory:/path" for version 1.
static char *own_group(const char *root, const char *controller, bool second) {
    char line[4096];
    char *group = NULL;
    FILE *f = control_groups_open(root, "/proc/self/cgroup", NULL);
    while (f && !group && fgets(line, sizeof line, f)) {
        char *rest = line, *number = strsep(&rest, ":"), *controllers = rest ? strsep(&rest, ":") : NULL;
        if (!controllers || !rest) continue;
        bool mine = second ? !strcmp(number, "0") && !*controllers : has_word(controllers, controller);
        rest[strcspn(rest, "\n")] = 0;
        if (mine && *rest == '/') group = xstrdup(strcmp(rest, "/") ? rest : "");
    }
    if (f) fclose(f);
    return group;
}

// Visits the groups from the process's own up to the root of the mount.
static void walk(const char *root, const char *controller, const struct mount *m, control_group_visit *visit,
                 void *ctx) {
    char *group = own_group(root, controller, m->second);
    if (!group) return;
    size_t n = strlen(m->root);
    bool below = !strncmp(group, m->root, n) && (!group[n] || group[n] == '/');
    char *at =
        xstrdup(below ? group + n : "");  // not below that root: the group's files are not visible here
    for (;;) {
        char *folder = xasprintf("%s%s", m->folder, at), *name = xasprintf("%s%s", m->root, at);
        visit(ctx, m->second, folder, *name ? name : "/");
        free(folder);
        free(name);
        char *slash = strrchr(at, '/');
        if (!slash) break;
        *slash = 0;
    }
    free(at);
    free(group);
}

void control_groups_each(const char *root, const char *controller, control_group_visit *visit, void *ctx) {
    char line[4096];
    FILE *f = control_groups_open(root, "/proc/self/mountinfo", NULL);
    while (f && fgets(line, sizeof line, f)) {
        struct mount m;
        if (!mount_parse(line, controller, &m)) continue;
        walk(root, controller, &m, visit, ctx);
        free(m.root);
        free(m.folder);
    }
    if (f) fclose(f);
}
