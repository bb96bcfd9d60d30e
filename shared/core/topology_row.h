// A topology's row in the table of the program. It has the names of the topology's variants, the roles of its ranks,
// how it may be started, what it needs, and how it runs. One file owns each row (shared/launch/local.c,
// decentral/zero_row.c, ps/star.c). starring.c lists the rows, and all other code asks the row of the configuration.
// The training loop's view of a topology is struct topology (shared/core/topology.h).
//
// Threads   Rows are constant. Their functions run on the process's main thread.
// Errors    Functions that return int return 0, or -1 after logging, unless stated otherwise.
#ifndef STARRING_SHARED_CORE_TOPOLOGY_ROW_H
#define STARRING_SHARED_CORE_TOPOLOGY_ROW_H

#include <stdio.h>

#include "shared/core/topology.h"

struct cJSON;
struct config;
struct rank_env;
struct rendezvous_options;
struct run;
struct step_tasks;

struct topology_variant {
    char name[24];      // "zero:2", "ps:ssp:S": the letter stands for a number
    const char *means;  // the number's meaning, for the help: "all but B workers"; NULL: the name is clear
};

// The name of a variant in other programs.
struct topology_alias {
    const char *word;   // "fsdp": lower-case letters and digits only; NULL ends a list
    const char *name;   // the variant's name
    const char *means;  // the word's meaning there; NULL: another spelling of the name
};

struct topology_role {
    const char *name;  // "worker"; NULL ends a list
    size_t count;      // offset in struct config of the number of its ranks
};

// The memory that one rank of a role needs, and the bytes that it moves.
struct prediction {
    struct topology_memory memory;
    struct wire_prediction wire;
    // Bytes of the fp32 values that the rank writes to a checkpoint (the hook `state` of struct topology_ops).
    size_t state_bytes;
    // Host memory outside the ledger that grows with units, ranks or steps.
    int64_t record_bytes;
    // The prediction is valid for so many ranks of the role, beginning with this one; 0: unknown.
    int same_ranks;
};

// Returns for how many of the next `most` ranks p is valid, including the first.
static inline int prediction_same_ranks(const struct prediction *p, int most) {
    return p->same_ranks > most ? most : p->same_ranks > 0 ? p->same_ranks : 1;
}

#define TOPOLOGY_CONSISTENCY 24

// The textbook's formulas as text: memory per rank, bytes per step. P parameters, N workers, S servers.
struct topology_formula {
    char memory[TEXTBOOK_TEXT], wire[96];
};

// Host memory of one rank that the ledger does not count.
struct topology_allowance {
    double loading_units;  // while weights are loaded: multiples of a unit in the run's dtype
    double frame_bytes;    // messages in flight
    // Payloads that wait to be summed, contained in frame_bytes: an upper limit of a rank report's transport_peak_bytes.
    double held_bytes;
};

// Texts that explain a topology (summary.json, "explained"). They are constant.
struct topology_texts {
    const char *picture;  // "star", "ring", "gossip"; NULL: one process
    const char *how;      // sentences: who adds gradients and who updates weights
    // sentences: this variant's rule for when an update is applied; NULL: `how` contains it
    const char *rule;
    // Part of a sentence: why losses and weights differ from those of a sum of all ranks' gradients in rank order.
    // NULL: they have the same bits.
    const char *differs;
    const char *loss_of;  // the samples, or workers, whose loss is in a line of metrics.jsonl
    bool waits_for_all;   // each step needs every worker's gradient of the same step
};
#define LOSS_OF_ALL      "the global batch"
#define LOSS_OF_RANK_0   "worker 0's own samples"
#define LOSS_OF_THE_LAST "the workers that came in time"

// A function may be NULL only if its comment says so.
struct topology_row {
    // 1. Names. A variant is a number from 0: config.variant.
    // Returns the variant that the text names, or -1. *bound receives the number in the name.
    int (*parse)(const char *text, int *bound);
    // Returns false if there is no such variant.
    bool (*variant)(int index, struct topology_variant *out);
    const struct topology_alias *words;  // names in other programs, for messages; NULL: none
    // Checks that the number in the name fits the workers. origin is the flag or key, for the message. May be NULL.
    int (*check_name)(const struct config *c, const char *origin);
    // Writes the consistency that identities compare: runs with the same one may have equal bits. "sync": the bits are those
    // of a sum in rank order. NULL: "sync".
    void (*consistency)(const struct config *c, char out[TOPOLOGY_CONSISTENCY]);
    // Adds the variant to summary.json. May be NULL.
    void (*describe)(const struct config *c, struct cJSON *summary);
    // Fills *out, which is empty before the call, except that loss_of is LOSS_OF_ALL and waits_for_all true.
    void (*explain)(const struct config *c, struct topology_texts *out);
    // The key zero_optimization.stage chooses the variant. A run without a topology's name uses this row if that key or
    // more than one worker is given.
    bool takes_stage;

    // 2. Ranks and processes.
    const struct topology_role *roles;  // workers first
    int default_workers, max_workers;   // max_workers 0: any number
    unsigned launches;                  // bit 1 << enum launch_kind: the allowed ones
    const char *launch_advice;          // printed if another launch is requested
    // Rank 0's launcher runs a scheduler, which decides what happens after a rank has died.
    bool scheduled;
    bool reports_staleness;
    bool messages;           // ranks exchange messages, in which faults may be injected (trouble.fault)
    bool takes_groups;       // reduce_group applies
    bool takes_graph;        // gossip.graph applies
    bool takes_delay;        // local.delay applies
    bool collectives;        // ring.collective and "reduce": "native" apply
    bool takes_local_steps;  // ranks may take local steps (shared/launch/local_steps.h)
    // Returns whether each rank's gradient is a separate update. NULL: it is not.
    bool (*is_independent)(const struct config *c);
    // Returns the bytes of shared memory for ranks that are processes of one launcher (shared/launch/launch_ranks.h). May
    // be NULL.
    size_t (*shared_memory_bytes)(const struct config *c);
    // Sets what the rendezvous of its processes needs besides the ranks (shared/fabric/rendezvous.h). NULL: nothing.
    void (*meet)(const struct config *c, struct rendezvous_options *o);

    // Returns text for the run's header about which processes may join the run ("loopback: ..."). NULL: none join.
    const char *(*admission)(const struct config *c);
    // Other topologies skip a step with a gradient that is not finite. Returns text about what this one does instead. NULL: it
    // skips the step, too.
    const char *(*unskipped)(const struct config *c);

    // 3. Before anything is allocated.
    // Resolves what "auto" leaves to this machine. May be NULL.
    void (*resolve)(struct config *c, const struct rank_env *e);
    // Check choices that exclude each other; how this process was started; what must be installed here. Each may be
    // NULL.
    int (*check)(const struct config *c);
    int (*check_rank)(const struct config *c, const struct rank_env *e);
    int (*check_machine)(const struct config *c);

    // 4. Memory and bytes.
    // The memory of a rank's topology; a worker's activations and workspace are added
    // (shared/predict/memory_need.h). The layout is padded for c->workers.
    int (*predict)(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out);
    // Adds the tasks of a worker's step (shared/model/step_tasks.h); t's micro-batches and steps of a round are set. 0,
    // or -1 after logging.
    int (*step_tasks)(const struct config *c, const struct layout *l, int rank, struct step_tasks *t);
    // Prints what a step's tasks do not say, as members of a JSON object, each with a comma after it: servers and their
    // rule, a graph of neighbours. Returns 0, or -1 after logging. May be NULL.
    int (*step_facts)(const struct config *c, const struct layout *l, FILE *f);
    struct topology_formula (*formula)(const struct config *c, const char *role);
    // Returns whether ranks hold shards of the weights that LoRA freezes; `predict` then counts these, and *copies receives how
    // many copies all ranks of the role hold together. NULL, or false: each worker holds all frozen weights.
    bool (*shards_frozen)(const struct config *c, const char *role, size_t *copies);
    int textbook;  // the first `textbook` variants have different formulas, so `plan` tries each; 0: all have the same
    // Returns the host memory that the ledger does not count. NULL: none.
    struct topology_allowance (*allowance)(const struct config *c, const char *role,
                                           const struct prediction *p);

    // 5. Training (shared/launch/run.h). Returns the program's exit status.
    int (*run)(struct run *r);
};

// The topologies that the program can run: starring.c's list, or a test's.
struct topology_table {
    const struct topology_row *row[8];  // NULL at the end; the first is the default
    // Sends rank 0's text to all ranks that mpirun has started. Returns 0, or -1 after logging. NULL: not possible.
    int (*broadcast)(char *text, size_t bytes);
};

#endif
