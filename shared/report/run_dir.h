// A run directory (docs/files.md): config.json, state.json, metrics.jsonl, evals.jsonl, summary.json,
// ranks/ROLE-RANK.json, trace.json, snapshots/,
// checkpoints/, weights/. Files appear whole: they are written under a temporary name and
// renamed; the .jsonl files grow by whole lines. Owned by rank 0's process or the launcher; other ranks only
// add to ranks/.
#ifndef STARRING_SHARED_REPORT_RUN_DIR_H
#define STARRING_SHARED_REPORT_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/config/config.h"

// When --out is not given: makes runs/MODEL-TOPOLOGY-20240131T235959Z, with -2, -3, .. behind it where that
// is there already, so that of two runs started in one second each has its own. Its name (malloc'd), or NULL
// after logging.
char *run_dir_make(const struct config *c);

// Whether run_dir_prepare would be refused now. 0, or -1 after saying why.
int run_dir_check(const char *dir, bool force);
// Makes dir and dir/ranks and takes them for this process (state.json), as one of all that try at once; the
// others are refused. So is a directory that a living process has taken, with force too. A directory with
// steps of an earlier run is refused unless force, which removes exactly the files a run writes; what a run
// left that ended before its first step is removed without. 0, or -1 after logging.
int run_dir_prepare(const char *dir, bool force);
// The same, and leaves c in dir/config.json.
int run_dir_take(const char *dir, const struct config *c, bool force);
// Takes the directory of a run that goes on from one of its own checkpoints: its steps, evaluations and checkpoints stay.
// Refused is only what a living process of this machine has taken.
int run_dir_continue(const char *dir, const struct config *c);
// In a later life of the job, whose own the directory is: this process stands for the run, be it another one than took it. A disk
// that does not take that costs a warning.
void run_dir_go_on(const char *dir, const struct config *c);
// The same where there is no checkpoint to go on from: what an earlier start has left goes, unless it is a whole run.
int run_dir_begin_again(const char *dir, const struct config *c);
// Removes what comes after: checkpoints behind `step`, evaluations and snapshots behind step `place` of the job, which is another
// number where workers share a budget. 0, or -1 after logging.
int run_dir_cut(const char *dir, int64_t step, int64_t place);

// The names of what ranks leave in dir/ranks for their merging, and of the records that they leave in dir itself.
bool run_dir_is_rank_file(const char *name);
bool run_dir_is_record(const char *name);

// Makes dir and dir/ranks where they are not there; for one of several processes that share it.
int run_dir_join(const char *dir);

#endif
