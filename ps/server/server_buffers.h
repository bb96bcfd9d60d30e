// A key's memory in a server, elements n = end - begin. A checkpoint keeps a key's masters, states and counts (struct
// key_counts): keeper.h writes them, server_read_checkpoint reads them. server_memory.h allocates it.
#ifndef STARRING_PS_SERVER_SERVER_BUFFERS_H
#define STARRING_PS_SERVER_SERVER_BUFFERS_H

#include "shared/model/optimizer.h"

struct server_buffers {
    float *master;                       // (n)
    float *state[OPTIMIZER_STATES_MAX];  // (n) each
    void *weight;                        // (n) of dtype; = master in fp32
    float *acc;                          // (n): the running sum, then the rounded gradient from its start
    // Carved by the key's policy (struct push_policy.carve); NULL: it needs none.
    float *part_acc;  // (n): a sum that becomes a part of acc
    void *pulled;     // (N, n) of dtype: the weights last sent to each worker
    float *own;       // fp32; its shape is in the policy's file
    void *old;        // (lead, n) of dtype: earlier weights (consistency_rule.keeps)
};

#endif
