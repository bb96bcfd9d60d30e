// The interface between the files of the configuration reader; no other file includes it. In the order of
// config_load:
//
//     config_read.c      1. the overrides are put into the file's tree of members
//     config_resolve.c   2. the optimizer is chosen, for its parameters' defaults
//     config_read.c      3. every member of the tree is read, noted or refused
//     config_resolve.c   4. what depends on several keys is filled in and checked;
//     config_topology.c     within step 4: the topology is chosen by its name
//     config_report.c    5. the notes are printed; also finds where a key was set
//
//     config_keys.c      the table of the keys that are read (config.h)
//     config_values.c    a key's value, from JSON to its member and back
//     config_known.c     the table of the keys that DeepSpeed knows and that are not read, with reasons
#ifndef STARRING_SHARED_CONFIG_CONFIG_INTERNAL_H
#define STARRING_SHARED_CONFIG_CONFIG_INTERNAL_H

#include <cjson/cJSON.h>

#include "shared/config/config.h"

// 2^53 - 1: JSON numbers are doubles, which cannot hold every integer above it
#define EXACT_MAX 9007199254740991.0
#define BELOW_1   0.9999999  // the largest share that is less than the whole
#define FLOAT_MAX 3.4028234663852886e38

// The configuration while it is read, with values that the resolved one does not need.
struct draft {
    struct config c;
    int stage;                            // zero_optimization.stage
    bool fp16, bf16;                      // their "enabled"
    int64_t last_iteration;               // scheduler.params.last_batch_iteration
    bool torch_adam;                      // optimizer.params.torch_adam
    bool cpu_offload, cpu_offload_param;  // zero_optimization's deprecated forms of "device": "cpu"
    int recompute;     // activation_checkpointing.recompute: 0: auto, else 1 + enum recompute_kind
    int wire_dtype;    // communication_data_type: 0: the run's, else 1 + enum dtype
    int param_dtype;   // data_types.param_dtype: in the same form
    int unknown_keys;  // of a file: 0: keys that look misspelt are refused, 1: all are ignored
};

enum key_state { KEY_ABSENT, KEY_GIVEN, KEY_AUTO };

#define KEYS_MAX 192
// Parses a flag's value to an item: JSON if it parses, else a string. The value of a text key is taken literally. f may
// be NULL.
cJSON *key_parse(const struct config_key *f, const char *value);
// Returns whether the path is, or is in, a section that DeepSpeed reads into a pydantic model. Such a model drops "auto",
// and converts texts and truth values to the expected number or switch. Other sections keep them as they are.
bool key_converts(const char *path);
// Stores v in its member of d. Returns 0, or -1 after fail("origin: path: expected .., got ..").
int key_store(const struct config_key *f, struct draft *d, const cJSON *v, const char *origin);
// Returns the value as a new JSON item, or NULL for an unset text.
cJSON *key_load(const struct config_key *f, const struct draft *d);
// Returns whether the value is the same as in a configuration without the key.
bool key_is_standard(const struct config_key *f, const struct draft *d);
// Returns whether the run uses the field. It does not use a parameter of another schedule or optimizer.
bool key_applies(const struct config_key *f, const struct config *c);
void key_reset(const struct config_key *f, struct draft *d);  // sets its default
void key_clear(const struct config_key *f, struct draft *d);  // sets zero; not for a text
void draft_init(struct draft *d);                             // sets every field's default
// Sets the row and its parameters' defaults.
void draft_set_optimizer(struct draft *d, const struct optimizer *row);
void draft_fini(struct draft *d);  // frees the texts

// Why a key in the configuration has no effect, in the order of the report.
enum note_topic {
    NOTE_IGNORED,         // requests something unsupported; why: the consequence
    NOTE_STAGE_3,         // has an effect only at stage 3, and the run's stage is another
    NOTE_STAGE_3_TUNING,  // the same, and changes no result there
    NOTE_TUNING,          // tunes DeepSpeed's communication and memory; there is nothing to tune here
    NOTE_ALWAYS,          // requests what is always done
    NOTE_WIRE,            // requests fp32 on the wire, which gives the same sums; why: the type that is sent
    NOTE_NOTHING,         // has nothing to act on
    NOTE_OFF,             // unsupported, and off
    NOTE_AUTO,            // what "auto" became; why: the source of the default, or that it is the run's own
    NOTE_TOPICS
};

enum known_use {
    KNOWN_NO_EFFECT,  // a hint to DeepSpeed's implementation; this one needs none
    KNOWN_IGNORED,    // requests something unsupported that does not change the arithmetic: a warning
    KNOWN_REFUSED,    // requests other arithmetic: an error unless its value means off
    KNOWN_ELSEWHERE,  // from another program's file, not a DeepSpeed configuration: an error that explains it
    KNOWN_GONE        // this program's own, of earlier versions: an error unless its value means off
};
struct known {
    const char *path;
    enum known_use use;
    const char *harmless;  // JSON texts of more values that mean off, separated by blanks, or NULL
    // IGNORED: the consequence. REFUSED, GONE: what to do instead, or NULL. ELSEWHERE: whose file it is.
    const char *why;
    enum note_topic topic;  // KNOWN_NO_EFFECT: the reason
    // For a section: it has an effect only if one of the members `master` and one of the members `any` are on (both
    // are lists, separated by blanks). Absent members are off, as in DeepSpeed. If neither list is given, each
    // member counts.
    const char *master, *any;
};
size_t known_count(void);
const struct known *known_at(size_t i);
const struct known *known_find(const char *path);
// Whether the value requests nothing: false, null, 0, "", "none", "auto", harmless, a section whose switch is off,
// or a section with only such members. converts: texts such as "false" are false, too (key_converts).
bool known_is_off(const struct known *k, const cJSON *v, bool converts);

struct reading {
    struct draft *d;
    const char *file;  // for messages; "defaults" without a file
    const struct config_override *overrides;
    size_t override_count;
    enum key_state state[KEYS_MAX];
    size_t unknown;          // unknown keys of the file
    bool lenient, misspelt;  // unknown_keys is "ignore"; a misspelt key has been refused
    struct note {            // printed together at the end; struct reading owns the texts
        enum note_topic topic;
        const char *path, *value;  // value: of NOTE_AUTO
        const char *why;           // static
        const char *origin;        // what set the key: the file's name without its directory, or a flag
    } * notes;
    size_t note_count;
};

// ---- config_report.c
// Returns what set the key: the file, a flag, or "--set a.b". It is valid until text is reused.
const char *config_origin(const struct reading *r, const char *path, char text[128]);
enum key_state config_state(const struct reading *r, const char *path);
// config_refuse returns -1 after fail("ORIGIN: KEY TEXT"), where ORIGIN is what set the key. config_warn warns with
// the same text.
__attribute__((format(printf, 3, 4))) int config_refuse(const struct reading *r, const char *key,
                                                        const char *text, ...);
__attribute__((format(printf, 3, 4))) void config_warn(const struct reading *r, const char *key,
                                                       const char *text, ...);
// Writes the value as JSON. A long one is cut between two values and ends with "..". Returns text.
#define CONFIG_SHOWN 80
const char *config_shown(const cJSON *v, char text[CONFIG_SHOWN]);
// Keeps a copy of the note for the report, with the key's origin.
void config_note(struct reading *r, const struct note *n);
// Notes what "auto" became in this run. why: for a value that needs a reason, else NULL.
void config_say_auto(struct reading *r, const char *path, const char *value, const char *why);
void config_notes_free(struct reading *r);

// ---- config_read.c
// Returns the path that an override sets (malloc'd). The paths "model" and "data" mean their name and path.
char *config_override_path(const struct config_override *o);
// Puts the overrides into the tree and expands its short forms. Returns 0, or -1 after fail().
int config_merge(const struct reading *r, cJSON *root);
// Returns the object that holds the last name of a dotted path; make: after adding missing objects. *name receives the
// last name; path is cut at its dots. Returns NULL if the value at *name is no object, or is missing.
cJSON *config_parent(cJSON *root, char *path, bool make, const char **name);

// ---- the next steps of config_load: each returns 0, or -1 after fail()
// Visits every member of root.
int config_walk(struct reading *r, const cJSON *root);
// Refuses optimizers and schedulers that only other libraries have, before their parameters are read. Sets the
// defaults of the optimizer's parameters. Removes a scheduler that leaves the rate constant.
int config_read_types(const struct reading *r, cJSON *root);
// Resolves what depends on several keys, and checks the whole.
int config_resolve(struct reading *r);
int config_resolve_topology(struct reading *r);  // the part that depends on the topology
// Parses "MIN:MAX". Returns 0, or -1 if the text has another form.
int config_elastic(const char *text, int *min, int *max);
// Prints the notes, a line for each origin. Keeps them all in the configuration's remarks, a line per topic and
// reason.
void config_report(struct reading *r);

#endif
