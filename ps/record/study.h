// A server's record of staleness beyond a histogram: by unit, over time, and on request a line for each push.
//
// Ownership   One of a shard's, used by its thread while the job runs, then by the server's main thread. The log is
//             written as it comes, to DIR/ranks/updates-SHARD.jsonl, by another thread (study_log.h).
// Time        A point of the series stands for as many pushes of each key in turn as make STUDY_POINTS of the run.
#ifndef STARRING_PS_RECORD_STUDY_H
#define STARRING_PS_RECORD_STUDY_H

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

#endif
