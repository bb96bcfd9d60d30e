// A server's record of staleness beyond a histogram: by unit, over time, and on request a line for each push.
//
// Ownership   One of a shard's, used by its thread while the job runs, then by the server's main thread. The log is
//             written as it comes, to DIR/ranks/updates-SHARD.jsonl, by another thread (staleness_log.h).
// Time        A point of the series stands for as many pushes of each key in turn as make STALENESS_POINTS of the run.
#ifndef STARRING_PS_RECORD_STALENESS_LOG_H
#define STARRING_PS_RECORD_STALENESS_LOG_H

#include <stdint.h>

#include "ps/job/shard_map.h"
#include "ps/net/wire.h"
#include "shared/core/unit.h"

#define STALENESS_POINTS 200

struct staleness_log_options {
    const struct layout *layout;
    const struct shard_map *map;  // both outlive it
    enum dtype dtype;
    struct code_format code;  // of pushes; of kind CODE_NONE: they are gradients
    int shard;
    int64_t pushes;   // that each key will get
    int per_update;   // of them, whose mean is one update: what is said counts updates
    const char *dir;  // where the log goes; NULL: none is kept
};

struct staleness_log;
struct staleness_log *staleness_log_create(const struct staleness_log_options *o);  // NULL after logging
// The key has had pushes before this life of the job: what follows is counted behind them.
void staleness_log_begin(struct staleness_log *s, int key, int64_t pushes);
// A push of key h->key that is part of an update, of this gradient (n elements of dtype) or code of it, tau updates old. h->version
// counts pushes.
void staleness_log_push(struct staleness_log *s, const struct wire_header *h, const void *grad, uint64_t tau);
// Says at once, and once, that lines of the log are lost: a run of days may still be ahead. The server's main thread asks.
void staleness_log_tell(struct staleness_log *s);
// Adds up all shards of server `rank` in DIR/ranks/staleness-RANK.json, and ends the logs. 0, or -1 after logging.
int staleness_log_write(struct staleness_log *const *all, int count, const char *dir, int rank);
void staleness_log_destroy(struct staleness_log **s);

// ---------------------------------------------------------------- the log
// Lines on their way into a file that a shard must not wait for: the shard adds them, a thread of the log's own writes them.
//
// Threads   updates_file_add: one; the rest: the server's main thread. Blocking: open and close.
// Memory    What a disk that is slow has not taken yet, up to a bound: behind it lines are lost, as those that a disk refuses.
//           Nothing is written behind the first that is.
struct updates_file;
struct updates_file *updates_file_open(const char *path);  // NULL: errno says why
// step: what the line is of.
void updates_file_add(struct updates_file *l, const char *line, int64_t step);
// The errno of the first lines that are lost, and the step of the first of them; 0: none is.
int updates_file_lost(struct updates_file *l, int64_t *step);
// Everything is in the file, or lost: then the errno, and *step as above; 0: only the file's end was.
int updates_file_close(struct updates_file **l, int64_t *step);

#endif
