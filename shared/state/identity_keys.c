#include "shared/state/identity_keys.h"

#include <stddef.h>
#include <string.h>

// What a change does to the run that continues. The promise is docs/ARCHITECTURE.md's: with N workers and one micro-batch a
// step, ps:sync = zero:0..3, any servers.
//
//     no bit moves    topology and stage, servers and their threads, partitions, medium; how far it goes, what is
//                     evaluated and kept
//     bits move       IDENTITY_BITS. workers, micro-batches, accumulation: the same global batches, cut otherwise, so
//                     sums round otherwise. kernels, device, reduce, chunks of the logits: the same sums in another
//                     order. consistency: later gradients on older weights. Each gives a right run, which equals no
//                     undisturbed one to the last bit
//     another run     IDENTITY_TRAJECTORY
#define T IDENTITY_TRAJECTORY
#define R IDENTITY_RUN
#define B IDENTITY_BITS
#define L IDENTITY_LOCAL

#define ONE_PROGRAM "install one version of starring for all of them"
#define ONE_TEXT    "give all of them the same files (data.path, data.val_path, data.val_fraction)"
#define ONE_MODEL   "give all of them the same model"
#define ONE_KERNEL  "choose one for all: --set cpu.kernel=fma"
#define ONE_RESUME  "let all of them see the same checkpoint directory"
#define CONFIG(key, uses) \
    { key, uses, true, NULL }

static const struct identity_key keys[] = {
    // ---- what no key of the configuration says
    {"program", R, false, ONE_PROGRAM},
    {"model.tensors", T, false, ONE_MODEL},  // names, shapes, order, decay
    {"model.vocab", T, false, ONE_MODEL},
    {"model.channels", T, false, ONE_MODEL},
    {"model.layers", T, false, ONE_MODEL},
    {"model.heads", T, false, ONE_MODEL},
    {"model.kv_heads", T, false, ONE_MODEL},
    {"model.head_size", T, false, ONE_MODEL},
    {"model.ffn", T, false, ONE_MODEL},
    {"model.tied", T, false, ONE_MODEL},
    {"model.norm", T, false, ONE_MODEL},
    {"model.norm_eps", T, false, ONE_MODEL},
    {"model.positions", T, false, ONE_MODEL},
    {"model.rope", T, false, ONE_MODEL},
    {"model.mlp", T, false, ONE_MODEL},
    {"model.biases", T, false, ONE_MODEL},
    {"model.init_std", R, false, ONE_MODEL},     // weights that are loaded have no use for it
    {"model.weights", R | L, false, ONE_MODEL},  // a checkpoint has its own
    {"data", T | L, false, ONE_TEXT},
    {"data.held_out", T | L, false, ONE_TEXT},   // the curve of a continued run is of one text
    {"consistency", B, false, NULL},             // "sync" of all topologies that promise the same bits
    {"gradients.summed", B, false, NULL},        // over the ranks, where a step has several micro-batches
    {"recovery.resumed", R, false, ONE_RESUME},  // which checkpoint, by its content

    // ---- the configuration: what was read is compared above, not where it lies
    CONFIG("model.name", 0),
    CONFIG("data.path", 0),
    CONFIG("data.val_path", 0),
    CONFIG("data.tokenizer", 0),
    CONFIG("data.val_fraction", 0),
    CONFIG("data.seq_len", T),

    CONFIG("topology", R),
    CONFIG("workers", R | B),
    CONFIG("launch", 0),      // how the processes were started
    CONFIG("medium", R),      // where one demands shared memory: identity.c
    CONFIG("device", B | L),  // each worker may have another: it computes its own share of the batch
    CONFIG("threads", 0),     // no bit depends on them
    {"cpu.kernel", R | B | L, true, ONE_KERNEL},
    CONFIG("cuda.attention", R | B | L),
    CONFIG("cuda.attention_slice", R | B | L),
    CONFIG("cuda.gelu", R | B | L),
    CONFIG("cuda.bias_grad", R | B | L),
    CONFIG("cuda.products", 0),  // a file: products_compare compares what of it applies to a device
    CONFIG("dtype", T),
    CONFIG("steps", R),
    CONFIG("seed", T),
    CONFIG("out", 0),  // where

    CONFIG("eval_every", R),
    CONFIG("eval_every_seconds", R),
    CONFIG("eval_batches", R),
    CONFIG("target_loss", R),
    CONFIG("keep_snapshots", 0),  // worker 0's files
    CONFIG("trace", 0),           // each role may leave its own
    // They name ranks, and each rank looks itself up: where one does not know of its trouble, the report is wrong.
    CONFIG("trouble.straggle", R),
    CONFIG("trouble.delay", R),
    CONFIG("trouble.fault", 0),  // of the process that is told so; no bit moves
    CONFIG("json", 0),
    CONFIG("quiet", 0),
    CONFIG("full", 0),
    CONFIG("unknown_keys", 0),  // of a file that was read
    CONFIG("memory.check", 0),  // of each machine
    CONFIG("memory.logits_bytes", R | B),
    CONFIG("memory.device_bytes", 0),

    CONFIG("train_batch_size", T),
    CONFIG("train_micro_batch_size_per_gpu", R | B),
    CONFIG("gradient_accumulation_steps", R | B),
    CONFIG("optimizer.type", T),
    CONFIG("optimizer.params.lr", T),
    CONFIG("optimizer.params.betas", T),
    CONFIG("optimizer.params.eps", T),
    CONFIG("optimizer.params.weight_decay", T),
    CONFIG("optimizer.params.momentum", T),
    CONFIG("optimizer.params.dampening", T),
    CONFIG("optimizer.params.nesterov", T),
    CONFIG("optimizer.params.adam_w_mode", T),
    CONFIG("optimizer.params.torch_adam", 0),  // it only chose a default
    CONFIG("optimizer.params.bias_correction", T),
    CONFIG("optimizer.params.freeze_step", T),
    CONFIG("scheduler.type", T),
    CONFIG("scheduler.params.warmup_min_lr", T),
    CONFIG("scheduler.params.warmup_max_lr", T),
    CONFIG("scheduler.params.warmup_num_steps", T),
    CONFIG("scheduler.params.total_num_steps", T),
    CONFIG("scheduler.params.warmup_type", T),
    CONFIG("scheduler.params.warmup_min_ratio", T),
    CONFIG("scheduler.params.cos_min_ratio", T),
    CONFIG("scheduler.params.cycle_min_lr", T),
    CONFIG("scheduler.params.cycle_max_lr", T),
    CONFIG("scheduler.params.decay_lr_rate", T),
    CONFIG("scheduler.params.cycle_first_step_size", T),
    CONFIG("scheduler.params.cycle_second_step_size", T),
    CONFIG("scheduler.params.cycle_first_stair_count", T),
    CONFIG("scheduler.params.cycle_second_stair_count", T),
    CONFIG("scheduler.params.decay_step_size", T),
    CONFIG("scheduler.params.cycle_momentum", T),
    CONFIG("scheduler.params.cycle_min_mom", T),
    CONFIG("scheduler.params.cycle_max_mom", T),
    CONFIG("scheduler.params.decay_mom_rate", T),
    CONFIG("scheduler.params.lr_range_test_min_lr", T),
    CONFIG("scheduler.params.lr_range_test_step_size", T),
    CONFIG("scheduler.params.lr_range_test_step_rate", T),
    CONFIG("scheduler.params.lr_range_test_staircase", T),
    CONFIG("scheduler.params.last_batch_iteration", 0),  // it has one value
    CONFIG("fp16.enabled", 0),                           // dtype says so
    CONFIG("fp16.loss_scale", T),                        // these where dtype is fp16: identity.c
    CONFIG("fp16.initial_scale_power", T),
    CONFIG("fp16.loss_scale_window", T),
    CONFIG("fp16.hysteresis", T),
    CONFIG("fp16.consecutive_hysteresis", T),
    CONFIG("fp16.min_loss_scale", T),
    CONFIG("bf16.enabled", 0),  // dtype says so
    CONFIG("gradient_clipping", T),
    CONFIG("steps_per_print", 0),
    CONFIG("tensorboard.enabled", 0),  // worker 0's files
    CONFIG("tensorboard.output_path", 0),
    CONFIG("tensorboard.job_name", 0),
    CONFIG("csv_monitor.enabled", 0),
    CONFIG("csv_monitor.output_path", 0),
    CONFIG("csv_monitor.job_name", 0),

    CONFIG("zero_optimization.stage", 0),  // topology says it
    CONFIG("zero_optimization.overlap_comm",
           R),  // ranks that meet in another order wait for each other for ever
    // Where state lies moves no bit and no message; each rank's machine may have another place for it.
    CONFIG("zero_optimization.offload_optimizer.device", 0),
    CONFIG("zero_optimization.offload_optimizer.pin_memory", 0),
    CONFIG("zero_optimization.offload_optimizer.nvme_path", 0),
    CONFIG("zero_optimization.offload_optimizer.ratio", 0),
    CONFIG("zero_optimization.offload_param.device", 0),
    CONFIG("zero_optimization.offload_param.pin_memory", 0),
    CONFIG("zero_optimization.offload_param.nvme_path", 0),
    CONFIG("zero_optimization.cpu_offload", 0),
    CONFIG("zero_optimization.cpu_offload_param", 0),
    CONFIG("aio.block_size", 0),
    CONFIG("aio.queue_depth", 0),
    CONFIG("data_types.grad_accum_dtype", R | B),
    // The same bits, computed once more.
    CONFIG("activation_checkpointing.number_checkpoints", 0),
    CONFIG("activation_checkpointing.cpu_checkpointing", 0),
    CONFIG("activation_checkpointing.recompute", 0),
    CONFIG("communication_data_type", 0),  // dtype says it
    CONFIG("reduce", R | B),
    CONFIG("zero_optimization.stage3_prefetch_bucket_size", R),
    CONFIG("zero_optimization.stage3_max_live_parameters", R),
    CONFIG("zero_optimization.zero_hpz_partition_size", R),
    CONFIG("zero_optimization.reduce_bucket_size", R),
    CONFIG("zero_optimization.allgather_bucket_size", R),
    CONFIG("reduce_group", R | B),
    CONFIG("ring.collective", R),
    CONFIG("ring.no_sync", R),
    CONFIG("parameter_server.servers", R),
    CONFIG("parameter_server.threads", R),
    CONFIG("parameter_server.partition_bytes", R),
    // How patient and how greedy each role is, where it listens, what it writes down.
    CONFIG("parameter_server.deadline_ms", 0),
    CONFIG("parameter_server.heartbeat_ms", 0),
    CONFIG("parameter_server.credit_bytes", 0),
    CONFIG("parameter_server.bind", 0),
    CONFIG("parameter_server.record_arrivals", 0),
    CONFIG("parameter_server.replay_arrivals", 0),  // the file says of which run it is (ps/record/arrivals.h)
    CONFIG("parameter_server.log_updates", 0),
    CONFIG("parameter_server.replicate", R),
    // A right run whatever the code is, since what it leaves out is said later; other bits.
    CONFIG("parameter_server.compression", R | B),
    CONFIG("parameter_server.compression_share", R | B),

    CONFIG("recovery.checkpoint_every", R),
    CONFIG("recovery.checkpoint_background", R),
    CONFIG("recovery.checkpoint_keep", R),
    CONFIG("recovery.checkpoint_keep_every", R),
    CONFIG("recovery.resume", 0),  // where: what was read is "recovery.resumed"
    CONFIG("recovery.resume_weights_only", R),
    CONFIG("recovery.restart", R),
    CONFIG("recovery.elastic", R | B),
    CONFIG("security.keys", 0),      // where each machine has its own
    CONFIG("security.insecure", 0),  // roles that differ in it do not get to talk
};

const struct identity_key *identity_key_at(int i) {
    return i >= 0 && (size_t)i < sizeof keys / sizeof *keys ? &keys[i] : NULL;
}

const struct identity_key *identity_key(const char *key) {
    static const struct identity_key unknown = {"", T | R, false, ONE_PROGRAM};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i].key, key)) return &keys[i];
    return &unknown;
}
