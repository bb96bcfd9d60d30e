// The resolved configuration of a run: DeepSpeed's JSON with sections of our own, then --set, then the flags of the
// command line. Plain data; the struct owns its strings. Every key is one row (struct config_key); docs/config.md
// explains every key.
//
// "auto" takes the value that the Hugging Face Trainer gives it by default. One line counts the "auto" keys and the
// keys that DeepSpeed knows but this program does not read; --print-config prints a line for each. Such a key is an error
// if it would change the results. An unknown key is a warning in a file and an error on the command line;
// both name the nearest known key.
#ifndef STARRING_SHARED_CONFIG_CONFIG_H
#define STARRING_SHARED_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/dtype.h"
#include "shared/core/train_state.h"
#include "shared/model/optimizer.h"
#include "shared/model/recompute.h"
#include "shared/model/schedule.h"

struct topology_row;  // shared/core/topology_row.h
struct topology_table;
struct config_key;

// The ways of starting ranks, one row each: its name; the printed name of one of its processes; one_each: this program
// starts each rank as a process of this machine; by_others: another program starts them over MPI (its texts are in
// shared/launch/launch_ranks.c; its exit status may be a rank's, and above 128 means that a signal killed it).
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

// How processes of one host exchange payloads. A medium that is named is required: payloads use no other, and the run
// is refused if it is not available. MEDIUM_AUTO: shared memory on one host and tcp between hosts; for ranks over MPI,
// Open MPI chooses.
enum medium { MEDIUM_AUTO, MEDIUM_SHM, MEDIUM_TCP };
extern const char *const medium_names[];
enum memory_check_kind { MEMORY_CHECK_AUTO, MEMORY_CHECK_OFF };

// Devices that a run can compute on, a row each: its name, which is also its backend's (kernels/backend.h); the
// section that only this device reads; whether its memory is separate from the host's.
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

// The engines that a ring's ranks communicate with, a row each: its name, its text in the help of --collective, and
// the MiB that each process of a rank needs for it on the host and on a GPU. decentral/ranks.c has their
// collectives, and resolves RING_AUTO.
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

// Training sequences: T tokens from anywhere in the text, or documents with their own lengths
// (shared/data/data_stream.h).
enum documents_kind { DOCUMENTS_PACKED, DOCUMENTS_WHOLE };

#define EVAL_ALL  (-1)
#define EVAL_AUTO (-2)

// The units whose weights and gradients a star's workers keep: all, or two at a time.
enum ps_resident { PS_RESIDENT_ALL, PS_RESIDENT_UNITS };

// The names of gossip's graphs; decentral/gossip.c has their rows.
#define GOSSIP_LIST(X)            \
    X(RING, "ring")               \
    X(EXPONENTIAL, "exponential") \
    X(STATIC_EXPONENTIAL, "static_exponential")
#define GOSSIP_KIND(id, ...) GOSSIP_##id,
enum gossip_graph { GOSSIP_LIST(GOSSIP_KIND) GOSSIP_GRAPHS };
extern const char *const gossip_graphs[];

// The outer optimizers of local steps, a row each (shared/launch/local_steps.c has their updates and papers).
#define OUTER_LIST(X)                                                                           \
    X(MEAN, "mean", .optimizer = "SGD", .lr = 1)                                                \
    X(MOMENTUM, "momentum", .optimizer = "SGD", .lr = 1, .momentum = 0.9f)                      \
    X(NESTEROV, "nesterov", .optimizer = "SGD", .lr = 0.7f, .momentum = 0.9f, .nesterov = true) \
    X(ELASTIC, "elastic", .optimizer = "SGD", .lr = 0.9f, .elastic = true)                      \
    X(CGAD, "cgad", .optimizer = "Adam", .momentum = 0.9f, .by_age = true)
#define OUTER_KIND(id, ...) OUTER_##id,
enum outer_kind { OUTER_LIST(OUTER_KIND) OUTER_KINDS };
struct outer_row {
    const char *name, *optimizer;
    float lr;        // the default; 0: there is none, the user must give one
    float momentum;  // the default, for Adam that of beta1; 0: it has no momentum
    bool nesterov;
    // Ranks keep their own weights and move them towards the shared ones; the default lr is divided by N
    bool elastic;
    // Multiplies each rank's change by a factor of its age; only if each change is a separate update
    bool by_age;
};
extern const struct outer_row outer_rows[OUTER_KINDS];

// Local steps (shared/launch/local_steps.c): in a round each rank computes steps of its own; then the ranks exchange the
// changes of their weights, and the outer optimizer applies them.
struct local_steps_config {
    int64_t steps;  // per round; 0: no local steps
    enum outer_kind outer;
    float lr, momentum;  // of the outer optimizer
    // cgad: alpha, per update of age; a change of age_cutoff updates or more is dropped, 0: none is dropped.
    float age_decay, age_cutoff;
    struct optimizer_config optimizer;  // the outer optimizer, resolved from the members above
};

// LoRA (docs/lora.md): which linear layers have adapters. Only the adapters are trained.
struct lora_config {
    int r;  // rank of an adapter; 0: all weights are trained
    float alpha;
    char *targets;  // peft's names of modules, joined by commas; NULL: peft's default for the model
};

struct ps_config {
    int servers, threads;  // S; shard threads per server
    // "hosts", "workers", or a list of machines that get servers in turn (ps/launch_star.h).
    char *servers_on;
    bool servers_on_workers;  // servers_on is "workers"
    int resident;             // enum ps_resident
    int64_t partition_bytes;  // the largest payload of a message, in bytes of the run's type
    int64_t deadline_ms, heartbeat_ms;
    int64_t grace_ms;      // how long a quorum waits for more workers
    int64_t credit_bytes;  // bytes in flight per worker; 0: auto (ps/job/unit_moves.h)
    char *bind;            // address on which servers and scheduler listen
    bool record_arrivals;  // asynchronous runs: record the order of pushes in the run directory
    char *
        replay_arrivals;  // the run directory whose recorded order is repeated; NULL: pushes count as they arrive
    bool log_updates;         // write a line for each push to the run directory
    bool read_oldest;         // bounded delay: use the oldest version that a step may be computed on
    struct code_format code;  // of pushed gradients
    // For asynchronous runs, in which pushes are applied on arrival:
    int64_t max_lead;          // steps that a worker may be ahead of the slowest; 0: no limit
    int pushes_per_update;     // K: the mean of K pushes is one update
    int64_t max_staleness;     // updates; an older gradient is dropped; -1: no limit
    bool age_damping;          // divide the learning rate by a gradient's age
    float delay_compensation;  // lambda; 0: none
    float delay_decay;         // decay of the squares that lambda is divided by; 0: lambda is constant
    bool whole_units;  // set by `bench ps`, not by a key: units are not cut further to balance the servers
};

#define CONFIG_DELAY_MAX   16  // versions: the largest delay of weights
#define CONFIG_ELASTIC_MAX 64  // workers: a set of them is a 64-bit word

// Checkpoints, and how a run continues after a death (docs/recovery.md).
struct recovery_config {
    int64_t checkpoint_every;       // steps between two checkpoints; 0: none
    bool checkpoint_background;     // the state is copied, and written while training continues
    int64_t checkpoint_keep;        // how many of the last ones are kept; 0: all
    int64_t checkpoint_keep_every;  // every M-th one is kept, too; 0: none
    char *resume;                   // "latest", a checkpoint, or a run directory; NULL: from the beginning
    // Loads only the checkpoint's masters: the run begins at step 0 with a new optimizer
    bool resume_weights_only;
    int restart;                   // restarts of the job, at most
    char *elastic;                 // "MIN:MAX" workers; NULL: always all of them
    int elastic_min, elastic_max;  // the numbers in `elastic`; 0: it is NULL
};

// Where a run's curves are written (shared/report/monitor.h): OUTPUT_PATH/JOB_NAME.
struct monitor_config {
    bool enabled;
    char *output_path;  // NULL: the directory where the run was started
    char *job_name;
};

// Where state is kept instead of in the device's memory: docs/ring.md.
enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };
extern const char *const offload_names[];
struct offload_config {
    enum offload_device device;
    bool pin_memory;  // page-locked; no effect if the device's memory is the host's
    char *nvme_path;  // nvme: a writable directory; other devices: the given text, which is not used, or NULL
    double ratio;     // offload_optimizer: the share of the elements that is offloaded, in whole units
};

// How offloaded state is read from and written to disk (shared/offload/disk_store.h).
struct aio_config {
    // block_bytes: per request, a multiple of 4096. depth: requests in flight for a read or a write.
    int64_t block_bytes, depth;
};

// The rules for joining a job (docs/security.md).
struct security_config {
    bool insecure;  // a star: joining needs no key
};

struct config {
    const struct topology_table *topologies;  // the topologies that can be named
    char *topology;                           // as written: "ps:ssp:2"
    const struct topology_row *row;           // the row of that name
    int variant;      // which of its variants: the ring's stage, the star's consistency
    int local_delay;  // topology local: updates by which the weights of a step are old
    int bound;        // the number in the variant's name ("ps:ssp:2"); 0: the name has none
    int workers;      // N
    enum launch_kind launch;
    enum medium medium;
    // For ranks that another program starts: the network interface whose address is sent to the other ranks. NULL: the
    // interface of the route to rank 0.
    char *interface;
    enum device_kind device;
    enum ring_collective collective;
    int threads;                 // CPU threads per rank; 0: cores / ranks on this machine, at least 1
    enum cpu_kernel cpu_kernel;  // device cpu, dtype bf16: as requested
    struct cuda_choices cuda;

    char *model;      // preset, file or directory
    char *data;       // file, directory, or "demo"
    char *val_data;   // held-out data; NULL: the last part of data
    char *tokenizer;  // "auto", "byte" or "bin"
    double val_fraction;
    enum documents_kind documents;
    int64_t seq;  // T; with whole documents, the largest T
    int64_t steps;
    uint64_t seed;
    enum dtype dtype;
    char *out;  // run directory, or NULL
    int64_t eval_every;
    double eval_every_seconds;
    int64_t eval_batches;  // EVAL_ALL, EVAL_AUTO (shared/infer/evaluate.h), 0: none
    double target_loss;
    bool keep_snapshots;
    bool trace, json, quiet, full;
    char *fault;             // faults in messages: lost, duplicated, late; NULL: none
    char *straggle, *delay;  // lists of shared/core/trouble.h, valid for the run's workers; NULL: none
    enum memory_check_kind
        memory_check;      // off: start even if it does not fit (shared/predict/memory_check.h)
    int64_t device_bytes;  // limit of a worker's device memory (shared/predict/memory_check.h); 0: none
    int64_t logits_bytes;  // of a chunk of the head's logits; 0: auto (shared/model/head_plan.h)

    // DeepSpeed's triangle, resolved: train = micro * accumulation * N
    int64_t train_batch, micro_batch, accumulation;
    struct optimizer_config optimizer;
    char *optimizer_type;  // "AdamW"
    struct schedule_config schedule;
    struct scaler_config scaler;
    float clip;
    bool clip_given, optimizer_given;    // set by a file (as a run's config.json) or the command line
    char *remarks;                       // complete lines about keys without effect, and about "auto" keys
    int grad_accum;                      // data_types.grad_accum_dtype: 0: auto, fp32; else 1 + enum dtype
    struct recompute_options recompute;  // except gelu_apart, which follows from cuda.gelu
    int64_t steps_per_print;
    struct monitor_config tensorboard, csv_monitor;
    bool reduce_native;
    // Workers per group; a group's gradients are summed before those of all groups. Or one of:
    int64_t reduce_group;
#define GROUP_NONE 0
#define GROUP_HOST -1  // the workers of a machine: a number after the topology has resolved it
    // Stage 3: elements gathered ahead of their use, 0: none; or, for one unit ahead:
    int64_t prefetch_elements;
#define PREFETCH_AUTO -1
    // Stage 3: the most elements in all slots of weights; one slot always exists; 0: no limit
    int64_t live_elements;
    // The ring joins units in one message until it has so many elements; 0: it joins none.
    int64_t reduce_elements, gather_elements;
    bool no_overlap;  // zero_optimization.overlap_comm is false
    bool no_sync;     // ring.no_sync: stages 2 and 3 reduce gradients once per step
    enum gossip_graph gossip_graph;
    int64_t hpz;  // stage 3: ranks that share a secondary copy of the weights; 1: no such copy
    // device is OFFLOAD_NONE unless the stage supports it.
    struct offload_config offload_optimizer, offload_param;
    struct aio_config aio;
    int64_t deadline_ms;  // of collectives; equals ps.deadline_ms
    struct ps_config ps;
    struct recovery_config recovery;
    struct security_config security;
    struct local_steps_config local_steps;
    struct lora_config lora;
    // In the configuration of the topology that local steps wrap: the run's own configuration. One of its rounds is one
    // step here. NULL: there are no local steps.
    const struct config *outer_run;
};

// Returns the optimizer of the masters that all ranks share.
static inline const struct optimizer_config *config_kept_optimizer(const struct config *c) {
    return c->local_steps.steps ? &c->local_steps.optimizer : &c->optimizer;
}
// Returns how many of the run's steps make one step of this configuration.
static inline int64_t config_round(const struct config *c) {
    return c->outer_run ? c->outer_run->local_steps.steps : 1;
}

// Returns the ranks, or workers, per group (reduce_group). 0: there are no groups; one group of all ranks and groups of
// one rank are no groups. Also 0 while the number of workers per machine is unknown.
static inline int config_group(const struct config *c) {
    return c->reduce_group > 1 && c->reduce_group < c->workers ? (int)c->reduce_group : 0;
}

// Returns whether a step's micro-batches are added in fp32 buffers, separate from the 16-bit gradients
// (shared/model/grad_buffers.h). They are, unless data_types.grad_accum_dtype names the run's own type.
static inline bool config_sums_in_fp32(const struct config *c) {
    return c->accumulation > 1 && c->dtype != DT_F32 && c->grad_accum != 1 + (int)c->dtype;
}
// Returns the sequences that one worker computes in a step.
static inline int64_t config_own_sequences(const struct config *c) {
    return c->micro_batch * c->accumulation;
}
// Returns how many micro-batches the model adds in the gradients' own buffers; 1: each micro-batch overwrites them.
static inline int64_t config_added_in_place(const struct config *c) {
    return config_sums_in_fp32(c) ? 1 : c->accumulation;
}

// Returns the row of the run's device; the cpu's row for "auto", until device_resolve has chosen.
static inline const struct device_row *config_device(const struct config *c) {
    return &device_rows[c->device ? c->device : DEVICE_CPU];
}

// One "--set a.b=value", or a flag with its path. value is JSON, or a text without quotes. The paths "model" and "data"
// mean model.name and data.path. The value of a text key is taken literally: --out 123 is a directory.
struct config_override {
    const char *path, *value;
    const char *flag;  // as the user wrote it, for messages: "--workers"; NULL: "--set"
};

// Reads the file at path (NULL: all defaults), applies the overrides in order, resolves "auto" and the batch sizes, and
// checks everything. Prints warnings to stderr, and one line that summarizes `remarks`. Returns NULL after fail()
// named file or flag, key, what was expected and what was found. The caller owns the result; the table of
// topologies must outlive it.
struct config *config_load(const struct topology_table *t, const char *path, const struct config_override *o,
                           size_t count);
// Returns the resolved configuration as JSON text (malloc'd). config_load reads it back to an equal configuration.
char *config_to_json(const struct config *c);
// Writes the same text to a file in memory, for programs that this process starts (fork and exec) or becomes (exec): no
// file system is needed. path receives the name under which config_load finds it in those programs. Returns the file's
// descriptor, which stays open in them, or -1 after logging.
#define CONFIG_HANDED_DOWN "/proc/self/fd/"
int config_hand_down(const struct config *c, char path[32]);
void config_destroy(struct config **c);
// Checks that this machine has the directories of device "nvme". Call it for a run that begins here, not if a run's
// configuration is only printed or predicted. Returns 0, or -1 after logging what to do.
int config_check_folders(const struct config *c);
// Returns a key's value as text for identities: JSON of a number or a switch, a text without its quotes (malloc'd).
// Returns NULL if the configuration has no such value: a parameter of another optimizer, or an unset text.
char *config_value(const struct config *c, const struct config_key *key);
// Returns a file's name without its directory, for remarks; for a pipe (/dev/fd/63) the path.
const char *config_file_name(const char *path);
// Translates the name of a type in torch or DeepSpeed, in any case, to this program's ("torch.float32" to "fp32"). Another
// text is returned unchanged.
const char *config_dtype_name(const char *text);
// Sets the keys of a section ("cuda") to their defaults. Returns those that had another value as text to print
// ("cuda.attention own, cuda.gelu fused", malloc'd), or NULL.
char *config_reset_section(struct config *c, const char *section);

// Returns the names of a row's variants, joined by `between` (malloc'd).
char *config_variants(const struct topology_row *row, const char *between);
// Returns the names of the variants of all rows (malloc'd), with commas between. meanings: with what their numbers mean.
char *config_topologies(const struct topology_table *t, bool meanings);
// Parses "zero:2", "ps:ssp:3", ... into topology, row, variant and bound. Returns 0, or -1 after logging what is
// possible.
int config_parse_topology(struct config *c, const char *text);
// Returns the number of ranks of a role; 0: the topology has no such role.
int config_ranks(const struct config *c, const char *role);
// Checks that the topology may be started as --launch says, and calls the row's own check for choices that exclude each
// other. Returns 0, or -1 after logging what to use instead.
int config_check_launch(const struct config *c);

// ---------------------------------------------------------------- keys
// A key of the configuration is one row of config_keys.c. The rows give the reader and its messages, the defaults,
// --print-config, the nearest known name, the flags of train and of a star's roles with their help, and what ranks
// and checkpoints compare (shared/state/identity.h). A new key needs a member of struct config, a row, and a line
// of docs/config.md, which a test requires.
//
// Rows are constant; any thread may read them.
enum key_type {
    KEY_BOOL,
    KEY_NOT,  // stored inverted
    KEY_INT,
    KEY_I64,  // also uint64_t: values are below 2^53
    KEY_F32,
    KEY_F64,
    KEY_PAIR,   // two adjacent floats: [beta1, beta2]
    KEY_TEXT,   // char *, owned
    KEY_LIST,   // char *, owned: texts joined by commas; NULL: none. Its flag may be given several times
    KEY_ENUM,   // int, index into names
    KEY_SIZE,   // int64_t: bytes, or -i for the i-th of names
    KEY_SWITCH  // bool, index into two names
};

// How a change of a key affects a run that resumes, and which ranks must have the same value.
enum identity_use {
    // A run that resumes from a checkpoint must have the same value: another value is another run.
    IDENTITY_TRAJECTORY = 1,
    // All ranks of a run must have the same value.
    IDENTITY_RUN = 2,
    // A resumed run may have another value; its result then has other bits than an undisturbed run. A key with neither
    // this use nor IDENTITY_TRAJECTORY changes no bit.
    IDENTITY_BITS = 4,
    // Only the ranks that compute (workers) know it: servers and a scheduler open no data and have no such device.
    // It is compared if both sides know it.
    IDENTITY_LOCAL = 8,
    // It affects the order of pushes. A recorded order of arrivals is replayed only with the same values of these keys
    // and of those with IDENTITY_TRAJECTORY (ps/record/arrivals.h).
    IDENTITY_ORDER = 16
};

// In a key's help text, this is replaced by the names of all topologies.
#define HELP_TOPOLOGIES "{topologies}"

// The groups in which --help lists flags: the word after --help that shows the group, and the group's heading.
#define HELP_LIST(X)                                      \
    X(HELP_WHAT, "model", "Model and data")               \
    X(HELP_TRAINING, "training", "Training")              \
    X(HELP_RANKS, "ranks", "Topology, ranks and devices") \
    X(HELP_STAR, "star", "Only for a star")               \
    X(HELP_FILES, "files", "Output and files")            \
    X(HELP_AGAIN, "again", "Checkpoints and resuming")    \
    X(HELP_TROUBLE, "trouble", "Simulated stragglers, delays and faults")
#define HELP_ID(id, ...) id,
enum help_group { HELP_LIST(HELP_ID) HELP_GROUPS };
#undef HELP_ID
extern const char *const help_groups[HELP_GROUPS][2];

struct config_key {
    const char *path;  // "optimizer.params.lr"
    enum key_type type;
    size_t offset;     // in struct draft
    double low, high;  // limits of numbers, inclusive
    double zero;       // the value that is stored for a 0; 0: a 0 is stored
    bool no_bool;      // DeepSpeed converts truth values to numbers, but not for this key
    bool true_is_1;    // DeepSpeed compares it with Python's True: accepted with a warning
    // DeepSpeed also takes a list, with one number per parameter group. A list of equal numbers is accepted as that number.
    bool of_groups;
    bool is_dtype;              // names of types, which have several spellings
    const char *const *names;   // of KEY_ENUM, KEY_SIZE and KEY_SWITCH, NULL at the end
    const char *default_value;  // the default, as a flag writes it; NULL: 0 or no text
    const char *auto_value;     // JSON that "auto" stands for; "": resolved later; NULL: no "auto" here
    const char *auto_why;       // where auto_value comes from, for messages
    bool empty;                 // KEY_TEXT: "" is accepted and means no text; otherwise it is refused
    const char *alias;          // DeepSpeed's other name for it, or NULL
    bool stage_3;               // has an effect only in stage 3
    // For a key that only runs with servers have: a topology to name in its error message ("ps:sync"); or NULL.
    const char *servers;
    bool ring;           // a key of ZeRO's stages: printed only if the run has a stage
    bool only_read;      // never printed: another key has the result
    unsigned schedules;  // a schedule's parameter: bit 1 << type for each schedule that takes it

    // "workers", "N" (NULL: a switch), one sentence. flag NULL: only --set sets the key.
    const char *flag, *metavar, *help;
    bool train;             // a flag of train, not of the roles
    enum help_group group;  // of the flag
    bool often;             // listed in the short --help, too

    unsigned agree;  // bits of enum identity_use; 0: never compared
};

size_t config_key_count(void);
const struct config_key *config_key_at(size_t i);
// Finds a key by its path or its alias. Returns NULL if there is none.
const struct config_key *config_key_find(const char *path);
// Returns whether an earlier version had the key and this one does not.
bool config_key_gone(const char *path);

#endif
