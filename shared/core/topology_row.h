// A topology as the program sees it: the names of its variants, the roles of its ranks, how it may be started, what
// it needs, and how it runs. Each row is owned by one file (shared/train/local.c, decentral/ring.c, ps/star.c);
// starring.c lists the rows, and everybody else asks the row of the configuration. What the training loop sees of a
// topology is struct topology (shared/core/topology.h).
//
// Threads   Rows are constant; their functions run on the process's main thread.
// Errors    0, or -1 after logging.
#ifndef STARRING_SHARED_CORE_TOPOLOGY_ROW_H
#define STARRING_SHARED_CORE_TOPOLOGY_ROW_H

#include "shared/core/topology.h"

struct cJSON;
struct config;
struct rank_env;
struct run;

struct topology_variant {
    char name[24];  // "zero:2", "ps:ssp:S": a letter for the number that may stand there
    bool planned;   // known by name, and refused
};

struct topology_role {
    const char *name;  // "worker"; NULL ends a list
    size_t count;      // offset of the number of its ranks in struct config
};

// What one rank of a role needs and moves.
struct prediction {
    struct topology_memory memory;
    struct wire_prediction wire;
};

// The textbook's bytes in words: P parameters, N workers, S servers.
struct topology_formula {
    char memory[TEXTBOOK_TEXT];
    const char *wire;
};

// Host memory of one rank that the ledger does not count.
struct topology_allowance {
    double
        loading_units;   // while weights are loaded: so much of a unit in the run's dtype, beside one in fp32
    double frame_bytes;  // messages in flight
};

struct topology_row {
    // Names. A variant is a number from 0 (config.variant); the first `textbook` differ in what they need.
    int (*parse)(const char *text, int *bound);  // the variant that it names, and its number; -1: none
    bool (*variant)(int index, struct topology_variant *out);  // false: there is none
    int (*check_name)(const struct config *c,
                      const char *origin);  // the number, with these workers; may be NULL
    int textbook;
    bool
        takes_stage;  // zero_optimization.stage is the variant; taken where no topology is named, and that key or
                      // more than one worker is

    // Ranks and processes.
    const struct topology_role *roles;  // the workers first
    int default_workers, max_workers;   // max_workers 0: any number
    unsigned launches;                  // bit 1 << enum launch_kind: those allowed
    const char *launch_advice;          // what to say about the others
    int more_processes;                 // beside the ranks; they report nothing
    bool reports_staleness;             // of its workers, in summary.json
    bool collectives;                   // ring.collective and "reduce": "native" concern it

    // Before anything is made. Each but predict and formula may be NULL.
    void (*resolve)(struct config *c, const struct rank_env *e);  // what "auto" leaves to this machine
    int (*check)(const struct config *c);                         // choices that exclude each other
    int (*check_rank)(const struct config *c, const struct rank_env *e);  // and how this process was started
    int (*check_machine)(const struct config *c);                         // what must be installed here
    // The topology's part: a worker's activations and workspace come on top (shared/memory/prediction.h). The layout
    // is padded for c->workers.
    int (*predict)(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out);
    struct topology_formula (*formula)(const struct config *c, const char *role);
    struct topology_allowance (*allowance)(const struct config *c, const char *role,
                                           const struct prediction *p);
    void (*describe)(const struct config *c, struct cJSON *summary);  // the variant, in summary.json

    int (*run)(struct run *r);  // trains (shared/launch/run.h); the program's exit status
};

// What the program can run: starring.c's list, or a test's.
struct topology_table {
    const struct topology_row *row[8];  // NULL at the end; the first is taken where nothing asks for another
};

#endif
