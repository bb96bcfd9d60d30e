// A server's record of staleness in addition to the histogram: by unit, over time, and on request one line per push.
//
// Ownership   One per shard, used by its thread while the job runs, then by the server's main thread. Another
//             thread writes the log line by line to DIR/ranks/updates-SHARD.jsonl (updates_file below).
// Time        The series has STALENESS_POINTS points: each covers the same number of consecutive pushes per key.
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
    int64_t pushes;   // pushes that each key will get in the run
    int per_update;   // pushes that are averaged in one update: versions in the log count updates
    const char *dir;  // where the log is written; NULL: no log
};

struct staleness_log;
// Returns NULL after logging.
struct staleness_log *staleness_log_create(const struct staleness_log_options *o);
// The key has had pushes before this process of the job: later pushes are counted after them.
void staleness_log_begin(struct staleness_log *s, int key, int64_t pushes);
// Records a push of key h->key that is in an update: its gradient (n elements of dtype) or code, tau updates old.
// h->version counts pushes.
void staleness_log_push(struct staleness_log *s, const struct wire_header *h, const void *grad, uint64_t tau);
// Logs at once, and once, that lines of the log are lost: the run may still take days. The server's main thread calls
// it.
void staleness_log_report_lost(struct staleness_log *s);
// Writes the sums over all shards of server `rank` to DIR/ranks/staleness-RANK.json, and ends the logs. Returns 0, or
// -1 after logging.
int staleness_log_write(struct staleness_log *const *all, int count, const char *dir, int rank);
void staleness_log_destroy(struct staleness_log **s);

// ---------------------------------------------------------------- the log
// A file for lines of a shard that must not wait for it: the shard adds lines, and the log's own thread writes them.
//
// Threads   updates_file_add: one; all other functions: the server's main thread. Blocking: open and close.
// Memory    Lines that a slow disk has not taken yet, up to a limit. Lines beyond it are lost, as are lines that the disk
//           refuses. Nothing is written after the first lost line.
struct updates_file;
struct updates_file *updates_file_open(const char *path);  // Returns NULL with the reason in errno.
// Adds a line. step: the step that it is about.
void updates_file_add(struct updates_file *l, const char *line, int64_t step);
// Returns the errno of the first lost lines, and *step of the first of them; 0: none is lost.
int updates_file_lost(struct updates_file *l, int64_t *step);
// Waits until all lines are written. Returns 0, or the errno of lost lines with *step as above, or with step 0 if
// closing failed.
int updates_file_close(struct updates_file **l, int64_t *step);

#endif
