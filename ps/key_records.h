// The records that a star's processes keep per key, outside the ledger. They are host memory that grows with keys,
// workers and, where an order of arrivals is recorded or repeated, with steps. It is counted before anything is
// allocated (shared/predict/memory_need.h).
#ifndef STARRING_PS_KEY_RECORDS_H
#define STARRING_PS_KEY_RECORDS_H

#include "shared/config/config.h"
#include "shared/core/unit.h"

// Bytes of server `rank`, and of each worker; SIZE_TOP (shared/core/numbers.h) if they cannot be counted. Returns -1
// after logging what is impossible, as shard_cut_of does (ps/job/shard_map.h).
int64_t key_records_of_server(const struct config *c, const struct layout *l, int rank);
int64_t key_records_of_worker(const struct config *c, const struct layout *l);

#endif
