// A key of the configuration is one row of config_keys.c. From the rows come the reader and its messages, the defaults,
// --print-config, the nearest known name, the flags of train and of a star's roles with their help, and what ranks and
// checkpoints compare (shared/state/identity.h). A new key takes a member of struct config, a row, and a line of
// docs/config.md, which a test demands.
//
// Rows are constant; any thread.
#ifndef STARRING_SHARED_CONFIG_CONFIG_KEY_H
#define STARRING_SHARED_CONFIG_CONFIG_KEY_H

#include <stdbool.h>
#include <stddef.h>

enum key_type {
    KEY_BOOL,
    KEY_NOT,  // stored inverted
    KEY_INT,
    KEY_I64,  // also uint64_t: values are below 2^53
    KEY_F32,
    KEY_F64,
    KEY_PAIR,   // two adjacent floats: [beta1, beta2]
    KEY_TEXT,   // char *, owned
    KEY_LIST,   // the same: texts joined by commas; NULL: none. Its flag may be given several times
    KEY_ENUM,   // int, index into names
    KEY_SIZE,   // int64_t: bytes, or -i for the i-th of names
    KEY_SWITCH  // bool, index into two names
};

// How a change of a key concerns a run that goes on, and which ranks must have the same value.
enum identity_use {
    // A run that continues from a checkpoint must have the same: another value is another run.
    IDENTITY_TRAJECTORY = 1,
    // All ranks of a run must have the same.
    IDENTITY_RUN = 2,
    // A continued run may have another value, and then ends in other bits than the undisturbed one. A key that is
    // neither here nor in IDENTITY_TRAJECTORY moves no bit.
    IDENTITY_BITS = 4,
    // Known to those alone that compute (workers): servers and a scheduler open no data and have no such device. It is
    // compared where both sides know it.
    IDENTITY_LOCAL = 8,
    // Beside IDENTITY_TRAJECTORY: decides the order of pushes, so a recorded order of arrivals is repeated with the same
    // value alone (ps/record/arrivals.h).
    IDENTITY_ORDER = 16
};

// Where --help lists a flag: the group's name, as --help takes it, and its heading.
#define HELP_LIST(X)                                      \
    X(HELP_WHAT, "model", "Model and data")               \
    X(HELP_TRAINING, "training", "Training")              \
    X(HELP_RANKS, "ranks", "Topology, ranks and devices") \
    X(HELP_STAR, "star", "The star alone")                \
    X(HELP_FILES, "files", "Output and files")            \
    X(HELP_AGAIN, "again", "Checkpoints, and going on")   \
    X(HELP_TROUBLE, "trouble", "Trouble on purpose")
#define HELP_ID(id, ...) id,
enum help_group { HELP_LIST(HELP_ID) HELP_GROUPS };
#undef HELP_ID
extern const char *const help_groups[HELP_GROUPS][2];

struct config_key {
    const char *path;  // "optimizer.params.lr"
    enum key_type type;
    size_t offset;     // in struct draft
    double low, high;  // of numbers, inclusive
    double zero;       // what a 0 means; 0: itself
    bool no_bool;      // DeepSpeed converts truth values to numbers, and not for this one
    bool true_is_1;    // DeepSpeed compares it as Python's True: taken with a warning
    bool
        of_groups;  // DeepSpeed takes a list besides, a number for each parameter group: equal ones are one number
    bool is_dtype;              // names of types, which people spell in several ways
    const char *const *names;   // of KEY_ENUM, KEY_SIZE and KEY_SWITCH, NULL at the end
    const char *default_value;  // of a configuration without the key, as a flag writes it; NULL: 0 or no text
    const char *auto_value;     // JSON "auto" stands for; "": resolved later; NULL: no "auto" here
    const char *auto_why;       // where auto_value comes from
    bool empty;                 // of a text: "" is no text, else it is refused
    const char *alias;          // DeepSpeed's other name for it, or NULL
    bool stage_3;               // acts in stage 3 alone
    bool ring;                  // of ZeRO's stages: shown only where one runs
    bool only_read;             // another key says what became of it, and is shown instead
    unsigned schedules;         // of a schedule's parameter: the bits 1 << type of those that take it

    const char *flag, *metavar,
        *help;              // "workers", "N" (NULL: a switch), one sentence; flag NULL: --set alone
    bool train;             // a flag of train, not of the roles
    enum help_group group;  // of the flag
    bool often;             // what most people need: in the short --help too

    unsigned agree;  // of enum identity_use; 0: nobody compares it
};

size_t config_key_count(void);
const struct config_key *config_key_at(size_t i);
// By its path or its other name; NULL: none.
const struct config_key *config_key_find(const char *path);
// Whether an earlier version had the key, and this one has not.
bool config_key_gone(const char *path);

#endif
