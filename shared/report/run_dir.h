// A run directory (docs/files.md). It holds config.json, state.json, metrics.jsonl, evals.jsonl, summary.json,
// ranks/ROLE-RANK.json, trace.json, snapshots/, checkpoints/, weights/. Files are replaced atomically: written under a
// temporary name and renamed. The .jsonl files grow by whole lines. Rank 0's process or the launcher owns the
// directory; other ranks only add to ranks/.
#ifndef STARRING_SHARED_REPORT_RUN_DIR_H
#define STARRING_SHARED_REPORT_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/config/config.h"

// For runs without --out: creates runs/MODEL-TOPOLOGY-20240131T235959Z, with the suffix -2, -3, .. if that exists, so
// that two runs started in the same second get different names. Returns the name (malloc'd), or NULL after logging.
char *run_dir_make(const struct config *c);

// Checks whether run_dir_prepare would refuse now. Returns 0, or -1 after logging why.
int run_dir_check(const char *dir, bool force);
// Creates dir and dir/ranks and takes them for this process (state.json). If several processes try at once, one gets
// it and the others are refused. A directory that a running process has taken is refused, even with force. A directory
// with steps of an earlier run is refused without force; force removes exactly the files that a run writes. Files of a
// run that ended before its first step are removed without force. Returns 0, or -1 after logging.
int run_dir_prepare(const char *dir, bool force);
// As run_dir_prepare, then writes c to dir/config.json.
int run_dir_take(const char *dir, const struct config *c, bool force);
// Takes the directory of a run that resumes from one of its own checkpoints: its steps, evaluations and checkpoints
// stay. Refused only if a running process of this machine has taken it.
int run_dir_resume(const char *dir, const struct config *c);
// For a later start of the job that already owns the directory: makes this process the one that represents the run,
// even if another process took it. If the disk fails, it only warns.
void run_dir_adopt(const char *dir, const struct config *c);
// As run_dir_resume, without a checkpoint to resume from: removes the files of an earlier start, unless that run is
// complete.
int run_dir_restart(const char *dir, const struct config *c);
// Removes everything later: checkpoints after `step`, evaluations and snapshots after step `place` of the job (a
// different number where workers share a budget). Returns 0, or -1 after logging.
int run_dir_cut(const char *dir, int64_t step, int64_t place);

// Whether a name is one of the files that ranks leave in dir/ranks to be merged.
bool run_dir_is_rank_file(const char *name);
// Whether a name is one of the records that ranks leave in dir itself.
bool run_dir_is_record(const char *name);

// Creates dir and dir/ranks if they do not exist; for one of several processes that share the directory.
int run_dir_join(const char *dir);

#endif
