// Keys that this program does not read, with the reason: DeepSpeed's (0.19.6: docs/_pages/config-json.md and the
// classes that read it), and those of its own earlier versions. A path here is a leaf: members below it are not
// visited.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/json.h"

static const char less_memory[] = "the results stay the same and memory does not";
static const char less_told[] = "the results stay the same";
static const char use_clipping[] = "use gradient_clipping";
static const char of_model[] =
    "this is a model's config.json, not a DeepSpeed configuration: give its directory with --model";
static const char of_accelerate[] =
    "this is accelerate's file, not a DeepSpeed configuration: -c takes the file that deepspeed_config_file names";
static const char of_trainer[] =
    "this is a training program's file, not a DeepSpeed configuration: -c takes the file that its key deepspeed names";
static const char ordered_sum[] = "gradients are summed in fp32 in worker order and rounded once";

#define HINT(path, topic) \
    { path, KNOWN_NO_EFFECT, NULL, NULL, topic, NULL, NULL }
#define TUNING NOTE_TUNING
#define ALWAYS NOTE_ALWAYS
#define NEVER  NOTE_NOTHING
#define LATER(path, why) \
    { path, KNOWN_IGNORED, NULL, why, NOTE_IGNORED, NULL, NULL }
#define LATER_BUT(path, harmless, why) \
    { path, KNOWN_IGNORED, harmless, why, NOTE_IGNORED, NULL, NULL }
#define LATER_IF(path, master, any, why) \
    { path, KNOWN_IGNORED, NULL, why, NOTE_IGNORED, master, any }
#define REFUSE(path, harmless, why) \
    { path, KNOWN_REFUSED, harmless, why, NOTE_OFF, NULL, NULL }
#define REFUSE_IF(path, master, any, harmless, why) \
    { path, KNOWN_REFUSED, harmless, why, NOTE_OFF, master, any }
#define ELSEWHERE(path, why) \
    { path, KNOWN_ELSEWHERE, NULL, why, NOTE_OFF, NULL, NULL }
// A key that this program no longer has: the error names its replacement. A file of an earlier version is accepted if the
// key is off there.
#define GONE(path, harmless, why) \
    { path, KNOWN_GONE, harmless, why, NOTE_OFF, NULL, NULL }
#define SWITCH     "enabled"
#define ZERO(name) "zero_optimization." name

static const struct known known[] = {
    HINT(ZERO("allgather_partitions"), TUNING),
    HINT(ZERO("reduce_scatter"), TUNING),
    HINT(ZERO("contiguous_gradients"), TUNING),
    HINT(ZERO("use_multi_rank_bucket_allreduce"), TUNING),
    HINT(ZERO("round_robin_gradients"), TUNING),
    HINT(ZERO("grad_hooks"), TUNING),
    HINT(ZERO("stage3_param_persistence_threshold"), TUNING),
    HINT(ZERO("param_persistence_threshold"), TUNING),
    HINT(ZERO("stage3_model_persistence_threshold"), TUNING),
    HINT(ZERO("model_persistence_threshold"), TUNING),
    HINT(ZERO("stage3_max_reuse_distance"), TUNING),
    HINT(ZERO("max_reuse_distance"), TUNING),
    HINT(ZERO("stage3_module_granularity_threshold"), TUNING),
    HINT(ZERO("module_granularity_threshold"), TUNING),
    HINT(ZERO("stage3_use_all_reduce_for_fetch_params"), TUNING),
    HINT(ZERO("use_all_reduce_for_fetch_params"), TUNING),
    HINT(ZERO("sub_group_size"), TUNING),
    HINT(ZERO("memory_efficient_linear"), TUNING),
    HINT(ZERO("stage3_gather_16bit_weights_on_model_save"), ALWAYS),
    HINT(ZERO("gather_16bit_weights_on_model_save"), ALWAYS),
    HINT(ZERO("stage3_gather_fp16_weights_on_model_save"), ALWAYS),
    HINT(ZERO("ignore_unused_parameters"), NEVER),
    HINT(ZERO("override_module_apply"), NEVER),
    HINT(ZERO("legacy_stage1"), NEVER),
    HINT(ZERO("elastic_checkpoint"), NEVER),
    HINT(ZERO("load_from_fp32_weights"), NEVER),
    HINT(ZERO("pipeline_loading_checkpoint"), NEVER),
    HINT(ZERO("allgather_sequential"), TUNING),
    HINT(ZERO("stage3_allgather_sequential"), TUNING),
    HINT(ZERO("save_muon_momentum_buffer_in_memory"), NEVER),
    HINT(ZERO("leaf_module"), NEVER),
    HINT(ZERO("log_trace_cache_warnings"), NEVER),
    HINT(ZERO("enable_sanity_checks"), NEVER),
    HINT(ZERO("offload_optimizer.buffer_count"), TUNING),
    HINT(ZERO("offload_optimizer.pipeline_read"), ALWAYS),
    HINT(ZERO("offload_optimizer.pipeline_write"), ALWAYS),
    HINT(ZERO("offload_optimizer.fast_init"), NEVER),
    HINT(ZERO("offload_optimizer.convert_grad_on_cpu"), ALWAYS),
    HINT(ZERO("offload_optimizer.cpuadam_cores_perc"), NEVER),
    LATER(ZERO("offload_optimizer.super_offload"), less_told),
    HINT(ZERO("offload_param.buffer_count"), TUNING),
    HINT(ZERO("offload_param.buffer_size"), TUNING),
    HINT(ZERO("offload_param.max_in_cpu"), TUNING),
    HINT(ZERO("cpu_offload_use_pin_memory"), NEVER),
    LATER_BUT(ZERO("mics_shard_size"), "-1", less_memory),
    LATER(ZERO("mics_hierarchical_params_gather"), less_memory),
    REFUSE(ZERO("zero_quantized_weights"), NULL, NULL),
    REFUSE(ZERO("zero_quantized_nontrainable_weights"), NULL, NULL),
    REFUSE(ZERO("zero_quantized_gradients"), NULL, NULL),
    HINT(ZERO("zeropp_loco_param"), NEVER),  // only with zero_quantized_gradients
    REFUSE(ZERO("zenflow"), NULL, NULL),
    HINT("optimizer.legacy_fusion", NEVER),
    HINT("optimizer.params.comm_backend_name", TUNING),  // of OneBitAdam; here ring.collective
    HINT("optimizer.params.cuda_aware", TUNING),
    HINT("optimizer.params.eps_inside_sqrt", NEVER),  // no effect in DeepSpeed's OnebitAdam either
    HINT("optimizer.params.foreach", NEVER),
    HINT("optimizer.params.fp32_optimizer_states", ALWAYS),
    HINT("optimizer.params.fused", NEVER),
    HINT("optimizer.params.set_grad_none", ALWAYS),
    HINT("optimizer.params.capturable", NEVER),
    HINT("optimizer.params.differentiable", NEVER),
    REFUSE("optimizer.params.maximize", NULL, NULL),
    REFUSE("optimizer.params.amsgrad", NULL, NULL),
    REFUSE("optimizer.params.max_grad_norm", NULL, use_clipping),
    HINT("fp16.auto_cast", NEVER),  // casts floating-point inputs; tokens are integers
    REFUSE("fp16.fp16_master_weights_and_grads", NULL, NULL),
    HINT("bf16.check_grad_overflow", ALWAYS),
    HINT("bf16.immediate_grad_update", TUNING),
    REFUSE("bf16.bf16_master_weights_and_grads", NULL, NULL),
    REFUSE("bf16.bf16_optimizer_states", NULL, NULL),
    HINT("disable_allgather", TUNING),
    HINT("allgather_size", TUNING),  // only with "zero_optimization": true, where it is read and removed
    HINT("data_types.buffer_dtype", NEVER),
    HINT("seq_parallel_communication_data_type", NEVER),
    HINT("zero_allow_untested_optimizer", NEVER),
    HINT("zero_force_ds_cpu_optimizer", NEVER),
    HINT("vocabulary_size", NEVER),
    HINT("graph_harvesting", NEVER),
    HINT("log_level", NEVER),
    HINT("type", NEVER),  // of Ludwig's section for DeepSpeed
    HINT("use_data_before_expert_parallelism", NEVER),
    HINT("managed_gradient_accumulation", ALWAYS),
    HINT("dataloader_drop_last", NEVER),
    HINT("wall_clock_breakdown", ALWAYS),
    HINT("memory_breakdown", ALWAYS),
    LATER("dump_state", less_told),
    LATER_IF("flops_profiler", SWITCH, NULL, less_told),
    LATER_IF("autotuning", SWITCH, NULL, less_told),
    HINT("activation_checkpointing.partition_activations", NEVER),  // for ranks that split a layer's tensors
    HINT("activation_checkpointing.contiguous_memory_optimization", ALWAYS),
    HINT("activation_checkpointing.synchronize_checkpoint_boundary", NEVER),  // events give the order
    LATER("activation_checkpointing.profile", less_told),
    LATER("aio.thread_count", less_told),
    LATER("aio.intra_op_parallelism", less_told),
    LATER("aio.single_submit", less_told),
    LATER("aio.overlap_events", less_told),
    LATER("aio.use_gds", less_told),
    LATER_IF("wandb", SWITCH, NULL, less_told),
    LATER_IF("comet", SWITCH, NULL, less_told),
    LATER_IF("comms_logger", SWITCH, NULL, less_told),
    LATER_IF("nebula", SWITCH, NULL, less_told),
    LATER("datastates", less_told),
    LATER("datastates_ckpt", less_told),
    LATER("checkpoint", less_told),
    LATER_IF("compile", NULL, "deepcompile enabled", less_told),
    LATER("timers", less_told),
    LATER_IF("hybrid_engine", SWITCH, NULL, less_told),
    REFUSE("fp32_allreduce", NULL, ordered_sum),  // true is read as communication_data_type fp32
    REFUSE("allreduce_always_fp32", NULL, ordered_sum),
    REFUSE("prescale_gradients", NULL, ordered_sum),
    REFUSE("gradient_predivide_factor", "1", ordered_sum),
    REFUSE("gradient_allreduce_op", "\"mean\"",
           "the gradient is that of the mean loss over the global batch"),
    REFUSE("sparse_gradients", NULL, NULL),
    REFUSE("sparse_attention", NULL, NULL),
    REFUSE_IF("amp", SWITCH, NULL, NULL, "use bf16 or fp16"),
    REFUSE_IF("torch_autocast", SWITCH, NULL, NULL, "use bf16 or fp16"),
    REFUSE_IF("elasticity", SWITCH, NULL, NULL, "give the batch sizes themselves"),
    REFUSE_IF("pipeline", NULL, "stages pipe_parallel_size num_stages", "1", NULL),
    REFUSE_IF("tensor_parallel", NULL, "autotp_size tp_size tp.tp_size", "1", NULL),
    REFUSE_IF("expert_parallel", SWITCH, "autoep_size", "1", NULL),
    REFUSE("sequence_parallel_size", "1", NULL),
    REFUSE_IF("data_efficiency", SWITCH, "data_sampling.enabled data_routing.enabled", NULL, NULL),
    REFUSE_IF("curriculum_learning", SWITCH, NULL, NULL, NULL),
    REFUSE_IF("progressive_layer_drop", SWITCH, NULL, NULL, NULL),
    REFUSE_IF("eigenvalue", SWITCH, NULL, NULL, NULL),
    REFUSE_IF("quantize_training", SWITCH, NULL, NULL, NULL),
    REFUSE_IF(
        "compression_training", NULL,
        "weight_quantization.shared_parameters.enabled activation_quantization.shared_parameters.enabled "
        "sparse_pruning.shared_parameters.enabled row_pruning.shared_parameters.enabled "
        "head_pruning.shared_parameters.enabled channel_pruning.shared_parameters.enabled "
        "layer_reduction.enabled",
        NULL, NULL),
    REFUSE("weight_quantization", NULL, NULL),
    // Keys of peft's LoraConfig.
    REFUSE("lora.lora_dropout", "0", "adapters read what their layer reads"),
    REFUSE("lora.bias", "\"none\"", "biases are frozen, as all that is no adapter"),
    REFUSE("lora.use_rslora", "false",
           "the factor is alpha / r: for alpha / sqrt(r) give alpha times sqrt(r)"),
    REFUSE("lora.use_dora", "false", NULL),
    REFUSE("lora.modules_to_save", "null", "only adapters are trained"),
    REFUSE("lora.rank_pattern", "{}", "all adapters have rank lora.r"),
    REFUSE("lora.alpha_pattern", "{}", "all adapters have lora.alpha"),
    REFUSE("lora.layers_to_transform", "null", "every block has the same adapters"),
    REFUSE("lora.exclude_modules", "null", "lora.targets names those that have adapters"),
    REFUSE("lora.init_lora_weights", "true", "A is uniform and B zero, peft's default"),
    HINT("lora.fan_in_fan_out", ALWAYS),
    HINT("lora.task_type", NEVER),
    HINT("lora.peft_type", NEVER),
    HINT("lora.inference_mode", NEVER),
    HINT("lora.base_model_name_or_path", NEVER),
    GONE(
        "parameter_server.replicate", NULL,
        "servers keep no copies of each other any more: leave it out; a killed server costs the steps since the last checkpoint, "
        "with --restart N and --checkpoint-every K"),
    GONE(
        "parameter_server.distinct_workers", NULL,
        "updates that wait for K different workers are no longer supported: leave it out, which makes updates of the first K pushes, or "
        "use ps:backup:B, which goes on with the first N - B workers of each step"),
    GONE(
        "cuda.products", NULL,
        "tables of measured matrix products have gone: leave it out, each product takes the algorithm that cuBLASLt's heuristic "
        "names first"),
    GONE(
        "security.keys", NULL,
        "all processes of a job have one key, in the environment: export STARRING_JOB_KEY=$(starring keygen)"),
    // As an unknown key of a file, each of these would only cause a warning, and all weights would be trained.
    ELSEWHERE("lora.rank", "write lora.r"),
    ELSEWHERE("lora.lora_r", "write lora.r"),
    ELSEWHERE("lora.lora_alpha", "write lora.alpha"),
    ELSEWHERE("lora.target_modules", "write lora.targets"),
    ELSEWHERE("architectures", of_model),
    ELSEWHERE("model_type", of_model),
    ELSEWHERE("compute_environment", of_accelerate),
    ELSEWHERE("deepspeed_config", of_accelerate),
    ELSEWHERE("deepspeed_config_file", of_accelerate),
    ELSEWHERE("deepspeed", of_trainer),
    ELSEWHERE("model_name_or_path", of_trainer),
    ELSEWHERE("per_device_train_batch_size", of_trainer),
};

size_t known_count(void) { return sizeof known / sizeof *known; }
const struct known *known_at(size_t i) { return &known[i]; }

const struct known *known_find(const char *path) {
    for (size_t i = 0; i < known_count(); i++)
        if (!strcmp(known[i].path, path)) return &known[i];
    return NULL;
}

bool config_key_gone(const char *path) {
    const struct known *k = known_find(path);
    return k && k->use == KNOWN_GONE;
}

// converts: the text "false" is false, too.
static bool value_is_off(const cJSON *v, bool converts) {
    static const char *const words[] = {"", "none", "auto", "false", "0", "no", "off", "n", "f"};
    const size_t count = converts ? sizeof words / sizeof *words : 3;
    if (cJSON_IsNull(v) || cJSON_IsFalse(v)) return true;
    if (cJSON_IsNumber(v)) return v->valuedouble == 0;
    for (size_t i = 0; cJSON_IsString(v) && i < count; i++)
        if (!strcasecmp(v->valuestring, words[i])) return true;
    if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) return false;
    const cJSON *master = json_item(v, SWITCH), *member = NULL;
    if (master) return value_is_off(master, converts);
    cJSON_ArrayForEach(member, v) {
        if (!value_is_off(member, converts)) return false;
    }
    return true;
}

// Whether the list contains the text of v, in any case. converts: the text "1" is 1, too.
static bool is_listed(const char *list, const cJSON *v, bool converts) {
    char *text = !list                           ? NULL
                 : converts && cJSON_IsString(v) ? xstrdup(v->valuestring)
                                                 : cJSON_PrintUnformatted(v);
    size_t n = text ? strlen(text) : 0;
    bool found = false;
    for (const char *word = text ? list : ""; *word && !found;
         word += strcspn(word, " "), word += *word == ' ')
        found = strcspn(word, " ") == n && !strncasecmp(word, text, n);
    free(text);
    return found;
}

// Returns whether one of the listed members (dotted names) of the section is present and on.
static bool any_is_on(const struct known *k, const cJSON *section, const char *list, bool converts) {
    char copy[512], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        const cJSON *v = section;
        char *inner = NULL;
        for (char *name = strtok_r(word, ".", &inner); name; name = strtok_r(NULL, ".", &inner))
            v = json_item(v, name);
        if (v && !value_is_off(v, converts) && !is_listed(k->harmless, v, converts)) return true;
    }
    return false;
}

bool known_is_off(const struct known *k, const cJSON *v, bool converts) {
    if (!cJSON_IsObject(v) || (!k->master && !k->any))
        return value_is_off(v, converts) || is_listed(k->harmless, v, converts);
    return (k->master && !any_is_on(k, v, k->master, converts)) ||
           (k->any && !any_is_on(k, v, k->any, converts));
}
