// Units are what is sharded, sent and gathered. A layout lists a model's units. Each unit is one flat buffer of
// n_pad elements with its tensors at aligned offsets:
//
//     unit u:  | wq | wk | .. | norm2 | zeros |        elements
//              0    ^ offsets: multiples of UNIT_ALIGN  n_pad(u), a multiple of SUMSQ_BLOCK * world
//     shard r: [ r*S, (r+1)*S ),  S = n_pad(u) / world
//
// Gradients, masters and moments use the same offsets. Gap and pad elements are zero and stay zero. So do the
// elements reserved after a tensor: room for products over more rows than the tensor has. They count as padding
// everywhere; files, hashes, norms and formulas do not contain them.
// A layout is plain data: it is built once and then only read. The owner frees it with layout_destroy.
#ifndef STARRING_SHARED_CORE_UNIT_H
#define STARRING_SHARED_CORE_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNIT_ALIGN       128  // elements: 256 bytes in 16-bit
#define TENSOR_NAME_MAX  64
#define UNIT_MAX_TENSORS 24

enum init_kind { INIT_ZEROS, INIT_ONES, INIT_NORMAL };

struct tensor {
    char name[TENSOR_NAME_MAX];  // ours, unique in the model: "blocks.3.wq"
    int64_t shape[2];            // rows, columns; a vector is (n, 1) with dims = 1
    int dims;
    int64_t numel;
    int64_t offset;    // elements, within its unit
    int64_t reserved;  // elements, zeros directly after the tensor: a multiple of SUMSQ_BLOCK
    bool decay;        // weight decay applies (matrices; not norms and biases)
    enum init_kind init;
    float init_std;
    int64_t logical_start;  // index of its first element in logical tensor order, for counter-based init
};

struct unit {
    char name[32];  // "embedding", "block.0", "head"
    int count;
    struct tensor tensors[UNIT_MAX_TENSORS];
    int64_t n;  // elements up to the end of the last tensor, with gaps and reserved elements
    int64_t n_pad;
};

struct layout {
    int count;  // units: 0 embedding, 1..L blocks, L+1 head
    struct unit *units;
    int world;       // ranks (ring) or workers (star) that it is padded for
    bool tied;       // the head computes with unit 0's first tensor: unit 0 is used twice per pass
    int64_t params;  // P: elements of all tensors, without gaps and padding
    int64_t padded;  // sum of n_pad
};

// Called by the model with each unit's tensors in order. Sets offsets, n, n_pad and totals.
void layout_finish(struct layout *l, int world);
void layout_destroy(struct layout **l);
static inline int64_t layout_tensors(const struct layout *l) {
    int64_t n = 0;
    for (int u = 0; u < l->count; u++) n += l->units[u].count;
    return n;
}
static inline int64_t unit_shard(const struct layout *l, int u) { return l->units[u].n_pad / l->world; }

// xxh64 over (unit, tensor names, shapes, offsets, reserved elements, n_pad, dtype): two programs with equal
// hashes agree on every offset.
uint64_t layout_hash(const struct layout *l, int dtype);

#endif
