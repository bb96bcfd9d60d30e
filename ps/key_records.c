#include "ps/key_records.h"

#include <stdlib.h>

#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/shard_sizes.h"
#include "ps/record/arrivals.h"
#include "ps/server/server_core.h"
#include "ps/worker/worker_core_state.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

// For a key that the server owns: its record, and what the key keeps of each worker.
static int64_t of_own_key(const struct config *c) {
    int64_t bytes = server_core_key_bytes(c);
    int64_t pushes = size_times(c->workers, c->steps);
    if (c->ps.record_arrivals) bytes = size_plus(bytes, arrivals_bytes(pushes, false));
    if (c->ps.replay_arrivals) bytes = size_plus(bytes, arrivals_bytes(pushes, true));
    return bytes;
}

// For every key of the job, its own and others'.
static int64_t of_any_key(const struct config *c) {
    int64_t each_thread = sizeof(int) + sizeof(int64_t);  // its shard; its pushes (ps/record/staleness_log.h)
    if (c->ps.record_arrivals) each_thread += ARRIVALS_KEY_BYTES;
    if (c->ps.replay_arrivals) each_thread += ARRIVALS_KEY_BYTES;
    int64_t bytes =
        (int64_t)(sizeof(struct partition) + 3 * sizeof(struct server_buffers)) + each_thread * c->ps.threads;
    // The rows to write and those that were read (ps/agree/key_rows.h): pushes and batches of each worker.
    const int64_t rows = (c->workers + batches_words(c)) * (int64_t)sizeof(int64_t);
    if (c->recovery.checkpoint_every > 0)
        bytes += (int64_t)(sizeof(struct key_counts) + sizeof(struct server_buffers)) + rows;
    if (c->recovery.resume || c->recovery.restart > 0) bytes += (int64_t)sizeof(struct key_counts) + rows;
    return bytes;
}

int64_t key_records_of_server(const struct config *c, const struct layout *l, int rank) {
    struct shard_sizes *s = shard_sizes_of(c, l);
    if (!s) return -1;
    int64_t *of_size = xcalloc((unsigned long)s->classes, sizeof *of_size), own = 0;
    shard_sizes_of_server(s, rank, of_size);
    for (int i = 0; i < s->classes; i++) own += of_size[i];
    int64_t bytes = size_plus(size_times(of_own_key(c), own), size_times(of_any_key(c), s->cut.keys));
    free(of_size);
    shard_sizes_destroy(&s);
    return bytes;
}

int64_t key_records_of_worker(const struct config *c, const struct layout *l) {
    struct shard_cut cut;
    if (shard_cut_of(c, l, &cut) != 0) return -1;
    // Its state, its shard and offset, and whether its share of a snapshot has arrived.
    uint64_t slots = (1 + (uint64_t)consistency_of(c).lead) * sizeof(struct worker_slot);
    return size_times((int64_t)(sizeof(struct partition) + sizeof(struct worker_key) + slots +
                                sizeof(size_t) + sizeof(bool) + sizeof(uint32_t)),
                      cut.keys);
}
