// The interface between the files of the configuration reader; nobody else includes this. In the order of config_load:
//
//     config_read.c      1. the overrides are put into the file's tree of members
//     config_resolve.c   2. the optimizer is chosen, for its parameters' defaults
//     config_read.c      3. every member of the tree is read, noted or refused
//     config_resolve.c   4. what depends on several keys is filled in and checked;
//     config_topology.c     a part of it: the topology is chosen by its name
//     config_report.c    5. the notes are told; where a key was set
//
//     config_keys.c      the table of the keys that are read (config_key.h)
//     config_values.c    a key's value, from JSON into its place and back
//     config_known.c     the table of the keys that DeepSpeed knows and that are not read, and why
#ifndef STARRING_SHARED_CONFIG_CONFIG_INTERNAL_H
#define STARRING_SHARED_CONFIG_CONFIG_INTERNAL_H

#include <cjson/cJSON.h>

#include "shared/config/config.h"

#define EXACT_MAX \
    9007199254740991.0       // 2^53 - 1: JSON numbers are doubles, and from 2^53 on two integers are one
#define BELOW_1   0.9999999  // the greatest share that is less than the whole
#define FLOAT_MAX 3.4028234663852886e38

// The configuration while it is read, with values that the resolved one does not need.
struct draft {
    struct config c;
    int stage;                            // zero_optimization.stage
    bool fp16, bf16;                      // their "enabled"
    int64_t last_iteration;               // scheduler.params.last_batch_iteration
    bool torch_adam;                      // optimizer.params.torch_adam
    bool cpu_offload, cpu_offload_param;  // zero_optimization's deprecated words for "device": "cpu"
    int recompute;     // activation_checkpointing.recompute: 0: auto, else 1 + enum recompute_kind
    int wire_dtype;    // communication_data_type: 0 the run's, else 1 + enum dtype
    int param_dtype;   // data_types.param_dtype: likewise
    int unknown_keys;  // of a file: 0: what looks misspelt is refused, 1: all are ignored
};

enum key_state { KEY_ABSENT, KEY_GIVEN, KEY_AUTO };

#define KEYS_MAX 192
// A flag's value as an item: JSON if it parses, else a string; a text field takes it as it is. f may be NULL.
cJSON *key_parse(const struct config_key *f, const char *value);
// Whether the path is, or is of, a section that DeepSpeed reads into a model, which drops "auto" and converts texts and truth values
// where a number or a switch is expected. In others they stay what they are.
bool key_converts(const char *path);
// Stores v in its place in d. -1 after fail("origin: path: expected .., got ..").
int key_store(const struct config_key *f, struct draft *d, const cJSON *v, const char *origin);
// The value as a new JSON item; NULL: an unset text.
cJSON *key_load(const struct config_key *f, const struct draft *d);
// Whether the value is the one of a configuration without the key.
bool key_is_standard(const struct config_key *f, const struct draft *d);
// Whether the field is used: false for a parameter of another schedule or optimizer alone.
bool key_serves(const struct config_key *f, const struct config *c);
void key_reset(const struct config_key *f, struct draft *d);             // to its default
void key_clear(const struct config_key *f, struct draft *d);             // zero; not of a text
void draft_init(struct draft *d);                                        // every field's default
void draft_set_optimizer(struct draft *d, const struct optimizer *row);  // with its parameters' defaults
void draft_fini(struct draft *d);                                        // frees the texts

// Why a key in the configuration has no effect, in the order of the report.
enum note_topic {
    NOTE_IGNORED,         // asks for something that is not supported; why: what follows from that
    NOTE_STAGE_3,         // acts only at stage 3, and the stage is another
    NOTE_STAGE_3_TUNING,  // likewise, and changes no result there
    NOTE_TUNING,   // tunes DeepSpeed's communication and memory; this program has nothing to tune there
    NOTE_ALWAYS,   // asks for what is always done
    NOTE_WIRE,     // asks for fp32 on the wire, which gives the sums that are taken anyway; why: what travels
    NOTE_NOTHING,  // has nothing to act on
    NOTE_OFF,      // not supported, and off
    NOTE_AUTO,     // what "auto" became; why: whose default, or that it is the run's own
    NOTE_TOPICS
};

enum known_use {
    KNOWN_NO_EFFECT,  // a hint to DeepSpeed's implementation; this one needs none
    KNOWN_IGNORED,    // asks for something not supported that leaves the arithmetic alone: warned about
    KNOWN_REFUSED,    // asks for other arithmetic: an error unless its value means off
    KNOWN_ELSEWHERE,  // of another program's file, which is no DeepSpeed configuration: an error that says so
    KNOWN_GONE        // this program's own, of earlier versions: an error unless its value means off
};
struct known {
    const char *path;
    enum known_use use;
    const char *harmless;  // JSON texts of more values that mean off, with blanks between them, or NULL
    const char *
        why;  // IGNORED: what follows; REFUSED, GONE: what to do instead, or NULL; ELSEWHERE: whose file it is
    enum note_topic topic;  // KNOWN_NO_EFFECT: why it has none
    // For a section: it does something only where the member `master` is on, and one of the members `any` (with blanks
    // between them). Absent members are off, as they are in DeepSpeed. Without either name each member counts.
    const char *master, *any;
};
size_t known_count(void);
const struct known *known_at(size_t i);
const struct known *known_find(const char *path);
// Whether the value asks for nothing: false, null, 0, "", "none", "auto", harmless, or a section whose switch is off, or that
// holds only such members. converts: "false" and its like are false, too (key_converts).
bool known_is_off(const struct known *k, const cJSON *v, bool converts);

struct reading {
    struct draft *d;
    const char *file;  // for messages; "defaults" without a file
    const struct config_override *overrides;
    size_t override_count;
    enum key_state state[KEYS_MAX];
    size_t unknown;          // keys of the file that nobody knows
    bool lenient, misspelt;  // unknown_keys; one of them has been refused
    struct note {            // printed together at the end; the reading owns the texts
        enum note_topic topic;
        const char *path, *value;  // value: of NOTE_AUTO
        const char *why;           // static
        const char *origin;  // the place that set the key: the file's name without its folder, or a flag
    } * notes;
    size_t note_count;
};

// ---- config_report.c
// The place that set the key: the file, a flag, or "--set a.b"; valid until text is reused.
const char *config_origin(const struct reading *r, const char *path, char text[128]);
enum key_state config_state(const struct reading *r, const char *path);
// -1 after fail("ORIGIN: KEY TEXT"), where ORIGIN set the key; a warning likewise.
__attribute__((format(printf, 3, 4))) int config_refuse(const struct reading *r, const char *key,
                                                        const char *text, ...);
__attribute__((format(printf, 3, 4))) void config_warn(const struct reading *r, const char *key,
                                                       const char *text, ...);
// The value as JSON, and where it is long its beginning, cut between two values, and "..". Returns text.
#define CONFIG_SHOWN 80
const char *config_shown(const cJSON *v, char text[CONFIG_SHOWN]);
// Keeps a copy for the report, with the key's origin.
void config_note(struct reading *r, const struct note *n);
// Notes what "auto" became in this run. why: for a value that needs a reason, else NULL.
void config_say_auto(struct reading *r, const char *path, const char *value, const char *why);
void config_notes_free(struct reading *r);

// ---- config_read.c
// The path an override sets: "model" and "data" alone mean their name and path. malloc'd.
char *config_override_path(const struct config_override *o);
// Puts the overrides into the tree and expands its short forms. 0, or -1 after fail().
int config_merge(const struct reading *r, cJSON *root);
// The object that holds the last name of a dotted path; missing objects are added. *name is that last name; path
// is cut at its dots. NULL: the value at *name is no object.
cJSON *config_parent(cJSON *root, char *path, const char **name);

// ---- the steps of config_load that follow, each 0, or -1 after fail()
// Visits every member of root.
int config_walk(struct reading *r, const cJSON *root);
// Refuses optimizers and schedulers that only exist elsewhere, before their parameters are looked at, and
// sets the defaults of the optimizer's. A scheduler that leaves the rate as it is goes.
int config_read_types(const struct reading *r, cJSON *root);
// Fills what depends on several keys and checks the whole.
int config_resolve(struct reading *r);
int config_resolve_topology(struct reading *r);  // its part that the topology decides
// "MIN:MAX". 0, or -1 where it is none.
int config_elastic(const char *text, int *min, int *max);
// Says the notes in a line for each place that set keys, and keeps them all in the configuration's remarks, a line per topic
// and reason.
void config_report(struct reading *r);

#endif
