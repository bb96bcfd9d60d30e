// A topology as the program sees it: the names of its variants, the roles of its ranks, how it may be started, what
// it needs, and how it runs. Each row is owned by one file (shared/launch/local.c, decentral/zero_row.c, ps/star.c);
// starring.c lists the rows, and everything else asks the row of the configuration. The training loop's view of
// a topology is struct topology (shared/core/topology.h).
//
// Threads   Rows are constant. Their functions run on the process's main thread.
// Errors    Functions that return int return 0, or -1 after logging, unless said otherwise.
#ifndef STARRING_SHARED_CORE_TOPOLOGY_ROW_H
#define STARRING_SHARED_CORE_TOPOLOGY_ROW_H

#include "shared/core/topology.h"

struct cJSON;
struct config;
struct rank_env;
struct rendezvous_options;
struct run;

struct topology_variant {
    char name[24];  // "zero:2", "ps:ssp:S": a letter for the number that may stand there
};

// A name that a variant has elsewhere.
struct topology_word {
    const char *word;   // "fsdp": small letters and digits alone; NULL ends a list
    const char *name;   // the variant's
    const char *means;  // what the word stands for there; NULL: another form of the name
};

struct topology_role {
    const char *name;  // "worker"; NULL ends a list
    size_t count;      // offset of the number of its ranks in struct config
};

// The needs of one rank of a role, and the bytes that it moves.
struct prediction {
    struct topology_memory memory;
    struct wire_prediction wire;
    size_t
        state_bytes;  // of the fp32 values that the rank writes into a checkpoint (struct topology_ops' state)
    int64_t
        record_bytes;  // host memory that grows with parts of the model, ranks or steps, beside the ledger
    int alike;         // so many ranks of the role, from this one on, have the same; 0: unknown
};

// How many of the next `most` ranks p speaks for, the first included.
static inline int prediction_alike(const struct prediction *p, int most) {
    return p->alike > most ? most : p->alike > 0 ? p->alike : 1;
}

// The textbook's bytes per rank and per step in words: P parameters, N workers, S servers.
struct topology_formula {
    char memory[TEXTBOOK_TEXT], wire[96];
};

// Host memory of one rank that the ledger does not count.
struct topology_allowance {
    double loading_units;  // parts of a unit in the run's dtype, while weights are loaded
    double frame_bytes;    // messages in flight
    double
        held_bytes;  // of these, payloads that wait: what transport_peak_bytes of a rank's report is at most
};

// A topology for people (summary.json, "explained"). Texts are constant.
struct topology_words {
    const char *picture;  // "star", "ring", "gossip"; NULL: it is one process
    const char *how;      // who adds gradients and who updates weights, in sentences
    const char *rule;     // of this variant, when, likewise; NULL: how says it
    // Why losses and weights differ from those of a sum of all ranks' gradients in rank order, as half a sentence. NULL: they
    // are the same bits.
    const char *differs;
    const char *loss_of;  // the samples, or workers, whose loss a line of metrics.jsonl has
};
#define LOSS_OF_ALL      "the global batch"
#define LOSS_OF_RANK_0   "worker 0's own samples"
#define LOSS_OF_THE_LAST "the workers that came in time"

// Functions may be NULL where it is said.
struct topology_row {
    // 1. Names. A variant is a number from 0: config.variant.
    // The variant that the text names, and the number in the name; -1: none.
    int (*parse)(const char *text, int *bound);
    // false: there is no such variant.
    bool (*variant)(int index, struct topology_variant *out);
    const struct topology_word *words;  // for whoever is told what else there is; NULL: none
    // Whether the number in the name goes with the workers; origin is the flag or key for the message. Or NULL.
    int (*check_name)(const struct config *c, const char *origin);
    // Adds the variant to summary.json. Or NULL.
    void (*describe)(const struct config *c, struct cJSON *summary);
    // out: LOSS_OF_ALL, and nothing else.
    void (*explain)(const struct config *c, struct topology_words *out);
    // zero_optimization.stage is the variant. A run without a topology's name takes this row where that key or more
    // than one worker is given.
    bool takes_stage;

    // 2. Ranks and processes.
    const struct topology_role *roles;  // the workers first
    int default_workers, max_workers;   // max_workers 0: any number
    unsigned launches;                  // bit 1 << enum launch_kind: those allowed
    const char *launch_advice;          // said where another launch is asked for
    bool scheduled;  // rank 0's launcher has a scheduler in it, which decides where a rank has died
    bool reports_staleness;
    bool messages;           // ranks exchange messages that may be troubled (trouble.fault)
    bool takes_groups;       // of reduce_group
    bool takes_graph;        // gossip.graph concerns it
    bool takes_delay;        // local.delay
    bool collectives;        // ring.collective and "reduce": "native" concern it
    bool takes_local_steps;  // its ranks may have local steps around it (shared/launch/local_steps.h)
    bool (*is_alone)(
        const struct config *c);  // whether each rank's gradient is an update of its own; NULL: it is none
    // Shared memory that ranks meet in which are processes of one launcher (shared/launch/launch_ranks.h). Or NULL.
    size_t (*meeting_bytes)(const struct config *c);
    // What a meeting of its processes has beyond its ranks (shared/fabric/peer.h). Or NULL: nothing.
    void (*meet)(const struct config *c, struct rendezvous_options *o);

    // The processes that may join the run, for its header ("loopback: ..."). Or NULL: nobody is asked, nobody joins.
    const char *(*admission)(const struct config *c);
    // Where other topologies would skip a step whose gradient is not finite: what happens instead, for people; NULL: they skip it too.
    const char *(*unskipped)(const struct config *c);

    // 3. Before anything is made.
    // Resolves what "auto" leaves to this machine. Or NULL.
    void (*resolve)(struct config *c, const struct rank_env *e);
    // Choices that exclude each other; how this process was started; what must be installed here. Each or NULL.
    int (*check)(const struct config *c);
    int (*check_rank)(const struct config *c, const struct rank_env *e);
    int (*check_machine)(const struct config *c);

    // 4. Memory and bytes.
    // The topology's part of a rank; a worker's activations and workspace come on top (shared/memory/memory_need.h).
    // The layout is padded for c->workers.
    int (*predict)(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out);
    struct topology_formula (*formula)(const struct config *c, const char *role);
    int textbook;  // the first so many variants have formulas of their own
    // Or NULL: nothing.
    struct topology_allowance (*allowance)(const struct config *c, const char *role,
                                           const struct prediction *p);

    // 5. Trains (shared/launch/run.h). The program's exit status.
    int (*run)(struct run *r);
};

// The topologies that the program can run: starring.c's list, or a test's.
struct topology_table {
    const struct topology_row *row[8];  // NULL at the end; the first is taken where nothing asks for another
    // Rank 0's text becomes that of all ranks that mpirun has started. 0, or -1 after logging; NULL: it cannot be told.
    int (*tell)(char *text, size_t bytes);
};

#endif
