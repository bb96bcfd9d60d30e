// A server's part of the checkpoint that a job goes on from, as keeper.h or any other topology has written it: masters and
// optimizer states of its keys, and the rows of all keys. It is read in the background (shared/core/background.h): shards and
// main thread answer their peers meanwhile. Pulls that come before it has been read wait (ps/server/server_core.h).
//
// Threads   One creates and destroys it; loader_state from any.
// Errors    -1 or NULL after logging; of what is read in the background the loader keeps the text.
#ifndef STARRING_PS_SERVER_LOADER_H
#define STARRING_PS_SERVER_LOADER_H

#include "ps/agree/key_rows.h"
#include "ps/server/server_memory.h"

struct state_read {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;
    const struct server_buffers *buffers;  // (map->count)
};
// Fills the masters and states of server `rank`'s keys. stop: NULL: never. 0, or -1 after logging.
int loader_read(const struct state_read *r, struct checkpoint *c, const _Atomic int *stop);

enum loader_state { LOADER_READS, LOADER_DONE, LOADER_FAILED };

struct loader;
// path: absolute. seal: what the checkpoint has where the scheduler runs (start_point.h). Copies what o points to, but not
// what that points to. NULL after logging.
struct loader *loader_create(const struct state_read *o, const char *path, uint64_t seal);
enum loader_state loader_state(struct loader *l);
// Once it is done: how far all keys of the job are, and the steps behind which the checkpoint is.
const struct key_rows *loader_rows(const struct loader *l);
int64_t loader_step(const struct loader *l);
// Once it has failed: why.
const char *loader_error(struct loader *l);
void loader_stop(struct loader *l);  // reads no further; NULL is allowed
void loader_destroy(struct loader **l);

#endif
