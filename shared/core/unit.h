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
//
// LoRA trains adapters and freezes the rest. Then there are two layouts. Topologies, checkpoints and hashes see only the
// trained units, as if these were the model: the blocks, each with its adapters. `model` is the model's own layout, in
// which a unit has the frozen tensors too:
//
//     trained unit b     | wqkv0_A | wqkv0_B | .. | zeros |                               n_pad
//     model's unit 1+b   | wqkv0_A | wqkv0_B | .. | zeros | norm1 | wqkv | .. | zeros |   trained, n_pad
//
// A layout is plain data: it is built once and then only read. The owner frees it with layout_destroy.
#ifndef STARRING_SHARED_CORE_UNIT_H
#define STARRING_SHARED_CORE_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNIT_ALIGN       128  // elements: 256 bytes in 16-bit
#define TENSOR_NAME_MAX  64
#define UNIT_MAX_TENSORS 28  // frozen ones included
#define UNIT_MAX_TRAINED 24

enum init_kind { INIT_ZEROS, INIT_ONES, INIT_NORMAL, INIT_UNIFORM };

struct tensor {
    char name[TENSOR_NAME_MAX];  // ours, unique in the model: "blocks.3.wq"
    int64_t shape[2];            // rows, columns; a vector is (n, 1) with dims = 1
    int dims;
    int64_t numel;
    int64_t offset;    // elements, within its unit
    int64_t reserved;  // elements, zeros directly after the tensor: a multiple of SUMSQ_BLOCK
    bool decay;        // weight decay applies (matrices; not norms and biases)
    enum init_kind init;
    float init_std;         // INIT_NORMAL; INIT_UNIFORM: the bound, on both sides of 0
    char adapter;           // 'A' or 'B': a matrix of LoRA, on rows of the tensor in its name; 0: none
    int8_t part;            // of an adapter: which rows, as Hugging Face splits that tensor (hf_parts)
    int64_t logical_start;  // index of its first element in logical tensor order, for counter-based init
};

struct unit {
    char name[32];  // "embedding", "block.0", "head"
    int count;
    struct tensor tensors[UNIT_MAX_TENSORS];
    int64_t n;  // elements up to the end of the last tensor, with gaps and reserved elements
    int64_t n_pad;
    int64_t trained;  // in a model's own layout: the first so many elements are trained; else n_pad
};

struct layout {
    int count;  // units: 0 embedding, 1..L blocks, L+1 head
    struct unit *units;
    int world;       // ranks (ring) or workers (star) that it is padded for
    bool tied;       // the head computes with unit 0's first tensor: unit 0 is used twice per pass
    int64_t params;  // P: elements of all tensors, without gaps and padding
    int64_t padded;  // sum of n_pad
    // LoRA: the model's own layout, which this layout owns; NULL: this is the model's own
    struct layout *model;
    int64_t frozen;  // elements of the tensors that are only in `model`
    // With `model`: the frozen elements of each of its units, as units without tensors, for a topology that shards them.
    // Owned, too. They follow the trained units in `units`: rest->units[u] is units[count + u].
    struct layout *rest;
};

static inline const struct layout *layout_of_model(const struct layout *l) { return l->model ? l->model : l; }
// Returns the unit that has the trained tensors of the model's unit u; -1: all its tensors are frozen.
static inline int layout_trained(const struct layout *l, int u) {
    if (!l->model) return u;
    return u >= 1 && u <= l->count ? u - 1 : -1;
}
// Returns how many elements of the model's unit u are frozen, with gaps and padding.
static inline int64_t layout_frozen(const struct layout *l, int u) {
    return l->model ? l->model->units[u].n_pad - l->model->units[u].trained : 0;
}

// Called by the model with each unit's tensors in order. Sets offsets, n, n_pad and totals.
void layout_finish(struct layout *l, int world);
void layout_destroy(struct layout **l);
// Returns the elements of the largest unit.
static inline int64_t layout_largest(const struct layout *l) {
    int64_t most = 0;
    for (int u = 0; u < l->count; u++) most = l->units[u].n_pad > most ? l->units[u].n_pad : most;
    return most;
}
static inline int64_t layout_tensors(const struct layout *l) {
    int64_t n = 0;
    for (int u = 0; u < l->count; u++) n += l->units[u].count;
    return n;
}
// Returns how many entries `units` has: the trained units, then those of the frozen elements.
static inline int layout_units(const struct layout *l) { return l->count + (l->rest ? l->rest->count : 0); }
static inline int64_t unit_shard(const struct layout *l, int u) { return l->units[u].n_pad / l->world; }

// Returns xxh64 over (unit, tensor names, shapes, offsets, reserved elements, n_pad, dtype): two programs with equal
// hashes agree on every offset.
uint64_t layout_hash(const struct layout *l, int dtype);

#endif
