// The ring's memory: one function measures all buffers, and allocates them.
//
//   class       what                                                        elements
//   parameter   weights, or their shard                                     n_pad | S   of the run's type
//               hpZ: the secondary shard, of a group of h ranks             n_pad / h   of the run's type
//   gradient    gradients, or their shard                                   n_pad | S   of the run's type
//               fp32 sums of micro-batches (sums_in_fp32)                   n_pad | S   fp32
//   master      fp32 masters of 16-bit runs; in fp32 the master is the      n_pad | S   fp32
//               weights
//   optimizer   the optimizer's states                                      n_pad | S   fp32, each
//               1-bit Adam: errors of the codes it sends, and of its sums   n_pad + S   fp32
//   comm        slots (whole units of sharded data), bundles, staging of reductions, 1-bit codes
//   workspace   norm, decision, losses
//   offload     zero_offload's memory on the host
//   pinned      the host's copy of the step's words, and the staging of a device's collectives over the host;
//               none if the device's memory is the host's
#include "decentral/zero/zero_state.h"

// elements: of the units up to and including u.
static void carve_unit(struct zero *z, int u, int64_t elements) {
    struct zero_unit *zu = &z->units[u];
    const struct zero_policy *p = z->policy;
    const struct unit *unit = &z->opt.layout->units[u];
    int64_t n = unit->n_pad, shard = unit_shard(z->opt.layout, u), at = shard * z->source.rank;
    size_t e = dtype_size(z->opt.dtype);
    bool whole = p->optimizer == RESIDENT_FULL;
    void *w = zero_disk_on(z) ? NULL
                              : arena_take(&z->arena, zero_offload_class_of_weights(z),
                                           (size_t)(p->weights == RESIDENT_FULL ? n : shard) * e);
    zu->weights = p->weights == RESIDENT_FULL ? w : NULL;
    zu->weight_shard = p->weights == RESIDENT_FULL ? zero_at(z, w, at) : w;
    if (zero_hpz(&z->opt))
        zu->secondary = arena_take(&z->arena, MEM_PARAMETER, (size_t)(n / zero_hpz(&z->opt)) * e);
    void *g = arena_take(&z->arena, MEM_GRADIENT, (size_t)(p->grads == RESIDENT_FULL ? n : shard) * e);
    zu->grad = p->grads == RESIDENT_FULL ? g : NULL;
    zu->grad_shard = p->grads == RESIDENT_FULL ? zero_at(z, g, at) : g;
    struct update_range *r = &zu->update;
    *r = (struct update_range){.unit = unit,
                               .begin = whole ? 0 : at,
                               .end = whole ? n : at + shard,
                               .weight = whole ? zu->weights : zu->weight_shard,
                               .grad = whole ? zu->grad : zu->grad_shard,
                               .dtype = z->opt.dtype};
    zu->offloaded = zero_offloads(z, elements);
    if (zu->offloaded) {
        zero_offload_carve_unit(z, u);
        return;
    }
    if (z->opt.dtype == DT_F32) {
        r->master = r->weight;
        r->weight = NULL;  // the update of the master is also the weights'
    } else {
        r->master = arena_take(&z->arena, MEM_MASTER, (size_t)(r->end - r->begin) * sizeof(float));
    }
    optimizer_carve(&z->arena, z->opt.optimizer.row, r->end - r->begin, r->state);
}

static void carve_slot(struct zero *z, struct zero_slot *s, int64_t elements) {
    *s = (struct zero_slot){.elements = elements, .unit = -1, .shape = -1};
    s->buf = arena_take(&z->arena, MEM_COMM, (size_t)elements * dtype_size(z->opt.dtype));
}

static void carve_control(struct zero *z) {
    size_t largest = (size_t)zero_pack_largest(z);
    struct collective_options *gather = &z->gather_memory, *reduce = &z->reduce_memory;
    size_t values = collective_host_staging(&z->source, EXACT_SUM_WORDS, DT_I64);
    size_t block = collective_host_staging(&z->source, largest, z->opt.dtype);
    int64_t parts = zero_hpz(&z->opt) ? z->source.size / zero_hpz(&z->opt) : 1;  // shards in a secondary one
    gather->host_staging_bytes = collective_host_staging(&z->source, largest * (size_t)parts, z->opt.dtype);
    gather->host_staging = arena_take(&z->arena, MEM_HOST, gather->host_staging_bytes);
    reduce->host_staging_bytes = block > values ? block : values;
    reduce->host_staging = arena_take(&z->arena, MEM_HOST, reduce->host_staging_bytes);
    z->control_memory = *reduce;  // one stream: shared host staging; sums of int64 need no other
    reduce->staging_bytes = collective_staging(&z->source, largest, z->opt.dtype);
    reduce->staging = arena_take(&z->arena, MEM_COMM, reduce->staging_bytes);
    z->sum = arena_take(&z->arena, MEM_WORKSPACE, sizeof *z->sum);
    z->scalars = arena_take(&z->arena, MEM_WORKSPACE, zero_words_bytes(z));
    z->shares = zero_shares_behind(z->scalars);
    if (!z->opt.device_memory) return;
    z->host_scalars = arena_take(&z->arena, MEM_HOST, zero_words_bytes(z));
    z->host_shares = zero_shares_behind(z->host_scalars);
}

void zero_carve(struct zero *z) {
    int64_t elements = 0;
    for (int u = 0; u < z->opt.layout->count; u++) {
        elements += z->opt.layout->units[u].n_pad;
        carve_unit(z, u, elements);
    }
    for (int i = 0; i < zero_weight_slots(z); i++)
        carve_slot(z, &z->weight_slots[i], unit_schedule_elements(&z->schedule, i));
    for (int i = 0; i < GRAD_SLOTS && z->policy->grads == RESIDENT_SHARD; i++)
        carve_slot(z, &z->grad_slots[i], grad_slot_elements(z->opt.layout, i));
    if (z->opt.sums_in_fp32)
        grad_sums_carve(&z->sums, &z->arena, z->opt.layout,
                        z->policy->grads == RESIDENT_FULL ? GRAD_WHOLE : GRAD_SHARD);
    zero_pack_carve(z);
    carve_control(z);
    zero_offload_carve(z);
    zero_onebit_carve(z);
}
