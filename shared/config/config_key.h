// A key of the configuration is one row of config_keys.c. The rows give the reader and its messages, the defaults,
// --print-config, the nearest known name, the flags of train and of a star's roles with their help, and what ranks
// and checkpoints compare (shared/state/identity.h). A new key needs a member of struct config, a row, and a line
// of docs/config.md, which a test requires.
//
// Rows are constant; any thread may read them.
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

// How a change of a key affects a run that resumes, and which ranks must have the same value.
enum identity_use {
    // A run that resumes from a checkpoint must have the same value: another value is another run.
    IDENTITY_TRAJECTORY = 1,
    // All ranks of a run must have the same value.
    IDENTITY_RUN = 2,
    // A resumed run may have another value; its result then has other bits than an undisturbed run. A key that is
    // neither here nor in IDENTITY_TRAJECTORY changes no bit.
    IDENTITY_BITS = 4,
    // Known only to the ranks that compute (workers): servers and a scheduler open no data and have no such device.
    // It is compared where both sides know it.
    IDENTITY_LOCAL = 8,
    // Decides the order of pushes. A recorded order of arrivals is replayed only with the same values of these keys
    // and of IDENTITY_TRAJECTORY's (ps/record/arrivals.h).
    IDENTITY_ORDER = 16
};

// In the help of a key: replaced by the names of all topologies.
#define HELP_TOPOLOGIES "{topologies}"

// The group in which --help lists a flag: its name, as --help takes it, and its heading.
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
    double zero;       // the value that a 0 stands for; 0: itself
    bool no_bool;      // DeepSpeed converts truth values to numbers, but not for this key
    bool true_is_1;    // DeepSpeed compares it with Python's True: accepted with a warning
    // DeepSpeed also takes a list, with a number for each parameter group. Equal numbers count as one.
    bool of_groups;
    bool is_dtype;              // names of types, which have several spellings
    const char *const *names;   // of KEY_ENUM, KEY_SIZE and KEY_SWITCH, NULL at the end
    const char *default_value;  // the default, as a flag writes it; NULL: 0 or no text
    const char *auto_value;     // JSON that "auto" stands for; "": resolved later; NULL: no "auto" here
    const char *auto_why;       // source of auto_value
    bool empty;                 // of a text: "" is accepted as no text; otherwise it is refused
    const char *alias;          // DeepSpeed's other name for it, or NULL
    bool stage_3;               // has an effect only in stage 3
    const char
        *servers;  // of a star's servers: a topology that has it, for the refusal elsewhere; NULL: it is not
    bool ring;     // of ZeRO's stages: shown only if the run has one
    bool only_read;      // another key holds the result, and is shown instead
    unsigned schedules;  // of a parameter of schedules: the bits 1 << type of those that take it

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
// Whether an earlier version had the key and this one does not.
bool config_key_gone(const char *path);

#endif
