// The table of the keys that are read: one row has everything about a key.
#include <assert.h>
#include <limits.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/model/spec.h"

#define NAME_OF(id, name, ...)       name,
#define ROW_OF(id, ...)              {__VA_ARGS__},
#define HELP_OF(id, name, help, ...) help
#define HELP_WORDS(id, name, words)  {name, words},
const struct launch_row launch_rows[LAUNCH_KINDS] = {LAUNCH_LIST(ROW_OF)};
const struct engine_row engine_rows[RING_COLLECTIVES] = {ENGINE_LIST(ROW_OF)};
const struct device_row device_rows[DEVICE_KINDS] = {DEVICE_LIST(ROW_OF)};
const struct outer_row outer_rows[OUTER_KINDS] = {OUTER_LIST(ROW_OF)};
static const char *const launch_names[] = {LAUNCH_LIST(NAME_OF) NULL};
static const char *const engine_names[] = {ENGINE_LIST(NAME_OF) NULL};
static const char *const device_names[] = {DEVICE_LIST(NAME_OF) NULL};
#define CODE_NAME(id, name, ...) #name,
static const char *const code_names[] = {"none", CODE_LIST(CODE_NAME) NULL};
const char *const medium_names[] = {"auto", "shm", "tcp", NULL};
static const char *const dtype_names[] = {"fp32", "bf16", "fp16", NULL};
static const char *const documents_names[] = {"packed", "whole", NULL};
static const char *const unknown_names[] = {"refuse", "ignore", NULL};
static const char *const own_or_dtype_names[] = {"auto", "fp32", "bf16", "fp16", NULL};
static const char *const schedule_names[] = {
    "none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest", NULL};
static const char *const warmup_names[] = {"log", "linear", NULL};
static const char *const memory_check_names[] = {"auto", "off", NULL};
static const char *const batches_names[] = {"none", "all", "auto", NULL};
static const char *const auto_names[] = {"auto", NULL};
static const char *const device_bytes_names[] = {"all", NULL};
static const char *const attention_names[] = {"auto", "cudnn", "own", NULL};
static const char *const slice_names[] = {"auto", "whole", NULL};
static const char *const gelu_names[] = {"auto", "fused", "apart", NULL};
static const char *const bias_grad_names[] = {"auto", "epilogue", "kernel", NULL};
static const char *const prefetch_names[] = {"none", "auto", NULL};
static const char *const resident_names[] = {"all", "units", NULL};
static const char *const lead_names[] = {"none", NULL};
static const char *const group_names[] = {"none", "host", NULL};
static const char *const outer_names[] = {OUTER_LIST(NAME_OF) NULL};
const char *const gossip_graphs[] = {GOSSIP_LIST(NAME_OF) NULL};
const char *const offload_names[] = {"none", "cpu", "nvme", NULL};
static const char *const read_names[] = {"freshest", "oldest", NULL};
static const char *const recompute_names[] = {"auto", "none", "cheap", "block", NULL};
static const char *const reduce_names[] = {"ordered", "native", NULL};

const char *const help_groups[HELP_GROUPS][2] = {HELP_LIST(HELP_WORDS)};

static_assert(DT_F32 == 0 && DT_BF16 == 1 && DT_F16 == 2, "dtype_names are indexed by enum dtype");
static_assert(RECOMPUTE_NONE == 0 && RECOMPUTE_CHEAP == 1 && RECOMPUTE_BLOCK == 2,
              "recompute_names, behind auto");
static_assert(EVAL_ALL == -1 && EVAL_AUTO == -2, "batches_names are their negatives");
static_assert(PREFETCH_AUTO == -1, "prefetch_names are their negatives");
static_assert(GROUP_NONE == 0 && GROUP_HOST == -1, "group_names are their negatives");
static_assert(CUDA_SLICE_AUTO == 0 && CUDA_SLICE_WHOLE == -1, "slice_names are their negatives");
static_assert(offsetof(struct optimizer_config, beta2) ==
                  offsetof(struct optimizer_config, beta1) + sizeof(float),
              "KEY_PAIR stores both");

#define ROW(name, uses, kind, member, ...) \
    { .path = name, .agree = uses, .type = kind, .offset = offsetof(struct draft, member), __VA_ARGS__ }
#define TEXT(path, uses, member, ...)       ROW(path, uses, KEY_TEXT, member, __VA_ARGS__)
#define LIST(path, uses, member, ...)       ROW(path, uses, KEY_LIST, member, __VA_ARGS__)
#define BOOL(path, uses, member, ...)       ROW(path, uses, KEY_BOOL, member, __VA_ARGS__)
#define ENUM(path, uses, member, list, ...) ROW(path, uses, KEY_ENUM, member, .names = list, __VA_ARGS__)
#define SIZE(path, uses, member, list, ...) \
    ROW(path, uses, KEY_SIZE, member, .low = 1, .high = EXACT_MAX, .names = list, __VA_ARGS__)
#define ELEMENTS(path, uses, member, list, ...) \
    ROW(path, uses, KEY_SIZE, member, .high = EXACT_MAX, .names = list, __VA_ARGS__)
#define DTYPE(path, uses, member, list, ...) ENUM(path, uses, member, list, .is_dtype = true, __VA_ARGS__)
#define NUMBER(path, uses, type, member, least, most, ...) \
    ROW(path, uses, type, member, .low = least, .high = most, __VA_ARGS__)
#define DEFAULT(text)                  .default_value = text
#define AUTO(text)                     .auto_value = text, .auto_why = "Hugging Face's defaults"
#define LATER                          .auto_value = ""
#define OF(types)                      .schedules = types
#define FLAG(name, value, words)       .flag = name, .metavar = value, .help = words
#define TRAIN_FLAG(name, value, words) FLAG(name, value, words), .train = true
#define SERVERS(of)                    .servers = of
#define IN(of)                         .group = HELP_##of
#define OFTEN(of)                      IN(of), .often = true

// The uses of a key (enum identity_use): which ranks and runs must agree on it. docs/numerics.md promises: with
// N workers and one micro-batch per step, ps:sync = zero:0..3, with any number of servers.
//
//     NOBODY          changes no bit, and ranks may differ: paths, timeouts, verbosity, speed
//     R               changes no bit, but all ranks must agree: topology and stage, servers and their threads,
//                     partitions, medium; how many steps, what is evaluated and kept
//     B               changes bits. workers, micro-batches, accumulation: the same global batches in other slices, so
//                     sums round differently. kernels, device, reduce, chunks of the logits: the same sums in another
//                     order. The run is correct, but differs from an undisturbed one in its last bits
//     T               another value is another run
#define NOBODY 0
#define T      IDENTITY_TRAJECTORY
#define R      IDENTITY_RUN
#define B      IDENTITY_BITS
#define L      IDENTITY_LOCAL
#define ORDER  IDENTITY_ORDER

// The schedules that take a parameter, as in the constructors of DeepSpeed's lr_schedules.py.
#define W (1u << SCHEDULE_WARMUP)
#define D (1u << SCHEDULE_WARMUP_DECAY)
#define C (1u << SCHEDULE_WARMUP_COSINE)
#define O (1u << SCHEDULE_ONE_CYCLE)
#define G (1u << SCHEDULE_RANGE_TEST)
#define SCHEDULE_INTEGER(name, member, least, ...) \
    NUMBER("scheduler.params." name, T, KEY_I64, c.schedule.member, least, EXACT_MAX, __VA_ARGS__)
#define SCHEDULE_REAL(name, member, most, ...) \
    NUMBER("scheduler.params." name, T, KEY_F64, c.schedule.member, 0, most, __VA_ARGS__)

// In the order in which config_to_json writes them and --help lists them.
static const struct config_key keys[] = {
    TEXT(
        "model.name", NOBODY, c.model, DEFAULT("demo"),
        FLAG(
            "model", "M",
            "a preset (tiny, demo, gpt2-124m, ..), a Hugging Face config.json, or a directory with weights (demo)"),
        OFTEN(WHAT)),
    TEXT(
        "data.path", NOBODY, c.data, DEFAULT("demo"),
        FLAG(
            "data", "PATH",
            "a text or token file, a directory of them, a pattern in quotes, or demo: the demo's text (demo)"),
        OFTEN(WHAT)),
    TEXT("data.val_path", NOBODY, c.val_data,
         FLAG("data-val", "PATH",
              "held-out text or tokens (default: files of --data with such a name, else its last 5%)"),
         IN(WHAT)),
    TEXT(
        "data.tokenizer", NOBODY, c.tokenizer, DEFAULT("auto"),
        FLAG(
            "tokenizer", "KIND",
            "auto; byte: read text, one token per byte, for any model; bin: read only the token files of a directory (auto)"),
        IN(WHAT)),
    NUMBER("data.val_fraction", NOBODY, KEY_F64, c.val_fraction, 0, 0.9, DEFAULT("0.05")),
    ENUM(
        "data.documents", T, c.documents, documents_names,
        FLAG(
            "documents", "HOW",
            "packed: sequences from anywhere in the text; whole: one document per sequence, cut at T tokens (packed)"),
        IN(WHAT)),
    NUMBER("data.seq_len", T, KEY_I64, c.seq, 1, 1 << 24, DEFAULT("256"),
           FLAG("seq", "T", "tokens per sequence (256)"), OFTEN(WHAT)),
    TEXT("topology", R | ORDER, c.topology,
         FLAG("topology", "T", "how ranks train together (local): " HELP_TOPOLOGIES), OFTEN(RANKS)),
    NUMBER("workers", R | B | ORDER, KEY_INT, c.workers, 1, 65536,
           FLAG("workers", "N", "number of ranks that compute (2; local: 1)"), OFTEN(RANKS)),
    ENUM(
        "launch", NOBODY, c.launch, launch_names,
        TRAIN_FLAG(
            "launch", "HOW",
            "how ranks are started: processes, threads (ring), mpi (ring), or auto: processes, but threads for a ring on GPUs (auto)"),
        IN(RANKS)),  // how the processes were started
    ENUM("medium", R | ORDER, c.medium, medium_names,
         FLAG("medium", "M",
              "transport between processes of one host: shm (shared memory), tcp or auto (auto)"),
         IN(RANKS)),  // compared only if a rank requires shared memory
    TEXT("interface", NOBODY, c.interface,
         TRAIN_FLAG(
             "interface", "NAME",
             "network interface between ranks on several hosts, such as eth1 (default: the route to rank 0)"),
         IN(RANKS)),
    ENUM("device", B | L, c.device, device_names,
         FLAG("device", "D", "cpu, cuda, ref (slow and simple), or auto: a GPU if there is one (auto)"),
         OFTEN(RANKS)),  // workers may differ: each computes its own share of the batch
    NUMBER("threads", NOBODY, KEY_INT, c.threads, 0, 4096,
           FLAG("threads", "N", "CPU threads per rank; 0: an equal share of the cores (0)"),
           OFTEN(RANKS)),  // no bit depends on the number
    ENUM("cpu.kernel", NOBODY, c.cpu_kernel, cpu_kernel_names),
    ENUM("cuda.attention", R | B | L, c.cuda.attention, attention_names),
    SIZE("cuda.attention_slice", R | B | L, c.cuda.attention_slice_bytes, slice_names),
    ENUM("cuda.gelu", R | B | L, c.cuda.gelu, gelu_names),
    ENUM("cuda.bias_grad", R | B | L, c.cuda.bias_grad, bias_grad_names),
    DTYPE("dtype", T, c.dtype, dtype_names, FLAG("dtype", "D", "fp32, bf16 or fp16 (fp32)"), OFTEN(WHAT)),
    NUMBER("steps", R | ORDER, KEY_I64, c.steps, 1, EXACT_MAX, DEFAULT("100"),
           FLAG("steps", "N", "number of steps (100)"), OFTEN(TRAINING)),
    NUMBER("seed", T, KEY_I64, c.seed, 0, EXACT_MAX, DEFAULT("1"),
           FLAG("seed", "N", "seed of the initial weights and the batches (1)"), OFTEN(TRAINING)),
    TEXT("out", NOBODY, c.out,
         FLAG("out", "DIR", "run directory (default of train: runs/MODEL-TOPOLOGY-TIME)"), OFTEN(FILES)),
    NUMBER(
        "eval_every", R, KEY_I64, c.eval_every, 0, EXACT_MAX,
        FLAG(
            "eval-every", "K",
            "keep the weights of every K-th step and evaluate them after the run (0: only the last weights)"),
        OFTEN(TRAINING)),
    NUMBER("eval_every_seconds", R, KEY_F64, c.eval_every_seconds, 0, FLOAT_MAX),
    ROW("eval_batches", R, KEY_SIZE, c.eval_batches, .high = EXACT_MAX, .names = batches_names,
        DEFAULT("auto")),
    NUMBER("target_loss", R, KEY_F64, c.target_loss, 0, FLOAT_MAX),
    BOOL("keep_snapshots", NOBODY, c.keep_snapshots,
         FLAG("keep-snapshots", NULL, "do not remove DIR/snapshots after evaluating them"),
         IN(FILES)),  // worker 0's files
    BOOL("trace", NOBODY, c.trace,
         FLAG("trace", NULL,
              "write all steps to trace.json (for Chrome or Perfetto), not only the last three"),
         IN(FILES)),  // each role may write its own
    // These lists name ranks, and each rank looks up its own entry. If ranks have other lists, the report is wrong.
    LIST(
        "trouble.straggle", R, c.straggle,
        FLAG(
            "straggle", "R:F[:P]",
            "worker R (*: each worker) computes F times as long, in a share P of its steps (all); R:D:X: 1 + X times "
            "on average, drawn from distribution D per micro-batch; repeatable"),
        IN(TROUBLE)),
    LIST(
        "trouble.delay", R, c.delay,
        FLAG(
            "delay", "R:D:MS",
            "worker R (*: each worker) computes MS ms longer per step; D: constant, exponential, pareto, lognormal; "
            "repeatable"),
        IN(TROUBLE)),
    TEXT(
        "trouble.fault", NOBODY, c.fault,
        FLAG(
            "fault", "LIST",
            "lose, duplicate, reorder or delay a star's messages: drop=P,dup=P,reorder=P (shares),delay=MS,seed=S"),
        IN(TROUBLE)),  // each process injects faults into its own messages only; no bit changes
    BOOL("json", NOBODY, c.json,
         TRAIN_FLAG("json", NULL, "print only summary.json on stdout; steps go to stderr"), IN(FILES)),
    BOOL("quiet", NOBODY, c.quiet,
         FLAG("quiet", NULL, "print no step lines and no table; of the configuration, only warnings"),
         OFTEN(FILES)),
    BOOL("full", NOBODY, c.full,
         FLAG("full", NULL, "print every figure at the end, as starring summary does"), IN(FILES)),
    ENUM("unknown_keys", NOBODY, unknown_keys, unknown_names, .only_read = true),
    ENUM("memory.check", NOBODY, c.memory_check, memory_check_names),  // may differ between machines
    SIZE("memory.logits_bytes", R | B, c.logits_bytes, auto_names),
    SIZE("memory.device_bytes", NOBODY, c.device_bytes, device_bytes_names,
         TRAIN_FLAG("device-memory", "SIZE",
                    "limit of a worker's device memory, such as 6GiB; on a CPU too (all)"),
         IN(RANKS)),
    NUMBER("train_batch_size", T, KEY_I64, c.train_batch, 1, 1 << 30, LATER),
    NUMBER("train_micro_batch_size_per_gpu", R | B, KEY_I64, c.micro_batch, 1, 1 << 30, LATER,
           FLAG("batch", "B", "sequences per micro-batch and worker (4)"), OFTEN(TRAINING)),
    NUMBER("gradient_accumulation_steps", R | B, KEY_I64, c.accumulation, 1, 1 << 30, LATER),
    // The defaults of optimizer.params are in the optimizer's row.
    TEXT("optimizer.type", T, c.optimizer_type, DEFAULT("AdamW")),
    NUMBER("optimizer.params.lr", T, KEY_F32, c.optimizer.lr, 0, FLOAT_MAX, AUTO("5e-05"),
           FLAG("lr", "X", "learning rate (1e-3)"), OFTEN(TRAINING)),
    NUMBER("optimizer.params.betas", T, KEY_PAIR, c.optimizer.beta1, 0, BELOW_1, AUTO("[0.9,0.999]")),
    NUMBER("optimizer.params.eps", T, KEY_F32, c.optimizer.eps, 1e-38, 1, AUTO("1e-08")),
    NUMBER("optimizer.params.weight_decay", T, KEY_F32, c.optimizer.weight_decay, 0, FLOAT_MAX, AUTO("0")),
    NUMBER("optimizer.params.momentum", T, KEY_F32, c.optimizer.momentum, 0, BELOW_1),
    NUMBER("optimizer.params.alpha", T, KEY_F32, c.optimizer.alpha, 0, BELOW_1),
    NUMBER("optimizer.params.dampening", T, KEY_F32, c.optimizer.dampening, 0, 1),
    BOOL("optimizer.params.nesterov", T, c.optimizer.nesterov),
    ROW("optimizer.params.adam_w_mode", T, KEY_NOT, c.optimizer.l2_mode),
    BOOL("optimizer.params.torch_adam", NOBODY, torch_adam, .only_read = true),
    ROW("optimizer.params.bias_correction", T, KEY_NOT, c.optimizer.no_bias_correction),
    NUMBER("optimizer.params.freeze_step", T, KEY_I64, c.optimizer.freeze_step, 1, EXACT_MAX),
    ENUM("scheduler.type", T, c.schedule.type, schedule_names, OF(W | D | C | O | G)),
    NUMBER("scheduler.params.warmup_min_lr", T, KEY_F64, c.schedule.min_lr, 0, FLOAT_MAX, AUTO("0"),
           OF(W | D), .of_groups = true),
    NUMBER("scheduler.params.warmup_max_lr", T, KEY_F64, c.schedule.max_lr, 0, FLOAT_MAX, LATER, OF(W | D),
           .of_groups = true),
    NUMBER("scheduler.params.warmup_num_steps", T, KEY_I64, c.schedule.warmup_steps, 0, EXACT_MAX,
           DEFAULT("1000"), LATER, OF(W | D | C)),
    NUMBER("scheduler.params.total_num_steps", T, KEY_I64, c.schedule.total_steps, 1, EXACT_MAX, LATER,
           OF(D | C)),
    ENUM("scheduler.params.warmup_type", T, c.schedule.warmup, warmup_names, OF(W | D | C)),
    NUMBER("scheduler.params.warmup_min_ratio", T, KEY_F64, c.schedule.warmup_min_ratio, 0, 1, OF(C)),
    NUMBER("scheduler.params.cos_min_ratio", T, KEY_F64, c.schedule.cos_min_ratio, 0, 1, DEFAULT("1e-4"),
           OF(C)),
    NUMBER("scheduler.params.last_batch_iteration", NOBODY, KEY_I64, last_iteration, -1, -1, DEFAULT("-1"),
           OF(W | D | C | O | G)),  // -1 is the only value
    SCHEDULE_REAL("cycle_min_lr", cycle_min_lr, FLOAT_MAX, OF(O), .of_groups = true),
    SCHEDULE_REAL("cycle_max_lr", cycle_max_lr, FLOAT_MAX, OF(O), .of_groups = true),
    SCHEDULE_REAL("decay_lr_rate", decay_lr_rate, FLOAT_MAX, OF(O)),
    SCHEDULE_INTEGER("cycle_first_step_size", cycle_first, 1, DEFAULT("2000"), OF(O)),
    SCHEDULE_INTEGER("cycle_second_step_size", cycle_second, 0, OF(O)),
    SCHEDULE_INTEGER("cycle_first_stair_count", first_stairs, 0, OF(O)),
    SCHEDULE_INTEGER("cycle_second_stair_count", second_stairs, 0, OF(O)),
    SCHEDULE_INTEGER("decay_step_size", decay_step, 0, OF(O)),
    BOOL("scheduler.params.cycle_momentum", T, c.schedule.cycle_momentum, DEFAULT("true"), OF(O)),
    SCHEDULE_REAL("cycle_min_mom", min_mom, BELOW_1, DEFAULT("0.8"), OF(O)),
    SCHEDULE_REAL("cycle_max_mom", max_mom, BELOW_1, DEFAULT("0.9"), OF(O)),
    SCHEDULE_REAL("decay_mom_rate", decay_mom_rate, FLOAT_MAX, OF(O)),
    SCHEDULE_REAL("lr_range_test_min_lr", range_min_lr, FLOAT_MAX, DEFAULT("1e-3"), OF(G), .of_groups = true),
    SCHEDULE_INTEGER("lr_range_test_step_size", range_step, 1, DEFAULT("2000"), OF(G)),
    SCHEDULE_REAL("lr_range_test_step_rate", range_rate, FLOAT_MAX, DEFAULT("1"), OF(G)),
    BOOL("scheduler.params.lr_range_test_staircase", T, c.schedule.range_staircase, OF(G)),
    BOOL("fp16.enabled", NOBODY, fp16, LATER),  // dtype has the result
    NUMBER("fp16.loss_scale", T, KEY_F64, c.scaler.static_scale, 0, FLOAT_MAX, .no_bool = true),
    // The values that these four may have depend on fp16.enabled and loss_scale (config_resolve.c).
    NUMBER("fp16.initial_scale_power", T, KEY_INT, c.scaler.initial_power, -INT_MAX, INT_MAX, DEFAULT("16")),
    NUMBER("fp16.loss_scale_window", T, KEY_INT, c.scaler.window, -INT_MAX, INT_MAX, DEFAULT("1000"),
           .no_bool = true),
    NUMBER("fp16.hysteresis", T, KEY_INT, c.scaler.hysteresis, -INT_MAX, INT_MAX, DEFAULT("2")),
    BOOL("fp16.consecutive_hysteresis", T, c.scaler.consecutive_hysteresis),
    NUMBER("fp16.min_loss_scale", T, KEY_F64, c.scaler.min_scale, -FLOAT_MAX, FLOAT_MAX, DEFAULT("1"),
           .no_bool = true),
    BOOL("bf16.enabled", NOBODY, bf16, LATER),  // dtype has the result
    // The default is DeepSpeed 0.19.6's.
    NUMBER("gradient_clipping", T, KEY_F32, c.clip, -FLOAT_MAX, FLOAT_MAX, DEFAULT("1"), AUTO("1"),
           .true_is_1 = true),
    NUMBER("steps_per_print", NOBODY, KEY_I64, c.steps_per_print, 1, EXACT_MAX, DEFAULT("10")),
    BOOL("tensorboard.enabled", NOBODY, c.tensorboard.enabled),  // worker 0's files
    TEXT("tensorboard.output_path", NOBODY, c.tensorboard.output_path, .empty = true),
    TEXT("tensorboard.job_name", NOBODY, c.tensorboard.job_name, DEFAULT("DeepSpeedJobName"), .empty = true),
    BOOL("csv_monitor.enabled", NOBODY, c.csv_monitor.enabled),
    TEXT("csv_monitor.output_path", NOBODY, c.csv_monitor.output_path, .empty = true),
    TEXT("csv_monitor.job_name", NOBODY, c.csv_monitor.job_name, DEFAULT("DeepSpeedJobName"), .empty = true),
    NUMBER("zero_optimization.stage", NOBODY, KEY_INT, stage, 0, 3, .ring = true),  // topology has the result
    ROW("zero_optimization.overlap_comm", R, KEY_NOT,
        c.no_overlap),  // ranks that exchange in different orders would wait for each other forever
    ELEMENTS("zero_optimization.stage3_prefetch_bucket_size", R, c.prefetch_elements, prefetch_names,
             .alias = "zero_optimization.prefetch_bucket_size", .stage_3 = true, DEFAULT("auto")),
    // A bucket of 0 elements is one unit, like "auto"; slots of 0 elements are one slot.
    ELEMENTS("zero_optimization.reduce_bucket_size", R, c.reduce_elements, auto_names),
    ELEMENTS("zero_optimization.allgather_bucket_size", R, c.gather_elements, auto_names),
    ELEMENTS("zero_optimization.stage3_max_live_parameters", R, c.live_elements, auto_names, .stage_3 = true,
             .zero = 1, .alias = "zero_optimization.max_live_parameters"),
    NUMBER("zero_optimization.zero_hpz_partition_size", R, KEY_I64, c.hpz, 0, 65536, .stage_3 = true,
           .zero = 1, DEFAULT("1")),
    // Where state is stored changes no bit and no message, and may differ from machine to machine.
    ENUM("zero_optimization.offload_optimizer.device", NOBODY, c.offload_optimizer.device, offload_names,
         .ring = true),
    BOOL("zero_optimization.offload_optimizer.pin_memory", NOBODY, c.offload_optimizer.pin_memory,
         .ring = true),
    TEXT("zero_optimization.offload_optimizer.nvme_path", NOBODY, c.offload_optimizer.nvme_path, .ring = true,
         .empty = true),
    NUMBER("zero_optimization.offload_optimizer.ratio", NOBODY, KEY_F64, c.offload_optimizer.ratio, 0, 1,
           DEFAULT("1"), .ring = true),
    ENUM("zero_optimization.offload_param.device", NOBODY, c.offload_param.device, offload_names,
         .ring = true),
    BOOL("zero_optimization.offload_param.pin_memory", NOBODY, c.offload_param.pin_memory, .ring = true),
    TEXT("zero_optimization.offload_param.nvme_path", NOBODY, c.offload_param.nvme_path, .ring = true,
         .empty = true),
    BOOL("zero_optimization.cpu_offload", NOBODY, cpu_offload, .only_read = true),
    BOOL("zero_optimization.cpu_offload_param", NOBODY, cpu_offload_param, .only_read = true),
    NUMBER("aio.block_size", NOBODY, KEY_I64, c.aio.block_bytes, 0, 1 << 30, DEFAULT("1048576"),
           .ring = true),
    NUMBER("aio.queue_depth", NOBODY, KEY_I64, c.aio.depth, 0, 1 << 30, DEFAULT("16"), .ring = true),
    DTYPE("data_types.grad_accum_dtype", R | B, c.grad_accum, own_or_dtype_names),
    DTYPE("data_types.param_dtype", NOBODY, param_dtype, own_or_dtype_names,
          .only_read = true),  // dtype has the result
    // These compute the same bits once more.
    NUMBER("activation_checkpointing.number_checkpoints", NOBODY, KEY_I64, c.recompute.blocks, 0, EXACT_MAX),
    BOOL("activation_checkpointing.cpu_checkpointing", NOBODY, c.recompute.inputs_on_host),
    ENUM("activation_checkpointing.recompute", NOBODY, recompute, recompute_names),
    DTYPE("communication_data_type", NOBODY, wire_dtype, own_or_dtype_names,
          .only_read = true),  // dtype has the result
    ROW("reduce", R | B, KEY_SWITCH, c.reduce_native, .names = reduce_names),
    SIZE(
        "reduce_group", R | B, c.reduce_group, group_names,
        TRAIN_FLAG(
            "reduce-group", "G",
            "sum gradients within groups of G workers, then across groups; host: the workers of one machine (none)"),
        IN(RANKS)),
    ENUM("ring.collective", R, c.collective, engine_names,
         TRAIN_FLAG("collective", "C", "engine between a ring's ranks: " ENGINE_LIST(HELP_OF)), IN(RANKS),
         .ring = true),
    BOOL("ring.no_sync", R, c.no_sync, .ring = true), ENUM("gossip.graph", T, c.gossip_graph, gossip_graphs),
    NUMBER(
        "local_steps.steps", T, KEY_I64, c.local_steps.steps, 0, EXACT_MAX,
        TRAIN_FLAG("local-steps", "H",
                   "each worker takes H steps by itself between two exchanges (0: exchange in every step)"),
        IN(RANKS)),
    ENUM("local_steps.outer.type", T, c.local_steps.outer, outer_names),
    NUMBER("local_steps.outer.lr", T, KEY_F32, c.local_steps.lr, 0, FLOAT_MAX),
    NUMBER("local_steps.outer.momentum", T, KEY_F32, c.local_steps.momentum, 0, 1),
    NUMBER("local_steps.outer.age_decay", T, KEY_F32, c.local_steps.age_decay, 0, FLOAT_MAX, DEFAULT("0")),
    NUMBER("local_steps.outer.age_cutoff", T, KEY_F32, c.local_steps.age_cutoff, 0, FLOAT_MAX, DEFAULT("0")),
    // Defaults as in peft's LoraConfig. A run that resumes compares the adapters instead (model.adapters).
    NUMBER("lora.r", R, KEY_INT, c.lora.r, 0, LORA_R_MAX),
    NUMBER("lora.alpha", R, KEY_F32, c.lora.alpha, LORA_ALPHA_MIN, LORA_ALPHA_MAX, DEFAULT("8")),
    LIST("lora.targets", R, c.lora.targets),
    NUMBER("parameter_server.servers", R | ORDER, KEY_INT, c.ps.servers, 1, 4096, DEFAULT("1"),
           FLAG("servers", "S", "number of parameter servers of a star (1)"), OFTEN(RANKS)),
    TEXT(
        "parameter_server.servers_on", R, c.ps.servers_on, DEFAULT("hosts"),
        FLAG(
            "servers-on", "WHERE",
            "hosts: servers are spread over the machines of the job; workers: one server next to each worker; or a list of machines, "
            "names or numbers from 0: h1,h3 (hosts)"),
        IN(STAR), SERVERS("ps:sync")),
    ENUM(
        "parameter_server.resident", R | B, c.ps.resident, resident_names,
        FLAG(
            "resident", "WHAT",
            "weights and gradients that a worker keeps: all, or units: two units at a time, as zero:3 does (all)"),
        IN(STAR), SERVERS("ps:sync")),
    NUMBER("parameter_server.threads", R | ORDER, KEY_INT, c.ps.threads, 1, 1024, DEFAULT("1")),
    NUMBER("parameter_server.partition_bytes", R, KEY_I64, c.ps.partition_bytes, 1024, 1 << 30,
           DEFAULT("1048576")),
    // Timeouts and limits of each role, its address, and what it records.
    NUMBER("parameter_server.deadline_ms", NOBODY, KEY_I64, c.ps.deadline_ms, 1, 1 << 30, DEFAULT("30000")),
    NUMBER("parameter_server.heartbeat_ms", NOBODY, KEY_I64, c.ps.heartbeat_ms, 1, 1 << 30, DEFAULT("500")),
    NUMBER("parameter_server.grace_ms", NOBODY, KEY_I64, c.ps.grace_ms, 0, 1 << 30, SERVERS("ps:quorum:Q")),
    SIZE("parameter_server.credit_bytes", NOBODY, c.ps.credit_bytes, auto_names),
    TEXT("parameter_server.bind", NOBODY, c.ps.bind, DEFAULT("tcp://127.0.0.1:*")),
    BOOL(
        "parameter_server.record_arrivals", NOBODY, c.ps.record_arrivals,
        FLAG(
            "record-arrivals", NULL,
            "record in DIR/arrivals.* what depends on chance: the order or the set of gradients, or the versions read (ps:*, but ps:sync)"),
        IN(STAR), SERVERS("ps:async")),
    TEXT("parameter_server.replay_arrivals", NOBODY, c.ps.replay_arrivals,
         FLAG("replay-arrivals", "DIR", "repeat the recording in DIR, bit for bit (ps:*, but ps:sync)"),
         IN(STAR), SERVERS("ps:async")),  // the file names its run (ps/record/arrivals.h)
    BOOL("parameter_server.log_updates", NOBODY, c.ps.log_updates,
         FLAG("log-updates", NULL, "write a line for each gradient of a star to DIR/updates.jsonl"), IN(STAR),
         SERVERS("ps:async")),
    ROW("parameter_server.read", R | B, KEY_SWITCH, c.ps.read_oldest, .names = read_names),
    NUMBER("local.delay", B, KEY_INT, c.local_delay, 0, CONFIG_DELAY_MAX),
    // Every code gives a correct run, because what it omits is sent later; the bits differ.
    ENUM("parameter_server.compression", R | B, c.ps.code.kind, code_names, DEFAULT("none"),
         SERVERS("ps:sync")),
    NUMBER("parameter_server.compression_share", R | B, KEY_F64, c.ps.code.share, 1e-9, 1, DEFAULT("0.01")),
    // How ps:async makes updates of pushes (ps/server/push_on_arrival.c).
    SIZE("parameter_server.max_lead", R | B | ORDER, c.ps.max_lead, lead_names, DEFAULT("none"),
         SERVERS("ps:async")),
    NUMBER("parameter_server.pushes_per_update", R | B | ORDER, KEY_INT, c.ps.pushes_per_update, 1, 4096,
           DEFAULT("1"), SERVERS("ps:async")),
    NUMBER("parameter_server.max_staleness", R | B | ORDER, KEY_I64, c.ps.max_staleness, -1, EXACT_MAX,
           DEFAULT("-1"), SERVERS("ps:async")),
    BOOL("parameter_server.age_damping", R | B | ORDER, c.ps.age_damping, DEFAULT("false"),
         SERVERS("ps:async")),
    NUMBER("parameter_server.delay_compensation", R | B | ORDER, KEY_F32, c.ps.delay_compensation, 0,
           FLOAT_MAX, DEFAULT("0"), SERVERS("ps:async")),
    NUMBER("parameter_server.delay_compensation_decay", R | B | ORDER, KEY_F32, c.ps.delay_decay, 0, 1,
           DEFAULT("0"), SERVERS("ps:async")),
    NUMBER(
        "recovery.checkpoint_every", R, KEY_I64, c.recovery.checkpoint_every, 0, EXACT_MAX,
        FLAG(
            "checkpoint-every", "K",
            "write a checkpoint of every K-th step and of the last to DIR/checkpoints, to resume from (0: none)"),
        OFTEN(AGAIN)),
    BOOL(
        "recovery.checkpoint_background", R, c.recovery.checkpoint_background,
        FLAG(
            "checkpoint-background", NULL,
            "write checkpoints while training continues, from a copy that takes as much memory as a checkpoint (a star's servers always do)"),
        IN(AGAIN)),
    NUMBER("recovery.checkpoint_keep", R, KEY_I64, c.recovery.checkpoint_keep, 0, 1 << 30, DEFAULT("2"),
           FLAG("checkpoint-keep", "K", "keep the last K checkpoints (2; 0: all)"), IN(AGAIN)),
    NUMBER("recovery.checkpoint_keep_every", R, KEY_I64, c.recovery.checkpoint_keep_every, 0, 1 << 30,
           FLAG("checkpoint-keep-every", "M", "keep every M-th checkpoint too (0: none)"), IN(AGAIN)),
    TEXT(
        "recovery.resume", NOBODY, c.recovery.resume,
        FLAG(
            "resume", "DIR|latest",
            "resume from a checkpoint, or from a run's latest one; latest: from that of --out, or start if it has none"),
        OFTEN(AGAIN)),  // a path; the checkpoint that was read is "recovery.resumed"
    BOOL("recovery.resume_weights_only", R, c.recovery.resume_weights_only,
         FLAG("resume-weights-only", NULL,
              "with --resume DIR: start a new run from those weights, with step 0 and a fresh optimizer"),
         IN(AGAIN)),
    NUMBER(
        "recovery.restart", R, KEY_INT, c.recovery.restart, 0, 1 << 30,
        FLAG(
            "restart", "N",
            "resume by itself from the latest checkpoint after up to N deaths of processes (0: a death ends the run)"),
        IN(AGAIN)),
    TEXT(
        "recovery.elastic", R | B, c.recovery.elastic,
        FLAG(
            "elastic", "MIN:MAX",
            "let workers die and rejoin, as long as MIN of MAX are alive (ps:sync, ps:backup:B, ps:quorum:Q)"),
        IN(STAR)),
    BOOL(
        "security.insecure", NOBODY, c.security.insecure,
        FLAG(
            "insecure", NULL,
            "run a star without a key (docs/security.md): anyone who reaches its ports may join, read and change everything"),
        IN(STAR)),  // roles that differ in it cannot connect
};
static_assert(sizeof keys / sizeof *keys <= KEYS_MAX, "struct reading has a state for each");

size_t config_key_count(void) { return sizeof keys / sizeof *keys; }
const struct config_key *config_key_at(size_t i) { return &keys[i]; }

const struct config_key *config_key_find(const char *path) {
    for (size_t i = 0; i < config_key_count(); i++)
        if (!strcmp(keys[i].path, path) || (keys[i].alias && !strcmp(keys[i].alias, path))) return &keys[i];
    return NULL;
}
