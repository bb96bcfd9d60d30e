// The resolved configuration of a run: DeepSpeed's JSON with sections of our own, then --set, then the flags of
// the command line. Plain data; the struct owns its strings. Every key is one row (config_key.h); docs/config.md
// explains them one by one.
//
// "auto" becomes what the Hugging Face Trainer's defaults make of it. It and the keys that DeepSpeed knows and that are not
// read are counted in one line; --print-config says what became of each. A key that would change the results is an
// error. An unknown key is a warning in a file and an error on the command line; both name the nearest known key.
#ifndef STARRING_SHARED_CONFIG_CONFIG_H
#define STARRING_SHARED_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/dtype.h"
#include "shared/config/config_key.h"
#include "shared/core/scaler.h"
#include "shared/model/optimizer.h"
#include "shared/model/recompute.h"
#include "shared/model/schedule.h"

struct topology_row;  // shared/core/topology_row.h
struct topology_table;

// The ways of starting ranks, a row each: its name; what one of its processes is called, for people; whether each rank is a
// process of this machine that this program starts (one_each), or another program starts them over MPI (by_others:
// shared/launch/launch_mpi.c has its words, and its exit status may be one of a rank; above 128: killed by a signal).
#define LAUNCH_LIST(X)                             \
    X(DEFAULT, "auto", "the run", false, false)    \
    X(THREADS, "threads", "the run", false, false) \
    X(PROCESSES, "processes", "rank", true, false) \
    X(MPI, "mpi", "mpirun", false, true)
#define LAUNCH_KIND(id, ...) LAUNCH_##id,
enum launch_kind { LAUNCH_LIST(LAUNCH_KIND) LAUNCH_KINDS };
struct launch_row {
    const char *name, *child;
    bool one_each, by_others;
};
extern const struct launch_row launch_rows[LAUNCH_KINDS];

// The way that processes of one host talk. A name is a demand: payloads take that way alone, and where it cannot be
// had the run is refused. MEDIUM_AUTO: shared memory on one host and tcp between hosts; ranks over MPI leave it to
// Open MPI.
enum medium { MEDIUM_AUTO, MEDIUM_SHM, MEDIUM_TCP };
extern const char *const medium_names[];
enum memory_check_kind { MEMORY_CHECK_AUTO, MEMORY_CHECK_OFF };

// Devices that a run can compute on, a row each: its name, which is its backend's too (kernels/backend.h); the section
// that it alone reads; whether its memory is apart from the host's.
#define DEVICE_LIST(X)            \
    X(AUTO, "auto", NULL, false)  \
    X(CPU, "cpu", "cpu", false)   \
    X(CUDA, "cuda", "cuda", true) \
    X(REF, "ref", NULL, false)
#define DEVICE_KIND(id, ...) DEVICE_##id,
enum device_kind { DEVICE_LIST(DEVICE_KIND) DEVICE_KINDS };
struct device_row {
    const char *name, *section;  // section: NULL: none
    bool gpu;
};
extern const struct device_row device_rows[DEVICE_KINDS];

// The engines through which a ring's ranks talk, a row each: its name, its place in the help of --collective, and MiB that
// each process of a rank holds for it on the host and on a GPU. decentral/ranks.c has their collectives, and resolves
// RING_AUTO.
#define ENGINE_LIST(X)                             \
    X(AUTO, "auto", "auto", 0, 0)                  \
    X(THREADS, "local", ", local (threads)", 0, 0) \
    X(SHM, "shm", ", shm (processes)", 16, 0)      \
    X(MPI, "mpi", ", mpi", 96, 0)                  \
    X(TCP, "tcp", ", tcp (processes)", 16, 0)      \
    X(NCCL, "nccl", " or nccl (a GPU each)", 0, 256)
#define ENGINE_KIND(id, ...) RING_##id,
enum ring_collective { ENGINE_LIST(ENGINE_KIND) RING_COLLECTIVES };
struct engine_row {
    const char *name, *help;
    int host_mib, device_mib;
};
extern const struct engine_row engine_rows[RING_COLLECTIVES];

// Training sequences: of T tokens from anywhere in the text, or documents, each as long as it is (shared/data/documents.h).
enum documents_kind { DOCUMENTS_PACKED, DOCUMENTS_WHOLE };

#define EVAL_ALL  (-1)
#define EVAL_AUTO (-2)

// What a star's workers keep of weights and gradients: all, or two units' at a time.
enum ps_resident { PS_RESIDENT_ALL, PS_RESIDENT_UNITS };

// The ranks that a rank of gossip hears (decentral/gossip.c).
enum gossip_graph { GOSSIP_RING, GOSSIP_EXPONENTIAL };
extern const char *const gossip_graphs[];

// Local steps (shared/launch/local_steps.c): each rank's own between two exchanges, and the optimizer of what they exchange.
enum outer_kind { OUTER_MEAN, OUTER_NESTEROV, OUTER_ELASTIC, OUTER_CGAD };
struct local_steps_config {
    int64_t steps;  // of a round; 0: there are no rounds
    enum outer_kind outer;
    float lr, momentum;                 // as given; of cgad Adam's beta1
    float age_decay, age_cutoff;        // of cgad: alpha, per update; an age that counts no more, 0: none
    struct optimizer_config optimizer;  // of these: SGD, of the sum over the ranks or of each rank's own
};

struct ps_config {
    int servers, threads;  // S; shard threads per server
    char *servers_on;      // "hosts", "workers", or the machines that have them, in turn (ps/launch_star.h)
    bool beside;           // it is "workers"
    int resident;          // enum ps_resident
    int64_t partition_bytes;  // of 16-bit (or fp32) payload
    int64_t deadline_ms, heartbeat_ms;
    int64_t grace_ms;         // for which a quorum waits for others
    int64_t credit_bytes;     // in flight per worker; 0: auto (ps/job/unit_moves.h)
    char *bind;               // where servers and scheduler listen
    bool record_arrivals;     // asynchronous runs: leave the order of pushes in out
    char *replay_arrivals;    // and repeat the one in this directory; NULL: as they arrive
    bool log_updates;         // a line for each push, in out
    bool read_oldest;         // bounded delay: of the versions that a step may be computed on, the oldest
    struct code_format code;  // of pushed gradients
    // Where pushes are applied on arrival:
    int64_t max_lead;          // steps that a worker may be ahead of the slowest; 0: any number
    int pushes_per_update;     // K: the sum of so many is one update
    int64_t max_staleness;     // updates; a gradient that is older is dropped; -1: none is
    bool age_damping;          // the learning rate is divided by a gradient's age
    float delay_compensation;  // lambda; 0: none
    float delay_decay;         // of the squares that lambda is divided by; 0: it stands
    bool whole_units;          // no key: partition_bytes alone cuts, not balance (`bench ps`)
};

#define CONFIG_DELAY_MAX   16  // versions that weights may be behind
#define CONFIG_ELASTIC_MAX 64  // workers: a set of them is a word

// Checkpoints, and how a run goes on behind a death (docs/recovery.md).
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
extern const char *const offload_names[];
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

// The rules of joining (docs/security.md).
struct security_config {
    bool insecure;  // a star: nobody is asked for the job's key
};

struct config {
    const struct topology_table *topologies;  // those that can be named
    char *topology;                           // as written: "ps:ssp:2"
    const struct topology_row *row;           // whose name that is
    int variant;      // which of its variants: the ring's stage, the star's consistency
    int local_delay;  // of its weights, in updates
    int bound;        // the number in the name of a variant that has one, else 0
    int workers;      // N
    enum launch_kind launch;
    enum medium medium;
    char *
        interface;  // of ranks that others start: whose address the others are told; NULL: by the route to rank 0
    enum device_kind device;
    enum ring_collective collective;
    int threads;                 // CPU threads per rank; 0: cores / ranks on this machine, at least 1
    enum cpu_kernel cpu_kernel;  // device cpu, dtype bf16: as asked
    struct cuda_choices cuda;

    char *model;      // preset, file or directory
    char *data;       // file, directory, or "demo"
    char *val_data;   // or NULL: the tail of data
    char *tokenizer;  // "auto", "byte" or "bin"
    double val_fraction;
    enum documents_kind documents;
    int64_t seq;  // T; of whole documents the longest
    int64_t steps;
    uint64_t seed;
    enum dtype dtype;
    char *out;  // run directory, or NULL
    int64_t eval_every;
    double eval_every_seconds;
    int64_t eval_batches;  // EVAL_ALL, EVAL_AUTO (shared/evaluation/evaluate.h), 0: none
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
    bool clip_given, optimizer_given;  // by a file or the command line, which a run's config.json is
    char *remarks;   // what became of keys that have no effect, and of "auto": lines, each with its end
    int grad_accum;  // data_types.grad_accum_dtype: 0: auto, fp32; else 1 + enum dtype
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
    enum gossip_graph gossip_graph;
    int64_t hpz;  // stage 3: ranks that hold a secondary copy of the weights between them; 1: none
    struct offload_config offload_optimizer, offload_param;  // of a stage that can; else device is none
    struct aio_config aio;
    int64_t deadline_ms;  // collectives; = ps.deadline_ms
    struct ps_config ps;
    struct recovery_config recovery;
    struct security_config security;
    struct local_steps_config local_steps;
    const struct config
        *outside;  // of a topology inside of local steps: the run's, whose rounds its steps are; NULL: none
};

// The optimizer of the masters that all ranks hold together.
static inline const struct optimizer_config *config_kept_optimizer(const struct config *c) {
    return c->local_steps.steps ? &c->local_steps.optimizer : &c->optimizer;
}
// Of the run's steps that one of this configuration's is made of.
static inline int64_t config_round(const struct config *c) {
    return c->outside ? c->outside->local_steps.steps : 1;
}

// The ranks, or workers, of a group whose gradients are summed first; 0: there are none, for one group and groups of one
// are no groups, or it is not known yet how many a machine has.
static inline int config_group(const struct config *c) {
    return c->reduce_group > 1 && c->reduce_group < c->workers ? (int)c->reduce_group : 0;
}

// K: pushes whose mean is one update, where they are applied on arrival; the updates that so many of a key are, the last one
// perhaps of fewer.
static inline int pushes_per_update(const struct config *c) {
    return c->ps.pushes_per_update > 1 ? c->ps.pushes_per_update : 1;
}
static inline int64_t updates_of_pushes(const struct config *c, int64_t pushes) {
    return (pushes + pushes_per_update(c) - 1) / pushes_per_update(c);
}

// Whether a step's micro-batches are added in fp32 buffers beside the 16-bit gradients (shared/model/grad_sum.h): unless
// data_types.grad_accum_dtype names the run's own type.
static inline bool config_sums_in_fp32(const struct config *c) {
    return c->accumulation > 1 && c->dtype != DT_F32 && c->grad_accum != 1 + (int)c->dtype;
}
// Micro-batches whose gradients the model adds up in the gradients' own buffers; 1: each writes them anew.
static inline int64_t config_added_in_place(const struct config *c) {
    return config_sums_in_fp32(c) ? 1 : c->accumulation;
}

// The device of the run; of "auto", before device_resolve: as the cpu.
static inline const struct device_row *config_device(const struct config *c) {
    return &device_rows[c->device ? c->device : DEVICE_CPU];
}

// One "--set a.b=value" or a flag turned into a path; value is JSON, or a bare string. "model" and "data"
// alone set model.name and data.path. Texts are taken as they stand: --out 123 is a directory.
struct config_override {
    const char *path, *value;
    const char *flag;  // how the user wrote it, for messages: "--workers"; NULL: "--set"
};

// Reads path (NULL: all defaults), applies overrides in order, resolves "auto" and the batch triangle,
// checks. Warnings go to stderr, and a line for what else there is to say, which is in `remarks`. NULL after fail() named file or flag, key, what was
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
// A key's value as text, as identities have it: JSON of a number or a switch, a text without its quotes (malloc'd). NULL:
// it is none of this configuration's, as a parameter of another optimizer, or an unset text.
char *config_value(const struct config *c, const struct config_key *key);
// A file's name without its folder, for remarks; of a pipe (/dev/fd/63) the path.
const char *config_file_name(const char *path);
// A type's names in torch and DeepSpeed, in any case, as this program's own ("fp32" of "torch.float32"); another text as it is.
const char *config_dtype_name(const char *text);
// Sets the keys of a section ("cuda") to their defaults. Which of them had another value, for people
// ("cuda.attention own, cuda.gelu fused", malloc'd); NULL: none.
char *config_reset_section(struct config *c, const char *section);

// The names of a row's variants (malloc'd).
char *config_variants(const struct topology_row *row, const char *between);
// Parses "zero:2", "ps:ssp:3", ... into topology, row, variant and bound; -1 after listing what is possible.
int config_parse_topology(struct config *c, const char *text);
// The number of ranks of a role; 0: the topology has no such role.
int config_ranks(const struct config *c, const char *role);

#endif
