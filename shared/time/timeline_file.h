// The last steps of a run as files, for pictures: DIR/ranks/timeline-ROLE-RANK.json of every rank, joined into
// DIR/timeline.json (docs/files.md).
#ifndef STARRING_SHARED_TIME_TIMELINE_FILE_H
#define STARRING_SHARED_TIME_TIMELINE_FILE_H

#include "shared/time/timeline.h"

// A worker's, after timeline_end. 0, or -1 after logging.
int timeline_write(const char *dir, const char *role, int rank, struct timeline *tl);

// Joins what `count` ranks of each role have left; nothing is written where none has.
struct cJSON;
struct cJSON *timeline_ranks(void);
void timeline_add(struct cJSON *ranks, const char *dir, const char *role, int count);
// Settles the gaps by what all ranks' reports say, and writes; takes ranks. 0, or -1 after logging.
struct meeting;
int timeline_merge(struct cJSON *ranks, const char *dir, const struct meeting *m);

#endif
