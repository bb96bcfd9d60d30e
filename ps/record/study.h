// A server's record of staleness beyond a histogram: by unit, over time, and on request a line for each push.
//
// Ownership   One of a shard's, used by its thread while the job runs, then by the server's main thread. The log is
//             written as it comes, to DIR/ranks/updates-SHARD.jsonl, by another thread (study.h).
// Time        A point of the series stands for as many pushes of each key in turn as make STUDY_POINTS of the run.
#ifndef STARRING_PS_RECORD_STUDY_H
#define STARRING_PS_RECORD_STUDY_H

#include <stdint.h>

#include "ps/job/shard_map.h"
#include "ps/net/wire.h"
#include "shared/core/unit.h"

#define STUDY_POINTS 200

struct study_options {
    const struct layout *layout;
    const struct shard_map *map;  // both outlive it
    enum dtype dtype;
    struct code_format code;  // of pushes; of kind CODE_NONE: they are gradients
    int shard;
    int64_t pushes;   // that each key will get
    const char *dir;  // where the log goes; NULL: none is kept
};

struct study;
struct study *study_create(const struct study_options *o);  // NULL after logging
// The key has had pushes before this life of the job: what follows is counted behind them.
void study_begin(struct study *s, int key, int64_t pushes);
// A push of key h->key, of this gradient (n elements of dtype) or code of it, that is tau updates old.
void study_push(struct study *s, const struct wire_header *h, const void *grad, uint64_t tau);
// Says at once, and once, that lines of the log are lost: a run of days may still be ahead. The server's main thread asks.
void study_tell(struct study *s);
// Adds up all shards of server `rank` in DIR/ranks/staleness-RANK.json, and ends the logs. 0, or -1 after logging.
int study_write(struct study *const *all, int count, const char *dir, int rank);
void study_destroy(struct study **s);

// ---------------------------------------------------------------- the log
// Lines on their way into a file that a shard must not wait for: the shard adds them, a thread of the log's own writes them.
//
// Threads   study_log_add: one; the rest: the server's main thread. Blocking: open and close.
// Memory    What a disk that is slow has not taken yet, up to a bound: behind it lines are lost, as those that a disk refuses.
//           Nothing is written behind the first that is.
struct study_log;
struct study_log *study_log_open(const char *path);  // NULL: errno says why
// step: what the line is of.
void study_log_add(struct study_log *l, const char *line, int64_t step);
// The errno of the first lines that are lost, and the step of the first of them; 0: none is.
int study_log_lost(struct study_log *l, int64_t *step);
// Everything is in the file, or lost: then the errno, and *step as above; 0: only the file's end was.
int study_log_close(struct study_log **l, int64_t *step);

#endif
