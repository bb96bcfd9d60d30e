// A server's memory and wire, predicted by the code that takes it: the same carving runs against a measuring
// arena and an allocating one.
#ifndef STARRING_PS_SERVER_SERVER_MEMORY_H
#define STARRING_PS_SERVER_SERVER_MEMORY_H

#include "ps/job/shard_map.h"
#include "shared/core/arena.h"

// A key's memory, elements n = end - begin. Masters, states and the key's counts (struct key_counts) are what a checkpoint keeps of
// a key, whoever has it; keeper.h writes them, server_read_checkpoint reads them.
struct server_buffers {
    float *master;                       // (n)
    float *state[OPTIMIZER_STATES_MAX];  // (n) each
    void *weight;                        // (n) of dtype; = master in fp32
    float *acc;                          // (n): the running sum, then the rounded gradient from its start
    float *
        part_acc;  // (n): of the part of a sum that is under way: a group of workers (config_group), or a micro-batch of resident
    // units; NULL: sums have no parts
    void *
        pulled;  // (N, n) of dtype: the weights that each worker was sent last; NULL without delay_compensation
    float *square;  // (n): the mean of gradients' squares; NULL without delay_compensation_decay
    void *old;      // (lead, n): earlier weights, where these are read (consistency_rule.keeps); else NULL
};
// room: of the segment that publishes the weights, page by page; NULL: they are the arena's as well.
void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct arena_room *room, struct server_buffers *out);
// Room for a copy of its masters and states, which a checkpoint is written from; nothing where none is.
void server_carve_copy(struct arena *a, const struct config *c, const struct partition *p,
                       struct server_buffers *out);
// Bytes of that segment for server `rank`, with its head; 0: it publishes in none.
size_t server_segment_bytes(const struct config *c, const struct shard_map *m, int rank);

#endif
