// Keys of DeepSpeed's configuration (docs/_pages/config-json.md and the classes it is read into) that
// this program does not read, with the reason. A path here is a leaf: what stands below is not visited.
#include <stdlib.h>
#include <string.h>

#include "shared/io/config_internal.h"

static const char units[] = "each unit is one transfer in one flat buffer, overlapped with computation";
static const char residency[] = "what is resident is fixed by the stage: two slots, one unit ahead";
static const char measured[] = "every run measures and reports it";
static const char same_adam[] = "there is one AdamW, with torch's and FusedAdam's formula";
static const char always[] = "it is always done";
static const char never[] = "it has nothing to act on here";
static const char use_clipping[] = "use gradient_clipping";
static const char ordered_sum[] = "gradients are summed in fp32 in worker order and rounded once";

#define HINT(path, why) \
    { path, KNOWN_NO_EFFECT, NULL, why }
#define LATER(path) \
    { path, KNOWN_IGNORED, NULL, NULL }
#define LATER_BUT(path, harmless) \
    { path, KNOWN_IGNORED, harmless, NULL }
#define REFUSE(path, harmless, why) \
    { path, KNOWN_REFUSED, harmless, why }
#define ZERO(name) "zero_optimization." name

static const struct known known[] = {
    HINT(ZERO("allgather_partitions"), units),
    HINT(ZERO("allgather_bucket_size"), units),
    HINT(ZERO("overlap_comm"), units),
    HINT(ZERO("reduce_scatter"), units),
    HINT(ZERO("reduce_bucket_size"), units),
    HINT(ZERO("contiguous_gradients"), units),
    HINT(ZERO("use_multi_rank_bucket_allreduce"), units),
    HINT(ZERO("round_robin_gradients"), units),
    HINT(ZERO("stage3_prefetch_bucket_size"), residency),
    HINT(ZERO("prefetch_bucket_size"), residency),
    HINT(ZERO("stage3_param_persistence_threshold"), residency),
    HINT(ZERO("param_persistence_threshold"), residency),
    HINT(ZERO("stage3_model_persistence_threshold"), residency),
    HINT(ZERO("model_persistence_threshold"), residency),
    HINT(ZERO("stage3_max_live_parameters"), residency),
    HINT(ZERO("max_live_parameters"), residency),
    HINT(ZERO("stage3_max_reuse_distance"), residency),
    HINT(ZERO("max_reuse_distance"), residency),
    HINT(ZERO("stage3_module_granularity_threshold"), residency),
    HINT(ZERO("module_granularity_threshold"), residency),
    HINT(ZERO("stage3_use_all_reduce_for_fetch_params"), residency),
    HINT(ZERO("use_all_reduce_for_fetch_params"), residency),
    HINT(ZERO("sub_group_size"), residency),
    HINT(ZERO("memory_efficient_linear"), residency),
    HINT(ZERO("stage3_gather_16bit_weights_on_model_save"), always),
    HINT(ZERO("gather_16bit_weights_on_model_save"), always),
    HINT(ZERO("stage3_gather_fp16_weights_on_model_save"), always),
    HINT(ZERO("ignore_unused_parameters"), never),
    HINT(ZERO("override_module_apply"), never),
    HINT(ZERO("legacy_stage1"), never),
    HINT(ZERO("elastic_checkpoint"), never),
    HINT(ZERO("load_from_fp32_weights"), never),
    HINT(ZERO("pipeline_loading_checkpoint"), never),
    LATER(ZERO("offload_param")),
    LATER(ZERO("offload_optimizer")),
    LATER(ZERO("cpu_offload")),
    LATER(ZERO("cpu_offload_param")),
    LATER(ZERO("cpu_offload_use_pin_memory")),
    LATER_BUT(ZERO("zero_hpz_partition_size"), "1"),
    LATER_BUT(ZERO("mics_shard_size"), "-1"),
    LATER(ZERO("mics_hierarchical_params_gather")),
    REFUSE(ZERO("zero_quantized_weights"), NULL, NULL),
    REFUSE(ZERO("zero_quantized_nontrainable_weights"), NULL, NULL),
    REFUSE(ZERO("zero_quantized_gradients"), NULL, NULL),
    REFUSE(ZERO("zeropp_loco_param"), NULL, NULL),
    REFUSE(ZERO("zenflow"), NULL, NULL),
    HINT("optimizer.legacy_fusion", same_adam),
    HINT("optimizer.params.torch_adam", same_adam),
    HINT("optimizer.params.fused", same_adam),
    HINT("optimizer.params.set_grad_none", always),
    REFUSE("optimizer.params.amsgrad", NULL, NULL),
    REFUSE("optimizer.params.max_grad_norm", NULL, use_clipping),
    REFUSE("fp16.auto_cast", NULL, NULL),
    REFUSE("fp16.fp16_master_weights_and_grads", NULL, NULL),
    HINT("bf16.check_grad_overflow", always),
    HINT("bf16.immediate_grad_update", units),
    REFUSE("bf16.bf16_master_weights_and_grads", NULL, NULL),
    REFUSE("bf16.bf16_optimizer_states", NULL, NULL),
    HINT("disable_allgather", units),
    HINT("zero_allow_untested_optimizer", never),
    HINT("zero_force_ds_cpu_optimizer", same_adam),
    HINT("vocabulary_size", never),
    HINT("dataloader_drop_last", never),
    HINT("wall_clock_breakdown", measured),
    HINT("memory_breakdown", measured),
    LATER("dump_state"),
    LATER("flops_profiler"),
    LATER("autotuning"),
    LATER("activation_checkpointing"),
    LATER("aio"),
    LATER("tensorboard"),
    LATER("wandb"),
    LATER("comet"),
    LATER("csv_monitor"),
    LATER("comms_logger"),
    LATER("nebula"),
    LATER("checkpoint"),
    LATER("compile"),
    LATER("timers"),
    LATER("hybrid_engine"),
    REFUSE("communication_data_type", NULL, ordered_sum),
    REFUSE("seq_parallel_communication_data_type", "\"fp32\"", ordered_sum),
    REFUSE("fp32_allreduce", NULL, ordered_sum),
    REFUSE("prescale_gradients", NULL, ordered_sum),
    REFUSE("gradient_predivide_factor", "1", ordered_sum),
    REFUSE("data_types", NULL, ordered_sum),
    REFUSE("sparse_gradients", NULL, NULL),
    REFUSE("sparse_attention", NULL, NULL),
    REFUSE("amp", NULL, "use bf16 or fp16"),
    REFUSE("torch_autocast", NULL, "use bf16 or fp16"),
    REFUSE("elasticity", NULL, "give the batch sizes themselves"),
    REFUSE("pipeline", NULL, NULL),
    REFUSE("tensor_parallel", NULL, NULL),
    REFUSE("sequence_parallel_size", "1", NULL),
    REFUSE("data_efficiency", NULL, NULL),
    REFUSE("curriculum_learning", NULL, NULL),
    REFUSE("progressive_layer_drop", NULL, NULL),
    REFUSE("eigenvalue", NULL, NULL),
    REFUSE("quantize_training", NULL, NULL),
    REFUSE("compression_training", NULL, NULL),
    REFUSE("weight_quantization", NULL, NULL),
};

size_t known_count(void) { return sizeof known / sizeof *known; }
const struct known *known_at(size_t i) { return &known[i]; }

const struct known *known_find(const char *path) {
    for (size_t i = 0; i < known_count(); i++)
        if (!strcmp(known[i].path, path)) return &known[i];
    return NULL;
}

static bool value_is_off(const cJSON *v) {
    static const char *const words[] = {"", "none", "auto"};
    if (cJSON_IsNull(v) || cJSON_IsFalse(v)) return true;
    if (cJSON_IsNumber(v)) return v->valuedouble == 0;
    for (size_t i = 0; cJSON_IsString(v) && i < sizeof words / sizeof *words; i++)
        if (!strcmp(v->valuestring, words[i])) return true;
    if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) return false;
    // Feature sections have "enabled"; offload sections name a device.
    const cJSON *master = cJSON_GetObjectItemCaseSensitive(v, "enabled");
    if (!master) master = cJSON_GetObjectItemCaseSensitive(v, "device");
    if (master) return value_is_off(master);
    const cJSON *member = NULL;
    cJSON_ArrayForEach(member, v) {
        if (!value_is_off(member)) return false;
    }
    return true;
}

bool known_is_off(const struct known *k, const cJSON *v) {
    if (value_is_off(v)) return true;
    char *text = k->harmless ? cJSON_PrintUnformatted(v) : NULL;
    bool off = text && !strcmp(text, k->harmless);
    free(text);
    return off;
}
