// A run directory: config.json, metrics.jsonl, summary.json, ranks/ROLE-RANK.json, trace.json, weights/.
// Files appear whole: they are written under a temporary name and renamed; metrics.jsonl grows by whole
// lines. Owned by rank 0's process or the launcher; other ranks only add to ranks/.
#ifndef STARRING_SHARED_RUN_RUN_DIR_H
#define STARRING_SHARED_RUN_RUN_DIR_H

#include <stdbool.h>

#include "shared/io/config.h"

// Name (malloc'd) when --out is not given: runs/MODEL-TOPOLOGY-20240131T235959Z.
char *run_dir_name(const struct config *c);

// Makes dir and dir/ranks. A directory that holds an earlier run is refused unless force, which removes
// exactly the files a run writes. 0, or -1 after logging.
int run_dir_prepare(const char *dir, bool force);

// Makes dir and dir/ranks where they are not there; for one of several processes that share it.
int run_dir_join(const char *dir);

// dir/name = text, whole or not at all. 0, or -1 after naming the file.
int run_dir_write(const char *dir, const char *name, const char *text);
// The whole of dir/name (malloc'd, NUL-terminated), or NULL; says why unless quiet.
char *run_dir_read(const char *dir, const char *name, bool quiet);

#endif
