// The control groups that this process is in, of both versions, from its own up to the one that is mounted as their root.
//
// All files are read below a root directory ("" is the machine itself), so that tests bring their own. What is missing or
// makes no sense is no group.
#ifndef STARRING_SHARED_CORE_CONTROL_GROUPS_H
#define STARRING_SHARED_CORE_CONTROL_GROUPS_H

#include <stdbool.h>
#include <stdio.h>

// second: version 2; folder: where its files are, for control_groups_open; name: what people call it.
typedef void control_group_visit(void *ctx, bool second, const char *folder, const char *name);
// controller: as version 1 calls it, "memory" or "cpu".
void control_groups_each(const char *root, const char *controller, control_group_visit *visit, void *ctx);
// root + folder + "/" + name, or root + folder where name is NULL.
FILE *control_groups_open(const char *root, const char *folder, const char *name);

#endif
