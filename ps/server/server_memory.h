// A server's memory and wire bytes, predicted by the code that allocates: the same carving runs in a measuring
// arena and in an allocating one.
#ifndef STARRING_PS_SERVER_SERVER_MEMORY_H
#define STARRING_PS_SERVER_SERVER_MEMORY_H

#include "ps/job/shard_map.h"
#include "ps/server/server_buffers.h"
#include "shared/core/arena.h"

// room: in the segment that publishes the weights, page by page; NULL: the arena has them too.
void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct arena_room *room, struct server_buffers *out);
// The same of a key that is only pulled.
void server_carve_frozen(struct arena *a, const struct config *c, const struct partition *p,
                         struct server_buffers *out);
// Takes memory for a copy of its masters and states, which a checkpoint is written from; none without checkpoints.
void server_carve_copy(struct arena *a, const struct config *c, const struct partition *p,
                       struct server_buffers *out);
// Bytes of that segment for server `rank`, with its head; 0: it publishes in no segment.
size_t server_segment_bytes(const struct config *c, const struct shard_map *m, int rank);

#endif
