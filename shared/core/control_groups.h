// The control groups of this process, versions 1 and 2, from its own group up to the root of the mount.
//
// All files are read below a root directory ("" is the machine), so that tests can supply their own. A missing or
// malformed file counts as no group.
#ifndef STARRING_SHARED_CORE_CONTROL_GROUPS_H
#define STARRING_SHARED_CORE_CONTROL_GROUPS_H

#include <stdbool.h>
#include <stdio.h>

// second: version 2. folder: the directory of its files, for control_groups_open. name: the name to print.
typedef void control_group_visit(void *ctx, bool second, const char *folder, const char *name);
// controller: its name in version 1, "memory" or "cpu".
void control_groups_each(const char *root, const char *controller, control_group_visit *visit, void *ctx);
// Opens root + folder + "/" + name, or root + folder if name is NULL.
FILE *control_groups_open(const char *root, const char *folder, const char *name);

#endif
