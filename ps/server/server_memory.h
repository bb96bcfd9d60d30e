// A server's memory and wire bytes, predicted by the code that allocates: the same carving runs in a measuring
// arena and in an allocating one.
#ifndef STARRING_PS_SERVER_SERVER_MEMORY_H
#define STARRING_PS_SERVER_SERVER_MEMORY_H

#include "ps/job/shard_map.h"
#include "shared/core/arena.h"

// A key's memory, elements n = end - begin. A checkpoint keeps a key's masters, states and counts (struct key_counts).
// keeper.h writes them, server_read_checkpoint reads them.
struct server_buffers {
    float *master;                       // (n)
    float *state[OPTIMIZER_STATES_MAX];  // (n) each
    void *weight;                        // (n) of dtype; = master in fp32
    float *acc;                          // (n): the running sum, then the rounded gradient from its start
    float *part_acc;  // (n): sum of a group (config_group) or, by unit, of a micro-batch; NULL: none
    void *pulled;   // (N, n) of dtype: the weights last sent to each worker; NULL without delay_compensation
    float *square;  // (n): the mean of squared gradients; NULL without delay_compensation_decay
    void *old;      // (lead, n): earlier weights, if these are read (consistency_rule.keeps); else NULL
};
// room: in the segment that publishes the weights, page by page; NULL: the arena has them too.
void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct arena_room *room, struct server_buffers *out);
// Takes memory for a copy of its masters and states, which a checkpoint is written from; none without checkpoints.
void server_carve_copy(struct arena *a, const struct config *c, const struct partition *p,
                       struct server_buffers *out);
// Bytes of that segment for server `rank`, with its head; 0: it publishes in no segment.
size_t server_segment_bytes(const struct config *c, const struct shard_map *m, int rank);

#endif
