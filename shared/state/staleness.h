// Merges the servers' counts of staleness into summary.json, and their logs of single updates into one file.
#ifndef STARRING_SHARED_STATE_STALENESS_H
#define STARRING_SHARED_STATE_STALENESS_H

#include "shared/config/config.h"

struct cJSON;

// Adds "units" and "series" to the summary's "staleness", from the existing files DIR/ranks/staleness-R.json.
void staleness_merge_studies(struct cJSON *staleness, const char *dir, int servers);
// Merges DIR/ranks/updates-SHARD.jsonl into DIR/updates.jsonl, ordered by time, and removes them. Returns 0, or -1
// after logging.
int staleness_merge_logs(const char *dir, int shards);

#endif
