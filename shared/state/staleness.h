// The servers' counts of staleness, put together: into summary.json, and their logs of single
// updates into one file.
#ifndef STARRING_SHARED_STATE_STALENESS_H
#define STARRING_SHARED_STATE_STALENESS_H

#include "shared/config/config.h"

struct cJSON;

// Adds "units" and "series" to the summary's "staleness", of the DIR/ranks/staleness-R.json that are there.
void staleness_merge_studies(struct cJSON *staleness, const char *dir, int servers);
// Makes DIR/updates.jsonl of DIR/ranks/updates-SHARD.jsonl, in the order of time, and removes those. 0, or -1 after
// logging.
int staleness_merge_logs(const char *dir, int shards);

#endif
