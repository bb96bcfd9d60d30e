// The resolved configuration of a run: DeepSpeed's JSON with sections of our own, then --set, then the flags of
// the command line. Plain data; the struct owns its strings. Every key is one row of the table in
// config_fields.c.
//
// Keys beside DeepSpeed's, with their defaults. The flag of the same name wins over the file.
//
//     model             "demo"      preset, config.json or directory; also {"name": ..}
//     data              "demo"      file, directory or "demo"; also {"path": ..} with
//       val_path        none        none: the last val_fraction of path
//       val_fraction    0.05
//       seq_len         256
//       tokenizer       "auto"      byte: text for any model; bin: token files, also of a directory with texts;
//                                   auto: by the files, text only where the model's vocabulary is the bytes
//     topology                      zero:S if zero_optimization.stage or workers > 1 is given, else local
//     workers           2           local: always 1
//     dtype                         bf16 or fp16 if that section is enabled, else fp32
//     steps             100
//     seed              1
//     device            "auto"
//     launch            "auto"
//     medium            "auto"      what the processes of a run talk through
//     threads           0
//     out               none
//     eval_every        0           steps between two snapshots of the weights; 0: none but the last
//     eval_every_seconds 0          or seconds
//     eval_batches      "all"       or "none", or how many global batches of the held-out text
//     target_loss       0           of the held-out text: summary.json says when it was reached; 0: none
//     keep_snapshots    false
//     trace, json, quiet, full      false
//     trouble           {"straggle": ["RANK:FACTOR[:PROBABILITY]", ..],           shared/core/trouble.h
//                        "delay": ["RANK:DISTRIBUTION:MS", ..],
//                        "fault": "drop=P,dup=P,reorder=P,delay=MS[,seed=S]"}
//     recovery          {"checkpoint_every": 0, "checkpoint_background": false, "checkpoint_keep": 2,
//                        "checkpoint_keep_every": 0, "resume": none, "resume_weights_only": false, "restart": 0,
//                        "elastic": none}                                          docs/recovery.md
//     memory            {"check": "auto"|"off", "logits_bytes": "auto"|BYTES, "device_bytes": "all"|BYTES}
//     cpu               {"kernel": "auto"|"fma"|"bf16-pairs"}                       kernels/cpu_kernel.h
//     cuda              {"attention": "auto"|"cudnn"|"own",                         kernels/cuda_choices.h
//                        "attention_slice": "auto"|"whole"|BYTES,
//                        "gelu": "auto"|"fused"|"apart", "bias_grad": "auto"|"epilogue"|"kernel",
//                        "products": "auto"|"none"|FILE}
//     activation_checkpointing {.., "recompute": "auto"|"none"|"cheap"|"block"}     docs/ring.md
//     reduce            "ordered"   or "native"
//     ring              {"collective": "auto"|"local"|"mpi"|"nccl",
//                        "no_sync": false}                                         docs/ring.md
//     parameter_server  {"servers": 1, "threads": 1, "partition_bytes": 1048576, "deadline_ms": 30000,
//                        "heartbeat_ms": 500, "credit_bytes": 67108864, "bind": "tcp://127.0.0.1:*",
//                        "record_arrivals": false, "replay_arrivals": none, "log_updates": false,
//                        "replicate": false, "compression": "none"|"onebit"|"int8"|"topk",
//                        "compression_share": 0.01}                                docs/star-codecs.md
//     security          {"keys": none, "insecure": false}                          docs/security.md
//
// DeepSpeed's keys that are read:
//
//     train_batch_size, train_micro_batch_size_per_gpu (4), gradient_accumulation_steps (1)
//     optimizer    {type: AdamW|Adam|SGD|Lion, params: {lr 1e-3, betas, eps, weight_decay 0, adam_w_mode,
//                  bias_correction}}; Adam decouples the decay too unless adam_w_mode is false, as FusedAdam
//                  SGD: {lr 1e-3, momentum 0, dampening 0, nesterov, weight_decay 0}; Lion: {lr 1e-3, betas
//                  0.9 0.999, weight_decay 0}
//     scheduler    {type: WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest, params}; an absent
//                  warmup_max_lr is the optimizer's lr in WarmupLR and 0.001 in WarmupDecayLR; OneCycle moves beta1
//                  too unless cycle_momentum is false
//     fp16, bf16
//     tensorboard, csv_monitor {enabled false, output_path "", job_name "DeepSpeedJobName"}
//     gradient_clipping (1.0, as in DeepSpeed 0.19.6; 0: none), steps_per_print (10)
//     zero_optimization.stage
//     activation_checkpointing {number_checkpoints 0, cpu_checkpointing false}: where it is turned on here (docs/ring.md)
//     zero_optimization.overlap_comm (true; DeepSpeed's default is true in stage 3 and false below): false
//                  moves nothing while a worker computes, in the star too
//     zero_optimization.offload_optimizer {device "none"|"cpu"|"nvme", pin_memory false, nvme_path, ratio 1}, stages 1
//                  to 3; offload_param {device, pin_memory, nvme_path}, stage 3; cpu_offload, cpu_offload_param: true
//                  is device "cpu"                                             docs/ring.md
//     aio {block_size 1048576, a multiple of 4096; queue_depth 16; DeepSpeed's is 8}: of device "nvme"
//     zero_optimization.stage3_prefetch_bucket_size ("auto": one unit), or prefetch_bucket_size: elements of weights
//                  that may be gathered ahead of use; the unit that reaches it is still taken, 0: nothing
//     zero_optimization.zero_hpz_partition_size (1: off), stage 3: ranks that hold a second copy of the weights between them,
//                  so that only a unit's first gather of a step goes beyond them
//     zero_optimization.reduce_bucket_size, allgather_bucket_size ("auto": each unit alone): elements of neighbouring
//                  units that travel in one collective; in the ring
//     zero_optimization.stage3_max_live_parameters ("auto": any), or max_live_parameters: elements that the slots of
//                  gathered weights hold at most; one slot there always is
//
// "auto" becomes what the Hugging Face Trainer's defaults make of it, and each resolution is shown:
//
//     lr 5e-5, betas 0.9 0.999, eps 1e-8, weight_decay 0, gradient_clipping 1
//     warmup_min_lr 0, warmup_max_lr = lr, total_num_steps = steps
//     warmup_num_steps 2         DeepSpeed refuses Hugging Face's 0: its schedules take at least 2
//     fp16/bf16.enabled          whether dtype says so
//     batch sizes                as if they were not given
//
// Keys that DeepSpeed knows and that are not read are reported, one line per topic. A key that would change the
// results is an error. An unknown key is a warning in a file and an error on the command line; both name the
// nearest known key.
#ifndef STARRING_SHARED_CONFIG_CONFIG_H
#define STARRING_SHARED_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codec/codec.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/dtype.h"
#include "shared/model/optimizer.h"
#include "shared/model/recompute.h"
#include "shared/model/scaler.h"
#include "shared/model/schedule.h"

struct topology_row;  // shared/core/topology_row.h
struct topology_table;

enum launch_kind { LAUNCH_DEFAULT, LAUNCH_THREADS, LAUNCH_PROCESSES, LAUNCH_MPI };

// What processes of one host talk through. A name is a demand: payloads take that way alone, and where it cannot be
// had the run is refused. MEDIUM_AUTO: the star takes shared memory on one host and tcp between hosts; a ring's
// ranks that are processes leave it to Open MPI.
enum medium { MEDIUM_AUTO, MEDIUM_SHM, MEDIUM_TCP };
enum memory_check_kind { MEMORY_CHECK_AUTO, MEMORY_CHECK_OFF };
enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_REF };

// What a ring's ranks talk through: memory of one process, MPI, NCCL. decentral/ring_source.h resolves
// RING_AUTO.
enum ring_collective { RING_AUTO, RING_THREADS, RING_MPI, RING_NCCL, RING_COLLECTIVES };

#define EVAL_ALL (-1)

struct ps_config {
    int servers, threads;     // S; shard threads per server
    int64_t partition_bytes;  // of 16-bit (or fp32) payload
    int64_t deadline_ms, heartbeat_ms;
    int64_t credit_bytes;     // in flight per worker
    char *bind;               // where servers and scheduler listen
    bool record_arrivals;     // asynchronous runs: leave the order of pushes in out
    char *replay_arrivals;    // and repeat the one in this directory; NULL: as they arrive
    bool log_updates;         // a line for each push, in out
    bool replicate;           // a server's commits go to its neighbour too
    struct code_format code;  // of pushed gradients
    bool whole_units;         // no key: partition_bytes alone cuts, not balance (`bench ps`)
};

#define CONFIG_ELASTIC_MAX 64  // workers: a set of them is a word

// What survives a death, and how a run goes on (docs/recovery.md).
struct recovery_config {
    int64_t checkpoint_every;       // steps between two checkpoints; 0: none are written
    bool checkpoint_background;     // the state is copied aside, and written while training goes on
    int64_t checkpoint_keep;        // the last so many stay; 0: all
    int64_t checkpoint_keep_every;  // and every so many-th; 0: none
    char *resume;                   // "latest", a checkpoint, or a run directory; NULL: from the beginning
    bool resume_weights_only;       // its masters alone: step 0, a fresh optimizer
    int restart;                    // lives of the job after the first, at most
    char *elastic;                  // "MIN:MAX" workers; NULL: all of them, always
    int elastic_min, elastic_max;   // what it says; 0: nothing
};

// Where the curves of a run go (shared/monitor/monitor.h): OUTPUT_PATH/JOB_NAME.
struct monitor_config {
    bool enabled;
    char *output_path;  // NULL: where the run was started
    char *job_name;
};

// Where state is kept instead of the device's memory: docs/ring.md.
enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };
struct offload_config {
    enum offload_device device;
    bool pin_memory;  // page-locked; where the device's memory is the host's it is all the same
    char *nvme_path;  // of nvme: a directory that can be written; else whatever was given, or NULL
    double ratio;     // offload_optimizer: of the elements that are offloaded, in whole units
};

// How bytes go to a disk that is offloaded to (shared/offload/disk_store.h).
struct aio_config {
    int64_t block_bytes, depth;  // of a piece, a multiple of 4096; pieces under way for a read or a write
};

// Who may join a star (docs/security.md).
struct security_config {
    char *keys;     // a directory of keys (ps/trust/key_files.h); NULL: none
    bool insecure;  // any address, and nobody is asked who he is
};

struct config {
    const struct topology_table *topologies;  // those that can be named
    char *topology;                           // as written: "ps:ssp:2"
    const struct topology_row *row;           // whose name that is
    int variant;  // which of its variants: the ring's stage, the star's consistency
    int bound;    // the number in the name of a variant that has one, else 0
    int workers;  // N
    enum launch_kind launch;
    enum medium medium;
    enum device_kind device;
    enum ring_collective collective;
    int threads;                 // CPU threads per rank; 0: cores / ranks on this machine, at least 1
    enum cpu_kernel cpu_kernel;  // device cpu: what it becomes on this machine once cpu_kernel_choose has run
    struct cuda_choices cuda;
    char *products;  // cuda.products: "auto", "none" or a file (shared/device/product_choice.h)

    char *model;      // preset, file or directory
    char *data;       // file, directory, or "demo"
    char *val_data;   // or NULL: the tail of data
    char *tokenizer;  // "auto", "byte" or "bin"
    double val_fraction;
    int64_t seq;  // T
    int64_t steps;
    uint64_t seed;
    enum dtype dtype;
    char *out;  // run directory, or NULL
    int64_t eval_every;
    double eval_every_seconds;
    int64_t eval_batches;  // EVAL_ALL, 0: none
    double target_loss;
    bool keep_snapshots;
    bool trace, json, quiet, full;
    char *fault;             // of messages: what is lost, repeated, late; NULL: none
    char *straggle, *delay;  // lists of shared/core/trouble.h, right for the run's workers; NULL: none
    enum memory_check_kind memory_check;  // off: start even what does not fit (shared/memory/memory_check.h)
    int64_t device_bytes;  // what a worker's device gives (shared/memory/memory_check.h); 0: all it has
    int64_t logits_bytes;  // of a chunk of the head's; 0: auto (shared/model/head_plan.h)

    // DeepSpeed's triangle, resolved: train = micro * accumulation * N
    int64_t train_batch, micro_batch, accumulation;
    struct optimizer_config optimizer;
    char *optimizer_type;  // "AdamW"
    struct schedule_config schedule;
    struct scaler_config scaler;
    float clip;
    bool clip_given, optimizer_given;    // by a file or the command line, which a run's config.json is
    int grad_accum;                      // data_types.grad_accum_dtype: 0: auto, fp32; else 1 + enum dtype
    struct recompute_options recompute;  // but gelu_apart, which follows from cuda.gelu
    int64_t steps_per_print;
    struct monitor_config tensorboard, csv_monitor;
    bool reduce_native;
    int64_t reduce_group;  // workers of a group, whose gradients are summed first; or one of:
#define GROUP_NONE 0
#define GROUP_HOST -1           // those of a machine: a number once the topology has resolved it
    int64_t prefetch_elements;  // stage 3: gathered ahead of use, 0: nothing; or one unit:
#define PREFETCH_AUTO -1
    int64_t live_elements;  // stage 3: that slots of weights hold at most, one slot at least; 0: any
    int64_t reduce_elements, gather_elements;  // of units that travel together in the ring; 0: each alone
    bool no_overlap;                           // zero_optimization.overlap_comm is false
    bool no_sync;                              // ring.no_sync: stages 2 and 3 reduce gradients once a step
    int64_t hpz;  // stage 3: ranks that hold a secondary copy of the weights between them; 1: none
    struct offload_config offload_optimizer, offload_param;  // of a stage that can; else device is none
    struct aio_config aio;
    int64_t deadline_ms;  // collectives; = ps.deadline_ms
    struct ps_config ps;
    struct recovery_config recovery;
    struct security_config security;
};

// Whether a step's micro-batches are added in fp32 buffers beside the 16-bit gradients (shared/model/grad_sum.h): unless
// data_types.grad_accum_dtype names the run's own type.
static inline bool config_sums_in_fp32(const struct config *c) {
    return c->accumulation > 1 && c->dtype != DT_F32 && c->grad_accum != 1 + (int)c->dtype;
}
// Micro-batches whose gradients the model adds up in the gradients' own buffers; 1: each writes them anew.
static inline int64_t config_added_in_place(const struct config *c) {
    return config_sums_in_fp32(c) ? 1 : c->accumulation;
}

// One "--set a.b=value" or a flag turned into a path; value is JSON, or a bare string. "model" and "data"
// alone set model.name and data.path. Texts are taken as they stand: --out 123 is a directory.
struct config_override {
    const char *path, *value;
    const char *flag;  // how the user wrote it, for messages: "--workers"; NULL: "--set"
};

// Reads path (NULL: all defaults), applies overrides in order, resolves "auto" and the batch triangle,
// checks. Warnings and resolutions go to stderr. NULL after fail() named file or flag, key, what was
// expected and what was found. The caller owns the result; the table of topologies outlives it.
struct config *config_load(const struct topology_table *t, const char *path, const struct config_override *o,
                           size_t count);
// The resolved configuration as JSON text (malloc'd); config_load reads it back to an equal config.
char *config_to_json(const struct config *c);
// The same in a file of memory, for the programs that this process starts or becomes: no file system stands in their way.
// path: of it, for config_load in those. Its descriptor, which stays open there, or -1 after logging.
#define CONFIG_HANDED_DOWN "/proc/self/fd/"
int config_hand_down(const struct config *c, char path[32]);
void config_destroy(struct config **c);
// Whether this machine has the directories of device "nvme": of a run that begins here, not of one that is read about. -1
// after saying what to do.
int config_check_folders(const struct config *c);
// Sets the keys of a section ("cuda") to their defaults. Which of them had another value, for people
// ("cuda.attention own, cuda.gelu fused", malloc'd); NULL: none.
char *config_reset_section(struct config *c, const char *section);

// Parses "zero:2", "ps:ssp:3", ... into topology, row, variant and bound; -1 after listing what is possible.
int config_parse_topology(struct config *c, const char *text);
// The names of a row's variants, those that are planned or the others (malloc'd).
char *config_variants(const struct topology_row *row, bool planned, const char *between);
// The number of ranks of a role; 0: the topology has no such role.
int config_ranks(const struct config *c, const char *role);
const char *config_collective_name(enum ring_collective c);
const char *config_medium_name(enum medium m);

#endif
